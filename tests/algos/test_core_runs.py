"""CQL, DT, EDAC, CODAC and static CVaR through the whole loop: stopped twice, scores and targets."""

import json

import pytest
from small import goes_on, run

from corerl.algos import codac, cql, cql_official, cvar_offline, dt, edac
from corerl.config import Config, Eval

pytestmark = pytest.mark.usefixtures("short_episodes")

SETTINGS = {
    "cql_official": cql_official.Config(hidden_width=8, batch_size=8, samples=2, bc_steps=9),
    "cql antmaze": cql.Config(
        hidden_width=8, batch_size=8, samples=2, lagrange="young_geng", max_backup="min_first"
    ),
    "dt": dt.Config(width=8, layers=1, batch_size=4, context=3, targets=[-100.0]),
    "edac": edac.Config(hidden_width=8, batch_size=8, critics=3),
    "codac": codac.Config(hidden_width=8, batch_size=8, samples=2, fractions=4, tune_alpha=True),
    "static cvar": cvar_offline.Config(hidden_width=8, batch_size=8, policy_delay=1, cosine=True),
}


def job(algo, steps: int = 70, **changes) -> Config:
    often = {"save_every": 20, "log_every": 10, "eval": Eval(every=35, episodes=1)}
    where = {"task": "corerl/pendulum", "compile": "off", "device": "cpu"}
    return Config(algo=algo, steps=steps, **(often | where | changes))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_and_resumed_ends_as_an_unbroken_one(tmp_path, name):
    """Stopped inside a block of draws, and where CQL's blocks of 32 steps end."""
    goes_on(job(SETTINGS[name]), tmp_path, (37, 64), (0, 4))


def test_scores_are_of_the_largest_target_and_the_others_are_logged(tmp_path):
    settings = dt.Config(
        width=8, layers=1, batch_size=4, context=3, targets=[-100.0, -300.0, -50.0]
    )
    folder = run(job(settings, steps=10, root=str(tmp_path)), (0, 4))
    rows = [line.split(",") for line in (folder / "scores.csv").read_text().splitlines()[1:]]
    assert len(rows) == 2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    others = [line for line in lines if "return target -100" in line]
    assert [(line["seed"], line["step"]) for line in others] == [(0, 10), (4, 10)]
    assert all("return target -300" in line and "return target -50" not in line for line in others)
    # The embedded task has no reference scores, or these would be normalised returns.
    assert all(("score target -100" in line) for line in others)
