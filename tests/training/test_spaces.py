"""Observations and actions that an algorithm does not take: reported once, before reads and writes."""

import importlib
import os
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from small import config
from wording import refused, says

from corerl import algos, cli
from corerl.config import Eval
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task, resolve
from corerl.errors import CorerlError
from corerl.launch.launch import launch
from corerl.nn import encoders
from corerl.training import spaces

VECTORS, CONTINUOUS, NUMBERED = Box(-1, 1, (3,)), Box(-1, 1, (2,)), Discrete(2)
OTHER = {"continuous": "corerl/cartpole", "discrete": "corerl/pendulum"}


def of(name: str):
    return importlib.import_module(f"corerl.algos.{name}").Config()


@pytest.mark.parametrize("name", tiny.LEARNERS)
def test_an_algorithm_takes_what_its_own_task_has(name):
    cfg = tiny.settings(name)
    env = resolve(cfg.task).make_env()
    spaces.check(cfg.algo, cfg.task, env.observation_space, env.action_space)


@pytest.mark.parametrize("name", [n for n in algos.names() if of(n).actions != "any"])
def test_other_actions_are_refused_before_anything_is_read_or_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Task, "load", lambda self: pytest.fail("read the data"))
    task = OTHER[of(name).actions]
    steps = 2_000_000  # more than a first phase has
    cfg = replace(config(tmp_path, "bc", task=task, seeds=3, steps=steps), algo=of(name))
    with refused(f"{name} actions {task}"):
        launch(cfg)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("iql", "phase", "both"), ("awac", "phase", "both"), ("iql", "policy", "deterministic")],
)
def test_some_settings_take_fewer_actions_than_others(name, setting, value):
    algo = of(name)
    spaces.check(algo, "it", VECTORS, NUMBERED)
    setattr(algo, setting, value)
    spaces.check(algo, "it", VECTORS, CONTINUOUS)
    with refused(f"{name} algo.{setting}={value} actions"):
        spaces.check(algo, "it", VECTORS, NUMBERED)


@pytest.mark.parametrize(
    ("name", "seen", "done", "reported"),
    [
        ("bc", VECTORS, MultiDiscrete([2, 2]), "actions 0"),
        ("bc", VECTORS, Discrete(2, start=1), "Discrete"),
        ("sac", VECTORS, Box(-1, 1, (2, 2)), "continuous"),
        ("sac", Discrete(4), CONTINUOUS, "observations"),
        (
            "sac",
            Box(0, 1, (3, 8, 8)),
            CONTINUOUS,
            "observations",
        ),
        ("iqn", Box(0, 1, (8, 8)), NUMBERED, "vectors images"),
        (
            "iqn",
            Box(0, 255, (84, 84, 3), np.uint8),
            NUMBERED,
            "36x36",
        ),
        ("md3qn", Box(0, 255, (84, 84, 3), np.uint8), NUMBERED, "channels"),
        (
            "iqn",
            Box(0, 255, (3, 84, 35), np.uint8),
            NUMBERED,
            "ResizeObservation",
        ),
        ("cql_discrete", Box(0, 1, (3, 8, 8)), NUMBERED, "observations"),
    ],
)
def test_spaces_that_do_not_fit(name, seen, done, reported):
    with refused(reported):
        spaces.check(of(name), "it", seen, done)


def test_spaces_that_fit():
    for name in ("bc", "td3_bc", "cvar_pg"):
        spaces.check(of(name), "it", VECTORS, CONTINUOUS)
    for name in ("bc", "cql_discrete", "cvar_pg", "iqn"):
        spaces.check(of(name), "it", VECTORS, NUMBERED)
    spaces.check(of("iqn"), "it", Box(0, 1, (3, 36, 36)), NUMBERED)
    spaces.check(of("md3qn"), "it", Box(0, 1, (3, 8, 8)), NUMBERED)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_the_smallest_image_is_what_the_convolutions_take(padding):
    least, rngs = encoders.smallest(padding), [torch.Generator()]
    assert encoders.Encoder((1, least, least), 0, 0, rngs, padding=padding).features == 64
    if least > 1:
        with pytest.raises(RuntimeError, match="greater than actual input size"):
            encoders.Encoder((1, least - 1, least), 0, 0, rngs, padding=padding)


def test_bytes_are_scaled_and_floats_taken_as_they_are():
    encoder = encoders.Encoder((1, 36, 36), 0, 0, [torch.Generator().manual_seed(0)])
    image = torch.randint(256, (1, 2, 1, 36, 36), dtype=torch.uint8)
    assert torch.equal(encoder(image), encoder(image / 255))
    assert not torch.equal(encoder(image), encoder(image.float()))


def dataset(*, discrete: bool, shape: tuple[int, ...] = (3,)) -> Dataset:
    actions = np.zeros(4, np.int64) if discrete else np.zeros((4, 1))
    ends = np.arange(4) == 3
    return Dataset.from_arrays(
        np.zeros((4, *shape)), actions, np.zeros(4), truncated=ends, id="logs"
    )


def test_data_without_a_simulator_tells():
    spaces.check_data(of("iql"), dataset(discrete=True))
    spaces.check_data(of("td3_bc"), dataset(discrete=False))
    with refused("td3_bc actions"):
        spaces.check_data(of("td3_bc"), dataset(discrete=True))
    with refused("cql_discrete actions 0"):
        spaces.check_data(of("cql_discrete"), dataset(discrete=False))
    with refused("observations shape 8 3"):
        spaces.check_data(of("iql"), dataset(discrete=False, shape=(8, 8, 3)))


def test_numbers_that_are_no_numbering_of_actions_are_refused():
    """Such as those of articles: each number below was an input, for which there was no memory."""
    logs = dataset(discrete=True)
    spaces.check_data(of("iql"), replace(logs, actions=np.full(4, 2**14 - 1)))
    with refused("logs 16,384"):
        spaces.check_data(of("iql"), replace(logs, actions=np.full(4, 2**14)))


def test_a_missing_simulator_is_no_reason_to_refuse_where_nothing_is_evaluated(
    tmp_path, monkeypatch
):
    def absent(self):
        raise CorerlError("no simulator")

    monkeypatch.setattr(Task, "make_env", absent)
    cfg = config(tmp_path, "td3_bc")
    with refused("eval.episodes=0"):
        launch(cfg)
    launch(replace(cfg, eval=Eval(every=20, episodes=0)))


def test_a_dry_run_says_which_cells_do_not_fit(capsys):
    tasks = "task=corerl/cartpole,corerl/pendulum,gym/CartPole-v1"
    arguments = ["-m", "algo=bc,td3_bc,iqn", tasks, "--dry-run"]
    assert cli.main(["train", *arguments]) == 0
    out = capsys.readouterr().out
    refused = [
        line.split()[:2] for line in out.splitlines() if " refused " in line and "0/5" in line
    ]
    assert refused == [
        ["gym/CartPole-v1", "BC"],
        ["corerl/cartpole", "TD3+BC"],
        ["gym/CartPole-v1", "TD3+BC"],
        ["corerl/pendulum", "IQN"],
    ]
    says(out, "1")
    says(out, "td3_bc actions Discrete(2)")


@pytest.mark.parametrize(
    ("name", "task"), [("bc", "corerl/goal-maze"), ("gcbc", "corerl/pendulum")]
)
def test_goals_are_for_algorithms_that_know_them(name, task, tmp_path):
    with refused(f"{name} {task}"):
        launch(replace(config(tmp_path, "bc", task=task), algo=of(name)))
    assert not os.listdir(tmp_path)
