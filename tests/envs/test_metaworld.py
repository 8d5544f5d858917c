"""MetaWorld's tasks and the sets recorded in them: repeatable, of four kinds, made once."""

import importlib.util
import sys

import numpy as np
import pytest
from wording import refused

from corerl.data import suites, tasks
from corerl.envs import metaworld_suite
from corerl.envs.metaworld_suite import MetaWorld
from corerl.preferences import sources
from corerl.preferences.sources import Preferences
from corerl.recipes import metaworld

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
needs_metaworld = pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="no metaworld"
)
TASK = "corerl/metaworld/button-press-v3"


@pytest.fixture(scope="module")
def button():
    return MetaWorld("button-press-v3")


def rollout(env, seed, actions):
    states = [env.reset(seed=seed)[0]]
    return np.array(states + [env.step(action)[0] for action in actions])


@needs_metaworld
def test_an_episode_depends_on_its_seed_alone(button):
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 4)).astype(np.float32)
    first, other = rollout(button, 3, actions), rollout(button, 4, actions)
    assert (rollout(button, 3, actions) == first).all() and (other[0] != first[0]).any()
    seeing = rollout(MetaWorld("button-press-v3", hidden=False), 3, actions)
    assert (seeing[:, :36] == first[:, :36]).all()
    assert (first[:, 36:] == 0).all() and (seeing[:, 36:] != 0).all()
    assert (first[1:, 18:36] == first[:-1, :18]).all()  # the frame before


@needs_metaworld
def test_an_expert_solves_25_steps_and_replays(button):
    policy = metaworld_suite.package().policies.ENV_POLICY_MAP["button-press-v3"]()
    driver = policy, MetaWorld("button-press-v3", hidden=False)
    episode = metaworld._play(button, driver, 5, 5, np.random.default_rng(0))
    assert np.abs(episode.actions).max() <= 1 - 1e-5 and not episode.terminated
    button.reset(seed=5)
    solved = []
    for action, reward, state in zip(
        episode.actions, episode.rewards, episode.observations[1:], strict=True
    ):
        observation, paid, _, _, info = button.step(action)
        assert np.float32(paid) == reward and (observation.astype(np.float32) == state).all()
        solved.append(info["success"])
    assert sum(solved) == 25 and solved[-1] == 1


@needs_metaworld
def test_a_set_of_four_kinds_is_made_once_and_learned_from(data, monkeypatch):
    monkeypatch.setattr(metaworld, "EACH", 1)
    words = ("make", "corerl/metaworld/button-press")
    assert f"made: {TASK}" in data(*words)
    task = tasks.resolve(TASK)
    dataset = task.load()
    assert dataset.n_episodes == 4 and not dataset.terminated.any()
    assert dataset.observations.shape[1] == 39 and (dataset.observations[:, 36:] == 0).all()
    expert, within, random, cross = dataset.episode_lengths()
    assert expert < 500 and random == 500
    uniform = dataset.actions[expert + within : -cross]
    assert abs(uniform.std() - 1 / np.sqrt(3)) < 0.05 and abs(uniform.mean()) < 0.1
    assert (np.abs(dataset.actions[:expert]) > 0.99).mean() > 0.2  # noise of 1, clipped
    facts = suites.facts(task.name)
    assert facts["episodes"] == 4 and facts["seconds"] > 0 and len(facts["sha256"]) == 64
    assert "was here already" in data(*words)
    with refused("seed 0 1"):
        data(*words, "--seed", "1")

    assert task.scored_by_success and task.reference is None
    env = task.make_env()
    env.reset(seed=0)
    observation, *_, info = env.step(env.action_space.sample())
    assert observation.shape == (39,) and info["success"] in (0.0, 1.0)
    cfg = Preferences(length=25, pairs=500, discount=0.99)
    compared = sources.find(task, task.load, cfg)
    weighted = compared.segments(compared.rewards) @ 0.99 ** np.arange(25)
    assert (compared.labels == (weighted[:, 0] < weighted[:, 1])).all()
    assert TASK in data("list", "metaworld")


@needs_metaworld
def test_a_handful_of_episodes_is_the_same_whatever_was_played_before(monkeypatch):
    monkeypatch.setattr(metaworld, "KINDS", ("expert", "within", "cross"))
    horizon = "metaworld.sawyer_xyz_env.SawyerXYZEnv.max_path_length"
    monkeypatch.setattr(horizon, 60)
    chunk = metaworld._episodes("button-press-v3", 0, "x")
    first, again = chunk(1), chunk(1)
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert chunk(metaworld.EACH) == []


def test_without_the_package_the_command_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with refused("corerl[metaworld]"):
        tasks.resolve(TASK).make_env()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with refused("corerl/metaworld"):
        tasks.resolve(TASK).load()
