"""Occupancies: flow, linear program with budgets, and ascent against the program and direct search."""

import numpy as np
import pytest
from scipy import optimize
from wording import refused

from corerl.envs import mdps, textbook_mdps
from corerl.risk.finite_mdp import FiniteMDP, markov, return_law
from corerl.risk.occupancy import ascend, best_occupancy, expected_rewards, occupancy_of
from corerl.risk.robust import LinearModel, best_policy


def random_mdp(seed: int = 0, horizon: int | None = None, states: int = 4) -> FiniteMDP:
    rng = np.random.default_rng(seed)
    kernel = rng.dirichlet(np.ones(states), (states, 3))
    rewards = rng.uniform(size=(states, 3))
    start = rng.dirichlet(np.ones(states))
    return FiniteMDP.from_matrices(kernel, rewards, start=start, horizon=horizon, discount=0.9)


@pytest.mark.parametrize(
    "mdp", [random_mdp(), random_mdp(1, 5), mdps.hazard(), mdps.wagers(), textbook_mdps.machine(6)]
)
def test_without_costs_it_is_dynamic_programming(mdp):
    found, model = best_occupancy(mdp), LinearModel.of(mdp)
    exact = model.start @ best_policy(model, "none", 0.0)[0][0]
    assert found.value == pytest.approx(exact, abs=1e-7)
    visits = occupancy_of(mdp, found.policy)
    np.testing.assert_allclose(visits, found.visits, atol=1e-8)
    assert (visits * expected_rewards(mdp)).sum() == pytest.approx(exact, abs=1e-7)
    assert found.costs.size == found.multipliers.size == 0


def test_visits_of_a_policy_give_the_mean_of_its_return():
    mdp = random_mdp(2, 4)
    actions = np.random.default_rng(0).integers(3, size=(4, 4))
    mean = return_law(mdp, markov(actions), 1e-3)[0].mean
    visits = occupancy_of(mdp, np.eye(3)[actions])
    assert (visits * expected_rewards(mdp)).sum() == pytest.approx(mean, abs=2e-3)
    np.testing.assert_allclose(visits.sum((1, 2)), 0.9 ** np.arange(4))


@pytest.mark.parametrize("horizon", [None, 4])
def test_a_budget_is_kept_and_its_multiplier_is_its_price(horizon):
    mdp = random_mdp(3, horizon)
    cost = np.random.default_rng(1).uniform(size=(1, 4, 3))
    free = best_occupancy(mdp, costs=cost, budgets=[1e6])
    least = -best_occupancy(mdp, -cost[0]).value
    budget = (free.costs[0] + least) / 2
    found, more = (best_occupancy(mdp, costs=cost, budgets=[budget + d]) for d in (0.0, 1e-4))
    assert found.costs[0] == pytest.approx(budget) and least < budget < free.costs[0]
    assert (more.value - found.value) / 1e-4 == pytest.approx(found.multipliers[0], rel=1e-3)
    assert free.multipliers[0] == 0 and found.value < free.value
    # Strong duality: the best for r - multiplier * cost, plus what the budget is worth.
    priced = best_occupancy(mdp, expected_rewards(mdp) - found.multipliers[0] * cost[0]).value
    assert priced + found.multipliers[0] * budget == pytest.approx(found.value, abs=1e-6)


@pytest.mark.parametrize("horizon", [None, 3])
def test_budgets_that_no_policy_keeps_raise_an_error_with_the_least_cost(horizon):
    mdp = random_mdp(4, horizon)
    costs = np.stack([np.ones((4, 3)), np.eye(4, 3)])
    total = 10.0 if horizon is None else 2.71
    with refused(f"0 1 {total:g}"):
        best_occupancy(mdp, costs=costs, budgets=[1.0, 100.0])
    both = np.stack([np.eye(4, 3), 1 - np.eye(4, 3)])  # their sum is the length of the episode
    least = [-best_occupancy(mdp, -cost).value for cost in both]
    with refused(f"{total - sum(least):.6g}"):
        best_occupancy(mdp, costs=both, budgets=least)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"rewards": np.zeros((3, 3))}, "rewards 3 4"),
        ({"costs": np.zeros((1, 4, 3))}, "1 4 3 (0,)"),
        ({"costs": np.zeros((1, 4, 3)), "budgets": [np.inf]}, "budgets=[inf]"),
    ],
)
def test_shapes_that_do_not_fit_raise_an_error(own, message):
    with refused(message):
        best_occupancy(random_mdp(), **own)


@pytest.mark.parametrize("mdp", [random_mdp(), random_mdp(1, 5)])
def test_ascent_of_a_linear_objective_is_the_program(mdp):
    rewards = np.broadcast_to(expected_rewards(mdp), best_occupancy(mdp).visits.shape)
    found = ascend(mdp, lambda x: ((x * rewards).sum(), rewards))
    assert found.value == pytest.approx(best_occupancy(mdp).value, abs=1e-6)


@pytest.mark.parametrize("weight", [0.05, 0.3, 2.0])
def test_ascent_of_a_penalised_return_is_the_direct_maximum(weight):
    """Return less a weight times the chi-square divergence from the uniform policy's occupancy."""
    mdp = random_mdp(5, states=3)
    reference, rewards = occupancy_of(mdp, np.full((3, 3), 1 / 3)), expected_rewards(mdp)

    def objective(x):
        gap = (x - reference) / reference
        return (x * rewards).sum() - weight * (gap**2 * reference).sum(), rewards - 2 * weight * gap

    found = ascend(mdp, objective, steps=5_000)
    kernel = mdp.probabilities
    limits = {
        "type": "eq",
        "fun": lambda x: (
            x.reshape(3, 3).sum(1)
            - 0.9 * np.einsum("sa,sat->t", x.reshape(3, 3), kernel)
            - mdp.start
        ),
    }
    direct = optimize.minimize(
        lambda x: -objective(x.reshape(3, 3))[0],
        reference.ravel(),
        jac=lambda x: -objective(x.reshape(3, 3))[1].ravel(),
        bounds=[(0, None)] * 9,
        constraints=limits,
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    assert direct.success
    assert found.value == pytest.approx(-direct.fun, abs=1e-6)
    np.testing.assert_allclose(found.visits.ravel(), direct.x, atol=2e-3)


def test_an_ascent_begins_where_every_action_is_possible():
    with refused("action"):
        ascend(random_mdp(), lambda x: (0.0, x), np.eye(4, 3))
