"""ELA and ICVaR through the whole loop: stopping and resuming, seeds, tasks that do not fit."""

import json

import pytest
from small import goes_on, run
from wording import refused

from corerl.algos import ela, icvar
from corerl.config import Config, Eval

SETTINGS = {
    "ela": (ela.Config(), "risk/low-rank"),
    "ella": (ela.Config(planner="least_squares"), "risk/low-rank"),
    "linear": (icvar.Config(), "risk/linear-mixture"),
    "general": (icvar.Config(kind="general"), "risk/linear-mixture"),
    "preferences": (icvar.Config(kind="preferences"), "risk/linear-mixture"),
}


def job(root, name: str, **changes) -> Config:
    algo, task = SETTINGS[name]
    often = {"log_every": 3, "save_every": 5}  # so that means are half taken where a run stops
    cell = {"task": task, "steps": 12, "eval": Eval(every=12, episodes=3), "root": str(root)}
    return Config(algo=algo, **(often | cell | changes))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_and_resumed_ends_as_an_unbroken_one(tmp_path, name):
    goes_on(job(tmp_path, name), tmp_path, (7,), (0, 4))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_among_others_is_the_seed_alone(tmp_path, name):
    both = run(job(tmp_path / "both", name), (0, 4))
    alone = run(job(tmp_path / "alone", name), (4,))
    lines = [json.loads(line) for line in (both / "metrics.jsonl").read_text().splitlines()]
    own = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if line["seed"] == 4] == own


@pytest.mark.parametrize("name", ["ela", "linear"])
def test_tasks_that_do_not_fit_are_refused(tmp_path, name):
    with refused("risk/A"):
        run(job(tmp_path, name, task="risk/A"))
