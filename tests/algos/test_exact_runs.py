"""Exact algorithms on finite MDPs through the whole loop: resuming, seeds, tasks that do not fit."""

import json

import pytest
from small import goes_on, run
from wording import refused

from corerl.algos import (
    cvar_tabular,
    dr_rpo,
    ela,
    icvar,
    orpo,
    p2r,
    pref_mixture,
    pref_pessimistic,
    r2pvi,
    reload,
    two_atom,
)
from corerl.config import Config, Eval

SETTINGS = {
    "dr_rpo": (dr_rpo.Config(), "risk/low-rank"),
    "ela": (ela.Config(), "risk/low-rank"),
    "ella": (ela.Config(planner="least_squares"), "risk/low-rank"),
    "linear": (icvar.Config(), "risk/linear-mixture"),
    "general": (icvar.Config(kind="general"), "risk/linear-mixture"),
    "preferences": (icvar.Config(kind="preferences"), "risk/linear-mixture"),
    "p2r": (p2r.Config(), "risk/low-rank"),
    "pref_mixture": (pref_mixture.Config(comparisons=10, starts=1, rounds=5), "risk/two-groups"),
    "pref_pessimistic": (pref_pessimistic.Config(), "risk/three-arms"),
    "r2pvi": (r2pvi.Config(kind="kl", scale=0.5), "risk/low-rank"),
    "reload": (reload.Config(), "risk/overheat"),
}

SOLVED = {
    "cvar_tabular": (cvar_tabular.Config(), "risk/overheat"),
    "orpo": (orpo.Config(), "risk/one-door"),
    "two_atom": (two_atom.Config(), "risk/overheat"),
}


def job(root, name: str, **changes) -> Config:
    algo, task = (SETTINGS | SOLVED)[name]
    often = {"log_every": 3, "save_every": 5}  # so that means are half taken where a run stops
    cell = {"task": task, "steps": 12, "eval": Eval(every=4, episodes=3), "root": str(root)}
    return Config(algo=algo, **(often | cell | changes))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_and_resumed_ends_as_an_unbroken_one(tmp_path, name):
    goes_on(job(tmp_path, name), tmp_path, (7,), (0, 4))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_among_others_is_the_seed_alone(tmp_path, name):
    both = run(job(tmp_path / "both", name), (0, 4))
    alone = run(job(tmp_path / "alone", name), (4,))
    for file in ("metrics.jsonl", "returns.jsonl"):
        lines = [json.loads(line) for line in (both / file).read_text().splitlines()]
        own = [json.loads(line) for line in (alone / file).read_text().splitlines()]
        assert [line for line in lines if line["seed"] == 4] == own and own


@pytest.mark.parametrize(
    ("name", "task", "words"),
    [
        ("dr_rpo", "risk/C", "risk/C steps"),
        ("ela", "risk/A", "risk/A"),
        ("linear", "risk/A", "risk/A"),
        ("p2r", "risk/B", "risk/B 0 1"),
        ("p2r", "risk/C", "risk/C horizon"),
        ("pref_mixture", "risk/C", "risk/C"),
        ("pref_mixture", "risk/machine", "risk/machine groups"),
        ("pref_pessimistic", "risk/C", "risk/C steps"),
        ("reload", "risk/machine", "risk/machine costs budgets"),
    ],
)
def test_a_task_that_does_not_fit_raises_an_error(tmp_path, name, task, words):
    with refused(words):
        run(job(tmp_path, name, task=task))


@pytest.mark.parametrize("name", SETTINGS | SOLVED)
def test_stacked_observations_raise_an_error(tmp_path, name):
    """A player would read the state from the oldest."""
    with refused("history=2 history=1"):
        run(job(tmp_path, name, history=2))
