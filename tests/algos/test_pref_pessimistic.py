"""Pessimistic MLE: scipy's optimum beside ours, likelihoods by hand, the paper's three arms, bad input."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize
from wording import refused

from corerl.algos import pref_pessimistic as pp
from corerl.envs import mdps
from corerl.envs.low_rank import LowRankEnv
from corerl.envs.three_arms import REWARDS, ThreeArmsEnv
from corerl.preferences import likelihood
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import best_occupancy

ARMS = np.eye(3)


def negative_likelihood(theta, ranked) -> float:
    """Ranking by ranking: each place is won against all that are left."""
    total = 0.0
    for segments in ranked:
        utilities = [float(x @ theta) for x in segments]
        for k in range(len(utilities) - 1):
            total += math.log(sum(math.exp(u) for u in utilities[k:])) - utilities[k]
    return total


@pytest.mark.parametrize("seed", range(12))
def test_theta_is_scipys(seed):
    """Rankings of 2 to 4 segments, with bounds that bind and one that does not."""
    rng = np.random.default_rng(seed)
    size, bound = 2 + seed % 3, [0.3, 1.0, 50.0][seed // 3 % 3]
    ranked = rng.normal(size=(40, size, 3))
    found = pp.fit(ranked, None, bound)
    ball = {"type": "ineq", "fun": lambda x: bound**2 - x @ x, "jac": lambda x: -2 * x}
    best = optimize.minimize(
        negative_likelihood, np.zeros(3), (ranked,), "SLSQP", constraints=ball, tol=1e-14
    )
    assert np.linalg.norm(found) <= bound * (1 + 1e-12)
    # SLSQP may stop outside the ball by 1e-9, where the likelihood is higher.
    inside = best.x * min(1.0, bound / np.linalg.norm(best.x))
    assert negative_likelihood(found, ranked) <= negative_likelihood(inside, ranked) + 1e-9
    np.testing.assert_allclose(found, best.x, atol=2e-5)
    value, gradient, hessian = likelihood.log_likelihood(found, ranked, np.ones(40))
    assert value == pytest.approx(-negative_likelihood(found, ranked), abs=1e-10)
    numeric = optimize.approx_fprime(found, lambda x: -negative_likelihood(x, ranked), 1e-6)
    np.testing.assert_allclose(gradient, numeric, atol=1e-3)
    assert (np.linalg.eigvalsh(hessian) < 0).all()


def bandit(rng) -> tuple[FiniteMDP, np.ndarray]:
    """Two contexts, three actions, three features."""
    kernel = np.full((2, 3, 2), 0.5)
    mdp = FiniteMDP.from_matrices(kernel, np.zeros((2, 3)), horizon=1, start=[0.3, 0.7])
    return mdp, rng.normal(size=(2, 3, 3))


def least_value(policy, features, theta, inverse, width, nu) -> float:
    v = np.einsum("s,sa,sad->d", [0.3, 0.7], policy, features) - nu
    return theta @ v - width * math.sqrt(v @ inverse @ v)


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_is_scipys_and_no_theta_of_the_ellipsoid_is_worse(seed):
    rng = np.random.default_rng(seed)
    mdp, features = bandit(rng)
    theta, spread = rng.normal(size=3), rng.normal(size=(3, 3))
    inverse, width, nu = np.linalg.inv(spread @ spread.T + 0.5 * np.eye(3)), 0.8, rng.normal(size=3)
    problem = (features, theta, inverse, width, nu)
    found = pp.plan(mdp, features, theta, inverse, width, nu)
    tables = [optimize.minimize(
        lambda x: -least_value(x.reshape(2, 3), *problem),
        rng.dirichlet(np.ones(3), 2).ravel(),
        method="SLSQP",
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.reshape(2, 3).sum(1) - 1},
        options={"ftol": 1e-13, "maxiter": 500},
    ) for _ in range(3)]  # fmt: skip
    assert found.value == pytest.approx(-min(one.fun for one in tables), abs=1e-6)
    assert found.value == pytest.approx(least_value(found.policy[0], *problem), abs=1e-9)
    assert 0 <= found.gap <= 1e-6
    v = np.einsum("s,sa,sad->d", [0.3, 0.7], found.policy[0], features) - nu
    directions = rng.normal(size=(2_000, 3))
    directions /= np.sqrt(np.einsum("nd,de,ne->n", directions, np.linalg.inv(inverse), directions))[
        :, None
    ]
    around = (theta + width * directions) @ v
    assert found.value - 1e-9 <= around.min() <= found.value + 0.05


def test_the_greedy_plan_is_the_optimum_for_theta():
    env = LowRankEnv()
    theta = env.mdp.probabilities.shape[0] * np.random.default_rng(0).normal(size=18)
    features = pp.features_of(env)
    found = pp.plan(env.mdp, features, theta)
    assert found.value == pytest.approx(best_occupancy(env.mdp, features @ theta).value, abs=1e-8)


def test_three_segments_by_hand():
    """Utilities 0, log 2 and log 3: best first, 3/6 times 2/3."""
    features = np.array([[[math.log(3)], [math.log(2)], [0.0]]])
    value, gradient, _ = likelihood.log_likelihood(np.ones(1), features, np.ones(1))
    assert value == pytest.approx(math.log(1 / 3))
    x, y, z = math.log(3), math.log(2), 0.0
    by_hand = x - (3 * x + 2 * y + z) / 6 + y - (2 * y + z) / 3
    assert gradient[0] == pytest.approx(by_hand)
    split, counts = pp.pairs_of(features, np.full(1, 2.0))
    assert split[..., 0].tolist() == [[x, y], [x, z], [y, z]] and counts.tolist() == [2, 2, 2]


def test_pairs_are_rankings_of_two_to_the_bit():
    rng = np.random.default_rng(0)
    ranked, theta = rng.normal(size=(30, 2, 3)), rng.normal(size=3)
    split = pp.pairs_of(ranked, np.ones(30))
    for one, other in zip(
        likelihood.log_likelihood(theta, ranked, np.ones(30)),
        likelihood.log_likelihood(theta, *split),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    gaps = ranked[:, 0] - ranked[:, 1]
    p = 1 / (1 + np.exp(-gaps @ theta))
    hessian = likelihood.log_likelihood(theta, ranked, np.ones(30))[2]
    np.testing.assert_allclose(hessian, -(p * (1 - p) * gaps.T) @ gaps, atol=1e-12)


def test_the_ranking_likelihood_has_the_smaller_variance():
    """All six rankings of three segments, weighed by their probabilities."""
    rng = np.random.default_rng(0)
    phi, theta = rng.normal(size=(3, 2)), np.array([0.7, -0.4])
    orders = [np.array([phi[list(order)]]) for order in itertools.permutations(range(3))]
    chance = [math.exp(-negative_likelihood(theta, one)) for one in orders]
    assert sum(chance) == pytest.approx(1)
    variances = []
    for split in (lambda x: (x, np.ones(1)), lambda x: pp.pairs_of(x, np.ones(1))):
        parts = [likelihood.log_likelihood(theta, *split(one))[1:] for one in orders]
        outer = sum(p * np.outer(g, g) for p, (g, _) in zip(chance, parts, strict=True))
        inverse = np.linalg.inv(sum(p * h for p, (_, h) in zip(chance, parts, strict=True)))
        variances.append(inverse @ outer @ inverse)
        if len(variances) == 1:  # the true likelihood: variance of the gradient = -Hessian
            np.testing.assert_allclose(variances[0], -inverse, atol=1e-9)
    assert np.linalg.eigvalsh(variances[1] - variances[0]).min() >= -1e-9
    assert np.trace(variances[1]) > np.trace(variances[0]) * 1.01


def test_a_feature_that_all_segments_share_changes_nothing():
    rng = np.random.default_rng(1)
    ranked = rng.normal(size=(25, 3, 2))
    wider = np.concatenate([ranked, np.full((25, 3, 1), 7.0)], 2)
    np.testing.assert_allclose(pp.fit(wider), [*pp.fit(ranked), 0.0], atol=1e-9)


def test_counts_weigh_rankings_and_three_to_one_is_log_three():
    first = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])
    assert pp.fit(first, np.array([3.0, 1.0]), None)[0] == pytest.approx(math.log(3))
    assert pp.fit(first, np.array([3.0, 1.0]), 1.0)[0] == pytest.approx(1.0)
    repeated = np.concatenate([first[:1]] * 3 + [first[1:]])
    assert pp.fit(repeated, None, None)[0] == pytest.approx(math.log(3))


def test_a_covariance_and_a_radius_by_hand():
    ranked = np.array([[ARMS[0], ARMS[1]]] * 3 + [[ARMS[1], ARMS[2]]])
    sigma = [[0.75, -0.75, 0], [-0.75, 1.0, -0.25], [0, -0.25, 0.25]]
    np.testing.assert_allclose(pp.covariance(ranked), sigma)
    np.testing.assert_allclose(pp.covariance(ranked[[0, 3]], np.array([3.0, 1.0])), sigma)
    cfg = pp.Config(radius="theorem", width=1.0, delta=0.1, ridge=0.5, bound=1.0)
    root = math.sqrt(2)
    inverse = 2 + math.exp(root) + math.exp(-root)
    expected = math.sqrt((3 + math.log(10)) * inverse**2 + 0.5)
    assert pp.theorem_width(cfg, ranked) == pytest.approx(expected)
    assert pp.most_compared(ranked, np.ones(4)).tolist() == ARMS[1].tolist()
    with refused("algo.bound=1000"):
        pp.theorem_width(pp.Config(radius="theorem", bound=1_000.0), ranked)


def by_arms(theta, n: int, width: float) -> float:
    """The reference's arms: the largest value of one arm, less the width times the norm."""
    gaps = np.array([[1, -1, 0], [0, 1, -1.0]])
    summed = (n - 1) * np.outer(gaps[0], gaps[0]) + np.outer(gaps[1], gaps[1]) + 0.01 * np.eye(3)
    inverse = np.linalg.inv(summed)
    away = [arm - ARMS[1] for arm in ARMS]
    return max(v @ theta - width * math.sqrt(v @ inverse @ v) for v in away)


@pytest.mark.parametrize("n", [20, 200])
def test_three_arms_plan_no_less_than_their_best_arm(n):
    """Mixing arms may gain. Where arm 2 is best, nothing gains."""
    learner = pp.PessimisticMLE(pp.Config(comparisons=n), ThreeArmsEnv(), np.random.default_rng(0))
    for _ in range(20):
        planned = learner.episode()["planned"]
        assert planned >= by_arms(learner.theta, n, 3.0) - 1e-7
        assert (planned > 1e-7) == (learner.policy[0, 0, 1] < 0.999)


def regret(n: int, datasets: int = 250, **own) -> float:
    cfg = pp.Config(comparisons=n, **own)
    learner = pp.PessimisticMLE(cfg, ThreeArmsEnv(), np.random.default_rng(0))
    lost = []
    for _ in range(datasets):
        learner.episode()
        lost.append(1 - learner.value())
    return float(np.mean(lost))


def test_plain_likelihood_loses_for_every_n_and_pessimism_does_not():
    """The reference: .320, .307, .298 and .087, .082, .024. With width 1 nothing is gained."""
    for n in (20, 2_000):
        plain = regret(n, policy="likelihood")
        assert 0.22 < plain < 0.42  # the one answer is wrong with .289
        assert regret(n, width=1.0) > plain - 0.05
    few, many = regret(20), regret(2_000)
    assert few < 0.12 and many < 0.05


def test_zero_is_no_reference_for_what_only_differences_tell():
    """The direction that all arms share is as uncertain for every policy, and drowns the rest."""
    cfg = pp.Config(reference="zero")
    learner = pp.PessimisticMLE(cfg, ThreeArmsEnv(), np.random.default_rng(0))
    for _ in range(20):
        learner.episode()
        assert learner.policy[0, 0].argmax() == learner.theta.argmax()


def test_an_endless_problem_is_planned_for_too():
    mdp = FiniteMDP.from_matrices(np.ones((1, 2, 1)), np.zeros((1, 2)), discount=0.5)
    features = np.eye(2)[None]
    found = pp.plan(mdp, features, np.array([1.0, 0.5]), np.diag([1.0, 0.0]), 0.8)
    assert found.policy.shape == (1, 2) and found.value == pytest.approx(2 * 0.5)


def test_a_wrong_single_answer_makes_arm_three_the_most_likely():
    pairs = np.array([[ARMS[0], ARMS[1]], [ARMS[1], ARMS[0]], [ARMS[2], ARMS[1]]])
    theta = pp.fit(pairs, np.array([140.0, 59.0, 1.0]))
    assert theta.argmax() == 2 and np.linalg.norm(theta) == pytest.approx(2.0)
    assert theta.sum() == pytest.approx(0, abs=1e-9)
    assert 1 / (1 + math.exp(REWARDS[1] - REWARDS[2])) == pytest.approx(0.2891, abs=1e-4)


def test_without_a_bound_one_answer_has_no_maximum():
    pairs = np.array([[ARMS[0], ARMS[1]], [ARMS[1], ARMS[0]], [ARMS[2], ARMS[1]]])
    with refused("algo.bound"):
        pp.fit(pairs, None, None)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    np.testing.assert_allclose(pp.fit(both, None, None), 0, atol=1e-9)


@pytest.mark.parametrize(
    ("ranked", "weights", "message"),
    [
        (np.zeros((4, 1, 3)), None, "ranking"),
        (np.zeros((4, 2)), None, "4 2"),
        (np.zeros((0, 2, 3)), None, "0 2 3"),
        (np.full((1, 2, 3), np.nan), None, "NaN"),
        (np.zeros((4, 2, 3)), np.ones(3), "(3,) (4,)"),
        (np.zeros((1, 2, 3)), np.zeros(1), "0"),
    ],
)
def test_rankings_that_do_not_fit_raise_an_error(ranked, weights, message):
    with refused(message):
        pp.fit(ranked, weights)
    with refused(message):
        pp.covariance(ranked, weights)


def test_a_wrong_number_of_arms_raises_an_error():
    mdp = ThreeArmsEnv().mdp
    with refused("MDP 3 actions 1 4"):
        pp.plan(mdp, np.zeros((1, 4, 4)), np.zeros(4))
    cfg = pp.Config(ranked=4)
    with refused("algo.ranked=4"):
        pp.PessimisticMLE(cfg, ThreeArmsEnv(), np.random.default_rng(0)).episode()


def test_segments_that_are_all_alike_say_nothing():
    assert pp.fit(np.ones((5, 2, 3))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("likelihood", ["rankings", "pairs"])
def test_rankings_of_many_episodes_find_the_optimum(likelihood):
    cfg = pp.Config(
        policy="likelihood", likelihood=likelihood, ranked=4, comparisons=2_000, bound=None
    )
    env = LowRankEnv()
    learner = pp.PessimisticMLE(cfg, env, np.random.default_rng(0))
    learner.episode()
    assert best_occupancy(env.mdp).value - learner.value() < 0.05


def test_a_discount_counts_and_an_environment_may_name_features():
    env = mdps.FiniteEnv(mdps.wagers())
    env.mdp = FiniteMDP.from_matrices(
        np.ones((1, 2, 1)), np.array([[0.0, 1.0]]), horizon=3, discount=0.5
    )
    env.reward_features = np.array([[[0.0], [1.0]]])
    cfg = pp.Config(comparisons=400, ranked=2)
    learner = pp.PessimisticMLE(cfg, env, np.random.default_rng(0))
    ranked, counts = learner.rankings()
    assert set(ranked.ravel()) <= {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75} and counts.sum() == 400
    learner.episode()
    assert learner.theta.shape == (1,) and 0.4 < learner.theta[0] < 1.6
    assert learner.value() == pytest.approx(1.75)
