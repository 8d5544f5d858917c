"""Fitted values: against exact ones on small MDPs, and what regret labels make of them."""

import numpy as np
import pytest

from corerl.data.dataset import Dataset
from corerl.preferences import teachers, values
from corerl.preferences.sources import Preferences

# States 0, 1, 2; actions stay and go. Staying in state i pays STAY[i]; going pays nothing and leads to the
# next state, from 2 to the end, where it pays 6. The best is to go on until the end: V* = 6 g^2, 6 g, 6.
STAY, DISCOUNT = np.array([0.3, 0.2, 0.1]), 0.8
EXACT = np.array([6 * DISCOUNT**2, 6 * DISCOUNT, 6.0])


def walk(go: float, episodes: int = 300) -> Dataset:
    """Episodes of 6 steps at most from random states, by a policy that goes with probability `go`."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(episodes):
        state = rng.integers(3)
        for t in range(6):
            goes = rng.random() < go
            end = goes and state == 2
            following = min(state + goes, 2)
            reward = (6.0 if end else 0.0) if goes else STAY[state]
            rows.append((state, goes, reward, following, end, not end and t == 5))
            if end:
                break
            state = following
    states, goes, rewards, following, ends, cut = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    one_hot = np.eye(3, dtype=np.float32)
    return Dataset.from_steps(
        "walk", one_hot[states], 2.0 * goes[:, None] - 1, rewards, one_hot[following], ends, cut
    )


def fitted(data: Dataset, **settings) -> tuple[np.ndarray, np.ndarray]:
    small = {"hidden_layers": 0, "discount": DISCOUNT, "lr": 0.02, "polyak": 0.1, "steps": 1_500}
    return values.fit(data, values.Values(**small | settings), seed=0)


def of_state(data: Dataset, v: np.ndarray) -> np.ndarray:
    """One value per state, which all of its rows must agree on."""
    state = data.observations.argmax(1)
    assert all(np.ptp(v[state == i]) < 1e-5 for i in range(3))
    return np.array([v[state == i][0] for i in range(3)])


def test_a_high_expectile_finds_the_optimal_values():
    data = walk(0.5)
    v, after = fitted(data, expectile=0.99)
    np.testing.assert_allclose(of_state(data, v), EXACT, atol=0.15)
    assert (after[data.terminated] == 0).all() and (after[~data.terminated] > 0).all()


def test_an_expectile_of_a_half_finds_the_values_of_the_data_s_policy():
    """V(i) = go * (reward or g V(i + 1)) + stay * (STAY[i] + g V(i)), with the data's own frequencies."""
    data = walk(0.3)
    v = of_state(data, fitted(data, expectile=0.5)[0])
    state, goes = data.observations.argmax(1), data.actions[:, 0] > 0
    exact, following = np.zeros(3), 6.0
    for i in (2, 1, 0):
        go = goes[state == i].mean()
        exact[i] = (go * following + (1 - go) * STAY[i]) / (1 - (1 - go) * DISCOUNT)
        following = DISCOUNT * exact[i]
    np.testing.assert_allclose(v, exact, atol=0.1)


@pytest.mark.parametrize("judge", ["regret", "advantage"])
def test_segments_are_ranked_by_the_regret_of_an_exact_solution(judge):
    """And not by the return, which never prefers a state where nothing can be had yet."""
    data = walk(0.5)
    fit = {"hidden_layers": 0, "discount": DISCOUNT, "lr": 0.02, "polyak": 0.1, "steps": 1_500}
    cfg = {"length": 2, "pairs": 300}
    by_regret = Preferences(judge=judge, values=values.Values(**fit, expectile=0.99), **cfg)
    compared = teachers.teach(data, by_regret)
    state, following = (x.argmax(1) for x in (data.observations, data.next_observations))
    after = np.where(data.terminated, 0.0, EXACT[following])
    gain = data.rewards + (DISCOUNT if judge == "advantage" else 1.0) * after - EXACT[state]
    first, second = compared.segments(gain).sum(-1).T
    apart = np.abs(first - second) > 0.5
    assert apart.sum() > 50
    assert (compared.labels[apart] == (second > first)[apart]).all()
    by_return = teachers.teach(data, Preferences(**cfg))
    assert (by_return.starts == compared.starts).all()
    assert (by_return.labels[apart] != compared.labels[apart]).mean() > 0.2


def test_the_same_seed_fits_the_same_values():
    data = walk(0.5, episodes=30)
    short = {"hidden_layers": 1, "hidden_width": 8, "steps": 20}
    one, again = (fitted(data, **short)[0] for _ in range(2))
    assert (one == again).all()
    assert (values.fit(data, values.Values(**short), seed=1)[0] != one).any()


def test_rewards_of_nothing_are_worth_nothing():
    rows = np.eye(3, dtype=np.float32)
    cut = np.array([False, False, True])
    data = Dataset.from_steps("idle", rows, rows[:, :1], np.zeros(3), rows, ~cut & False, cut)
    v, _ = fitted(data, steps=500)
    assert np.abs(v).max() < 1e-2
