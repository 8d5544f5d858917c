"""ORPO: occupancy regularisation against reward hacking (Laidlaw, Singhal and Dragan 2025, ICLR,
arXiv:2403.03185).

Only a proxy of the true reward is known. Under a reference policy both correlate by r > 0, and yet a policy
that is optimal for the proxy may be worse than the reference. What bounds the loss is how far its occupancy
leaves the reference's, by chi-square. Rewards are in standard deviations under the reference's occupancy p0,
so that the reference gains 0. Of a policy with occupancy p:

    maximise   gain(p) - coefficient * penalty(p),      gain(p) = p . proxy
    penalty    chi2   sum p^2 / p0 - 1                  sqrt_chi2   its root        kl   sum p log(p / p0)
               action_kl   mean KL of the actions' probabilities, the usual one

    true gain(p) >= r gain - sqrt((1 - r^2) (chi2 - gain^2))

    python algos/orpo.py task=risk/one-door
    corerl train -m algo=orpo task=risk/one-door algo.penalty=chi2,action_kl algo.coefficient=0.1,0.3,1

It is exact. It prints the gains in proxy and truth, chi-square and the bound, writes them to solution.json,
and plays the policy. The environment of a custom task needs `mdp` with the true rewards, `proxy` `(S, A)` and
`reference` `(S, A)`, positive everywhere.

Differences from the paper and the authors' code (cassidylaidlaw/orpo at 95cd1fa).
 1. They learn by PPO with a discriminator of occupancies. Here the occupancy is exact, and natural policy
    gradient finds the maximum of the concave objective. `gap` bounds what it misses. The form with a
    discriminator is algos/orpo_sac.py.
 2. action_kl is solved by backward induction, also exactly.
 3. The bound is sharper than theirs, (gain - sqrt((1 - r^2) chi2)) / r and r gain - sqrt((1 - r^2) chi2).
    solution.json has all three.
 4. Their occupancies are of states or of states and actions, and the README has the two commands the wrong
    way round. Here `measure` says which.
 5. The root of chi-square has no gradient at the reference. From a coefficient of 1 on the reference is the
    optimum, since the gain is at most the root.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from corerl.config import Settings, at_least, one_of, require
from corerl.data.tasks import Task
from corerl.nn.learner import Spec
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import (
    ascend,
    best_occupancy,
    expected_rewards,
    nominal_kernel,
    occupancy_of,
)
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import FixedPolicy, StochasticPlayer, finite_mdp, present

TINY = 1e-12
"""Keeps the root of chi-square and the logarithm smooth at the reference and at 0."""


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "orpo"
    label: str = "ORPO"

    objective: str = one_of("proxy")  # proxy reward (the only choice, shown in reports)
    penalty: str = one_of(  # penalises chi2 | sqrt_chi2 | kl (of occupancies) | action_kl
        "chi2", "sqrt_chi2", "kl", "action_kl"
    )
    coefficient: float = at_least(0, 0.3)  # penalty's weight, in standard deviations of the proxy
    measure: str = one_of("state_action", "state")  # compares occupancies by state_action | state


class Problem:
    """Standardised rewards under the reference's occupancy.

    Attributes:
        visits: of the reference, `(S, A)`, sum 1. proxy, truth: `(S, A)`. correlation: of the two.
    """

    def __init__(self, env: Any):
        self.mdp: FiniteMDP = env.mdp
        self.reference = np.asarray(env.reference, np.float64)
        visits = occupancy_of(self.mdp, self.reference)
        self.steps, self.visits = visits.sum(), _over_time(visits) / visits.sum()
        self.proxy = self.standardised(np.asarray(env.proxy, np.float64))
        self.truth = self.standardised(expected_rewards(self.mdp))
        self.correlation = float((self.visits * self.proxy * self.truth).sum())

    def standardised(self, rewards: np.ndarray) -> np.ndarray:
        """Returns rewards with mean 0 and standard deviation 1 under the reference."""
        centred = rewards - (self.visits * rewards).sum()
        return centred / np.sqrt((self.visits * centred**2).sum())

    def numbers(self, visits: np.ndarray) -> dict[str, float]:
        """Returns gains, chi-square and the bounds on the true gain, of normalised visits `(S, A)`."""
        r, gain = self.correlation, float((visits * self.proxy).sum())
        chi2 = max(0.0, chi_square(visits, self.visits)[0])
        loss = np.sqrt((1 - r**2) * chi2)
        found = {"correlation": r, "proxy": gain, "true": (visits * self.truth).sum(), "chi2": chi2}
        found["paper_bound"] = (gain - loss) / r if r > 0 else -np.inf
        found["linear_bound"] = r * gain - loss
        found["bound"] = r * gain - np.sqrt((1 - r**2) * max(0.0, chi2 - gain**2))
        return {name: float(value) for name, value in found.items()}


def _over_time(visits: np.ndarray) -> np.ndarray:
    return visits.reshape(-1, *visits.shape[-2:]).sum(0)


def chi_square(p: np.ndarray, p0: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns sum p^2 / p0 - 1 and its gradient."""
    ratio = p / p0
    return float((p * ratio).sum() - 1), 2 * ratio


def divergence(kind: str, p: np.ndarray, p0: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns an occupancy penalty and its gradient in p."""
    if kind == "kl":
        ratio = np.log(np.maximum(p, TINY) / p0)
        return float((p * ratio).sum()), ratio + 1
    value, gradient = chi_square(p, p0)
    if kind == "chi2":
        return value, gradient
    root = np.sqrt(max(0.0, value) + TINY)
    return root, gradient / (2 * root)


def solve(cfg: Config, env: Any) -> tuple[np.ndarray, dict[str, float]]:
    """Returns the policy, `(S, A)` or with a horizon `(T, S, A)`, and its numbers."""
    problem = Problem(env)
    if cfg.penalty == "action_kl":
        policy, gap = soft_policy(problem, cfg.coefficient), 0.0
    else:
        policy, gap = occupancy_policy(problem, cfg)
    visits = _over_time(occupancy_of(env.mdp, policy)) / problem.steps
    return policy, problem.numbers(visits) | {"gap": gap}


def occupancy_policy(problem: Problem, cfg: Config) -> tuple[np.ndarray, float]:
    """Returns the best policy under an occupancy penalty, and a bound on what its objective misses."""
    p0 = problem.visits

    def objective(visits: np.ndarray) -> tuple[float, np.ndarray]:
        p = _over_time(visits) / problem.steps
        if cfg.measure == "state":
            value, slope = divergence(cfg.penalty, p.sum(-1), p0.sum(-1))
            slope = np.broadcast_to(slope[:, None], p.shape)
        else:
            value, slope = divergence(cfg.penalty, p, p0)
        gradient = (problem.proxy - cfg.coefficient * slope) / problem.steps
        gain = float((p * problem.proxy).sum()) - cfg.coefficient * value
        return gain, np.broadcast_to(gradient, visits.shape)

    found = ascend(problem.mdp, objective, problem.reference, steps=20_000, rate=1.0)
    _, gradient = objective(found.visits)
    here = float((gradient * found.visits).sum())
    return found.policy, max(0.0, best_occupancy(problem.mdp, gradient).value - here)


def soft_policy(problem: Problem, coefficient: float) -> np.ndarray:
    """Returns the best policy for the proxy less coefficient * KL(pi, reference) of every step's actions."""
    mdp, log_reference = problem.mdp, np.log(problem.reference)
    kernel, value, table = nominal_kernel(mdp), np.zeros(mdp.sizes[0]), []
    for _ in range(mdp.steps):
        q = problem.proxy + mdp.discount * kernel @ value
        if coefficient == 0:
            policy, value = np.eye(mdp.sizes[1])[q.argmax(1)], q.max(1)
        else:
            logits = log_reference + q / coefficient
            top = logits.max(1, keepdims=True)
            powers = np.exp(logits - top)
            policy = powers / powers.sum(1, keepdims=True)
            value = coefficient * (top[:, 0] + np.log(powers.sum(1)))
        table.insert(0, policy)
    return np.array(table) if mdp.horizon is not None else table[0]


def describe(cfg: Config, numbers: dict[str, float]) -> str:
    """Writes what was gained in proxy and truth, and what the bound says."""
    n = numbers
    return (
        f"{cfg.penalty} x {cfg.coefficient:g}: standard deviations gained per step over the reference, "
        f"proxy {n['proxy']:+.4f}, true {n['true']:+.4f}\n  correlation {n['correlation']:.4f}, chi-square "
        f"{n['chi2']:.4g}, bound on the true gain {n['bound']:+.4f}, objective exact to {n['gap']:.1g}"
    )


def build(cfg: Config, spec: Spec) -> StochasticPlayer:
    """Returns the player of the policy, for every seed the same."""
    env = spec.make_env().unwrapped
    policy = FixedPolicy(solve(cfg, env)[0])
    return StochasticPlayer(env.mdp, [policy] * spec.seeds, spec.identities)


parts = tabular.parts


def check_task(task: Task) -> None:
    """Raises CorerlError where a task has no finite MDP, no proxy, or a poor reference."""
    finite_mdp(task)
    env = task.make_env().unwrapped
    proxy, reference = (getattr(env, name, None) for name in ("proxy", "reference"))
    require(
        proxy is not None and reference is not None,
        f"{task.id} has no proxy reward or reference policy. Its environment needs proxy (S, A) and "
        "reference (S, A), as task=risk/one-door has",
    )
    visits = occupancy_of(env.mdp, np.asarray(reference))
    require(
        (np.asarray(reference) > 0).all() and (_over_time(visits) > 0).all(),
        f"{task.id}: the reference policy must reach every state and take every action. Otherwise "
        "chi-square is infinite",
    )


def train(cfg: Config, run: Run) -> None:
    check_task(run.task)
    env = run.task.make_env().unwrapped
    policy, numbers = solve(cfg, env)
    player = StochasticPlayer(env.mdp, [FixedPolicy(policy)] * len(run.seeds), run.seeds)
    present(run, player, describe(cfg, numbers), numbers | {"policy": policy.tolist()})


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
