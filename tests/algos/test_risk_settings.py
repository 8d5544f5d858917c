"""Updates of O-RAAC's and CODAC's tables, against their authors' configurations."""

from functools import cache

import pytest

from corerl.config import Config
from corerl.launch.composition import cells

UPDATES = {  # O-RAAC: max_episodes x eval_freq of json_params; CODAC: epochs x updates of train_offline.py
    "oraac_stochastic": {
        "risk/halfcheetah-medium-stochastic-v0": 2_000 * 100,
        "risk/halfcheetah-expert-stochastic-v0": 2_000 * 100,
        "risk/hopper-medium-stochastic-v0": 4_000 * 500,
        "risk/hopper-expert-stochastic-v0": 4_000 * 500,
        "risk/walker2d-medium-stochastic-v0": 10_000 * 500,
        "risk/walker2d-expert-stochastic-v0": 4_000 * 500,
    },
    "codac_stochastic": {
        "risk/halfcheetah-medium-stochastic-v0": 1_000 * 1_000,
        "risk/hopper-medium-stochastic-v0": 1_000 * 1_000,
        "risk/walker2d-medium-stochastic-v0": 1_000 * 1_000,
        "risk/pointmass": 100 * 100,
    },
}


@cache
def composed(name: str) -> list[Config]:
    return cells([f"sweep={name}"])


@pytest.mark.parametrize("name", UPDATES)
def test_a_sweep_has_its_authors_updates(name):
    jobs = composed(name)
    assert len(jobs) == 2 * len(UPDATES[name])
    assert {(job.task, job.steps) for job in jobs} == set(UPDATES[name].items())
    assert all(job.eval.episodes == 200 and job.steps % job.eval.every == 0 for job in jobs)


def test_hoppers_own_settings_stand_beside_its_updates():
    hopper = {job.algo.discount for job in composed("oraac_stochastic") if "hopper" in job.task}
    others = {job.algo.discount for job in composed("oraac_stochastic") if "walker" in job.task}
    assert hopper == {0.9} and others == {0.99}
    weights = {job.task: job.algo.weight for job in composed("codac_stochastic")}
    assert weights["risk/pointmass"] == 0.1
