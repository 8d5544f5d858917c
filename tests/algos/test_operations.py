"""No algorithm's update launches more than results/bench/operations.csv says: a launch is a GPU's price.

Where more of them are worth it: `make operations` writes the table anew.
"""

import operations
import pytest
import tiny
import torch

from corerl.nn import compile, optim

ROOM = 1.05
QUICK = ("bc", "td3_bc")


def too_many(name: str, compiled: bool) -> list[str]:
    """The updates of an algorithm that launch over 5 % more than the table says."""
    table = operations.table()
    found = operations.rows(name, compiled)
    assert {update for update, *_ in found} == {update for algo, update in table if algo == name}
    return [
        f"{update}: {counts}, and the table says {table[name, update]}"
        for update, *counts in found
        for now, before in zip(counts, table[name, update], strict=True)
        if now is not None and now > ROOM * before
    ]


def test_the_table_is_of_the_algorithms_there_are():
    assert {name for name, _ in operations.table()} == set(tiny.LEARNERS)


@pytest.mark.parametrize("name", tiny.LEARNERS)
def test_eager_updates_launch_no_more(name):
    assert too_many(name, compiled=False) == []


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13's compiler"
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in tiny.LEARNERS]
)
def test_compiled_updates_launch_no_more(name):
    assert too_many(name, compiled=True) == []


def test_two_launches_more_are_noticed(monkeypatch):
    step = optim.Adam.step

    def longer(self, grads):
        step(self, [grads[0] + 0, grads[1] + 0, *grads[2:]])

    monkeypatch.setattr(optim.Adam, "step", longer)
    (reported,) = too_many("bc", compiled=False)
    assert "update: [33, None], and the table says (31, " in reported


def test_what_is_no_longer_fused_is_noticed(monkeypatch):
    """A loss that a graph break would cut in two is as many kernels more."""
    launched = operations.Launched(31, [(("a",), 20)])
    assert operations._counts(launched, {("a",): 9}) == (31, 20)
    assert operations._counts(launched, None) == (31, None)
    assert compile.gradients is operations.REAL  # nothing stays patched
