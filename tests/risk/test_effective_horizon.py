"""The effective horizon against problems whose answer is known, and lookahead against direct recursion."""

import numpy as np
import pytest

from corerl.envs import mdps, textbook_mdps
from corerl.risk.effective_horizon import best_values, effective_horizon, lookahead_values
from corerl.risk.finite_mdp import END, FiniteMDP


def corridor(length: int, horizon: int) -> FiniteMDP:
    """Action 0 goes on, 1 back to the start; the last step pays 1 and the end of the way pays nothing."""
    places = np.arange(length + 1)
    following = np.stack([np.minimum(places + 1, length), 0 * places], 1)
    following[length] = length
    rewards = np.zeros((length + 1, 2))
    rewards[length - 1, 0] = 1
    ones = np.ones((length + 1, 2, 1))
    return FiniteMDP(ones, rewards[..., None], following[..., None], horizon=horizon)


@pytest.mark.parametrize(("length", "horizon"), [(3, 6), (6, 12), (10, 20)])
def test_a_corridor_with_a_way_back_needs_one_step(length, horizon):
    assert effective_horizon(corridor(length, horizon)) == 1


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_trap_needs_one_step_more_than_its_path(length):
    mdp = textbook_mdps.trap(length)
    assert effective_horizon(mdp) == length + 1
    assert effective_horizon(mdp, most=length) is None


def test_the_value_of_random_play_by_hand():
    """Going on in a trap with a path of two: right twice more with a half each, for 1."""
    assert lookahead_values(textbook_mdps.trap(), 3)[:, 0, 0, 0].tolist() == [0.25, 0.5, 1.0]


def recursion(mdp: FiniteMDP, k: int, t: int, state: int, action: int) -> float:
    """Q^k by its definition, one outcome after another."""
    value, parts = 0.0, (mdp.probabilities, mdp.rewards, mdp.successors)
    for p, r, s in zip(*(x[state, action] for x in parts), strict=True):
        ahead = 0.0
        if s != END and t + 1 < mdp.steps:
            q = [recursion(mdp, max(k - 1, 1), t + 1, s, b) for b in range(mdp.sizes[1])]
            ahead = np.mean(q) if k == 1 else max(q)
        value += p * (r + mdp.discount * ahead)
    return value


@pytest.mark.parametrize("mdp", [mdps.lock_in(), mdps.wagers(), textbook_mdps.inventory(3)])
def test_lookahead_equals_its_definition(mdp):
    values = lookahead_values(mdp, 3)
    for k in (1, 2, 3):
        for t in range(mdp.steps):
            exact = [
                [recursion(mdp, k, t, s, a) for a in range(mdp.sizes[1])]
                for s in range(mdp.sizes[0])
            ]
            np.testing.assert_allclose(values[k - 1, t], exact, atol=1e-12)


def test_as_many_steps_as_an_episode_has_are_optimal():
    mdp = textbook_mdps.machine(6)
    best = best_values(mdp)
    value = np.zeros(mdp.sizes[0] + 1)
    for t in reversed(range(6)):
        q = (mdp.probabilities * (mdp.rewards + mdp.discount * value[mdp.successors])).sum(-1)
        np.testing.assert_allclose(best[t], q, atol=1e-12)
        value = np.append(q.max(-1), 0.0)


def test_ties_must_all_be_best():
    """Random play sees no difference between two ways, of which only one can still be turned to profit."""
    following = np.array([[1, 2], [END, END], [END, END]])[..., None]
    rewards = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])[..., None]
    mdp = FiniteMDP(np.ones((3, 2, 1)), rewards, following, horizon=2)
    assert lookahead_values(mdp, 1)[0, 0, 0].tolist() == [1.0, 1.0]
    assert effective_horizon(mdp) == 2
