"""Two-atom distributional dynamic programming: safe and risky optimal policies (Achab and Neu 2021,
arXiv:2112.15430).

The return of a state is kept as two atoms, low with probability tau and high with 1 - tau. Several policies
may have the largest mean. Among them `safe` has the largest low atom and `risky` the largest high one.

    X = r + discount theta_K(s'),   theta = (low, high), K = low with probability tau      one step
    low(s, a) = mean of the lower tail tau of X,   high(s, a) = mean of the rest           (an atom at the
                                                                                            border is split)
    evaluation   theta(s) = the split of X under the policy's actions
    control      V* as usual; among actions with Q*(s, a) = V*(s), low = max low (safe) or high = max high

    python algos/two_atom.py task=risk/coins algo.objective=safe algo.tau=0.25
    corerl train -m algo=two_atom task=risk/coins algo.objective=safe,risky,mean algo.tau=0.1,0.25

It prints the two atoms of the first state, beside the exact distribution of the policy's return and the means
of its two parts. It writes them to solution.json and plays the policy. Without a task,
`control(mdp, tau, objective)` takes any `FiniteMDP`, and `evaluate(mdp, policy, tau)` any policy.

What the atoms are (tests/algos/test_two_atom.py holds each):
 - tau low + (1 - tau) high is the mean return, exactly.
 - Averaging inside a part narrows the distribution, so static CVaR_tau <= low <= mean. The iterated CVaR has
   no fixed order with the static one.
 - low is a robust value: nature reweights the pairs (s', K) by a factor of at most 1 / tau.

Differences from the paper. Only its abstract and introduction could be read.
 1. Means of V* and of the optimal actions count as equal within `tie` (paper: exactly equal).
 2. The paper has no horizon. Here an endless discounted episode ends where less than 1e-10 is left to be
    paid, and values and policies depend on the step.
 3. `mean` is the ordinary optimal policy, which takes the first of equal actions: the evaluation operator.
 4. If safe or risky actions still tie, the policy takes the first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from corerl.config import Settings, one_of, positive, within
from corerl.nn.learner import Spec
from corerl.risk.finite_mdp import EXACT, FiniteMDP, Law, Solution, first_best, markov, return_law
from corerl.risk.solution_text import describe_policy
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import TabularPlayer, finite_mdp, present


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "two_atom"
    label: str = "two atoms"

    objective: str = one_of(  # safe (largest low atom) | risky (largest high atom) | mean
        "safe", "risky", "mean"
    )
    tau: float = within(0.25, "(0, 1)")  # probability of the low atom
    tie: float = positive(1e-9)  # mean returns tie if their relative difference is below this
    resolution: float = positive(EXACT)  # exact returns are rounded to multiples of this


def split(values: np.ndarray, probabilities: np.ndarray, tau: float) -> np.ndarray:
    """Returns the means of the lower tau and of the rest, `(..., 2)`, of distributions `(..., K)`."""
    order = np.argsort(values, axis=-1, kind="stable")
    x, p = (np.take_along_axis(y, order, -1) for y in (values, probabilities))
    lower = np.diff(np.minimum(np.cumsum(p, -1), tau), axis=-1, prepend=0.0)
    low = (lower * x).sum(-1) / tau
    return np.stack([low, ((p - lower) * x).sum(-1) / (1 - tau)], -1)


def one_step(mdp: FiniteMDP, theta: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns X of every state and action as values and probabilities, `(S, A, 2K)`.

    `theta` `(S + 1, 2)` are the atoms of the next step. The last row is the end, which pays nothing.
    """
    values = mdp.rewards[..., None] + mdp.discount * theta[mdp.successors]
    mass = mdp.probabilities[..., None] * np.array([tau, 1 - tau])
    return values.reshape(*mdp.sizes, -1), mass.reshape(*mdp.sizes, -1)


def evaluate(mdp: FiniteMDP, policy: np.ndarray, tau: float) -> np.ndarray:
    """Returns the atoms of a policy at every step, `(T + 1, S + 1, 2)`.

    `policy` `(T, S, A)` are probabilities.
    """
    theta = [np.zeros((mdp.sizes[0] + 1, 2))]
    for row in policy[::-1]:
        values, mass = one_step(mdp, theta[0], tau)
        mixed = (row[..., None] * mass).reshape(len(row), -1)
        atoms = split(values.reshape(len(row), -1), mixed, tau)
        theta.insert(0, np.append(atoms, np.zeros((1, 2)), 0))
    return np.array(theta)


def control(
    mdp: FiniteMDP, tau: float, objective: str = "safe", tie: float = 1e-9
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the atoms `(T + 1, S + 1, 2)` and the actions `(T, S)` of a policy with the largest mean."""
    states = np.arange(mdp.sizes[0])
    theta, value, table = [np.zeros((mdp.sizes[0] + 1, 2))], np.zeros(mdp.sizes[0] + 1), []
    for _ in range(mdp.steps):
        q = (mdp.probabilities * (mdp.rewards + mdp.discount * value[mdp.successors])).sum(-1)
        best = q.max(1, keepdims=True)
        optimal = q >= best - tie * np.maximum(1.0, np.abs(best))
        atoms = split(*one_step(mdp, theta[0], tau), tau)  # (S, A, 2)
        preferred = {"safe": atoms[..., 0], "risky": atoms[..., 1], "mean": q}[objective]
        table.insert(0, first_best(np.where(optimal, preferred, preferred.min() - 1.0)))
        theta.insert(0, np.append(atoms[states, table[0]], np.zeros((1, 2)), 0))
        value = np.append(best[:, 0], 0.0)
    return np.array(theta), np.array(table)


def at_start(mdp: FiniteMDP, theta: np.ndarray, tau: float) -> np.ndarray:
    """Returns the two atoms over a random first state, `(2,)`."""
    mass = mdp.start[:, None] * np.array([tau, 1 - tau])
    return split(theta[0, :-1].ravel(), mass.ravel(), tau)


def solve(cfg: Config, mdp: FiniteMDP) -> tuple[np.ndarray, Solution]:
    """Returns the two atoms at the start, and the policy with the exact distribution of its return."""
    theta, table = control(mdp, cfg.tau, cfg.objective, cfg.tie)
    law, visits = return_law(mdp, markov(table), cfg.resolution)
    atoms = at_start(mdp, theta, cfg.tau)
    value = float(cfg.tau * atoms[0] + (1 - cfg.tau) * atoms[1])
    return atoms, Solution(cfg.objective, cfg.tau, value, markov(table), law, visits)


def tail_means(law: Law, tau: float) -> np.ndarray:
    """Returns the means of the lower tau and of the rest of an exact distribution, `(2,)`."""
    return split(law.values, law.probabilities, tau)


def describe(atoms: np.ndarray, solution: Solution, mdp: FiniteMDP) -> str:
    """Writes the atoms, the same two means of the exact distribution, and the policy."""
    tau, exact = solution.tau, tail_means(solution.law, solution.tau)
    return "\n".join(
        [
            f"{solution.objective} policy among those with the largest mean return, {solution.value:.10g}",
            f"two atoms at tau {tau:g}: low {atoms[0]:.10g}, high {atoms[1]:.10g}",
            f"exact distribution: low {exact[0]:.10g} (static CVaR), high {exact[1]:.10g}",
            describe_policy(solution, mdp),
        ]
    )


def numbers(atoms: np.ndarray, solution: Solution) -> dict[str, Any]:
    """Returns what solution.json holds."""
    exact = tail_means(solution.law, solution.tau)
    tails = {"low": atoms[0], "high": atoms[1], "exact_low": exact[0], "exact_high": exact[1]}
    return solution.numbers() | {name: float(value) for name, value in tails.items()}


def build(cfg: Config, spec: Spec) -> TabularPlayer:
    """Returns the player of the policy, for every seed the same."""
    mdp = spec.make_env().unwrapped.mdp
    return TabularPlayer(mdp, [solve(cfg, mdp)[1].policy] * spec.seeds)


parts = tabular.parts


def train(cfg: Config, run: Run) -> None:
    mdp = finite_mdp(run.task)
    atoms, solution = solve(cfg, mdp)
    text = describe(atoms, solution, mdp)
    present(
        run, TabularPlayer(mdp, [solution.policy] * len(run.seeds)), text, numbers(atoms, solution)
    )


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
