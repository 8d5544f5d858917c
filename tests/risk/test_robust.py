"""The robust backup: every inner problem against direct optimisation, its limits, and backward induction."""

import numpy as np
import pytest
from scipy import optimize
from wording import refused

from corerl.envs import mdps
from corerl.envs.low_rank import LowRankEnv
from corerl.risk import robust
from corerl.risk.finite_mdp import END, FiniteMDP
from corerl.risk.robust import LinearModel, best_policy, policy_value, worst_case
from corerl.risk.solvers import iterated

PRICED, BALLS = ("tv", "kl", "chi2"), ("tv_ball", "kl_ball", "chi2_ball")
DIVERGENCES = {
    "kl": lambda q, p: (q * np.log(np.maximum(q, 1e-300) / p)).sum(),
    "chi2": lambda q, p: ((q - p) ** 2 / p).sum(),
}


def by_linear_program(kind: str, values, p, scale: float) -> float:
    """Total variation: q and u >= |q - p|, the sum of u / 2 at a price or bounded."""
    n, one = len(values), np.eye(len(values))
    above, limits = np.block([[one, -one], [-one, -one]]), np.append(p, -p)
    price = np.append(values, np.full(n, scale / 2 if kind == "tv" else 0.0))
    if kind == "tv_ball":
        above = np.vstack([above, np.append(np.zeros(n), np.full(n, 0.5))])
        limits = np.append(limits, scale)
    total = [np.append(np.ones(n), np.zeros(n))]
    bounds = [(0, 1)] * n + [(0, None)] * n
    return optimize.linprog(price, above, limits, total, [1], bounds=bounds).fun


def by_search(kind: str, values, p, scale: float) -> float:
    """KL and chi-square: sequential quadratic programming over q, from several first points."""
    divergence = DIVERGENCES[kind.partition("_")[0]]
    limits = [{"type": "eq", "fun": lambda q: q.sum() - 1}]
    if kind in BALLS:
        limits.append({"type": "ineq", "fun": lambda q: scale - divergence(q, p)})
    price = 0.0 if kind in BALLS else scale
    rng, found = np.random.default_rng(1), []
    for first in [p, *(0.7 * p + 0.3 * rng.dirichlet(np.ones(len(p)), 4))]:
        found.append(
            optimize.minimize(
                lambda q: q @ values + price * divergence(q, p),
                first,
                bounds=[(1e-12, 1)] * len(p),
                constraints=limits,
                options={"maxiter": 1000, "ftol": 1e-14},
            ).fun
        )
    return min(found)


@pytest.mark.parametrize("scale", [0.03, 0.4, 2.0])
@pytest.mark.parametrize("kind", [*PRICED, *BALLS])
def test_the_dual_is_the_direct_minimum(kind, scale):
    rng = np.random.default_rng(0)
    direct = by_linear_program if kind.startswith("tv") else by_search
    for size in (2, 3, 6):
        p, values = rng.dirichlet(np.ones(size)), rng.uniform(0, 3, size)
        wanted = direct(kind, values, p, scale)
        assert worst_case(kind, values, p, scale) == pytest.approx(wanted, abs=2e-8), (p, values)


def test_the_numbers_of_the_regularised_problems():
    """KL, TV and chi-square of one draw, as an independent script printed them."""
    rng = np.random.default_rng(0)
    rng.normal(size=4001)
    p, values = rng.dirichlet(np.ones(6)), rng.uniform(0, 3, 6)
    found = [float(worst_case(kind, values, p, 0.4)) for kind in ("kl", "tv", "chi2")]
    assert found == pytest.approx([0.545956, 0.403086, 0.738392], abs=1e-6)


@pytest.mark.parametrize("kind", [*PRICED, *BALLS])
def test_limits_of_the_scale(kind):
    """Nature leaves the mean if moves are dear or small, and takes the least value if they are cheap."""
    p, values = np.array([0.2, 0.0, 0.5, 0.3]), np.array([2.0, 0.5, 1.0, 3.0])
    mean, least = p @ values, 0.5 if kind.startswith("tv") else 1.0
    dear, cheap = (1e9, 1e-6) if kind in PRICED else (0.0, 1e3)
    assert worst_case(kind, values, p, dear) == pytest.approx(mean, abs=1e-6)
    assert worst_case(kind, values, p, cheap) == pytest.approx(least, abs=1e-3)
    assert worst_case(kind, np.full(4, 2.0), p, 0.3) == pytest.approx(2.0)
    assert worst_case(kind, values, np.eye(4)[3], 1e-9) <= 3.0


@pytest.mark.parametrize("kind", robust.KINDS)
def test_many_problems_at_once_are_each_alone(kind):
    rng = np.random.default_rng(0)
    p, values = rng.dirichlet(np.ones(4), (3, 2)), rng.uniform(size=(3, 1, 4))
    together = worst_case(kind, values, p, 0.2)
    for i, j in np.ndindex(3, 2):
        assert together[i, j] == pytest.approx(worst_case(kind, values[i, 0], p[i, j], 0.2))


@pytest.mark.parametrize("kind", ["tv", "kl", "chi2", "tv_ball"])
def test_weights_of_a_regression_go_into_the_same_formula(kind):
    """Negative weights and sums other than one: each dual maximised over a fine grid of c."""
    weights, values, scale = np.array([0.7, -0.2, 0.4]), np.array([0.5, 2.0, 1.0]), 0.3
    grid = np.linspace(0.5, 2.0, 200_001)[:, None]
    cut = np.minimum(values, grid)
    wanted = {
        "tv": weights @ np.minimum(values, 0.8),
        "kl": -scale * np.log(weights @ np.exp(-values / scale)),
        "chi2": (cut @ weights + ((cut @ weights) ** 2 - cut**2 @ weights) / (4 * scale)).max(),
        "tv_ball": (cut @ weights - scale * (grid[:, 0] - 0.5)).max(),
    }[kind]
    assert worst_case(kind, values, weights, scale) == pytest.approx(wanted, abs=1e-8)


def test_kl_without_any_weight_left_is_the_largest_value():
    assert worst_case("kl", np.array([0.0, 1.0]), np.array([-0.1, 0.1]), 0.1, most=3.0) == 3.0
    assert worst_case("kl", np.array([0.0, 9.0]), np.array([0.0, 0.1]), 1.0, most=3.0) == 3.0


@pytest.mark.parametrize(
    ("kind", "scale", "message"),
    [
        ("hellinger", 0.1, "kind=hellinger"),
        ("kl", 0.0, "scale=0.0 0"),
        ("kl_ball", -1.0, "scale=-1.0 0 kl_ball"),
        ("tv", np.nan, "scale=nan"),
    ],
)
def test_bad_kinds_and_scales_raise_an_error(kind, scale, message):
    with refused(message):
        worst_case(kind, np.zeros(2), np.array([0.5, 0.5]), scale)


def test_the_kl_saddle_of_nature_and_agent():
    """No deviation of the policy gains and none of nature hurts, by direct evaluation of both."""
    rng = np.random.default_rng(0)
    states, actions, discount, scale, eta = 4, 3, 0.9, 0.5, 0.3
    kernel = rng.dirichlet(np.ones(states), (states, actions))
    rewards = rng.uniform(size=(states, actions))
    mdp = FiniteMDP.from_matrices(kernel, rewards, horizon=600, discount=discount)
    values, policy = best_policy(LinearModel.of(mdp), "kl", scale, eta)
    value, pi = values[0], policy[0]
    nature = kernel * np.exp(-value / scale)
    nature /= nature.sum(-1, keepdims=True)

    def evaluate(p, q):
        price = discount * scale * (q * np.log(q / kernel)).sum(-1)
        gained = (p * (rewards + price)).sum(1) - eta * (p * np.log(p * actions)).sum(1)
        through = np.einsum("sa,sat->st", p, q)
        return np.linalg.solve(np.eye(states) - discount * through, gained)

    np.testing.assert_allclose(evaluate(pi, nature), value, atol=1e-12)
    for share in (0.1, 0.5):
        for _ in range(20):
            other = (1 - share) * pi + share * rng.dirichlet(np.ones(actions), states)
            assert (evaluate(other, nature) - value).max() <= 1e-12
            other = (1 - share) * nature + share * rng.dirichlet(np.ones(states), (states, actions))
            assert (value - evaluate(pi, other)).max() <= 1e-12
    assert (
        np.abs(policy_value(LinearModel.of(mdp), "kl", scale, policy, eta) - values).max() < 1e-12
    )


def test_limits_of_price_and_temperature():
    """scale -> infinity: soft value iteration; eta -> 0: the greedy robust optimum; both: the mean."""
    mdp = LowRankEnv().mdp
    model, kernel = LinearModel.of(mdp), mdp.probabilities
    reference = np.random.default_rng(0).dirichlet(np.ones(3), 6)
    soft = np.zeros(6)
    for _ in range(mdp.horizon):
        q = (kernel * mdp.rewards).sum(-1) + kernel @ soft
        soft = 0.3 * np.log((reference * np.exp(q / 0.3)).sum(-1))
    found, _ = best_policy(model, "kl", 1e9, 0.3, reference)
    np.testing.assert_allclose(found[0], soft, atol=1e-6)
    greedy, table = best_policy(model, "kl", 0.5)
    near, _ = best_policy(model, "kl", 0.5, 1e-6)
    np.testing.assert_allclose(near, greedy, atol=1e-4)
    assert set(table.ravel()) == {0.0, 1.0}
    mean = mdp.start @ best_policy(model, "none", 0.0)[0][0]
    assert mean == pytest.approx(iterated(mdp, 1.0).value)
    np.testing.assert_allclose(mdp.start @ best_policy(model, "chi2", 1e9)[0][0], mean, atol=1e-6)


@pytest.mark.parametrize("kind", [*PRICED, *BALLS])
def test_the_robust_optimum_is_the_best_of_all_policies(kind):
    """Two states, two actions, three steps: 64 policies, each worst case by one backup a step."""
    rng = np.random.default_rng(0)
    mdp = FiniteMDP(
        rng.dirichlet(np.ones(2), (2, 2)),
        rng.uniform(size=(2, 2, 2)),
        [[[0, 1], [1, END]], [[0, END], [0, 1]]],
        horizon=3,
        discount=0.9,
    )
    model, best = LinearModel.of(mdp), -np.inf
    assert model.rewards.shape == (3, 2) and not model.rewards[2].any()
    for number in range(64):
        actions = np.array([number >> bit & 1 for bit in range(6)]).reshape(3, 2)
        policy = np.eye(2)[np.append(actions, np.zeros((3, 1), int), 1)]
        best = max(best, model.start @ policy_value(model, kind, 0.2, policy)[0])
    assert model.start @ best_policy(model, kind, 0.2)[0][0] == pytest.approx(best)


def test_an_end_is_a_state_that_nature_may_move_to():
    """It pays 1 and ends with chance 1/2: total variation at 0.2 leaves min(1, 0 + 0.2) / 2 of the second."""
    mdp = FiniteMDP([[[0.5, 0.5]]], [[[1.0, 1.0]]], [[[0, END]]], horizon=2)
    values = best_policy(LinearModel.of(mdp), "tv", 0.2)[0]
    np.testing.assert_allclose(values, [[1.1, 0.0], [1.0, 0.0], [0.0, 0.0]])


def test_factors_are_perturbed_one_by_one():
    """With two factors each has its own worst case, and a state and action mixes them."""
    env = LowRankEnv()
    model = LinearModel.of(env.mdp, env.phi, env.mu)
    value = np.linspace(0, 2, 6)
    worst = [worst_case("chi2", value, mu, 0.3) for mu in env.mu]
    q = robust.action_values(model, "chi2", 0.3, value)
    np.testing.assert_allclose(q, model.rewards + env.phi @ worst)
    nominal = robust.action_values(LinearModel.of(env.mdp), "none", 0.0, value)
    np.testing.assert_allclose(robust.action_values(model, "none", 0.0, value), nominal)


def test_factors_of_another_mdp_raise_an_error():
    env = LowRankEnv()
    with refused("MDP 0.88"):
        LinearModel.of(env.mdp, env.phi[..., ::-1], env.mu)
    with refused("6 3 2 5"):
        LinearModel.of(env.mdp, env.phi, env.mu[:, 1:])
    with refused("last"):
        LinearModel.of(mdps.hazard(), np.ones((1, 2, 1)), np.ones((1, 1)))
