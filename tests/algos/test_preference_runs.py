"""Algorithms that learn from comparisons through the whole loop: phases, refusals, and what they learn."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from agreement import generators
from small import run, state_of
from wording import refused

from corerl.algos import cpl, cpl_ranked, dtr, ipl, pref_iql, pref_transformer
from corerl.config import Config, Eval
from corerl.data import tasks
from corerl.nn.learner import Spec
from corerl.preferences.buffer import PairBuffer, transitions
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.reward_models import Markov, MarkovReward
from corerl.preferences.sources import Preferences

pytestmark = pytest.mark.usefixtures("short_episodes")

TEACHER = Preferences(pairs=40, length=8)
SMALL = {"preferences": TEACHER, "hidden_width": 8}
PAIRS = SMALL | {"pairs": 3}
MR = SMALL | {"crop": 4, "batch_size": 8}
MARKOV = Markov(steps=20, hidden_width=8, batch_size=4)
WINDOWS = {"width": 8, "layers": 1, "heads": 2, "context": 3, "ema_start": 3}
DTR = WINDOWS | {"preferences": TEACHER, "batch_size": 4}
PT = pref_transformer.Reward(steps=20, width=8, heads=2, batch_size=4, window=5, lr=0.01)
SCORE = cpl_ranked.Score(steps=20, width=8, heads=2, batch_size=4, lr=0.01)
RANKED = SMALL | {"length": 6, "batch_size": 4}
SETTINGS = {
    "pref_iql first": pref_iql.Config(**MR, reward=MARKOV, reward_first=True),
    "cpl": cpl.Config(**PAIRS, bc_steps=20, warmup_steps=10),
    "cpl ranked": cpl_ranked.Config(**RANKED, score=SCORE),
    "dtr": dtr.Config(**DTR, reward=MARKOV, repeats=2),
    "dtr blocks": dtr.Config(  # one reward for all seeds
        **DTR, reward=replace(MARKOV, seed=999), trajectories="blocks", select="argmax"
    ),
    "dtr segments": dtr.Config(**DTR, reward=MARKOV, trajectories="segments", repeats=2),
    "pt": pref_transformer.Config(**SMALL, reward=PT, batch_size=4, dropout=0.1),
}
TWO_PHASES = ("pref_iql first", "dtr", "dtr blocks", "dtr segments", "pt")


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    monkeypatch.setattr(tasks.Task, "load", cache(first_episodes(tasks.Task.load)))


def first_episodes(load):
    """Some 2,000 steps, so that relabelling them is quick."""

    def loaded(task):
        return load(task).select_episodes(range(10))

    return loaded


def job(root, name: str, **changes) -> Config:
    values = {"steps": 40, "save_every": 10, "log_every": 10, "task": "corerl/pendulum"}
    options = {"root": str(root), "compile": "off", "device": "cpu"}
    options |= {"eval": Eval(every=40, episodes=1), "algo": SETTINGS[name]}
    return Config(**(options | values | changes))


def test_segments_longer_than_the_labels_are_refused(tmp_path):
    longer = cpl_ranked.Config(**RANKED | {"length": 9}, score=SCORE)
    with refused("8 steps algo.length=9"):
        run(job(tmp_path, "cpl ranked", algo=longer))


@pytest.mark.parametrize("name", TWO_PHASES)
def test_rewards_are_learned_first_and_nobody_plays_before_there_is_a_policy(tmp_path, name):
    folder = run(job(tmp_path, name), (0, 4))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    of_reward = [line["step"] for line in lines if "reward_loss" in line and line["seed"] == 0]
    of_policy = [line["step"] for line in lines if "reward_loss" not in line and line["seed"] == 0]
    assert of_reward == [10, 20] and of_policy == [30, 40]
    if name != "pref_iql first":  # whose rewards are looked up as they are needed
        rewards = state_of(folder)["buffer"]["rewards"]
        assert rewards.std(1).min() > 0
        assert torch.allclose(rewards[0], rewards[1]) == (name == "dtr blocks")


def test_segments_are_ranked_by_what_the_model_learned_before(tmp_path):
    folder = run(job(tmp_path, "cpl ranked"), (0, 4))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = {line["step"]: set(line) for line in lines if line["seed"] == 0}
    assert all(("score_loss" in names) == (step <= 20) for step, names in first.items())
    assert all(("cpl_loss" in names) == (step > 20) for step, names in first.items())
    scores = state_of(folder)["buffer"]["scores"]
    assert scores.std(1).min() > 0 and not torch.allclose(scores[0], scores[1])


def unread(task):
    raise AssertionError("nothing was to be read")


@pytest.mark.parametrize("name", ["cpl", "cpl ranked", *TWO_PHASES])
def test_a_first_phase_must_leave_steps_to_the_second(tmp_path, name, monkeypatch):
    monkeypatch.setattr(tasks.Task, "load", unread)
    with refused("steps=20"):
        run(job(tmp_path, name, steps=20))


# Learning.

STATES = torch.rand(1, 500, 2, generator=generators(1)[0]) * 2 - 1
BANDIT = {"hidden_width": 32, "lr": 2e-3, "crop": None}


def bandit() -> PairBuffer:
    """States and actions uniform on [-1, 1]^2, segments of four; r = -|a - 0.6 s|^2 decides."""
    rng = np.random.default_rng(0)
    s, a = rng.uniform(-1, 1, (2, 2000, 2, 4, 2))
    returns = -((a - 0.6 * s)[..., :-1, :] ** 2).sum((2, 3))
    labels = 1.0 * (returns[:, 1] > returns[:, 0])
    return PairBuffer(Comparisons.by_value("test/bandit", "its reward", s, a, labels), [0], 32)


def slope(agent) -> float:
    """Of the policy's actions along the best ones; 1 is the best, 0 the data's mean."""
    best, actions = 0.6 * STATES, agent.act(STATES)
    return float((actions * best).sum() / best.square().sum())


def test_ipl_learns_what_is_preferred():
    cfg = ipl.Config(**BANDIT, replay=False, discount=0.0, temperature=0.2, target_clipping=False)
    agent, buffer = ipl.IPL(cfg, Spec(2, 2, generators(1))), bandit()
    for _ in range(300):
        agent.update(buffer.sample())
    assert 0.65 < slope(agent) < 1.1


def test_cpl_learns_what_is_preferred():
    cfg = cpl.Config(**BANDIT, bc_steps=0, dropout=0.0, alpha=1.0, warmup_steps=1)
    agent, buffer = cpl.CPL(cfg, Spec(2, 2, generators(1))), bandit()
    for _ in range(300):
        agent.update(buffer.sample())
    assert 0.5 < slope(agent) < 0.8


def test_p_iql_learns_what_is_preferred():
    of_reward = replace(pref_iql.Config().reward, hidden_width=32, lr=2e-3)
    cfg = pref_iql.Config(**BANDIT, replay=False, discount=0.0, beta=5.0, reward=of_reward)
    reward, buffer = MarkovReward(of_reward, Spec(2, 2, generators(1))), bandit()
    agent = pref_iql.PrefIQL(cfg, Spec(2, 2, generators(1), steps=300), reward=reward)
    for _ in range(300):
        pairs = buffer.sample()
        agent.fit_reward(pairs)
        agent.update(transitions(pairs))
    assert 0.65 < slope(agent) < 1.1
