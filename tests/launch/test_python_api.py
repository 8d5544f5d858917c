"""Training from Python: arrays in, policies out, in a script without a main guard too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from small import random_dataset
from wording import lacking, refused

import corerl
from corerl.launch import python_api

MODULE = """
import gymnasium
from gymnasium import spaces
gymnasium.register("Mine-v0", entry_point="mine:Mine", max_episode_steps=5)
class Mine(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,))
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}
    def step(self, action):
        return self.observation_space.sample() * 0, float(action[0]), False, False, {}
"""

SCRIPT = """
import numpy as np
import corerl
f = np.load("log.npz")
data = corerl.Dataset.from_arrays(f["s"], f["a"], f["r"], f["done"], low=-2, high=2)
trained = corerl.train("bc", dataset=data, env="mine:Mine-v0", seeds=2, steps=2, processes=2,
                       hidden_width=8, batch_size=8, eval={"episodes": 1})
print("seeds", [row["seed"] for row in trained.scores()])
"""


def test_a_script_without_a_guard_and_an_environment_beside_it(tmp_path):
    data = random_dataset(100)
    end = data.terminated | data.truncated
    np.savez(tmp_path / "log.npz", s=data.observations, a=data.actions, r=data.rewards, done=end)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "five.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "five.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert ended.stdout == "seeds [0, 1]\n", ended.stderr
    assert ended.stderr.count("  done  ") == 2


@pytest.fixture
def once(tmp_path, monkeypatch):
    """`corerl.train` in a folder of its own, and the configurations that it launched."""
    monkeypatch.chdir(tmp_path)
    launched = []
    monkeypatch.setattr(python_api.launch, "launch", launched.append)
    return launched


def test_settings_are_those_of_the_command_line(once):
    settings = {"algo.data.normalize_states": True, "eval": {"episodes": 3}}
    trained = corerl.train(
        "iql", task="corerl/pendulum", seeds=[1, 4], expectile=np.float32(0.75), **settings
    )
    (cfg,) = once
    assert (cfg.task, cfg.seeds, cfg.algo.expectile) == ("corerl/pendulum", [1, 4], 0.75)
    assert cfg.algo.data.normalize_states and cfg.eval.episodes == 3
    assert trained.seeds == (1, 4) and trained.path.parts[:3] == ("runs", "corerl", "pendulum")


def test_what_is_trained_is_what_load_takes(tmp_path):
    trained = corerl.train(
        "bc", dataset=random_dataset(60), root=tmp_path, seeds=1, steps=1, hidden_width=4
    )
    seen = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(corerl.load(trained).act(seen), trained.load().act(seen))


def test_a_setting_without_its_group_is_told_with_it(once):
    with refused("data.clip_action algo.data.clip_actions"):
        corerl.train("rlpd", task="corerl/pendulum", data={"clip_action": 0.9})


@pytest.mark.parametrize(
    ("seeds", "trained"), [(np.int64(2), (0, 1)), (np.array([4, 2]), (4, 2)), (range(2), (0, 1))]
)
def test_seeds_may_be_numbers_of_numpy(once, seeds, trained):
    assert corerl.train("bc", task="corerl/pendulum", seeds=seeds).seeds == trained


def test_the_root_may_begin_at_home(once, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    trained = corerl.train("bc", dataset=random_dataset(60), root="~/runs", seeds=1)
    assert trained.path.is_relative_to(tmp_path / "home/runs")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_text_arrives_as_it_is(once):
    text = 'Größe "a\\b", \\"x\\\\'
    corerl.train("bc", task="corerl/pendulum", label=text)
    assert once[0].label == text


@pytest.mark.parametrize(
    "value", ["é", "a\\b", "a\\", '"', '\\"', ["ü", "a\\b", 'b"'], [1, 2.5, True, None], []]
)
def test_a_value_is_spelled_as_hydra_reads_it(value):
    word = f"key={python_api._spelled('key', value)}"
    read = OverridesParser.create().parse_override(word).value()
    read = [part.text if isinstance(part, QuotedString) else part for part in np.ravel(read)]
    assert (read if isinstance(value, list) else read[0]) == value


def test_equal_arrays_are_the_same_run_and_others_another(once):
    data = random_dataset(60)
    for each in (data, data, data.with_rewards(2 * data.rewards)):
        corerl.train("bc", dataset=each, seeds=1)
    first, again, other = once
    assert first == again and first.task != other.task
    assert len(list(Path("runs/datasets").iterdir())) == 2
    assert first.data.sha256 and first.env is None


def test_equal_bytes_of_other_shapes_are_other_data(once):
    data = random_dataset(60)
    flat = [data.rewards, data.terminated, data.truncated]
    for observations in (data.observations, data.observations.reshape(60, -1, 1, 1)):
        corerl.train(
            "bc", dataset=corerl.Dataset.from_arrays(observations, data.actions, *flat), seeds=1
        )
    assert len({cfg.task for cfg in once}) == 2


@pytest.mark.parametrize(
    ("env", "bounds", "said"),
    [
        ("Pendulum-v1", {}, True),
        ("Pendulum-v1", {"low": -2, "high": 2}, False),
        ("MountainCarContinuous-v0", {}, False),
        ("CartPole-v1", {}, False),
        ("Nowhere-v0", {}, False),
        (None, {}, False),
    ],
)
def test_actions_without_bounds_are_remarked_where_the_environment_has_others(
    once, capsys, env, bounds, said
):
    data = random_dataset(20)
    given = (data.observations, data.actions, data.rewards, data.terminated, data.truncated)
    best = corerl.Dataset.from_arrays(*given, **bounds).best_episodes(0.5)
    corerl.train("bc", dataset=best, env=env, seeds=1)
    reported = capsys.readouterr().err
    assert (not lacking(reported, "low high")) == said
    assert not said or "[-2.] for -1 and [2.] for 1" in reported


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "task"),
        ({"task": "corerl/pendulum", "dataset": "x.npz"}, "task"),
        ({"dataset": "x.npz"}, "x.npz"),
        ({"task": "corerl/pendulum", "expectil": 1}, "algo.expectil"),
        ({"task": "corerl/pendulum", "expectile": object()}, "expectile"),
        ({"task": "corerl/pendulum", "seeds": 2.0}, "seeds"),
        ({"task": "corerl/pendulum", "seeds": "2"}, "seeds"),
        ({"task": "corerl/pendulum", "seeds": None}, "seeds"),
        ({"dataset": np.zeros((3, 2))}, "corerl.Dataset.from_arrays("),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(once, arguments, words):
    with refused(words):
        corerl.train("iql", **arguments)
    assert not once


@pytest.mark.parametrize("given", [{"data": {"action_low": -3}}, {"data.action_low": -3}])
def test_settings_of_a_file_are_none_of_a_dataset(once, given):
    with refused("Dataset.from_arrays"):
        corerl.train("bc", dataset=random_dataset(20), **given)
    assert not once


def test_the_package_offers_three_names_and_loads_nothing():
    code = "import sys, corerl; assert 'numpy' not in sys.modules; print(corerl.Dataset.__name__)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "Dataset\n", ended.stderr
    assert {"train", "load", "Dataset"} <= set(dir(corerl))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        corerl.trian  # noqa: B018
