"""ICVaR-L, -G and -HF: operators by hand, regression by least squares, confidence sets, learning."""

import numpy as np
import pytest

from corerl.algos import icvar
from corerl.envs.low_rank import MixtureEnv
from corerl.risk import measures, solvers
from corerl.risk.solvers import iterated
from corerl.training.tabular import Learners, play

ENV = MixtureEnv()
KERNEL, REWARDS = ENV.mdp.probabilities, ENV.mdp.rewards[..., 0]
THETA = np.linalg.lstsq(ENV.kernels.reshape(3, -1).T, KERNEL.ravel(), rcond=None)[0]


def learner(kind: str, seed: int = 0, **own):
    cfg = icvar.Config(kind=kind, **own)
    return icvar.LEARNERS[kind](cfg, ENV, np.random.default_rng(seed))


@pytest.mark.parametrize("tau", [0.1, 0.25, 0.5, 1.0])
def test_the_optimum_of_a_model_is_the_exact_solvers(tau):
    values, table = solvers.iterated_optima(KERNEL, REWARDS, 4, tau)
    exact = iterated(ENV.mdp, tau)
    assert values[0][0] == pytest.approx(exact.value, abs=1e-12)
    assert solvers.iterated_value(ENV.mdp, table, tau) == pytest.approx(exact.value, abs=1e-12)
    worse = solvers.iterated_value(ENV.mdp, np.zeros_like(table), tau)
    assert worse < exact.value


def test_optima_of_many_models_are_each_alone():
    models = np.einsum("md,dsat->msat", ENV.models[:3], ENV.kernels)
    values, table = solvers.iterated_optima(models[:, None], ENV.payoffs[:4], 4, 0.3)
    for m, r in np.ndindex(3, 4):
        one, actions = solvers.iterated_optima(models[m], ENV.payoffs[r], 4, 0.3)
        np.testing.assert_allclose(values[:, m, r], one)
        np.testing.assert_array_equal(table[:, m, r], actions)


def test_features_give_the_cvar_to_the_spacing_of_the_net():
    """max_x x - <theta, psi_x> / tau is CVaR where the net holds the atom, else lower by less than it."""
    value, net = np.random.default_rng(0).uniform(0, 3, 6), np.arange(0, 4, 0.05)
    psi = icvar.features(ENV.kernels, value, net)
    assert psi[2, 1, 30] == pytest.approx(
        [(k[2, 1] * np.maximum(net[30] - value, 0)).sum() for k in ENV.kernels]
    )
    found = (net - psi @ THETA / 0.25).max(-1)
    exact = measures.cvar_of_law(value, KERNEL, 0.25)
    assert (found <= exact + 1e-9).all() and (found > exact - 0.05 / 0.25).all()
    with_atoms = np.union1d(net, value)
    found = (with_atoms - icvar.features(ENV.kernels, value, with_atoms) @ THETA / 0.25).max(-1)
    np.testing.assert_allclose(found, exact, atol=1e-9)


def test_linear_regression_is_ridge_on_what_it_chose_to_regress():
    agent = learner("linear", ridge=0.5)
    rows, targets = [], []
    for _ in range(8):
        agent.episodes += 1
        state = agent.rng.bit_generator.state
        values, lengths, psis = agent.plan()
        trail = play(ENV.mdp, agent.table, agent.rng)
        agent.rng.bit_generator.state = state
        agent.episodes -= 1
        s, a, successor = trail[1]
        x = int(np.argmax([np.sqrt(p @ np.linalg.inv(agent.gram[1]) @ p) for p in psis[1][s, a]]))
        np.testing.assert_allclose(
            lengths[1][s, a, x],
            np.sqrt(psis[1][s, a, x] @ np.linalg.inv(agent.gram[1]) @ psis[1][s, a, x]),
        )
        rows.append(psis[1][s, a, x])
        targets.append(max(0.0, agent.net[x] - values[2][successor]))
        agent.episode()
    stacked = np.vstack([rows, np.sqrt(0.5) * np.eye(3)])
    theta = np.linalg.lstsq(stacked, np.append(targets, np.zeros(3)), rcond=None)[0]
    np.testing.assert_allclose(np.linalg.solve(agent.gram[1], agent.moments[1]), theta, atol=1e-9)


def test_linear_with_the_true_parameter_is_hopeful_by_no_more_than_its_bonus():
    agent = learner("linear", bonus_scale=0.0)
    agent.gram[:] = 1e12 * np.eye(3)
    agent.moments[:] = 1e12 * THETA
    values, _, _ = agent.plan()
    exact = iterated(ENV.mdp, 0.25).value
    assert exact - 1e-6 <= values[0][0] <= exact + 3 * 2 * 0.05 + 1e-6


def test_a_bonus_by_hand():
    """One step before the last: r + C[V] + 2 net + beta / tau max ||psi||, at Lambda = 10^4 and the truth."""
    agent = learner("linear", bonus_scale=0.02, tau=0.5, ridge=0.5, net=0.1, delta=0.2)
    agent.episodes = 3
    agent.gram[:], agent.moments[:] = 1e4 * np.eye(3), 1e4 * THETA
    values, _, _ = agent.plan()
    beta = 0.02 * (4 * np.sqrt(3 * np.log((1 + 3 * 4**3) / 0.2)) + np.sqrt(0.5 * 3))
    last, net = REWARDS.max(1), np.arange(0, 4.1, 0.1)
    psi = np.stack(
        [[k @ np.maximum(x - last, 0) for k in ENV.kernels] for x in net]
    )  # (X, d, S, A)
    lengths = np.sqrt((psi**2).sum(1)) / 100
    risk = (net[:, None, None] - np.einsum("xdsa,d->xsa", psi, THETA) / 0.5).max(0)
    q = REWARDS + risk + 2 * 0.1 + beta / 0.5 * lengths.max(0)
    assert (q < 2).any(1).all()
    np.testing.assert_allclose(values[2], np.minimum(q, 2).max(1))


def test_nobody_hopes_for_more_than_a_reward_of_one_a_step():
    agent = learner("linear", bonus_scale=1.0)
    agent.episodes = 1
    values, _, _ = agent.plan()
    assert [v.max() for v in values] == pytest.approx([4.0, 3.0, 2.0, REWARDS.max(), 0.0])


def test_widths_of_confidence_sets_by_hand():
    agent = learner("preferences", bonus_scale=0.1, delta=0.2)
    agent.episodes = 3
    assert agent.width() == pytest.approx(0.1 * 4**2 * np.log(len(ENV.models) * 4 * 3 / 0.2))
    width = 0.1 * np.log(len(ENV.payoffs) * 3 / 0.2)
    agent.likelihood[:] = -9.0
    agent.likelihood[:3] = [-5.0, -5.0 - 0.999 * width, -5.0 - 1.001 * width]
    assert agent.possible_payoffs().nonzero()[0].tolist() == [0, 1]


def test_a_general_step_by_hand():
    agent = learner("general")
    value = np.array([2.0, 1.0, 1.5, 0.5, 2.5, 0.0])
    agent.alive[:] = False
    agent.alive[[1, 4, 7]] = True
    agent._learn(value, 3, 2, 5)
    best = max(
        (max(e) - min(e), -i, x)
        for i, x in enumerate(agent.net)
        for e in [[agent.models[m, 3, 2] @ np.maximum(x - value, 0) for m in (1, 4, 7)]]
    )[2]
    for m in range(20):
        predicted = agent.models[m, 3, 2] @ np.maximum(best - value, 0)
        assert agent.errors[m] == pytest.approx((predicted - max(0, best - 0.0)) ** 2)


def test_models_out_of_the_set_do_not_choose_where_it_regresses():
    """Of two with the same mean, which differ most at it; a third would, beyond all values."""
    agent, value = learner("general"), np.array([2.0, 1.0, 1.25, 0.5, 2.5, 0.0])
    agent.alive[:] = False
    agent.alive[[1, 4]] = True
    laws = {0: [0, 0, 0, 0, 1, 0], 1: [0, 0, 0, 0, 0.5, 0.5], 4: [0, 0, 1, 0, 0, 0]}
    for m, law in laws.items():
        agent.models[m, 3, 2] = law
    agent._learn(value, 3, 2, 5)
    assert agent.errors[[1, 4]].tolist() == pytest.approx([(0.625 - 1.25) ** 2, 1.25**2])


def test_a_model_may_come_back_into_a_set_that_grew():
    agent = learner("general", bonus_scale=1.0)
    agent.alive[1:] = False
    agent.episode()
    assert agent.alive.all()


@pytest.mark.parametrize("pairs", [1, 3])
def test_the_likelihood_of_preferences_by_hand(pairs):
    """The episode's own trajectory, then others by its policy, each against one by chance."""
    agent = learner("preferences", pairs=pairs)
    agent.rng = np.random.default_rng(5)
    agent.table[:] = 1
    trail, expected = [(0, 1, 2), (2, 0, 3), (3, 2, 4), (4, 1, 1)], np.zeros(len(ENV.payoffs))
    state = agent.rng.bit_generator.state
    agent.compare(trail)
    agent.rng.bit_generator.state = state
    for _ in range(pairs):
        other = play(ENV.mdp, None, agent.rng)
        gain, felt = (
            sum(r[:, s, a] for s, a, _ in trail) - sum(r[:, s, a] for s, a, _ in other)
            for r in (ENV.payoffs, REWARDS[None])
        )
        sign = 1 if agent.rng.random() < 1 / (1 + np.exp(-felt[0])) else -1
        expected += np.log(1 / (1 + np.exp(-sign * gain)))
        trail = play(ENV.mdp, agent.table, agent.rng)
    np.testing.assert_allclose(agent.likelihood, expected)


def test_the_most_hopeful_pair_that_is_left_is_played_and_its_next_values_are_regressed():
    agent, tau = learner("preferences", tau=0.3), 0.3
    agent.alive[::2], agent.likelihood[1::2] = False, -9.0
    left = [
        (solvers.iterated_optima(agent.models[m], agent.payoffs[r], 4, tau), m, r)
        for m in range(1, len(agent.models), 2)
        for r in range(0, len(agent.payoffs), 2)
    ]
    (values, table), *_ = max(left, key=lambda pair: ENV.mdp.start @ pair[0][0][0])
    hopes = [ENV.mdp.start @ value for value in agent.values[0].reshape(-1, len(ENV.mdp.start))]
    assert max(hopes) > ENV.mdp.start @ values[0] + 1e-6  # others hope for more and are out
    regressed = []
    agent._learn = lambda value, *_: regressed.append(value)
    agent.episode()
    np.testing.assert_array_equal(agent.table, table)
    np.testing.assert_allclose(regressed, values[1:4])


@pytest.mark.parametrize("kind", ["general", "preferences"])
def test_the_truth_stays_in_wide_sets(kind):
    agent = learner(kind, bonus_scale=1.0)
    for _ in range(40):
        agent.episode()
    m = np.abs(agent.models - KERNEL).max((1, 2, 3)).argmin()
    r = np.abs(agent.payoffs - REWARDS).max((1, 2)).argmin()
    assert agent.alive[m] and agent.possible_payoffs()[r]


@pytest.mark.parametrize("kind", ["linear", "general", "preferences"])
def test_it_finds_the_optimum(kind):
    optimum = iterated(ENV.mdp, 0.25).value
    agents = Learners(
        [learner(kind)], optimum, lambda l: solvers.iterated_value(ENV.mdp, l.table, 0.25)
    )
    losses = np.array([agents.update()["suboptimality"].item() for _ in range(200)])
    assert losses.min() > -1e-9
    assert losses[0] > 0.5
    assert losses[-50:].mean() < 0.02
    assert agents.regret.item() == pytest.approx(losses.sum())
