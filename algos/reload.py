"""ReLOAD: constrained optimisation whose last policy converges (Moskovitz et al. 2023, ICML,
arXiv:2302.01275).

The return is to be as large as possible while every cost stays within its budget. Gradient descent-ascent on
the Lagrangian swings around the solution for ever, and only its average converges. Optimistic steps add the
last change of the gradient, and the last policy itself converges:

    Q_k = action value of r - mu_k . c under pi_k,    g_k = J_c(pi_k) - budget
    pi_k+1  proportional to  pi_k exp(eta (2 Q_k - Q_k-1))
    mu_k+1  = max(0, mu_k + eta_mu (2 g_k - g_k-1))

`gradient=plain` takes Q_k and g_k alone, and is what the paper compares with.

    python algos/reload.py task=risk/overheat
    corerl train -m algo=reload task=risk/overheat algo.gradient=optimistic,plain seeds=5

A step is one exact iteration: values come from the known dynamics, without samples. Each seed begins at
another policy. `value` and `cost_0` are the policy's own. `suboptimality` is what it lacks of the exact
optimum, which linear programming finds (corerl/risk/occupancy.py). `violation` is the largest excess over a
budget. The environment of a custom task needs `mdp`, `costs` `(C, S, A)` and `budgets` `(C,)`.

Differences. The abstract and a summary could be read, and there is no public code.
 1. The step sizes and the first policy are ours.
 2. g is the excess per step, divided by the discounted number of steps. So eta_mu means the same at every
    horizon. Q is not divided.
 3. With a horizon, policies and Q depend on the step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from corerl import seeding
from corerl.config import Settings, at_least, one_of, positive, require
from corerl.data.tasks import Task
from corerl.nn.learner import Sizes, Spec
from corerl.risk.occupancy import (
    action_values,
    best_occupancy,
    expected_rewards,
    occupancy_of,
    softmax,
)
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import FixedPolicy, Learners, TabularLearner, finite_mdp


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "reload"
    label: str = "ReLOAD"

    objective: str = one_of("constrained")  # constrained return (the only choice, shown in reports)
    gradient: str = one_of("optimistic", "plain")  # optimistic (ReLOAD) | plain descent-ascent
    budget: float | None = None  # limit on each cost's mean sum per episode (null: task's limit)
    eta: float = positive(0.5)  # step size of the policy
    eta_mu: float = positive(0.5)  # step size of the Lagrange multipliers
    spread: float = at_least(0, 0.1)  # standard deviation of the initial policy's logits


class ReLOAD(TabularLearner):
    """One learner.

    Attributes:
        logits: of the policy, `(S, A)`, with a horizon `(T, S, A)`. multipliers: mu, `(C,)`.
        last_q, last_excess: Q and g of the iteration before.
    """

    arrays = ("logits", "multipliers", "last_q", "last_excess")

    def __init__(self, cfg: Config, env: Any, rng: np.random.Generator):
        self.cfg, self.mdp, self.rng = cfg, env.mdp, rng
        self.costs, self.budgets = env.costs, budgets_of(cfg, env)
        self.rewards = expected_rewards(self.mdp)
        shape = self.mdp.sizes if self.mdp.horizon is None else (self.mdp.horizon, *self.mdp.sizes)
        self.logits = cfg.spread * rng.standard_normal(shape)
        self.multipliers = np.zeros(len(self.budgets))
        self.episodes = 0
        self.last_q, self.last_excess = self.gradients()

    @property
    def policy(self) -> np.ndarray:
        """Probabilities of the shape of the logits."""
        return softmax(self.logits)

    def evaluate(self) -> tuple[float, np.ndarray]:
        """Returns the exact return and costs `(C,)` of the policy."""
        visits = occupancy_of(self.mdp, self.policy)
        return float((visits * self.rewards).sum()), np.array(
            [(visits * c).sum() for c in self.costs]
        )

    def gradients(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns Q of the Lagrangian reward, and the excess of every cost per step."""
        priced = self.rewards - np.tensordot(self.multipliers, self.costs, 1)
        steps = self.mdp.discount ** np.arange(self.mdp.steps)
        excess = (self.evaluate()[1] - self.budgets) / steps.sum()
        return action_values(self.mdp, self.policy, priced), excess

    def episode(self) -> dict[str, float]:
        """Makes one iteration and returns the new policy's value, costs and multipliers."""
        q, excess = self.gradients()
        self.episodes += 1
        ahead_q, ahead = q, excess
        if self.cfg.gradient == "optimistic":
            ahead_q, ahead = 2 * q - self.last_q, 2 * excess - self.last_excess
        self.logits += self.cfg.eta * ahead_q
        self.logits -= self.logits.max(-1, keepdims=True)
        self.multipliers = np.maximum(0.0, self.multipliers + self.cfg.eta_mu * ahead)
        self.last_q, self.last_excess = q, excess
        value, costs = self.evaluate()
        numbers = {"value": value, "violation": max(0.0, (costs - self.budgets).max())}
        for i, (cost, price) in enumerate(zip(costs, self.multipliers, strict=True)):
            numbers |= {f"cost_{i}": cost, f"multiplier_{i}": price}
        return numbers

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Draws an action of the policy."""
        return FixedPolicy(self.policy).act(t, state, rng)


def budgets_of(cfg: Config, env: Any) -> np.ndarray:
    """Returns the budget of every cost, `(C,)`."""
    return env.budgets if cfg.budget is None else np.full(len(env.budgets), cfg.budget)


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the exact optimum."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(seed, "reload")) for seed in spec.identities]
    learners = [ReLOAD(cfg, env, rng) for rng in rngs]
    best = best_occupancy(env.mdp, costs=env.costs, budgets=budgets_of(cfg, env))
    return Learners(learners, best.value, lambda learner: learner.evaluate()[0])


parts = tabular.learners_parts


def check_task(task: Task) -> None:
    """Raises CorerlError where a task has no finite MDP or no costs."""
    finite_mdp(task)
    env = task.make_env().unwrapped
    require(
        getattr(env, "costs", None) is not None and getattr(env, "budgets", None) is not None,
        f"{task.id} has no costs. Its environment needs costs (C, S, A) and budgets (C,), as "
        "task=risk/overheat has",
    )


def train(cfg: Config, run: Run) -> None:
    check_task(run.task)
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        metrics = agent.update()
        metrics.pop("regret")  # a policy that breaks a budget may have a return above the optimum
        run.log(step, metrics)
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
