"""Environments that misbehave: one rule in training, collection and evaluation, for stacked seeds."""

import json
import sys
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small import config
from wording import refused, says

from corerl.data import tasks
from corerl.launch import launch
from corerl.runs.directory import cell_directory
from corerl.training import environment_step
from corerl.training.environments import Environments
from corerl.training.evaluation import Evaluator
from corerl.training.rollouts import Collector
from corerl.training.run import Run

FAULTS = {
    "raises": lambda: 1 / 0,
    "exits": lambda: sys.exit(0),
    "nan": lambda: (np.full(2, np.nan), 1.0, False, False, {}),
    "infinite": lambda: (np.array([0, np.inf]), 1.0, False, False, {}),
    "broadcast": lambda: (np.zeros(1), 1.0, False, False, {}),
    "number": lambda: (0.0, 1.0, False, False, {}),
    "reward": lambda: (np.zeros(2), np.nan, False, False, {}),
    "infinite reward": lambda: (np.zeros(2), -np.inf, False, False, {}),
    "nothing": lambda: None,
}


class Faulty(gymnasium.Env):
    """Counts to 4; the third step of number `bad` of those made goes wrong."""

    observation_space = spaces.Box(-100, 100, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    made, bad, fault, first = 0, (), "raises", False

    def __init__(self):
        self.number = Faulty.made
        Faulty.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if self.number in self.bad and self.first:
            raise ZeroDivisionError("division by zero")
        return np.zeros(2), {}

    def step(self, action):
        self.steps += 1
        if self.number in self.bad and self.steps == 3:
            return FAULTS[self.fault]()
        return np.full(2, self.steps, float), 1.0, False, self.steps == 4, {}


@pytest.fixture(autouse=True)
def whole():
    Faulty.made, Faulty.bad, Faulty.fault, Faulty.first = 0, (), "raises", False


def still(observations):
    return torch.zeros(*observations.shape[:2], 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_in_training_the_other_seeds_go_on(fault, capsys):
    Faulty.bad, Faulty.fault = (1,), fault
    envs = Environments(Faulty, [4, 7, 9])
    rewards = np.stack([envs.step(torch.zeros(3, 1, 1)).rewards for _ in range(6)])
    assert (rewards[:, [0, 2]] == 1).all()
    assert np.isnan(rewards[2:, 1]).all() and (rewards[:2, 1] == 1).all()
    assert envs.episode_returns.isneginf().tolist() == [False, True, False]
    (line,) = capsys.readouterr().err.splitlines()
    says(line, "corerl: 7")


@pytest.mark.parametrize("fault", FAULTS)
def test_in_evaluation_the_other_seeds_go_on(fault, capsys):
    Faulty.bad, Faulty.fault = (3,), fault  # the second of seed 7's two
    evaluator = Evaluator(Faulty, [4, 7, 9], 2)
    for _ in range(2):
        returns, lengths, _ = evaluator(still)
        assert (returns[[0, 2]] == 4).all() and (lengths[[0, 2]] == 4).all()
        assert np.isnan(returns[1]).all()
        (line,) = capsys.readouterr().err.splitlines()
        says(line, "corerl: 7 evaluation")


class Still:
    def begin(self, seeds, episodes):
        """Remembers nothing."""

    def reward(self, rewards):
        """Learns nothing."""

    def __call__(self, observations):
        return still(observations)


@pytest.mark.parametrize("fault", FAULTS)
def test_in_collection_the_other_seeds_go_on(fault):
    Faulty.bad, Faulty.fault = (3,), fault
    collector = Collector(Faulty, [4, 7, 9], 2, 5)
    for steps in (3, 0):  # that the crashed seed made
        played = collector.play(Still())
        assert (played.rewards[[0, 2]].sum(2) == 4).all()
        assert played.rewards[1].isnan().any(1).all()
        assert (played.alive[1].sum(-1) == steps).all()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_reset_is_under_the_same_rule(bad):
    Faulty.bad, Faulty.first = (bad,), True
    envs = Environments(Faulty, [0, 1])
    assert np.isnan(envs.step(torch.zeros(2, 1, 1)).rewards).tolist() == [bad == 0, bad == 1]
    Faulty.made = 0
    returns = Evaluator(Faulty, [0, 1], 1)(still).returns[:, 0]
    assert np.isnan(returns).tolist() == [bad == 0, bad == 1]


def test_the_last_ones_error_is_raised():
    Faulty.bad = range(100)
    envs = Environments(Faulty, [0, 1])
    with pytest.raises(ZeroDivisionError):
        for _ in range(3):
            envs.step(torch.zeros(2, 1, 1))
    with pytest.raises(ZeroDivisionError):
        Evaluator(Faulty, [0, 1], 1)(still)
    Faulty.fault = "exits"
    with pytest.raises(RuntimeError, match="ended the program"):
        Evaluator(Faulty, [0, 1], 1)(still)


def test_a_crashed_seed_stays_so_when_resumed():
    Faulty.bad = (0,)
    envs = Environments(Faulty, [0, 1])
    for _ in range(3):
        envs.step(torch.zeros(2, 1, 1))
    saved = envs.state_dict()
    Faulty.bad = ()
    again = Environments(Faulty, [0, 1])
    again.load_state_dict(saved)
    assert np.isnan(again.step(torch.zeros(2, 1, 1)).rewards).tolist() == [True, False]


def test_a_reset_of_a_resumed_run_is_under_the_same_rule(capsys):
    """None of them can be restored, so that each begins an episode."""
    envs = Environments(Faulty, [4, 7])
    envs.step(torch.zeros(2, 1, 1))
    again = Environments(Faulty, [4, 7])
    Faulty.bad, Faulty.first = (3,), True
    again.load_state_dict(envs.state_dict())
    says(capsys.readouterr().err, "7 ZeroDivisionError")
    assert np.isnan(again.step(torch.zeros(2, 1, 1)).rewards).tolist() == [False, True]
    assert again.episode_returns.isneginf().tolist() == [False, True]


def two_seeds(tmp_path, monkeypatch, fault: str, bad=()):
    """A run of two stacked seeds that is evaluated in `Faulty`."""
    Faulty.bad, Faulty.fault = bad, fault
    monkeypatch.setattr(tasks.Task, "make_env", lambda self: Faulty())
    cfg = config(tmp_path, "bc", steps=20)
    run = Run(cfg, [0, 1], lambda *_: None)
    for step in run.steps():
        run.log(step, {"loss": torch.ones(2)})
        run.evaluate(step, still)
        run.save(step)
    return run


def test_a_seed_that_crashed_in_evaluation_has_no_score_and_is_named(tmp_path, monkeypatch):
    run = two_seeds(tmp_path, monkeypatch, "exits", bad=(2, 3))
    status = json.loads((run.directory / "status.json").read_text())
    assert status["state"] == "done" and status["diverged"] == {"1": 20}
    rows = (run.directory / "scores.csv").read_text().splitlines()[1:]
    assert len(rows) == 1 and rows[0].split(",")[3] == "0"


@pytest.mark.parametrize("fault", ["raises", "exits"])
def test_a_run_whose_only_environment_crashes_has_failed(tmp_path, monkeypatch, fault):
    Faulty.bad, Faulty.fault = range(100), fault
    monkeypatch.setattr(tasks.Task, "make_env", lambda self: Faulty())
    monkeypatch.setattr("corerl.algos.bc.train", lambda cfg, run: evaluate_only(run))
    cfg = config(tmp_path, "bc", steps=20)
    with refused("0"):
        launch.launch(cfg)
    status = json.loads((cell_directory(cfg) / "seeds-0/status.json").read_text())
    assert status["state"] == "failed" and status["message"]


def evaluate_only(run):
    for step in run.steps():
        run.evaluate(step, still)


def test_code_that_ends_the_program_leaves_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setattr("corerl.algos.bc.train", lambda cfg, run: sys.exit(0))
    cfg = config(tmp_path, "bc", steps=20)
    with refused("0"):
        launch.launch(cfg)


def test_a_close_that_hangs_or_raises_is_left(monkeypatch, capsys):
    class Hangs(Faulty):
        def close(self):
            time.sleep(60)

    class Raises(Faulty):
        def close(self):
            raise OSError("gone")

    monkeypatch.setattr(environment_step, "CLOSING", 0.2)
    before = time.monotonic()
    environment_step.close([Raises(), Hangs()])
    assert time.monotonic() - before < 10
    reported = capsys.readouterr().err.splitlines()
    says(reported[0], "Raises")
    says(reported[1], "0.2")
