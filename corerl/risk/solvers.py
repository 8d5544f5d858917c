"""Exact solutions of finite MDPs whose policies need no stock: iterated CVaR, ECRM, and two that fall short.

Tau in (0, 1] is the mass of the lower tail. Where actions tie, the first is taken. `resolution` rounds the
returns of the law that comes with a solution (of `naive` also those it chooses by) to multiples of it. All
raise CorerlError for a tau outside its range, and where a law has too many different returns. Static CVaR:
`static_cvar.static`.
"""

import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal

import numpy as np

from corerl.config import require
from corerl.risk import measures
from corerl.risk.finite_mdp import (
    EXACT,
    MOST_POINTS,
    FiniteMDP,
    Law,
    Policy,
    Solution,
    Visit,
    check_count,
    first_best,
    markov,
    return_law,
)

MOST_POLICIES = 1 << 16


def iterated(mdp: FiniteMDP, tau: float, resolution: float = EXACT) -> Solution:
    """Finds the largest iterated CVaR: V_t(s) = max_a CVaR_tau(r + discount V_{t+1}(s'))."""
    measures.check_tau(tau)

    def action_values(next_value: np.ndarray) -> np.ndarray:
        outcomes = mdp.rewards + mdp.discount * next_value[mdp.successors]
        return measures.cvar_of_law(outcomes, mdp.probabilities, tau)

    return _markov_solution(mdp, "iterated", tau, action_values, resolution)


def ecrm(mdp: FiniteMDP, tau: float, weight: float = 1.0, resolution: float = EXACT) -> Solution:
    """Finds the largest sum of expected conditional risks, each reward scored given state and action."""
    measures.check_tau(tau)
    mean = (mdp.probabilities * mdp.rewards).sum(-1)
    tail = measures.cvar_of_law(mdp.rewards, mdp.probabilities, tau)
    scored = (1 - weight) * mean + weight * tail

    def action_values(next_value: np.ndarray) -> np.ndarray:
        expected = (mdp.probabilities * next_value[mdp.successors]).sum(-1)
        return scored + mdp.discount * expected

    return _markov_solution(mdp, "ecrm", tau, action_values, resolution)


def iterated_optima(
    kernels: np.ndarray, rewards: np.ndarray, steps: int, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the iterated optima of many models at once, with a horizon and no discount.

    Args:
        kernels: `(..., S, A, S')`. rewards: `(..., S, A)`; both broadcast.

    Returns:
        Values `(H + 1, ..., S)` and the actions that reach them `(H, ..., S)`.
    """
    shape = np.broadcast_shapes(kernels.shape[:-1], rewards.shape)
    values, table = [np.zeros(shape[:-1])], []
    for _ in range(steps):
        q = rewards + measures.cvar_of_law(values[0][..., None, None, :], kernels, tau)
        table.insert(0, q.argmax(-1))
        values.insert(0, q.max(-1))
    return np.array(values), np.array(table)


def iterated_value(mdp: FiniteMDP, table: np.ndarray, tau: float) -> float:
    """Returns the iterated CVaR of the policy that a table `(H, S)` of actions is."""
    policy, value = markov(table), np.zeros(mdp.sizes[0] + 1)
    for t in reversed(range(mdp.horizon)):
        outcomes = mdp.rewards + mdp.discount * value[mdp.successors]
        q = measures.cvar_of_law(outcomes, mdp.probabilities, tau)
        value = np.append([q[s, policy(t, s, 0.0)] for s in range(len(q))], 0.0)
    return float(mdp.start @ value[:-1])


def _markov_solution(
    mdp: FiniteMDP,
    objective: str,
    tau: float,
    action_values: Callable[[np.ndarray], np.ndarray],
    resolution: float,
) -> Solution:
    """Solves V_t(s) = max_a Q(V_{t+1})(s, a) backwards. V has a last entry, 0, for the end."""
    value, table = np.zeros(mdp.sizes[0] + 1), []
    for _ in range(mdp.steps):
        q = action_values(value)
        table.append(first_best(q))
        value = np.append(q.max(1), 0.0)
    policy = markov(np.array(table[::-1]))
    law, visits = return_law(mdp, policy, resolution, MOST_POINTS)
    return Solution(objective, tau, float(mdp.start @ value[:-1]), policy, law, visits)


def naive(mdp: FiniteMDP, tau: float, resolution: float = EXACT) -> Solution:
    """Solves the aim of IQN-CVaR, O-RAAC and CODAC: at each state the action whose return to come has
    the largest CVaR. It optimises neither the static nor the iterated CVaR. `value` is its static CVaR."""
    measures.check_tau(tau)
    zero = Law(np.zeros(1), np.ones(1))
    laws, table = [zero] * (mdp.sizes[0] + 1), []
    for _ in range(mdp.steps):
        candidates = [
            [_law_to_come(mdp, s, a, laws, resolution) for a in range(mdp.sizes[1])]
            for s in range(mdp.sizes[0])
        ]
        q = np.array([[law.cvar(tau) for law in row] for row in candidates])
        table.append(first_best(q))
        chosen = zip(candidates, table[-1], strict=True)
        laws = [*(row[a] for row, a in chosen), zero]
    policy = markov(np.array(table[::-1]))
    law, visits = return_law(mdp, policy, resolution, MOST_POINTS)
    return Solution("naive", tau, law.cvar(tau), policy, law, visits)


def _law_to_come(
    mdp: FiniteMDP, state: int, action: int, laws: list[Law], resolution: float
) -> Law:
    values, mass = [], []
    for k, p in enumerate(mdp.probabilities[state, action]):
        law = laws[mdp.successors[state, action, k]]
        values.append(mdp.rewards[state, action, k] + mdp.discount * law.values)
        mass.append(p * law.probabilities)
    law = Law.of(np.concatenate(values), np.concatenate(mass), resolution)
    check_count(law.values.size, MOST_POINTS, resolution)
    return law


def blind(mdp: FiniteMDP, tau: float) -> Solution:
    """Finds the best static CVaR among deterministic policies of state and time, by trying them all."""
    measures.check_tau(tau)
    found = [(law.cvar(tau), policy, law, visits) for policy, law, visits in _all_markov(mdp)]
    value, policy, law, visits = found[first_best(np.array([[f[0] for f in found]]))[0]]
    return Solution("blind", tau, value, policy, law, visits)


def _all_markov(mdp: FiniteMDP) -> Iterator[tuple[Policy, Law, list[Visit]]]:
    live, places = mdp.start > 0, []
    for t in range(mdp.steps):
        places += [(t, s) for s in np.flatnonzero(live)]
        reached = mdp.successors[live[:, None, None] & (mdp.probabilities > 0)]
        live = np.isin(np.arange(len(live)), reached)
    count = mdp.sizes[1] ** len(places)
    reported = (
        f"{Decimal(count):.3g} policies are too many to try all. Give a smaller MDP or horizon"
    )
    require(count <= MOST_POLICIES, reported)
    table = np.zeros((mdp.steps, mdp.sizes[0]), int)
    for actions in itertools.product(range(mdp.sizes[1]), repeat=len(places)):
        table[tuple(np.array(places).T)] = actions
        policy = markov(table.copy())
        yield policy, *return_law(mdp, policy)


def ecrm_of_states(mdp: FiniteMDP, tau: float, weight: float = 1.0) -> float:
    """Finds the optimum of ECRM in Yu and Shen's index, by their extra state eta.

    They score the cost c_t given what is known one step before, so that the first is certain and the action
    at t is part of the risk at t. With eta, Rockafellar and Uryasev's variable,

        U_t(s, eta) = max_a E[(1 - weight) r - weight (eta - r)^+ / tau]
                            + discount max_eta' { weight eta' + E[U_{t+1}(s', eta')] }

    and at t = 0 the reward counts as it is. The constants are derived from CVaR's definition and not read in
    the paper: the weight of eta' is discounted because it belongs to step t + 1.

    The best eta for step t + 1 is a quantile of that step's reward, so only rewards are tried, and 0,
    which is what an ended episode pays.
    """
    measures.check_tau(tau)
    etas = np.unique(np.append(mdp.rewards, 0.0))
    p, reward, discount = mdp.probabilities, mdp.rewards, mdp.discount
    mean = (p * reward).sum(-1)
    short = (p[..., None] * np.maximum(etas - reward[..., None], 0)).sum(-2)  # (S, A, etas)
    scored = (1 - weight) * mean[..., None] - weight * short / tau
    ended = -weight * np.maximum(etas, 0) / tau  # U of an episode that has ended
    ahead = np.zeros((*mdp.sizes, 1))  # what max_eta' gives after the last step
    for _ in range(mdp.steps - 1):
        u = np.vstack([(scored + ahead).max(1), ended])  # (S + 1, etas); END reads the last row
        expected = (p[..., None] * u[mdp.successors]).sum(-2)
        ahead = discount * (weight * etas + expected).max(-1, keepdims=True)
    return float(mdp.start @ (mean + ahead[..., 0]).max(1))
