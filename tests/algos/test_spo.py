"""SPO: minimax winners, wins by hand, the learner is SAC on them, teachers, and as a run."""

import json

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from small import run, state_of
from wording import refused

from corerl.algos import sac, spo
from corerl.config import Config, Eval
from corerl.data.tasks import resolve
from corerl.preferences.self_play import minimax_winner, self_play
from corerl.training.environments import Step

CYCLE = np.array([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])


# The game.


def test_rock_paper_scissors_is_a_third_of_each_and_only_the_average_gets_there():
    np.testing.assert_allclose(minimax_winner(CYCLE), np.ones(3) / 3, atol=1e-9)
    average, last = self_play(CYCLE, 0.1, 5_000, np.array([0.6, 0.3, 0.1]))
    np.testing.assert_allclose(average, np.ones(3) / 3, atol=0.02)
    assert last.max() > 0.5


def test_a_choice_that_beats_all_others_wins_and_the_last_lottery_is_it():
    preferences = CYCLE.copy()
    preferences[0, 1:], preferences[1:, 0] = 0.6, 0.4
    np.testing.assert_allclose(minimax_winner(preferences), [1, 0, 0], atol=1e-9)
    _, last = self_play(preferences, 0.1, 2_000)
    np.testing.assert_allclose(last, [1, 0, 0], atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_preferred_to_the_winner_and_play_approaches_it(seed):
    upper = np.triu(np.random.default_rng(seed).random((6, 6)), 1)
    preferences = upper + np.tril(1 - upper.T, -1) + 0.5 * np.eye(6)
    winner = minimax_winner(preferences)
    assert (winner @ preferences).min() > 0.5 - 1e-9
    average, _ = self_play(preferences, 0.05, 20_000)
    assert (average @ preferences).min() > 0.5 - 0.02


@pytest.mark.parametrize(
    ("matrix", "words"), [(np.ones((2, 3)), "(2, 3)"), (np.ones((2, 2)), "preferences[i,")]
)
def test_what_are_no_preferences_raises_an_error(matrix, words):
    with refused(words):
        minimax_winner(matrix)


# Wins.


def replay(prefers, queue: int = 10) -> spo.WinReplay:
    summary = lambda s, a, rewards: rewards.sum()  # noqa: E731
    return spo.WinReplay(1, 1, 40, [0, 1], 4, summary=summary, prefers=prefers, queue=queue)


def add(made: spo.WinReplay, rewards, over) -> None:
    zeros = np.zeros((2, 1), np.float32)
    ends = np.array(over)
    made.add(Step(zeros, zeros, np.array(rewards), zeros, ends, np.zeros_like(ends)))


def test_shares_of_wins_by_hand():
    """Episodes of seed 0 return 1, 3 and 2 in two, one and two steps; those of seed 1 never end."""
    made = replay(spo.by_return(None))
    for reward, over in ((0.5, False), (0.5, True), (3.0, True), (1.0, False), (1.0, True)):
        add(made, [reward, 9.0], [over, False])
    np.testing.assert_allclose(made._labels[0, :5], [0.25, 0.25, 1.0, 0.25, 0.25])
    assert made.won.tolist() == [0.5, 0.5] and made._ended.tolist() == [5, 0]


def test_the_queue_forgets_the_oldest():
    made = replay(spo.by_return(None), queue=2)
    for reward in (9.0, 1.0, 2.0, 3.0):  # 3 beats 1 and 2, which it is compared with
        add(made, [reward, 0.0], [True, True])
    assert made.won.tolist() == [1.0, 0.5]
    again = replay(spo.by_return(None), queue=2)
    again.load_state_dict(made.state_dict())
    add(again, [2.5, 0.0], [True, True])
    assert again.won[0] == 0.5 and [float(x[0]) for x in again.queues[0]] == [3.0, 2.5]


def test_a_noisy_teacher_prefers_by_a_sigmoid():
    one, other = np.array([3.0]), np.array([1.0])
    assert spo.by_return(0.5)(one, other) == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert spo.by_return(None)(one, one) == 0.5


def test_the_learner_gets_the_scaled_wins_of_ended_episodes():
    made = replay(spo.by_return(None))
    for number in range(6):
        add(made, [number, -number], [number % 2 == 1] * 2)
    add(made, [99.0, 99.0], [False, False])
    batch = spo._rewarded(spo.Config(reward_scale=4.0), made)
    known = {0.0, 1.0, 2.0}  # 4 x (0, 1/2 or 1) / 2 steps
    assert set(batch.rewards.flatten().tolist()) <= known and spo.build is sac.SAC


# Runs.


def job(root, algo=(), **changes) -> Config:
    own = {"random_steps": 10, "batch_size": 8, "hidden_width": 8} | dict(algo)
    cell = {"task": "gym/Pendulum-v1", "steps": 420, "eval": Eval(every=210, episodes=1)}
    often = {"log_every": 10, "save_every": 10, "save_minutes": 0, "root": str(root)}
    return Config(algo=spo.Config(**own), **({"compile": "off"} | often | cell | changes))


def test_updates_begin_with_the_first_ended_episode(tmp_path):
    folder = run(job(tmp_path))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in lines) == 210
    assert {line["won"] for line in lines} <= {0.0, 0.5, 1.0}


def test_the_environment_may_compare(tmp_path, monkeypatch):
    """A cycle of three numbers, which no return explains."""
    kind = lambda self, s, a, rewards: np.array([len(rewards) % 3])  # noqa: E731
    monkeypatch.setattr(PendulumEnv, "summary", kind, raising=False)
    prefers = lambda self, one, other: CYCLE[int(one[0]), int(other[0])]  # noqa: E731
    monkeypatch.setattr(PendulumEnv, "prefers", prefers, raising=False)
    made = spo.teacher_of(spo.Config(teacher="environment"), resolve("gym/Pendulum-v1"))
    found = made["summary"](None, None, np.zeros(4)), made["summary"](None, None, np.zeros(5))
    assert made["prefers"](*found) == 0.9
    state = state_of(run(job(tmp_path, {"teacher": "environment"})))
    assert torch.stack(state["replay"]["queues"][0]).flatten().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("chances", [(0.9, 0.9), (1.5, -0.5), (np.nan, 0.5)])
def test_an_environment_that_contradicts_itself_raises_an_error(monkeypatch, chances):
    prefers = lambda self, one, other: chances[int(one[0])]  # noqa: E731
    monkeypatch.setattr(PendulumEnv, "summary", None, raising=False)
    monkeypatch.setattr(PendulumEnv, "prefers", prefers, raising=False)
    made = spo.teacher_of(spo.Config(teacher="environment"), resolve("gym/Pendulum-v1"))
    with refused(f"gym/Pendulum-v1 {chances[0]:g} {chances[1]:g} prefers(one, other)"):
        made["prefers"](np.array([0]), np.array([1]))


def test_an_environment_that_compares_nothing_raises_an_error(tmp_path):
    with refused("algo.teacher=environment gym/Pendulum-v1 summary prefers"):
        run(job(tmp_path, {"teacher": "environment"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"history": 3}, "history=3 history=1"), ({"action_range": [-0.1, 0.1]}, "action_range")],
)
def test_an_environment_compares_only_its_own_observations_and_actions(tmp_path, changes, words):
    cell = {"task": "risk/three-corners"} | changes
    with refused(f"{words} algo.teacher=environment"):
        run(job(tmp_path, {"teacher": "environment"}, **cell))
