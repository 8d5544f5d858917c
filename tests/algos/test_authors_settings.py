"""Settings of cells, composed as for a run, against what their authors published: a table, and sweeps.

`authors_settings.txt` names the sources. Every key of CORL's files is in test_reference_settings.py.
"""

import math
from ast import literal_eval
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path

import default_settings
import pytest
import torch
from agreement import generators
from small import cell
from wording import refused

from corerl.algos.cal_ql import CalQL
from corerl.algos.cql import CQL
from corerl.algos.wsrl import WSRL
from corerl.config import Config, seed_list
from corerl.launch.composition import cells
from corerl.nn.learner import Spec

KITCHEN = "d4rl/kitchen-partial-v0"


def test_every_default_has_been_reviewed():
    reviewed = default_settings.SNAPSHOT.read_text(encoding="utf-8")
    command = "run python tests/default_settings.py and read its diff"
    assert reviewed == default_settings.snapshot(), command


def rows() -> Iterator[tuple[str, str, str]]:
    """Yields table, task and settings."""
    text = Path(__file__).with_name("authors_settings.txt").read_text(encoding="utf-8")
    for line in text.replace("\n    ", " ").splitlines():
        if line and not line.startswith("#"):
            where, _, settings = line.partition(": ")
            tables, *tasks = where.split()
            for table in expanded(tables):
                yield from ((table, task, settings) for x in tasks for task in expanded(x))


def expanded(text: str) -> Iterator[str]:
    """Yields what braces stand for: {a,b}-c is a-c and b-c."""
    before, brace, rest = text.partition("{")
    inside, _, after = rest.partition("}")
    for word in inside.split(","):
        yield from expanded(before + word + after) if brace else [text]


def value_of(text: str) -> object:
    try:
        return literal_eval(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("table", "task", "settings"), list(rows()))
def test_a_cell_is_as_its_authors_ran_it(table, task, settings):
    cfg = cell(table, task)
    for setting in settings.split():
        key, _, text = setting.partition("=")
        owner = cfg if key.partition(".")[0] in ("steps", "eval", "label") else cfg.algo
        assert attrgetter(key)(owner) == value_of(text), key


@pytest.mark.parametrize(
    ("name", "task", "agent"),
    [
        *(("cql", KITCHEN, CQL), ("cal_ql", KITCHEN, CalQL), ("wsrl", KITCHEN, WSRL)),
        ("cql_finetune", "d4rl/door-cloned-v1", CQL),
        ("cql_finetune", "d4rl/antmaze-umaze-v2", CQL),
    ],
)
def test_first_weights_of_wsrl_on_kitchen_and_of_corls_fine_tuning(name, task, agent):
    made = agent(cell(name, task).algo, Spec(5, 2, generators(1)))
    for layer in (*made.policy.body.layers, *made.critic.layers):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, 2**0.5))
    if task == KITCHEN:
        assert made.critic.layers[-1].weight.shape == (1, 1, 512, 1)  # of both, or all ten
        low, high = made.policy.limits
        assert (math.exp(low), math.exp(high)) == pytest.approx((1e-5, 10.0))
        assert not hasattr(made.policy, "multiplier")
        assert made.alpha.item() == pytest.approx(1.0)


# Sweeps.


@cache
def composed(name: str) -> list[Config]:
    return cells([f"sweep={name}"])


FIVE, FROM_ZERO = [1, 2, 3, 4, 5], [0, 1, 2, 3, 4]
SWEEPS = {  # cells, seeds, {(updates, between evaluations, episodes)}
    "ipl_gym": (2 * 4, FIVE, {(1_000_000, 5_000, 10)}),
    "ipl_metaworld": (2 * 4 * 5, FIVE, {(200_000, 2_500, 20)}),
    "pref_transformer_gym": (4, FROM_ZERO, {(1_020_000, 5_000, 10), (1_010_000, 5_000, 10)}),
    "pref_transformer_antmaze": (4, FROM_ZERO, {(1_040_000, 100_000, 100)}),
    "dtr_gym": (2 * 9, FROM_ZERO, {(51_600, 5_000, 10), (1_001_600, 5_000, 10)}),
    "dtr_adroit": (2 * 6, FROM_ZERO, {(53_200, 5_000, 10), (1_003_200, 5_000, 10)}),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_is_its_table(name):
    count, seeds, protocols = SWEEPS[name]
    jobs = composed(name)
    assert len(jobs) == count
    assert all(seed_list(job.seeds) == seeds for job in jobs)
    assert {(job.steps, job.eval.every, job.eval.episodes) for job in jobs} == protocols
    source = "uni_rlhf" if name.startswith("dtr") else "pt"  # labels of different people stay apart
    sources = {job.algo.preferences.source for job in jobs}
    assert sources == {"teacher" if name == "ipl_metaworld" else source}


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


@pytest.mark.parametrize("name", UPDATES)
def test_a_sweep_has_its_authors_updates(name):
    jobs = composed(name)
    assert len(jobs) == 2 * len(UPDATES[name])
    assert {(job.task, job.steps) for job in jobs} == set(UPDATES[name].items())
    assert all(job.eval.episodes == 200 and job.steps % job.eval.every == 0 for job in jobs)


def test_atari_with_rewards_by_source_is_evaluated_at_each_iteration():
    """MD3QN's authors': 250,000 agent steps; rewards are clipped by source, whoever adds them up."""
    found = composed("md3qn_atari")
    assert len(found) == 4 * 6
    assert {(cfg.eval.every, cfg.algo.data.clip) for cfg in found} == {(250_000, "source")}


def test_mrq_leaves_out_terminal_rewards_on_the_environments_of_its_curves_alone():
    for cfg in composed("mrq_gym"):
        assert not cfg.algo.terminal_reward, cfg.task
        assert (cfg.steps, cfg.eval.every, cfg.eval.episodes) == (1_000_000, 5_000, 10)


def test_rlpd_stands_beside_wsrl():
    found = composed("wsrl_locomotion")
    assert {cell.label or cell.algo.label for cell in found} == {"WSRL", "RLPD"}
    assert {cell.table for cell in found} == {None, "rlpd_wsrl"}


REWARDS = ("return_range=True", "reward_scale=100.0", "reward_shift=-1.0")


@pytest.mark.parametrize(
    ("algo", "wrong"),
    [
        *((algo, setting) for algo in ("ipl", "cpl", "cpl_ranked") for setting in REWARDS),
        ("cpl", "end_reward=1.0"),
        ("cpl", "weighting=return"),
    ],
)
def test_what_would_change_nothing_is_refused(algo, wrong):
    with refused(f"algo.data.{wrong}"):
        cells([f"algo={algo}", "task=corerl/pendulum", f"algo.data.{wrong}"])
