"""Exact CVaR of finite MDPs: static (Bauerle and Ott 2011), iterated, ECRM, and what ignores the stock.

X is the discounted return, higher is better, and tau in (0, 1] is the mass of the lower tail.

    static    max over all policies of CVaR_tau(X) = max_c { c - E[(c - X)^+] / tau }
    iterated  V_t(s) = max_a CVaR_tau( r + discount V_{t+1}(s') ), a CVaR at every step
    ecrm      V_t(s) = max_a (1 - weight) E[r] + weight CVaR_tau(r) + discount E[V_{t+1}(s')]
    naive     greedy at each state for the CVaR of the return to come, whatever was collected before
    blind     the best static CVaR of policies that see state and time alone, by enumeration

    python algos/cvar_tabular.py task=risk/A algo.tau=0.5
    corerl train -m algo=cvar_tabular task=risk/B algo.objective=static,iterated,naive algo.tau=0.25

It prints the optimum, the law of the return and the policy, writes them to solution.json, and plays the
policy, so that a report sets it beside agents that learn. An MDP of your own: `static(mdp, tau)` and
its neighbours take any `corerl.risk.finite_mdp.FiniteMDP`; so does a task whose environment has one as `mdp`.

How static is solved. For a fixed c the second term is an expected cost at the end, so it has a dynamic
program over time, state and the budget left, b_t = c - (discounted rewards so far):

    W_T(s, b) = b^+,   W_t(s, b) = min_a E[ W_{t+1}(s', b - discount^t r) ],   W = b^+ where an episode ends

and the best policy is deterministic in (t, s, b). (Bauerle and Ott carry the stock c_t = b_t / discount^t,
so that c_{t+1} = (c_t - r) / discount; W is their cost times discount^t.) Of one policy the objective is
linear in c between the atoms of X and concave, so its maximum is at an atom, and so the maximum over
policies is at an attainable return: only those are tried.

The dual decomposition with a risk level for each successor (Chow et al. 2015) is not used: for control it
need not give the optimum (Hau et al. 2023).

Differences from the papers:
 1. An endless discounted episode is cut where less than 1e-10 is left to be paid.
 2. `resolution` rounds what is collected and the budgets to multiples of it, for MDPs with too many
    different returns; every value is then within steps * resolution / 2 of the exact one.
 3. ECRM as stated is Yu and Shen 2022's with the rewards of a finite MDP, which are drawn with the
    transition: each is scored given its state and action. Their own index scores the cost c_t given what
    is known one step before, so that the first is certain and the action at t is part of the risk at t;
    `ecrm_of_states` solves that form by their extra state eta (Rockafellar and Uryasev's variable):
        U_t(s, eta) = max_a E[(1 - weight) r - weight (eta - r)^+ / tau]
                            + discount max_eta' { weight eta' + E[U_{t+1}(s', eta')] }
    and at t = 0 the reward counts as it is. The constants are derived from CVaR's definition above and
    not read in the paper: the weight of eta' is discounted because it belongs to step t + 1.
 4. Where actions tie, the first is taken; a tie means equal to 1e-12 of the values' scale.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corerl.config import require, seed_list
from corerl.errors import CorerlError
from corerl.risk import measures
from corerl.risk.finite_mdp import (
    END,
    EXACT,
    FiniteMDP,
    Law,
    Policy,
    Visit,
    markov,
    return_law,
)
from corerl.runs import files
from corerl.training.run import Run

MOST_RETURNS = 4_000_000
MOST_POLICIES = 1 << 16


@dataclass
class Config:
    name: str = "cvar_tabular"
    label: str = "exact CVaR"

    objective: str = "static"  # static | iterated | ecrm | naive | blind
    tau: float = 0.25  # mass of the lower tail; 1 is the mean
    weight: float = 1.0  # of the CVaR beside the mean in ecrm
    resolution: float = EXACT  # static: returns are rounded to multiples of this

    def __post_init__(self):
        require(self.objective in SOLVERS, f"algo.objective={self.objective} unknown")
        require(0 < self.tau <= 1, f"algo.tau={self.tau} must lie in (0, 1]")
        require(0 <= self.weight <= 1, f"algo.weight={self.weight} must lie in [0, 1]")
        require(self.resolution > 0, f"algo.resolution={self.resolution} must be positive")


@dataclass(frozen=True)
class Solution:
    """A policy, the `value` of its own objective, and the exact law of its discounted return.

    `budget` is the maximising c of the static objective, else None.
    """

    objective: str
    tau: float
    value: float
    policy: Policy
    law: Law
    visits: list[Visit]
    budget: float | None = None


# ------------------------------------------------------------------------------------------ static


def static(
    mdp: FiniteMDP, tau: float, resolution: float = EXACT, budgets: np.ndarray | None = None
) -> Solution:
    """The policy of the largest static CVaR. `budgets` replaces the values of c that are tried.

    Raises:
        CorerlError: tau outside (0, 1], or more different returns than can be listed.
    """
    measures.check_tau(tau)
    collected, returns = attainable(mdp, resolution)
    tried = returns if budgets is None else _merged(np.asarray(budgets, np.float64), resolution)
    left = [_sums(tried, -sums, resolution) for sums in collected]
    cost, choices = _shortfall(mdp, left, resolution)
    values = left[0] - mdp.start @ cost / tau
    best = _first_best(values[None])[0]
    budget = float(left[0][best])

    def policy(t: int, state: int, sofar: float) -> int:
        return int(choices[t][state, _nearest(left[t], budget - sofar)])

    law, visits = return_law(mdp, policy, resolution)
    return Solution("static", tau, float(values[best]), policy, law, visits, budget)


def attainable(mdp: FiniteMDP, resolution: float = EXACT) -> tuple[list[np.ndarray], np.ndarray]:
    """What may have been collected before each step, and all returns, by any policy; ascending."""
    live, collected, returns = mdp.start > 0, [np.zeros(1)], []
    for t in range(mdp.steps):
        possible = live[:, None, None] & (mdp.probabilities > 0)
        paid = mdp.discount**t * mdp.rewards
        ends = mdp.successors == END
        returns.append(_sums(collected[-1], np.unique(paid[possible & ends]), resolution))
        collected.append(_sums(collected[-1], np.unique(paid[possible & ~ends]), resolution))
        live = np.isin(np.arange(len(live)), mdp.successors[possible & ~ends])
        if not live.any():
            break
    else:
        returns.append(collected[-1])
    return collected[:-1], _merged(np.concatenate(returns), resolution)


def _shortfall(
    mdp: FiniteMDP, left: list[np.ndarray], resolution: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """W_0 (S, budgets) and for each step the best action (S, budgets), backwards."""
    (states, actions), outcomes = mdp.sizes, mdp.probabilities.shape[2]
    choices: list[np.ndarray] = [np.empty(0)] * len(left)
    following, cost = None, np.empty(0)
    for t in reversed(range(len(left))):
        scale = max(1.0, float(np.abs(left[t]).max()))
        best, choice = (
            np.full((states, left[t].size), np.inf),
            np.zeros((states, left[t].size), int),
        )
        for action in range(actions):
            cost = np.zeros_like(best)
            for k in range(outcomes):
                column = (x[:, action, k] for x in (mdp.probabilities, mdp.rewards, mdp.successors))
                cost += _after(*column, left[t], mdp.discount**t, following)
            better = cost < best - EXACT * scale
            best, choice = np.where(better, cost, best), np.where(better, action, choice)
        choices[t] = choice.astype(np.int16)
        following = (left[t], best)
    return best, choices


def _after(p, rewards, successors, budgets, discount, following) -> np.ndarray:
    """(S, budgets): p W_{t+1}(s', b - discount^t r) of one outcome of one action."""
    rest = budgets - discount * rewards[:, None]
    over = successors == END
    if following is None or over.all():
        return p[:, None] * np.maximum(rest, 0)
    later = following[1][successors[:, None], _nearest(following[0], rest)]
    return p[:, None] * np.where(over[:, None], np.maximum(rest, 0), later)


def _merged(values: np.ndarray, resolution: float) -> np.ndarray:
    return np.unique(np.round(values / resolution)) * resolution


def _sums(some: np.ndarray, others: np.ndarray, resolution: float) -> np.ndarray:
    """Every sum of one and another, ascending; or the whole lattice around them where that is smaller."""
    if not others.size:
        return others
    low, high = some.min() + others.min(), some.max() + others.max()
    lattice = round((high - low) / resolution) + 1
    if min(lattice, some.size * others.size) > MOST_RETURNS:
        raise CorerlError(
            f"This MDP has more than {MOST_RETURNS:,} different returns at resolution {resolution:g}: "
            "give a coarser one (algo.resolution=0.01; values are off by at most steps * resolution / 2)."
        )
    if lattice <= some.size * others.size:
        return (np.round(low / resolution) + np.arange(lattice)) * resolution
    return _merged(some[:, None] + others, resolution)


def _nearest(ascending: np.ndarray, wanted: np.ndarray | float) -> np.ndarray:
    """Places of the nearest entries."""
    right = np.clip(np.searchsorted(ascending, wanted), 1, max(1, ascending.size - 1))
    if ascending.size == 1:
        return np.zeros_like(right)
    return right - (wanted - ascending[right - 1] < ascending[right] - wanted)


# ------------------------------------------------------- objectives whose policies need no stock


def iterated(mdp: FiniteMDP, tau: float) -> Solution:
    """The largest iterated CVaR: V_t(s) = max_a CVaR_tau(r + discount V_{t+1}(s'))."""
    measures.check_tau(tau)

    def action_values(later: np.ndarray) -> np.ndarray:
        outcomes = mdp.rewards + mdp.discount * later[mdp.successors]
        return measures.cvar_of_law(outcomes, mdp.probabilities, tau)

    return _markov_solution(mdp, "iterated", tau, action_values)


def ecrm(mdp: FiniteMDP, tau: float, weight: float = 1.0) -> Solution:
    """The largest sum of expected conditional risks, each reward scored given its state and action."""
    measures.check_tau(tau)
    mean = (mdp.probabilities * mdp.rewards).sum(-1)
    tail = measures.cvar_of_law(mdp.rewards, mdp.probabilities, tau)
    scored = (1 - weight) * mean + weight * tail

    def action_values(later: np.ndarray) -> np.ndarray:
        expected = (mdp.probabilities * later[mdp.successors]).sum(-1)
        return scored + mdp.discount * expected

    return _markov_solution(mdp, "ecrm", tau, action_values)


def _markov_solution(
    mdp: FiniteMDP, objective: str, tau: float, action_values: Callable[[np.ndarray], np.ndarray]
) -> Solution:
    """Backward induction of V_t(s) = max_a Q(V_{t+1})(s, a); V has a last entry, 0, for the end."""
    value, table = np.zeros(mdp.sizes[0] + 1), []
    for _ in range(mdp.steps):
        q = action_values(value)
        table.append(_first_best(q))
        value = np.append(q.max(1), 0.0)
    policy = markov(np.array(table[::-1]))
    return Solution(objective, tau, float(mdp.start @ value[:-1]), policy, *return_law(mdp, policy))


def _first_best(values: np.ndarray) -> np.ndarray:
    """The first of the best along the last axis, up to rounding."""
    scale = EXACT * np.maximum(1.0, np.abs(values).max(-1, keepdims=True))
    return (values >= values.max(-1, keepdims=True) - scale).argmax(-1)


def naive(mdp: FiniteMDP, tau: float) -> Solution:
    """What IQN-CVaR, O-RAAC and CODAC aim at: at each state the action whose return to come has the
    largest CVaR. It optimises neither the static nor the iterated CVaR; `value` is its static CVaR."""
    measures.check_tau(tau)
    nothing = Law(np.zeros(1), np.ones(1))
    laws, table = [nothing] * (mdp.sizes[0] + 1), []
    for _ in range(mdp.steps):
        candidates = [
            [_law_to_come(mdp, s, a, laws) for a in range(mdp.sizes[1])]
            for s in range(mdp.sizes[0])
        ]
        q = np.array([[law.cvar(tau) for law in row] for row in candidates])
        table.append(_first_best(q))
        chosen = zip(candidates, table[-1], strict=True)
        laws = [*(row[a] for row, a in chosen), nothing]
    policy = markov(np.array(table[::-1]))
    law, visits = return_law(mdp, policy)
    return Solution("naive", tau, law.cvar(tau), policy, law, visits)


def _law_to_come(mdp: FiniteMDP, state: int, action: int, laws: list[Law]) -> Law:
    values, mass = [], []
    for k, p in enumerate(mdp.probabilities[state, action]):
        later = laws[mdp.successors[state, action, k]]
        values.append(mdp.rewards[state, action, k] + mdp.discount * later.values)
        mass.append(p * later.probabilities)
    return Law.of(np.concatenate(values), np.concatenate(mass))


def blind(mdp: FiniteMDP, tau: float) -> Solution:
    """The best static CVaR among deterministic policies of state and time, by trying them all."""
    measures.check_tau(tau)
    found = [(law.cvar(tau), policy, law, visits) for policy, law, visits in _all_markov(mdp)]
    value, policy, law, visits = found[_first_best(np.array([[f[0] for f in found]]))[0]]
    return Solution("blind", tau, value, policy, law, visits)


def _all_markov(mdp: FiniteMDP) -> Iterator[tuple[Policy, Law, list[Visit]]]:
    live, places = mdp.start > 0, []
    for t in range(mdp.steps):
        places += [(t, s) for s in np.flatnonzero(live)]
        reached = mdp.successors[live[:, None, None] & (mdp.probabilities > 0)]
        live = np.isin(np.arange(len(live)), reached)
    count = mdp.sizes[1] ** len(places)
    require(count <= MOST_POLICIES, f"{count:.3g} policies of state and time are too many to try")
    table = np.zeros((mdp.steps, mdp.sizes[0]), int)
    for actions in itertools.product(range(mdp.sizes[1]), repeat=len(places)):
        table[tuple(np.array(places).T)] = actions
        policy = markov(table.copy())
        yield policy, *return_law(mdp, policy)


def ecrm_of_states(mdp: FiniteMDP, tau: float, weight: float = 1.0) -> float:
    """The optimum of ECRM in Yu and Shen's index (difference 3).

    The best eta for step t + 1 is a quantile of that step's reward, so only rewards are tried, and 0,
    which is what an ended episode pays.
    """
    measures.check_tau(tau)
    etas = np.unique(np.append(mdp.rewards, 0.0))
    p, reward, discount = mdp.probabilities, mdp.rewards, mdp.discount
    mean = (p * reward).sum(-1)
    short = (p[..., None] * np.maximum(etas - reward[..., None], 0)).sum(-2)  # (S, A, etas)
    scored = (1 - weight) * mean[..., None] - weight * short / tau
    over = -weight * np.maximum(etas, 0) / tau  # U of an episode that has ended
    later = np.zeros((*mdp.sizes, 1))  # what max_eta' gives after the last step
    for _ in range(mdp.steps - 1):
        u = np.vstack([(scored + later).max(1), over])  # (S + 1, etas); END reads the last row
        ahead = (p[..., None] * u[mdp.successors]).sum(-2)
        later = discount * (weight * etas + ahead).max(-1, keepdims=True)
    return float(mdp.start @ (mean + later[..., 0]).max(1))


SOLVERS = {"static": static, "iterated": iterated, "ecrm": ecrm, "naive": naive, "blind": blind}


def solve(cfg: Config, mdp: FiniteMDP) -> Solution:
    """The solution that the settings ask for."""
    extra = {"static": {"resolution": cfg.resolution}, "ecrm": {"weight": cfg.weight}}
    return SOLVERS[cfg.objective](mdp, cfg.tau, **extra.get(cfg.objective, {}))


# ------------------------------------------------------------------------------- playing, showing


class Player:
    """Plays policies, one per seed, from one-hot observations `(S, n, O) -> (S, n)`.

    It remembers the time and what was collected, which an observation need not tell.
    """

    def __init__(self, mdp: FiniteMDP, policies: Sequence[Policy]):
        self.mdp, self.policies = mdp, policies

    def begin(self, seeds: int, episodes: int) -> None:
        self._t, self._collected = 0, np.zeros((seeds, episodes))

    def reward(self, rewards: Tensor) -> None:
        self._collected += self.mdp.discount**self._t * rewards.cpu().numpy()
        self._t += 1

    def __call__(self, observations: Tensor) -> Tensor:
        states = observations[..., : self.mdp.sizes[0]].argmax(-1).cpu().numpy()
        t = min(self._t, self.mdp.steps - 1)
        actions = [
            [policy(t, state, sofar) for state, sofar in zip(*row, strict=True)]
            for policy, *row in zip(self.policies, states, self._collected, strict=True)
        ]
        return torch.tensor(actions)


def describe(solution: Solution, mdp: FiniteMDP, most: int = 24) -> str:
    """The optimum, the law of the return and the policy where it leads, as text."""
    law, budget = solution.law, solution.budget
    found = "" if budget is None else f", reached at c = {budget:.10g}"
    lines = [
        f"{solution.objective} CVaR at tau {solution.tau:g}: {solution.value:.10g}{found}",
        f"return: mean {law.mean:.10g}, standard deviation {law.variance**0.5:.10g}, static CVaR "
        + ", ".join(f"{law.cvar(tau):.6g} at {tau:g}" for tau in measures.TAUS),
        "",
        "law of the return",
        *_columns(
            ("return", "probability"), [*zip(law.values, law.probabilities, strict=True)], most
        ),
        "",
        "policy, where it leads",
    ]
    rows = [
        (v.t, mdp.states[v.state], v.collected, *_stock(budget, v, mdp), v.probability)
        for v in solution.visits
    ]
    does = [(mdp.actions[v.action],) for v in solution.visits]
    rows = [row + action for row, action in zip(rows, does, strict=True) if row[-1] > 0]
    head = ("t", "state", "collected", *(() if budget is None else ("stock",)))
    return "\n".join([*lines, *_columns((*head, "probability", "action"), rows, most)])


def _stock(budget: float | None, visit: Visit, mdp: FiniteMDP) -> tuple[float, ...]:
    """c_t of Bauerle and Ott: the budget left, in units of the rewards to come."""
    if budget is None:
        return ()
    return ((budget - visit.collected) / mdp.discount**visit.t,)


def _columns(head: tuple[str, ...], rows: list[tuple], most: int) -> list[str]:
    shown = [[x if isinstance(x, str) else f"{x:.6g}" for x in row] for row in rows[:most]]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    lines = ["  " + "  ".join(x.rjust(w) for x, w in zip(r, widths, strict=True)) for r in shown]
    first = "  " + "  ".join(x.rjust(w) for x, w in zip(head, widths, strict=True))
    rest = [f"  ... and {len(rows) - most} more"] if len(rows) > most else []
    return [first, *lines, *rest]


def train(cfg: Config, run: Run) -> None:
    env = run.task.make_env()
    mdp = getattr(env.unwrapped, "mdp", None)
    if not isinstance(mdp, FiniteMDP):
        raise CorerlError(f"{run.task.id} is no finite MDP: its environment has none as `mdp`.")
    solution = solve(cfg, mdp)
    if seed_list(run.cfg.seeds)[0] in run.seeds:  # once, however many processes share the seeds
        print(f"{run.task.id}  {describe(solution, mdp)}", flush=True)
    law = solution.law
    written = {
        "objective": solution.objective,
        "tau": solution.tau,
        "value": solution.value,
        "budget": solution.budget,
        "returns": law.values.tolist(),
        "probabilities": law.probabilities.tolist(),
    }
    files.write_json(run.directory / "solution.json", written)
    player = Player(mdp, [solution.policy] * len(run.seeds))
    for step in run.steps():
        run.evaluate(step, player)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
