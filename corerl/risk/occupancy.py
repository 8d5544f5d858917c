"""Occupancies of finite MDPs: linear program with cost constraints, and gradient ascent.

The occupancy x(s,a) is the expected discounted number of visits, so the mean return is x.r. With a horizon
there is one x_t per step. Occupancies are exactly the x >= 0 of the flow equations

    sum_a x(s',a) = start(s') + discount sum_{s,a} P(s'|s,a) x(s,a)

and x(s,a) / sum_a x(s,a) is a policy with this occupancy (Puterman 1994, section 6.9). So the largest mean
return under bounds on mean costs is a linear program (`best_occupancy`). `ascend` maximises any concave
function of x, such as a return less a penalty on the distance to another occupancy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, sparse

from corerl.config import require
from corerl.errors import CorerlError
from corerl.risk.finite_mdp import END, FiniteMDP

SLACK = 1e-7
"""What HiGHS leaves unsatisfied of a constraint."""


@dataclass(frozen=True, eq=False)
class Occupancy:
    """An occupancy and its policy.

    Attributes:
        visits: discounted, `(S, A)`; with a horizon `(T, S, A)`.
        policy: probabilities of the same shape, uniform in states that are never visited.
        value: of the objective. costs: `(C,)`.
        multipliers: `(C,)`, what one more unit of each budget is worth; empty after `ascend`.
    """

    visits: np.ndarray
    policy: np.ndarray
    value: float
    costs: np.ndarray
    multipliers: np.ndarray


def best_occupancy(
    mdp: FiniteMDP,
    rewards: np.ndarray | None = None,
    costs: np.ndarray | None = None,
    budgets: np.ndarray | None = None,
) -> Occupancy:
    """Finds the largest mean return under bounds on mean costs, by linear programming (HiGHS).

    Args:
        rewards: `(S, A)`; None for the MDP's own. costs: `(C, S, A)`. budgets: `(C,)`, of discounted sums.

    Raises:
        CorerlError: shapes that do not fit, or budgets that no policy keeps, with the least possible costs.
    """
    rewards = _of_visits(mdp, expected_rewards(mdp) if rewards is None else rewards, "rewards")
    costs = np.zeros((0, *mdp.sizes)) if costs is None else np.asarray(costs, np.float64)
    budgets = np.zeros(0) if budgets is None else np.atleast_1d(np.asarray(budgets, np.float64))
    fits = costs.shape == (len(budgets), *mdp.sizes)
    reported = (
        f"costs have shape {costs.shape} and budgets {budgets.shape}, but must have shapes (C, S, A) and "
        "(C,) with (S, A) ="
    )
    require(fits, f"{reported} {mdp.sizes}")
    require(np.isfinite(budgets).all(), f"budgets={budgets.tolist()} must be finite numbers")
    table = np.stack([_of_visits(mdp, c, "costs").ravel() for c in costs]) if len(costs) else None
    flow = flow_equations(mdp)
    found = optimize.linprog(-rewards.ravel(), A_ub=table, b_ub=budgets, **flow)
    if found.status == 2:
        _explain(table, budgets, flow)
    if not found.success:
        raise CorerlError(f"The linear program for the policy has no solution: {found.message}")
    visits = np.maximum(found.x, 0).reshape(rewards.shape)
    multipliers = np.maximum(-found.ineqlin.marginals, 0) if len(costs) else np.zeros(0)
    spent = table @ found.x if len(costs) else np.zeros(0)
    return Occupancy(visits, policy_of(visits), float(-found.fun), spent, multipliers)


def _explain(table: np.ndarray, budgets: np.ndarray, flow: dict) -> None:
    """Raises CorerlError with the least cost of the budget that is too small, or the least joint excess."""
    for i, (cost, budget) in enumerate(zip(table, budgets, strict=True)):
        least = optimize.linprog(cost, **flow).fun
        if least > budget + SLACK:
            raise CorerlError(
                f"No policy keeps cost {i} within its budget {budget:g}, because the least possible "
                f"cost is {least:.6g}. Raise that budget."
            )
    count, variables = table.shape
    total = optimize.linprog(
        np.append(np.zeros(variables), np.ones(count)),
        A_ub=sparse.hstack([sparse.csr_matrix(table), -sparse.eye(count)]),
        b_ub=budgets,
        A_eq=sparse.hstack([flow["A_eq"], sparse.csr_matrix((len(flow["b_eq"]), count))]),
        b_eq=flow["b_eq"],
    ).fun
    raise CorerlError(
        f"No policy stays within all budgets={budgets.tolist()}, although each of them can be kept alone. "
        f"Raise the budgets by at least {total:.6g} in total."
    )


def occupancy_of(mdp: FiniteMDP, policy: np.ndarray) -> np.ndarray:
    """Returns a policy's discounted visits, `(S, A)`, or `(T, S, A)` with a horizon.

    `policy` is `(S, A)` probabilities, with a horizon also `(T, S, A)`.
    """
    policy = _of_visits(mdp, policy, "policy")
    kernel = nominal_kernel(mdp)
    if mdp.horizon is None:
        through = mdp.discount * np.einsum("sa,sat->ts", policy, kernel)
        return np.linalg.solve(np.eye(len(through)) - through, mdp.start)[:, None] * policy
    state, visits = mdp.start, []
    for row in policy:
        visits.append(state[:, None] * row)
        state = mdp.discount * np.einsum("sa,sat->t", visits[-1], kernel)
    return np.array(visits)


Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""`objective(visits) -> (value, gradient)`, the gradient of the shape of the visits."""


def ascend(
    mdp: FiniteMDP,
    objective: Objective,
    policy: np.ndarray | None = None,
    *,
    steps: int = 2_000,
    rate: float = 1.0,
    tolerance: float = 1e-12,
) -> Occupancy:
    """Maximises a concave function of the occupancy by natural gradient ascent on the policy.

    The gradient at the visits is a reward. With Q its action value, pi <- pi exp(rate Q) / normaliser is the
    natural gradient step of a softmax policy (Agarwal et al. 2021, arXiv:1908.00261). A step that lowers the
    objective is taken back and the rate halved. It ends when the best rate gains less than `tolerance`.

    Args:
        policy: the first one, positive everywhere; None for uniform.
    """
    shape = _of_visits(mdp, np.zeros(mdp.sizes), "policy").shape
    policy = np.full(shape, 1 / shape[-1]) if policy is None else _of_visits(mdp, policy, "policy")
    require(
        (policy > 0).all(),
        "The initial policy must give every action a positive probability.",
    )
    logits, visits = np.log(policy), occupancy_of(mdp, policy)
    value, gradient = objective(visits)
    for _ in range(steps):
        q = action_values(mdp, policy, gradient)
        advantage = q - (policy * q).sum(-1, keepdims=True)
        while rate > tolerance:
            moved = logits + rate * advantage
            moved -= moved.max(-1, keepdims=True)
            trial = softmax(moved)
            trial_visits = occupancy_of(mdp, trial)
            trial_value, trial_gradient = objective(trial_visits)
            if trial_value >= value:
                break
            rate /= 2
        else:
            break
        gain = trial_value - value
        logits, policy, visits = moved, trial, trial_visits
        value, gradient, rate = trial_value, trial_gradient, 1.5 * rate
        if gain <= tolerance * max(1.0, abs(value)):
            break
    return Occupancy(visits, policy, float(value), np.zeros(0), np.zeros(0))


def action_values(mdp: FiniteMDP, policy: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Returns a policy's action values for a reward, all of the shape of the visits."""
    kernel, rewards = nominal_kernel(mdp), _of_visits(mdp, rewards, "rewards")
    if mdp.horizon is None:
        through = mdp.discount * np.einsum("sa,sat->st", policy, kernel)
        value = np.linalg.solve(np.eye(len(through)) - through, (policy * rewards).sum(1))
        return rewards + mdp.discount * kernel @ value
    q, value = [], np.zeros(mdp.sizes[0])
    for row, reward in zip(policy[::-1], rewards[::-1], strict=True):
        q.insert(0, reward + mdp.discount * kernel @ value)
        value = (row * q[0]).sum(-1)
    return np.array(q)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def policy_of(visits: np.ndarray) -> np.ndarray:
    """Returns the policy that has these visits, uniform in states without any."""
    total = visits.sum(-1, keepdims=True)
    seen = total > 0
    return np.where(seen, visits / np.where(seen, total, 1.0), 1 / visits.shape[-1])


def expected_rewards(mdp: FiniteMDP) -> np.ndarray:
    """Returns the mean reward of each state and action, `(S, A)`."""
    return (mdp.probabilities * mdp.rewards).sum(-1)


def nominal_kernel(mdp: FiniteMDP) -> np.ndarray:
    """Returns P(s'|s,a), `(S, A, S)`, without what ends the episode."""
    states, actions = mdp.sizes
    kernel, place = np.zeros((states, actions, states)), np.indices(mdp.successors.shape)
    going_on = mdp.successors != END
    where = (place[0][going_on], place[1][going_on], mdp.successors[going_on])
    np.add.at(kernel, where, mdp.probabilities[going_on])
    return kernel


def _of_visits(mdp: FiniteMDP, values: np.ndarray, name: str) -> np.ndarray:
    """Gives `(S, A)` values the shape of the visits."""
    shape = mdp.sizes if mdp.horizon is None else (mdp.horizon, *mdp.sizes)
    values = np.asarray(values, np.float64)
    require(
        values.shape in (mdp.sizes, shape),
        f"{name} has shape {values.shape}, but must have shape {mdp.sizes}",
    )
    return np.broadcast_to(values, shape)


def flow_equations(mdp: FiniteMDP) -> dict[str, Any]:
    """Returns the flow equations as `linprog` takes them, `A_eq` (states and steps, visits) and `b_eq`."""
    return {"A_eq": _flow(mdp), "b_eq": _inflow(mdp)}


def _flow(mdp: FiniteMDP) -> sparse.csr_matrix:
    """Returns the flow equations' matrix, (states and steps, visits)."""
    states, actions = mdp.sizes
    out = sparse.kron(sparse.eye(states), np.ones((1, actions)))
    into = sparse.csr_matrix(mdp.discount * nominal_kernel(mdp).reshape(-1, states).T)
    if mdp.horizon is None:
        return (out - into).tocsr()
    steps = mdp.horizon
    return (
        sparse.kron(sparse.eye(steps), out) - sparse.kron(sparse.eye(steps, k=-1), into)
    ).tocsr()


def _inflow(mdp: FiniteMDP) -> np.ndarray:
    later = 0 if mdp.horizon is None else (mdp.horizon - 1) * mdp.sizes[0]
    return np.append(mdp.start, np.zeros(later))
