"""Counts what one update of each algorithm launches, eager and compiled; no GPU is needed.

    python tests/operations.py            writes results/bench/operations.csv anew (minutes)
    python tests/operations.py iql sac    only these algorithms' rows

An eager update launches its operations that are no views. Compiled, the operations of its gradients are
replaced by the kernels that torch's compiler makes for a CPU and its calls of library routines: close to
a GPU's, and comparable from one version of the code to the next.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import tiny
import torch
from graphs import CpuGraph

from corerl.nn import compile

TABLE = Path(__file__).parents[1] / "results" / "bench" / "operations.csv"
COLUMNS = ("algorithm", "update", "eager", "compiled")
KERNEL = re.compile(
    r"^\s+(?:cpp_fused\w*\(|extern_kernels\.|torch\.ops\.|buf\d+ = torch\.ops\.)", re.M
)
SIZES = {"utd": 1, "repeats": 1, "vae_steps": 12, "encoder_steps": 12}
"""One round of updates in a call, and enough of a first phase to record it."""


class Launched(NamedTuple):
    """By one update: operations in all, and the gradients it takes, each with those in it."""

    operations: int
    gradients: list[tuple[tuple, int]]


class Watched(CpuGraph):
    """A recording that knows the name of its update, and is played no further."""

    name = ""
    launched: Launched

    def record(self, call):
        _Gradient.taken.clear()
        outputs = super().record(call)
        update = call.__self__._update
        self.name = f"{type(update.__self__).__name__}.{update.__name__}"
        self.launched = Launched(len(self.recorder.calls), list(_Gradient.taken))
        return outputs


class _Gradient:
    """A gradient function that tells when it is called, with which shapes, and what it launches."""

    taken: list[tuple[tuple, int]] = []  # noqa: RUF012
    count = 0

    def __init__(self, loss, parameters, mode):
        self.number = _Gradient.count
        _Gradient.count += 1
        self._eager = REAL(loss, parameters, "off")

    def signature(self, inputs) -> tuple:
        return self.number, *compile._signature(inputs)

    def __call__(self, *inputs):
        recorder = torch.utils._python_dispatch._get_current_dispatch_mode()
        before = len(recorder.calls) if recorder else 0
        result = self._eager(*inputs)
        if recorder:
            _Gradient.taken.append((self.signature(inputs), len(recorder.calls) - before))
        return result


REAL = compile.gradients


def watched(name: str) -> list[Watched]:
    """The captured updates of one run, in the order in which they were first called; not its acting."""
    Watched.made.clear()
    _Gradient.count = 0
    with (
        patch.object(compile._Captured, "Graph", Watched),
        patch.object(compile, "captured", lambda update, _: compile._Captured(update, "graph")),
        patch.object(compile, "gradients", _Gradient),
    ):
        tiny.Short(tiny.settings(name, **_single(name)))
    graphs = [graph for graph in Watched.made if graph.replays]
    return [graph for graph in graphs if not graph.name.endswith(".explore")]


def _single(name: str) -> dict[str, int]:
    own = vars(tiny.settings(name).algo)
    return {key: value for key, value in SIZES.items() if key in own}


class _Stop(Exception):
    """The code is made; it need not run."""


class _Compiled(_Gradient):
    """A gradient function that makes its compiled code as well, once for every shape."""

    kernels: dict[tuple, int] = {}  # noqa: RUF012
    codes: list[str] = []  # noqa: RUF012

    def __init__(self, loss, parameters, mode):
        super().__init__(loss, parameters, mode)
        self._compiled = REAL(loss, parameters, "compile")

    def __call__(self, *inputs):
        signature = self.signature(inputs)
        if signature not in self.kernels:
            self.codes.clear()
            with suppress(_Stop):
                self._compiled(*inputs)
            self.kernels[signature] = sum(len(KERNEL.findall(code)) for code in self.codes)
        return super().__call__(*inputs)


def kernels(name: str) -> dict[tuple, int]:
    """Kernels and library calls of every gradient function of a run, by number and shapes."""
    _Compiled.kernels, _Gradient.count = {}, 0
    with _made_not_run(), patch.object(compile, "gradients", _Compiled):
        tiny.Short(tiny.settings(name, **_single(name)))
    return _Compiled.kernels


@contextmanager
def _made_not_run() -> Iterator[None]:
    """Compiled code is generated and kept as text; no C++ compiler is called."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    def stop(*_):
        raise _Stop

    keep = staticmethod(_Compiled.codes.append)
    with (
        patch.object(GraphLowering, "save_output_code", keep),
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_: stop),
        inductor.patch(fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
    ):
        torch._dynamo.reset()
        yield


def rows(name: str, compiled: bool = True) -> list[tuple[str, int, int | None]]:
    """`(update, eager launches, compiled launches)` of each captured update of an algorithm."""
    of_gradient = kernels(name) if compiled else None
    return [(graph.name, *_counts(graph.launched, of_gradient)) for graph in watched(name)]


def _counts(launched: Launched, of_gradient: dict[tuple, int] | None) -> tuple[int, int | None]:
    eager = launched.operations
    if of_gradient is None:
        return eager, None
    inside = sum(count for _, count in launched.gradients)
    return eager, eager - inside + sum(
        of_gradient[signature] for signature, _ in launched.gradients
    )


def table() -> dict[tuple[str, str], tuple[int, int]]:
    """`(algorithm, update) -> (eager, compiled)` as it was last written."""
    with TABLE.open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return {
            (row["algorithm"], row["update"]): (int(row["eager"]), int(row["compiled"]))
            for row in lines
        }


def main(names: list[str]) -> None:
    """Measures the algorithms of these names, or all, and writes their rows anew."""
    known = {} if not TABLE.exists() or not names else table()
    for name in names or tiny.LEARNERS:
        known = {key: counts for key, counts in known.items() if key[0] != name}
        of_one = rows(name)
        repeated = [row for row, n in Counter(row[0] for row in of_one).items() if n > 1]
        assert not repeated, f"{name} has several updates named {repeated}"
        for update, *counts in of_one:
            print(name, update, *counts, flush=True)
            known[name, update] = tuple(counts)
        write(known)


def write(known: dict[tuple[str, str], tuple[int, int]]) -> None:
    with TABLE.open("w", newline="") as file:
        file.write("# launches of one update; written by: python tests/operations.py\n")
        lines = [(*key, *counts) for key, counts in sorted(known.items())]
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1:])
