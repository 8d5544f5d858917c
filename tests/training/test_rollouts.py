"""Whole episodes: padded, cut, a seed's own, and refused where they do not fit."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import tiny
import torch
from gymnasium import spaces
from wording import refused

from corerl.envs import mdps
from corerl.envs.courier import Courier
from corerl.training.rollouts import Collector


def hazard() -> gymnasium.Env:
    return mdps.FiniteEnv(mdps.hazard())


class GoOn:
    """Goes on for ever; counts the calls and remembers the rewards."""

    def begin(self, seeds, episodes):
        self.heard, self.shape = [], (seeds, episodes)

    def reward(self, rewards):
        self.heard.append(rewards)

    def __call__(self, observations):
        assert observations.shape == (*self.shape, 1)
        return torch.ones(self.shape, dtype=torch.int64)


def test_episodes_end_where_they_end():
    """The hazard pays 1 a step and at last -5, unless it is cut after 6 steps."""
    collector, act = Collector(hazard, [0, 3], 40, 6), GoOn()
    played = collector.play(act)
    lengths = played.alive.sum(-1).long()
    assert set(range(1, 7)) >= set(lengths.flatten().tolist()) >= {1, 6}
    for rewards, observations, last, n in zip(
        *(x.flatten(0, 1) for x in (played.rewards, played.observations, played.last)),
        lengths.flatten().tolist(),
        strict=True,
    ):
        assert rewards[: n - 1].tolist() == [1] * (n - 1) and not rewards[n:].any()
        assert rewards[n - 1] == -5 or (n == 6 and rewards[5] == 1)
        assert last.tolist() == np.eye(6)[n - 1].tolist()
        assert observations[:n].all() and not observations[n:].any()
    assert torch.equal(torch.stack(act.heard, -1), played.rewards[..., : len(act.heard)])
    again = collector.play(act)
    assert not torch.equal(again.rewards, played.rewards)


def test_a_seed_meets_the_same_chances_alone_and_after_a_restart():
    together, alone = Collector(hazard, [0, 3], 5, 8), Collector(hazard, [3], 5, 8)
    first, state = together.play(GoOn()), together.state_dict()
    assert torch.equal(first.rewards[1:], alone.play(GoOn()).rewards)
    other = Collector(hazard, [0, 3], 5, 8)
    other.load_state_dict(state)
    assert torch.equal(other.play(GoOn()).rewards, together.play(GoOn()).rewards)
    assert not torch.equal(first.rewards[0], first.rewards[1])


class Wide(gymnasium.Env):
    """Keeps the actions that it is sent."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (2,))

    def __init__(self):
        self.sent = []

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.sent.append(np.array(action))
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("low, sent", [(-0.5, -0.5), (torch.nan, 0.0)])
def test_an_environment_gets_actions_within_its_bounds_and_a_gradient_those_drawn(low, sent):
    """What a policy that diverged calls an action is 0."""
    drawn = torch.tensor([2.5, low])

    class Far(GoOn):
        def __call__(self, observations):
            return drawn.expand(*self.shape, 2)

    made = []
    collector = Collector(lambda: made.append(Wide()) or made[-1], [0], 1, 3)
    played = collector.play(Far())
    assert np.array_equal(made[0].sent, [[1.0, sent]] * 3)
    torch.testing.assert_close(played.actions[0, 0], drawn.expand(3, 2), equal_nan=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"observation_space": spaces.Discrete(3)}, "vectors"),
        ({"action_space": spaces.Discrete(2, start=1)}, "0"),
        ({"action_space": spaces.MultiBinary(2)}, "0"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(change, reason):
    def make():
        env = hazard()
        for name, value in change.items():
            setattr(env, name, value)
        return env

    with refused(reason):
        Collector(make, [0], 2, 3)


@pytest.mark.parametrize("name", ["cvar_pg", "sqirl"])
def test_discounted_steps_of_unequal_durations_are_refused(name):
    cfg = tiny.settings(name)
    cfg = replace(cfg, task="corerl/courier", algo=replace(cfg.algo, discount=0.9))
    with refused("durations dqn qr_dqn iqn"):
        tiny.Short(cfg)
    assert Collector(Courier, [0], 1, 3).action_dim == 2  # discounts nothing
