"""Distances between rewards: blind to shaping and scale, 1 for a reward's negative."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from wording import refused

from corerl.risk import rewards


def mdp(rng, states=4, actions=3):
    transitions = rng.dirichlet(np.ones(states), (states, actions))
    return transitions, rng.normal(size=(states, actions, states)), rng.normal(size=states)


def shaped(reward, potential, discount, scale):
    return scale * (reward + discount * potential[None, None] - potential[:, None, None])


@pytest.mark.parametrize("norm", rewards.NORMS)
def test_starc_is_blind_to_shaping_and_scale_and_sees_the_negative(norm):
    transitions, reward, potential = mdp(np.random.default_rng(0))
    same = shaped(reward, potential, 0.9, 5)
    assert rewards.starc(reward, same, transitions, 0.9, norm=norm) < 1e-14
    if norm == "l2":
        assert rewards.starc(reward, -reward, transitions, 0.9) == pytest.approx(1, abs=1e-14)
    # With another discount it is no shaping.
    assert rewards.starc(reward, same, transitions, 0.5, norm=norm) > 1e-2


@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2), ("linf", np.inf)])
def test_a_reward_and_its_negative_are_apart_by_their_length_in_the_norm(norm, order):
    transitions, reward, _ = mdp(np.random.default_rng(0))
    found = rewards.starc(reward, -reward, transitions, 0.9, norm=norm)
    canonical = rewards.value_canonical(reward, transitions, 0.9).ravel()
    assert found == pytest.approx(np.linalg.norm(canonical) / np.linalg.norm(canonical, order))


def test_the_advantage_of_a_policy_is_none_where_it_acts():
    rng = np.random.default_rng(0)
    (transitions, reward, _), policy = mdp(rng), rng.dirichlet(np.ones(3), 4)
    advantage = rewards.value_canonical(reward, transitions, 0.9, policy)
    np.testing.assert_allclose((policy * advantage).sum(1), 0, atol=1e-12)


def test_starc_is_a_pseudometric():
    rng = np.random.default_rng(1)
    transitions, a, _ = mdp(rng)
    b, c = rng.normal(size=(2, *a.shape))
    d = lambda x, y: rewards.starc(x, y, transitions, 0.9)  # noqa: E731
    assert d(a, b) == d(b, a)
    assert d(a, c) <= d(a, b) + d(b, c)
    assert d(a, a) == 0


def test_starc_of_a_reward_that_ranks_nothing():
    transitions, reward, potential = mdp(np.random.default_rng(2))
    nothing = shaped(np.zeros_like(reward), potential, 0.9, 1) + 3.0
    assert rewards.starc(reward, nothing, transitions, 0.9) == pytest.approx(0.5)
    assert rewards.starc(nothing, np.zeros_like(reward), transitions, 0.9) == 0


def test_rewards_of_states_and_actions_are_their_expectations():
    transitions, reward, _ = mdp(np.random.default_rng(3))
    expected = (transitions * reward).sum(-1)
    assert rewards.starc(reward, expected, transitions, 0.9) < 1e-14


def test_epic_is_blind_to_shaping_and_scale_and_sees_the_negative():
    _, reward, potential = mdp(np.random.default_rng(4))
    same = shaped(reward, potential, 0.9, 5) + 7
    assert rewards.epic(reward, same, 0.9) < 1e-7  # a square root of rounding
    assert rewards.epic(reward, -reward, 0.9) == pytest.approx(1)
    with refused("shaping"):
        rewards.epic(reward, shaped(0 * reward, potential, 0.9, 1), 0.9)


def test_epic_of_samples_approaches_the_exact_one():
    rng = np.random.default_rng(5)
    _, one, _ = mdp(rng)
    other = one + rng.normal(size=one.shape)
    every = np.stack(np.meshgrid(np.arange(4), np.arange(3), np.arange(4), indexing="ij"), -1)
    s, a, t = np.tile(every.reshape(-1, 3), (40, 1)).T
    sampled = rewards.epic_of_samples(
        lambda s, a, t: one[s, a, t], lambda s, a, t: other[s, a, t], s, a, t, 0.9, samples=4000
    )
    assert sampled == pytest.approx(rewards.epic(one, other, 0.9), abs=0.01)


def test_epic_of_samples_draws_actions_apart_from_next_states():
    drawn, rows = [], np.arange(100.0)

    def reward(s, a, t):
        drawn.append((a, t))
        return np.sin(s + 2 * a + 3 * t)

    rewards.epic_of_samples(reward, reward, rows, rows, rows, 0.9, samples=64)
    a, t = next(pair for pair in drawn if len(pair[0]) > 100)
    assert (a != t).mean() > 0.9


def regret(reward, wrong, transitions, discount):
    """What following the optimal policy of `wrong` loses, as a share of the best minus the worst."""

    def solve(r, sign):
        q = np.zeros(transitions.shape[:2])
        for _ in range(400):
            q = sign * (transitions * r).sum(-1) + discount * transitions @ q.max(1)
        return q.argmax(1)

    def value(policy):
        here = np.arange(len(policy))
        p, r = transitions[here, policy], (transitions * reward).sum(-1)[here, policy]
        return np.linalg.solve(np.eye(len(policy)) - discount * p, r).mean()

    best, worst = value(solve(reward, 1)), value(solve(reward, -1))
    return (best - value(solve(wrong, 1))) / (best - worst)


def test_starc_orders_rewards_by_regret_better_than_epic():
    """Both as the papers claim; STARC knows the dynamics and EPIC does not."""
    rng = np.random.default_rng(6)
    rows = []
    for _ in range(120):
        transitions = rng.dirichlet(np.full(6, 0.1), (6, 3))
        reward, noise, potential = rng.normal(size=(6, 3, 6)), *mdp(rng, 6)[1:]
        wrong = reward * rng.uniform(-1, 2) + noise * rng.uniform(0, 2)
        wrong = shaped(wrong, 3 * potential, 0.9, 1)
        rows.append(
            (
                regret(reward, wrong, transitions, 0.9),
                rewards.starc(reward, wrong, transitions, 0.9),
                rewards.epic(reward, wrong, 0.9),
            )
        )
    lost, starc, epic = np.array(rows).T
    of_starc, of_epic = spearmanr(lost, starc)[0], spearmanr(lost, epic)[0]
    assert of_starc > 0.8
    assert of_starc > of_epic


def rows(rng, n=3000):
    s = rng.normal(size=(n, 3))
    following = s + 0.3 * rng.normal(size=s.shape)
    a = rng.normal(size=n)
    return s, following, rng.random(n) < 0.05, np.sin(s[:, 0]) * a


def test_starc_of_rows_is_blind_to_smooth_shaping_and_scale():
    rng = np.random.default_rng(7)
    s, following, over, reward = rows(rng)
    distance = lambda other: rewards.starc_of_rows(reward, other, s, following, over, 0.9)  # noqa: E731
    affine = lambda x: x @ [1.0, -2.0, 0.5] + 3  # noqa: E731
    shaping = 0.9 * ~over * affine(following) - affine(s)
    assert distance(5 * (reward + shaping)) < 1e-10
    curved = lambda x: np.sin(x[:, 1]) * x[:, 2]  # noqa: E731
    assert distance(reward + 0.9 * ~over * curved(following) - curved(s)) < 0.05
    assert distance(-reward) == pytest.approx(1)
    assert 0.3 < distance(rng.normal(size=len(reward))) < 0.8  # unrelated: about sqrt(1/2)


def test_a_feature_that_never_changes_spoils_no_distance():
    s, following, over, reward = rows(np.random.default_rng(9))
    s[:, 0] = following[:, 0] = 3.0
    shaping = 0.9 * ~over * following[:, 2] - s[:, 2]
    for other in (5 * reward, reward + 10 * shaping):
        assert rewards.starc_of_rows(reward, other, s, following, over, 0.9) < 1e-10


def test_what_has_no_distance_is_refused():
    rng = np.random.default_rng(8)
    transitions, reward, _ = mdp(rng)
    with refused("discount"):
        rewards.starc(reward, reward, transitions, 1.0)
    with refused("S A MDP"):
        rewards.starc(reward[:3], reward, transitions, 0.9)
    with refused("few"):
        s, following, over, r = rows(rng, 100)
        rewards.starc_of_rows(r, r, s, following, over, 0.9)
