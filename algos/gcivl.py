"""GCIVL: goal-conditioned implicit V-learning (Park et al. 2023, arXiv:2307.11949, and 2025, 2410.20092).

IQL without a critic of actions: a step pays -1 until the goal, and the value of a state and a goal is fitted
to an upper expectile of what one recorded step leads to. The policy imitates steps that come nearer.

    python algos/gcivl.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=gcivl task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The losses, with V' the targets, j = 1, 2, and r = 0, m = 0 at the goal, r = -1, m = 1 elsewhere:

    target    y_j = r + discount * m * V'_j(s', g)
    weight    A = min_j y_j - mean_j V'_j(s, g),  w = expectile where A >= 0, else 1 - expectile
    value     sum_j w (y_j - V_j(s, g))^2
    policy    -min(exp(alpha (V(s', g) - V(s, g))), 100) log pi(a | s, g),  V the mean of both

Ours is OGBench's code (seohongpark/ogbench at 1d41409), which made the published numbers.

    item                ours, OGBench                            else
 1  weight of a sample  by the target networks                   IQL: by the value itself
 2  targets             follow the value of before its step      IQL: after it
 3  no action           V(s', g) counts luck as skill where      GCIQL has a critic
                        steps are random (the teleport mazes)
 4  policy's advantage  has neither reward nor discount          -
 5  success             is equality of rows (`goals.success`)    paper: of states
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.buffers.goals import GoalBatch
from corerl.config import at_least, within
from corerl.nn import compile, extraction, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics
from corerl.nn.learner import GradientStep, Spec
from corerl.training import goals
from corerl.training.run import Run

Values = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Config(goals.GoalSettings):
    name: str = "gcivl"
    label: str = "GCIVL"

    expectile: float = within(0.9, "(0, 1)")  # V is this expectile of its one-step targets
    alpha: float = at_least(0, 10.0)  # inverse temperature of the policy's weights (0: cloning)
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update


class GCIVL(PolicyActing):
    """GCIVL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        sizes = goals.Sizes.of(spec)
        value = Critics([sizes.state, sizes.goal, *cfg.hidden], spec.rngs, **cfg.value_options)
        self.value = value.to(spec.device)
        self.target = optim.target_of(self.value)
        self.policy = goals.policy(cfg, spec)
        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, (v, pi), spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def policy_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitates actions, weighted by how much nearer they come to the policy's goal."""
        with torch.no_grad():
            after = self.value(batch.next_observations, batch.actor_goals).mean(1)
            advantage = after - self.value(batch.observations, batch.actor_goals).mean(1)
        inputs = goals.beside(batch.observations, batch.actor_goals)
        return extraction.awr(self.policy, inputs, batch.actions, advantage, self.cfg.alpha)

    def loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value and policy, which share no parameter."""
        value, metrics = value_loss(self.value, self.target, batch, self.cfg)
        policy, others = self.policy_loss(batch)
        return value + policy, metrics | others

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Takes one step of everything. The target follows the value of before it."""
        grads, metrics = self._step.gradients(batch)
        optim.polyak(self.target, self.value, self.cfg.polyak)
        self._step.apply(grads)
        return metrics


def value_loss(
    value: Values, target: Values, batch: Any, cfg: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Fits two values of state and goal to the expectile of one step's backup.

    Args:
        value, target: states and goals to `(S, 2, B)`.
        batch: with goals for the value. cfg: with `discount` and `expectile`.
    """
    with torch.no_grad():
        after = target(batch.next_observations, batch.value_goals)
        alive = cfg.discount * (1 - batch.terminated)
        y = batch.rewards[:, None] + alive[:, None] * after
        advantage = y.amin(1) - target(batch.observations, batch.value_goals).mean(1)
        # The weight's sign is the advantage's, and the error's another.
        weight = torch.where(advantage >= 0, cfg.expectile, 1 - cfg.expectile)[:, None]
    v = value(batch.observations, batch.value_goals)
    loss = (weight * (y - v).square()).mean(-1).sum(1)
    return loss, {"value_loss": loss, "value": v.mean((1, 2))}


build = GCIVL


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = GCIVL(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
