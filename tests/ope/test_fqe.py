"""Fitted Q evaluation against linear solves, and its critics' independence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from wording import refused

from corerl.data.dataset import Dataset
from corerl.ope.fqe import FQE, Settings
from corerl.ope.policies import Policy, together

torch.set_num_threads(1)


def table(rng, states=4, actions=3, *, horizon=None, episodes=300, steps=20):
    """Episodes of a random MDP as one-hot observations, with the MDP."""
    transitions = rng.dirichlet(np.ones(states), (states, actions))
    # Each row's successor law is met exactly: successors in proportion would need a huge set, so the
    # dynamics are deterministic, and the randomness is the behaviour's.
    successors = transitions.argmax(-1)
    rewards = rng.normal(size=(states, actions))
    s = rng.integers(states, size=episodes)
    rows = []
    for t in range(steps):
        a = rng.integers(actions, size=episodes)
        rows.append((s, a, rewards[s, a], successors[s, a], np.full(episodes, t == steps - 1)))
        s = successors[s, a]
    s, a, r, following, last = (np.stack(x, 1).ravel() for x in zip(*rows, strict=True))
    one_hot = np.eye(states, dtype=np.float32)
    dataset = Dataset.from_steps(
        "test/table", one_hot[s], a, r, one_hot[following], np.zeros(len(s), bool), last
    )
    return dataset, successors, rewards


def of_table(*probabilities):
    """S policies with `(states, actions)` probabilities at one-hot observations."""
    both = np.stack(probabilities)
    return Policy(
        seeds=list(range(len(both))),
        probabilities=lambda x: both[:, x.argmax(-1)],
        sizes=(both.shape[1], both.shape[2]),
    )


def solved(successors, rewards, policy, discount, horizon=None):
    """Q, or for a finite horizon Q at every step."""
    value, q = np.zeros(len(rewards)), []
    for _ in range(horizon or 2000):
        q.insert(0, rewards + discount * value[successors])
        value = (policy * q[0]).sum(1)
    return np.array(q) if horizon else q[0]


LINEAR = {"hidden_layers": 0, "lr": 0.02, "batch_size": 128, "polyak": 0.2}


def test_linear_critics_of_one_hot_states_are_the_linear_solve():
    rng = np.random.default_rng(0)
    dataset, successors, rewards = table(rng)
    policies = rng.dirichlet(np.ones(3), (2, 4))
    critics = FQE(of_table(*policies), dataset, Settings(steps=2500, discount=0.9, **LINEAR))
    critics.fit()
    every = np.eye(4, dtype=np.float32)
    for i, policy in enumerate(policies):
        q = solved(successors, rewards, policy, 0.9)
        for a in range(3):
            ours = critics.q(every, np.full(4, a))[i]
            np.testing.assert_allclose(ours, q[:, a], atol=2e-3)
        np.testing.assert_allclose(critics.value(every)[i], (policy * q).sum(1), atol=2e-3)


def test_a_finite_horizon_is_backward_induction_with_no_discount():
    rng = np.random.default_rng(1)
    dataset, successors, rewards = table(rng, steps=4)
    policy = rng.dirichlet(np.ones(3), 4)
    cfg = Settings(
        steps=2000, lr=3e-3, discount=1.0, horizon=4, hidden_width=32, polyak=0.1, batch_size=128
    )
    critics = FQE(of_table(policy), dataset, cfg)
    critics.fit()
    q = solved(successors, rewards, policy, 1.0, horizon=4)
    every = np.eye(4, dtype=np.float32)
    seen = dataset.observations.argmax(-1)
    times = np.tile(np.arange(4), dataset.n_episodes)
    for t in range(4):
        reached = np.unique(seen[times == t])  # states that the data has at this time
        ours = critics.value(every[reached], t)[0]
        np.testing.assert_allclose(ours, (policy * q[t]).sum(1)[reached], atol=0.1)


def test_steps_past_the_horizon_are_not_learned_from():
    rng = np.random.default_rng(8)
    dataset, *_ = table(rng, episodes=20, steps=6)
    past = np.tile(np.arange(6) >= 4, 20)
    changed = replace(dataset, actions=np.where(past, (dataset.actions + 1) % 3, dataset.actions))
    values = []
    for data in (dataset, changed):
        policy = of_table(np.full((4, 3), 1 / 3))
        critics = FQE(policy, data, Settings(steps=20, discount=1.0, horizon=4, **LINEAR))
        critics.fit()
        values.append(critics.value(np.eye(4, dtype=np.float32)))
    np.testing.assert_array_equal(*values)


def test_many_states_have_the_values_that_each_has_alone():
    dataset, *_ = table(np.random.default_rng(9))
    policy = of_table(np.random.default_rng(9).dirichlet(np.ones(3), 4))
    critics = FQE(policy, dataset, Settings(steps=1, **LINEAR))
    states = np.eye(4, dtype=np.float32)[np.arange(9001) ** 2 % 7 % 4]
    values = critics.value(np.eye(4, dtype=np.float32))[:, states.argmax(1)]
    np.testing.assert_allclose(critics.value(states), values, rtol=1e-5)


@pytest.mark.parametrize("horizon", [5, 1])
def test_a_time_limit_is_an_end_though_no_state_after_it_was_recorded(horizon):
    """Each of `horizon` steps pays 1; a horizon of 1 leaves no row with a next state."""
    rng = np.random.default_rng(7)
    n = 40 * horizon
    over = np.arange(n) % horizon == horizon - 1
    states = rng.normal(size=(n, 2)).astype(np.float32)
    lost = np.where(over[:, None], np.nan, np.roll(states, -1, 0))
    dataset = Dataset.from_arrays(
        *(states, rng.integers(2, size=n), np.ones(n)),
        truncated=over,
        next_observations=lost,
        has_next=~over,
    )
    policy = Policy([0], probabilities=lambda x: np.full((1, len(x), 2), 0.5), sizes=(2, 2))
    cfg = Settings(steps=800, discount=1.0, horizon=horizon, **LINEAR)
    critics = FQE(policy, dataset, cfg)
    critics.fit()
    for t in range(horizon):
        np.testing.assert_allclose(critics.value(states[:5], t), horizon - t, atol=0.05)
    with refused(f"episode {horizon} steps"):
        FQE(policy, dataset, Settings(discount=1.0, horizon=horizon + 1))


def test_one_policys_critic_is_its_own():
    """Alone and beside another, the same numbers."""
    rng = np.random.default_rng(2)
    dataset, *_ = table(rng, episodes=30)
    a, b = rng.dirichlet(np.ones(3), (2, 4))
    cfg = Settings(steps=20, hidden_width=16)
    values = []
    for policies in ((a, b), (a, 1 - b), (a,)):
        critics = FQE(of_table(*policies), dataset, cfg)
        critics.fit()
        values.append(critics.value(dataset.observations[:50]))
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=0, atol=0)
    np.testing.assert_allclose(values[0][0], values[2][0], rtol=1e-5)
    assert np.abs(values[0][1] - values[1][1]).max() > 0


def continuous(rng, n=4000):
    """One-step episodes with reward -(a - s)^2."""
    s = rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    a = rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    over = np.ones(n, bool)
    return Dataset.from_steps("test/bandit", s, a, -((a - s) ** 2), s, over, ~over)


def test_continuous_actions_and_the_mean_over_draws():
    rng = np.random.default_rng(3)
    dataset = continuous(rng)
    offsets = np.array([0.0, 0.5])  # two policies: a = s + offset, and one with two draws each

    def actions(x):
        return np.stack([np.stack([x + o, x - o], 1) for o in offsets])

    policy = Policy([0, 1], actions=actions, sizes=(1, 1))
    critics = FQE(policy, dataset, Settings(steps=800, lr=1e-2, hidden_width=32, critics=2))
    critics.fit()
    at = np.linspace(-0.4, 0.4, 9, dtype=np.float32)[:, None]
    value = critics.value(at)
    np.testing.assert_allclose(value[0], 0, atol=0.05)
    np.testing.assert_allclose(value[1], -0.25, atol=0.05)
    np.testing.assert_allclose(critics.q(at, at + 0.3), -0.09, atol=0.05)


def test_a_feature_that_never_changes_keeps_its_unit():
    moving, fixed, zeros = np.arange(4.0), np.full(4, 5.0), np.zeros((4, 1))
    states = np.stack([moving, fixed], 1)
    dataset = Dataset.from_steps("test/fixed", states, zeros, moving, states, zeros, [0, 1, 0, 1])
    policy = Policy([0], actions=lambda x: np.zeros((1, len(x), 1, 1)), sizes=(2, 1))
    seen = FQE(policy, dataset, Settings(hidden_width=4))._inputs(np.array([[4.0, 6.0]]), 0)
    np.testing.assert_allclose(seen, [[2.5 / (np.sqrt(1.25) + 1e-3), 1]], rtol=1e-6)


def test_what_cannot_be_fitted_is_refused():
    rng = np.random.default_rng(4)
    dataset = continuous(rng, 100)
    with refused("discount=1"):
        Settings(discount=1.0)
    discrete = of_table(np.full((4, 3), 1 / 3))
    with refused("discrete test/bandit continuous"):
        FQE(discrete, dataset, Settings(steps=1))
    wide = Policy([0], actions=lambda x: x[None, :, None], sizes=(2, 1))
    with refused("policy task"):
        FQE(wide, dataset, Settings(steps=1))


def test_policies_of_several_runs_together_are_each_alone():
    """Runs have seeds of the same names; each critic is what it would be by itself."""
    dataset, *_ = table(np.random.default_rng(5), episodes=30)
    one, other = np.random.default_rng(6).dirichlet(np.ones(3), (2, 4))
    cfg = Settings(steps=20, hidden_width=16)
    found = []
    for policy in (of_table(one), of_table(other), together([of_table(one), of_table(other)])):
        critics = FQE(policy, dataset, cfg)
        critics.fit()
        found.append(critics.value(dataset.observations[:50]))
    np.testing.assert_allclose(found[2], np.concatenate(found[:2]), rtol=1e-4, atol=1e-5)
    with refused("together"):
        together([of_table(one), Policy([0], actions=lambda x: x[None, :, None])])
