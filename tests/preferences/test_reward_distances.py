"""Distances of rewards learned from comparisons: known ones, every algorithm's, and in the report."""

import csv
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import random_dataset, train
from wording import refused, says

from corerl import cli
from corerl.algos import bc, dtr, ipl, pref_iql, pref_transformer
from corerl.config import Config, Eval
from corerl.data import tasks
from corerl.nn.networks import Normalizer
from corerl.policies.load import load
from corerl.preferences import reward_distances
from corerl.preferences.reward_distances import distances
from corerl.preferences.reward_models import Markov
from corerl.preferences.sources import Preferences

torch.set_num_threads(1)
TEACHER = Preferences(pairs=40, length=8)
SMALL = {"preferences": TEACHER, "hidden_width": 8}
MARKOV = Markov(steps=10, hidden_width=8, batch_size=4)
PT = pref_transformer.Reward(steps=10, width=8, heads=2, batch_size=4, window=5, lr=0.01)
WINDOWS = {"width": 8, "layers": 1, "heads": 2, "context": 3, "batch_size": 4}
LEARNERS = {
    "pref_iql": pref_iql.Config(**SMALL, crop=4, batch_size=8, reward=MARKOV),
    "ipl": ipl.Config(**SMALL, pairs=3, crop=4, batch_size=8),
    "ipl_awac": ipl.Config(**SMALL, pairs=3, crop=4, batch_size=8, form="awac", critics=1),
    "dtr": dtr.Config(**WINDOWS, preferences=TEACHER, reward=MARKOV, repeats=2),
    "pt": pref_transformer.Config(**SMALL, reward=PT, batch_size=4),
}


@pytest.fixture(scope="module", autouse=True)
def few():
    patch = pytest.MonkeyPatch()
    patch.setattr(
        tasks.Task, "load", cache(lambda t, l=tasks.Task.load: l(t).select_episodes(range(10)))
    )
    yield
    patch.undo()


def trained(root, name, algo=None):
    return train(
        Config(
            algo=algo or LEARNERS[name],
            task="corerl/pendulum",
            root=str(root),
            seeds=2,
            steps=20,
            eval=Eval(20, 1),
            compile="off",
            device="cpu",
            processes=1,
        )
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_of_rewards_has_a_distance(tmp_path, name):
    found = distances(load(trained(tmp_path, name)))
    assert [d.seed for d in found] == [0, 1]
    for d in found:
        assert 0 < d.starc < 1 and abs(d.rank) < 1 and d.rows == 2000


def test_the_true_reward_is_near_and_its_negative_far(tmp_path, monkeypatch):
    """The networks' rewards replaced by the data's own, shaped, scaled, and negated."""
    agent = load(trained(tmp_path, "pref_iql"))
    t = agent.task.load().transitions()
    height = lambda x: 100 * x[:, 0]  # noqa: E731
    shaped = 7 * (t.rewards + 0.99 * height(t.next_observations) - height(t.observations))
    for seeds, parts in agent.states():
        sign = 1 if 0 in seeds else -1
        numbers = torch.from_numpy(sign * shaped).float()[None, None]
        monkeypatch.setattr(parts["agent"].reward, "rewards", lambda s, a, r=numbers: r)
    near, far = distances(agent)
    assert near.starc < 0.01 and far.starc > 0.99
    assert near.linear < 0.99  # of the numbers themselves, shaping is told


def test_a_pessimistic_ensemble_is_measured_by_what_the_policy_gets(tmp_path):
    algo = replace(LEARNERS["dtr"], reward=replace(MARKOV, members=3, ensemble="worst"))
    agent = load(trained(tmp_path, "dtr", algo))
    data = agent.task.load()
    (_, parts), *_ = agent.states()
    found = reward_distances._learned(agent, parts, data, data.transitions())
    members = parts["reward"].rewards(data.observations, data.actions)
    np.testing.assert_allclose(
        found, parts["reward"].combined(members), atol=2e-3
    )  # clipped actions
    assert np.abs(found - members.mean(1).numpy()).max() > 0.1


def test_implied_rewards_are_of_what_the_learner_saw():
    asked, data = [], random_dataset()
    learner = SimpleNamespace(
        normalizer=Normalizer.of([1.0] * 3, [2.0] * 3),
        implied_rewards=lambda *given: asked.append(given) or torch.zeros(1, 1),
    )
    algo = SimpleNamespace(data=None, clip_actions=0.3)
    agent = SimpleNamespace(cfg=SimpleNamespace(algo=algo))
    t = data.transitions()
    reward_distances._learned(agent, {"agent": learner}, data, t)
    ((states, actions, after, _),) = asked
    np.testing.assert_allclose(states, (t.observations - 1) / 2)
    np.testing.assert_allclose(after, (t.next_observations - 1) / 2)
    np.testing.assert_array_equal(actions, t.actions.clip(-0.3, 0.3))


def test_the_command_and_the_report(tmp_path, capsys):
    cell = trained(tmp_path / "runs", "pref_iql")
    assert cli.main(["evaluate", str(cell), "--rewards"]) == 0
    says(capsys.readouterr().out, "STARC")
    assert cli.main(["evaluate", str(cell), "--rewards", "--seed", "1"]) == 0
    other = ["--rewards", "--seed", "0", "--data", "corerl/pendulum-logged"]
    assert cli.main(["evaluate", str(cell), *other]) == 0
    with open(cell / "reward_distances.csv", encoding="utf-8") as file:
        kept = [(row["data"], row["seed"]) for row in csv.DictReader(file)]
    own = "corerl/pendulum"
    assert kept == [(own, "0"), (own, "1"), ("corerl/pendulum-logged", "0")]
    out = str(tmp_path / "report")
    arguments = [str(tmp_path / "runs"), "--out", out, "--replicates", "100"]
    assert cli.main(["report", *arguments]) == 0
    text = "".join(f.read_text() for f in (tmp_path / "report").rglob("rewards.csv"))
    says(text, "STARC")
    assert "pendulum: P-IQL, over corerl/pendulum-logged" in text


@pytest.mark.parametrize("held", [b"seed,data\n,x,0\n", b"seed,data\n0\n", b"\xff"])
def test_distances_that_are_damaged_are_told_and_kept(tmp_path, held):
    file = tmp_path / reward_distances.FILE
    file.write_bytes(held)
    found = [reward_distances.Distance(0, "corerl/pendulum", 0.1, 0.9, 0.8, 5)]
    with refused(f"{file}"):
        reward_distances.write(SimpleNamespace(path=tmp_path), found)
    assert file.read_bytes() == held


def test_a_learner_of_no_reward_and_equal_rewards_are_refused(tmp_path):
    agent = load(trained(tmp_path, "bc", bc.Config(hidden_width=8, batch_size=8)))
    with refused("BC reward"):
        distances(agent)
    data = agent.task.load()
    with refused("corerl/pendulum 1"):
        distances(agent, data.with_rewards(np.ones(len(data))))
