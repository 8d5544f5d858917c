"""corerl/courier: its data replays, and exact values tell discounting by minutes from that by decisions."""

import numpy as np
import pytest

from corerl.data.tasks import resolve
from corerl.envs import courier

FOOT, EVERY_RIDE = [courier.WALK] * courier.CELLS, [courier.RIDE] * courier.CELLS
BEST = [*FOOT[:4], courier.RIDE, *FOOT[5:]]


def solved(discount: float, timed: bool) -> list[int]:
    """The greedy actions of exact values, by value iteration."""
    steps = [[courier.move(s, a) for a in range(2)] for s in range(courier.CELLS)]
    values = np.zeros(courier.CELLS)
    for _ in range(1000):
        q = [[r + discount ** (k if timed else 1) * values[n] for r, n, k in row] for row in steps]
        values = np.max(q, 1)
    return np.argmax(q, 1).tolist()


def parcels(policy: list[int]) -> float:
    env = resolve("corerl/courier").make_env()
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, over, info = env.step(policy[observation.argmax()])
        total += reward
        assert not terminated and 1 <= info["duration"] <= env.unwrapped.longest
    return total


@pytest.mark.parametrize(("policy", "day"), [(EVERY_RIDE, 12), (FOOT, 20), (BEST, 24)])
def test_the_days_of_the_three_ways(policy, day):
    assert parcels(policy) == day


def test_only_minutes_lead_to_the_best_way():
    """By decisions the greedy courier rides from the first cell, and carries half of the parcels."""
    assert parcels(solved(0.9, timed=True)) == 24
    by_decisions = solved(0.9, timed=False)
    assert by_decisions[0] == by_decisions[4] == by_decisions[8] == courier.RIDE
    assert parcels(by_decisions) == 12


def test_the_recorded_steps_are_the_environments():
    data, env = resolve("corerl/courier").load(), resolve("corerl/courier").make_env()
    env.reset(seed=0)
    for i in range(int(data.episode_ends[1])):
        following, reward, _, truncated, info = env.step(int(data.actions[i]))
        assert np.array_equal(following, data.next_observations[i])
        assert (reward, truncated) == (data.rewards[i], data.truncated[i])
        assert info["duration"] == data.durations[i]
        if truncated:
            env.reset()


def test_the_reference_is_that_of_uniform_actions():
    low, high = resolve("corerl/courier").reference
    assert courier.random_return(1500) == pytest.approx(low, abs=0.2) and high == parcels(BEST)
