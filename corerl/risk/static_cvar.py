"""The largest static CVaR of a finite MDP, exactly: a dynamic program over the budget left.

The second term of max_c { c - E[(c - X)^+] / tau } is for a fixed c an expected cost at the end, so it has a
dynamic program over time, state and the budget left, b_t = c - (discounted rewards so far):

    W_T(s, b) = b^+,   W_t(s, b) = min_a E[ W_{t+1}(s', b - discount^t r) ],   W = b^+ where an episode ends

and the best policy is deterministic in (t, s, b). (Bauerle and Ott 2011 carry the stock c_t = b_t /
discount^t, so that c_{t+1} = (c_t - r) / discount; W is their cost times discount^t.) Of one policy the
objective is linear in c between the atoms of X and concave, so its maximum is at an atom, and so the maximum
over policies is at an attainable return: only those are tried. That needs all returns on the lattice of a
coarse resolution, so rewards are rounded to it: a c that lies d above an atom loses up to d (1 / tau - 1).
"""

import numpy as np

from corerl.risk import measures
from corerl.risk.finite_mdp import (
    END,
    EXACT,
    FiniteMDP,
    Solution,
    check_count,
    first_best,
    paid,
    return_law,
)

MOST_RETURNS = 4_000_000


def static(
    mdp: FiniteMDP, tau: float, resolution: float = EXACT, budgets: np.ndarray | None = None
) -> Solution:
    """Finds the policy of the largest static CVaR. `budgets` replaces the values of c that are tried.

    Raises:
        CorerlError: tau outside (0, 1], or more different returns than can be listed.
    """
    measures.check_tau(tau)
    collected, returns = attainable(mdp, resolution)
    if budgets is not None:
        returns = _merged(np.asarray(budgets, np.float64), resolution)
    left = [_sums(returns, -sums, resolution) for sums in collected]
    cost, choices = _shortfall(mdp, left, resolution)
    values = left[0] - mdp.start @ cost / tau
    best = first_best(values[None])[0]
    budget = float(left[0][best])

    def policy(t: int, state: int, collected: float) -> int:
        return int(choices[t][state, _nearest(left[t], budget - collected)])

    law, visits = return_law(mdp, policy, resolution, MOST_RETURNS)
    return Solution("static", tau, float(values[best]), policy, law, visits, budget)


def attainable(mdp: FiniteMDP, resolution: float = EXACT) -> tuple[list[np.ndarray], np.ndarray]:
    """Lists the sums that any policy may collect before each step, and all returns. Ascending."""
    live, collected, returns = mdp.start > 0, [np.zeros(1)], []
    for t in range(mdp.steps):
        possible = live[:, None, None] & (mdp.probabilities > 0)
        pays = paid(mdp, t, resolution)
        ends = mdp.successors == END
        returns.append(_sums(collected[-1], np.unique(pays[possible & ends]), resolution))
        collected.append(_sums(collected[-1], np.unique(pays[possible & ~ends]), resolution))
        live = np.isin(np.arange(len(live)), mdp.successors[possible & ~ends])
        if not live.any():
            break
    else:
        returns.append(collected[-1])
    return collected[:-1], _merged(np.concatenate(returns), resolution)


def _shortfall(
    mdp: FiniteMDP, left: list[np.ndarray], resolution: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns W_0 (S, budgets) and each step's best action (S, budgets), by backward induction.

    `left`: ascending budgets of each step.
    """
    (states, actions), outcomes = mdp.sizes, mdp.probabilities.shape[2]
    choices: list[np.ndarray] = [np.empty(0)] * len(left)
    next_cost, cost = None, np.empty(0)
    for t in reversed(range(len(left))):
        pays = paid(mdp, t, resolution)
        scale = max(1.0, float(np.abs(left[t]).max()))
        best, choice = (
            np.full((states, left[t].size), np.inf),
            np.zeros((states, left[t].size), int),
        )
        for action in range(actions):
            cost = np.zeros_like(best)
            for k in range(outcomes):
                column = (x[:, action, k] for x in (mdp.probabilities, pays, mdp.successors))
                cost += _expected_cost(*column, left[t], next_cost)
            better = cost < best - EXACT * scale
            best, choice = np.where(better, cost, best), np.where(better, action, choice)
        choices[t] = choice.astype(np.int16)
        next_cost = (left[t], best)
    return best, choices


def _expected_cost(p, pays, successors, budgets, next_cost) -> np.ndarray:
    """Returns (S, budgets): p W_{t+1}(s', b - discount^t r) of one outcome of one action.

    `pays`: discount^t r, (S,). `next_cost`: budgets of step t + 1 and W_{t+1} there; None after the
    last step.
    """
    rest = budgets - pays[:, None]
    ended = successors == END
    if next_cost is None or ended.all():
        return p[:, None] * np.maximum(rest, 0)
    going_on = next_cost[1][successors[:, None], _nearest(next_cost[0], rest)]
    return p[:, None] * np.where(ended[:, None], np.maximum(rest, 0), going_on)


def _merged(values: np.ndarray, resolution: float) -> np.ndarray:
    return np.unique(np.round(values / resolution)) * resolution


def _sums(x: np.ndarray, y: np.ndarray, resolution: float) -> np.ndarray:
    """Returns every sum of an x and a y, ascending. Or the lattice around them where that is smaller."""
    if not y.size:
        return y
    low, high = x.min() + y.min(), x.max() + y.max()
    lattice = round((high - low) / resolution) + 1
    check_count(min(lattice, x.size * y.size), MOST_RETURNS, resolution)
    if lattice <= x.size * y.size:
        return (np.round(low / resolution) + np.arange(lattice)) * resolution
    return _merged(x[:, None] + y, resolution)


def _nearest(ascending: np.ndarray, wanted: np.ndarray | float) -> np.ndarray:
    """Places of the nearest entries."""
    right = np.clip(np.searchsorted(ascending, wanted), 1, max(1, ascending.size - 1))
    if ascending.size == 1:
        return np.zeros_like(right)
    return right - (wanted - ascending[right - 1] < ascending[right] - wanted)
