"""Rollouts: every seed and episode in an environment of its own, counted to its own end."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from wording import refused, says

from corerl.training import evaluation
from corerl.training.evaluation import Evaluator


class Countdown(gymnasium.Env):
    """Starts at a number from 1 to 9 that the reset seed fixes, and ends when it has come down to 0.

    Even numbers terminate, odd ones are truncated. The reward is the action; stepping after the end fails.
    """

    observation_space = spaces.Box(-100, 100, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    made = 0
    closed = 0

    def __init__(self):
        Countdown.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        self.start = self.left = int(self.np_random.integers(1, 10))
        return self._observe(), {}

    def step(self, action):
        assert self.left > 0, "stepped after its end"
        self.left -= 1
        over = self.left == 0
        even = self.start % 2 == 0
        return self._observe(), float(action[0]), over and even, over and not even, {}

    def _observe(self):
        return np.array([self.start, self.left], np.float64)

    def close(self):
        Countdown.closed += 1


def ones(observations):
    return torch.ones(*observations.shape[:2], 1)


def starts_of(seeds, episodes):
    """The lengths that the reset seeds of these seeds fix."""
    play = Evaluator(Countdown, seeds, episodes)
    starts = []
    for row in play._env_seeds:
        starts.append([int(np.random.default_rng(s).integers(1, 10)) for s in row])
    return np.array(starts)


class Solvable(Countdown):
    """Solved on the way, at 3 left, where it starts at 3 or above; it says so at every step."""

    names = ("success",)

    def step(self, action):
        *rest, info = super().step(action)
        first, *others = self.names
        return *rest, info | {first: self.left == 3} | dict.fromkeys(others, True)


@pytest.mark.parametrize("names", [("success",), ("is_success",), ("success", "is_success")])
def test_an_episode_that_was_ever_solved_counts_as_solved(names, monkeypatch):
    monkeypatch.setattr(Solvable, "names", names)
    starts = starts_of([0, 1], 7)
    np.testing.assert_array_equal(Evaluator(Solvable, [0, 1], 7)(ones).successes, starts > 3)
    assert np.isnan(Evaluator(Countdown, [0], 2)(ones).successes).all()


def test_returns_and_lengths_are_each_episodes_own():
    returns, lengths, _ = Evaluator(Countdown, [0, 1, 2], 7)(ones)
    assert returns.shape == lengths.shape == (3, 7)
    np.testing.assert_array_equal(lengths, starts_of([0, 1, 2], 7))
    np.testing.assert_array_equal(returns, lengths)  # a reward of 1 a step, none after the end
    assert len(np.unique(lengths)) > 3


def test_the_policy_sees_each_episodes_own_observation():
    # Acting by the observation: the sum of the remaining counts is start * (start - 1) / 2 + start.
    returns, lengths, _ = Evaluator(Countdown, [0, 1, 2], 7)(lambda x: x[..., 1:])
    np.testing.assert_array_equal(returns, lengths * (lengths + 1) / 2)


class Told:
    """Acts by the step, and keeps what it is told."""

    def __init__(self):
        self.begun, self.rewards = [], []

    def begin(self, seeds, episodes):
        self.begun.append((seeds, episodes, len(self.rewards)))
        self.step = 0

    def __call__(self, observations):
        self.step += 1
        return ones(observations) * self.step / 10

    def reward(self, rewards):
        self.rewards.append(rewards)


def test_a_policy_with_a_memory_is_told_when_rounds_begin_and_what_each_step_pays():
    player = Told()
    lengths = Evaluator(Countdown, [0, 1], 5, at_once=3)(player).lengths
    first = lengths[:, :3].max()
    assert player.begun == [(2, 3, 0), (2, 2, first)]
    for now, start in ((slice(3), 0), (slice(3, 5), first)):
        for step in range(lengths[:, now].max()):
            paid = np.where(step < lengths[:, now], (step + 1) / 10, 0)
            np.testing.assert_allclose(player.rewards[start + step], paid, rtol=1e-6)


def test_every_evaluation_meets_the_same_initial_states():
    play = Evaluator(Countdown, [5], 8)
    first = play(ones).lengths
    np.testing.assert_array_equal(play(ones).lengths, first)
    np.testing.assert_array_equal(Evaluator(Countdown, [4, 5], 8)(ones).lengths[1:], first)


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_rounds_change_nothing_but_the_number_of_environments(at_once):
    Countdown.made = Countdown.closed = 0
    play = Evaluator(Countdown, [0, 1], 7, at_once=at_once)
    episodes = play(ones)
    play(ones)
    np.testing.assert_array_equal(episodes.lengths, starts_of([0, 1], 7))
    assert Countdown.made == 2 * min(7, at_once)
    play.close()
    assert Countdown.closed == Countdown.made


def test_an_episode_that_does_not_end_is_told_once(capsys, monkeypatch):
    play = Evaluator(Countdown, [0, 1], 7, at_once=2)
    monkeypatch.setattr(evaluation, "ENDLESS", 10)  # the longest is of 9 steps
    play(ones)
    assert not capsys.readouterr().err
    monkeypatch.setattr(evaluation, "ENDLESS", 4)
    play(ones)
    reported = capsys.readouterr().err
    assert reported.count("corerl:") == reported.count("Countdown") == 1
    says(reported, "4 steps")


def test_observations_reach_the_policy_as_float32():
    seen = []

    def act(observations):
        seen.append(observations.dtype)
        return ones(observations)

    Evaluator(Countdown, [0], 2)(act)
    assert set(seen) == {torch.float32}


def test_nan_acts_as_zero_and_leaves_the_other_seeds_alone():
    def act(observations):
        actions = ones(observations)
        actions[1] = torch.nan
        return actions

    returns, lengths, _ = Evaluator(Countdown, [0, 1, 2], 5)(act)
    np.testing.assert_array_equal(returns[[0, 2]], lengths[[0, 2]])
    np.testing.assert_array_equal(returns[1], np.zeros(5))


def test_a_policy_needs_no_no_grad_of_its_own():
    weight = torch.nn.Parameter(torch.ones(1))
    returns, lengths, _ = Evaluator(Countdown, [0], 2)(lambda x: ones(x) * weight)
    np.testing.assert_array_equal(returns, lengths)


class Numbered(Countdown):
    action_space = spaces.Discrete(3)

    def step(self, action):
        return super().step([action])


def test_numbered_actions_have_no_axis_of_their_own():
    returns, lengths, _ = Evaluator(Numbered, [0, 1], 2)(lambda x: ones(x).long()[..., 0])
    np.testing.assert_array_equal(returns, lengths)


@pytest.mark.parametrize("episodes", [1, 2])
@pytest.mark.parametrize(
    ("env", "act", "wanted"),
    [
        (
            Countdown,
            lambda x: ones(x)[0],
            "(2, {n}, 1) seeds episodes action",
        ),
        (Countdown, lambda x: ones(x)[:, 0], "(2, {n}, 1)"),
        (Countdown, lambda x: ones(x)[..., 0], "(2, {n}, 1)"),
        (Countdown, lambda x: ones(x)[:1], "(2, {n}, 1)"),
        (Countdown, lambda x: x, "(2, {n}, 1)"),
        (Numbered, lambda x: ones(x).long(), "(2, {n}) seeds episodes"),
    ],
)
def test_actions_of_another_shape_are_refused(env, act, wanted, episodes):
    with refused(wanted.format(n=episodes)):
        Evaluator(env, [0, 1], episodes)(act)


class Goals(Countdown):
    """Solves task 3 of three."""

    goal_tasks = 3

    def reset(self, *, seed=None, options=None):
        self.task = options["task_id"]
        return super().reset(seed=seed)

    def step(self, action):
        observation, *others, info = super().step(action)
        return observation, *others, info | {"success": self.task == 3}


def test_an_environments_goals_are_played_in_turn():
    """Also from one round of ten episodes to the next, and for every seed."""
    _, _, successes = Evaluator(Goals, [0, 1], 13)(ones)
    assert successes.tolist() == [[float(e % 3 == 2) for e in range(13)]] * 2


class Recording(gymnasium.Wrapper):
    """Remembers the seeds that `reset` was given."""

    seen: list[int] = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.seen.append(seed)
        return super().reset(seed=seed, options=options)


def test_environment_seeds_are_the_seeds_own():
    def environment_seeds(seeds):
        Recording.seen = []
        play = Evaluator(lambda: Recording(gymnasium.make("CartPole-v1")), seeds, episodes=3)
        play(lambda x: torch.zeros(x.shape[:2], dtype=torch.int64))
        play.close()
        return [Recording.seen[i : i + 3] for i in range(0, len(Recording.seen), 3)]

    together, alone = environment_seeds(range(10)), environment_seeds([3])
    assert alone == [together[3]]
    assert len({seed for row in together for seed in row}) == 30
