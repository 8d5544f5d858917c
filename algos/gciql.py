"""GCIQL: goal-conditioned implicit Q-learning (Kostrikov et al., arXiv:2110.06169; Park et al., 2410.20092).

IQL with goals: a step pays -1 until the goal. The value is an upper expectile of the critics over the data's
actions, so that no critic is asked about another action while they learn. The policy climbs them.

    python algos/gciql.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=gciql task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The losses, with Q' the target critics, and r = 0, m = 0 at the goal, r = -1, m = 1 elsewhere:

    value     |expectile - 1(u < 0)| u^2,  u = min_j Q'_j(s, g, a) - V(s, g)
    critics   sum_j (Q_j(s, g, a) - r - discount * m * V(s', g))^2
    policy    ddpg_bc:  -Q(s, g, mu) / mean |Q| - alpha log pi(a | s, g),  Q = min_j Q_j, mu clipped
              awr:      -min(exp(alpha (Q(s, g, a) - V(s, g))), 100) log pi(a | s, g)

Ours is OGBench's code (seohongpark/ogbench at 1d41409), which made the published numbers.

    item                ours, OGBench                            IQL
 1  order               all gradients at the start of a step     value, then policy and critics
 2  targets             follow the critics of before their step  after it
 3  policy's critics    the online ones                          the targets
 4  policy's loss       `actor_loss=ddpg_bc`                     awr
 5  success             is equality of rows (`goals.success`)    -
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.goals import GoalBatch
from corerl.config import at_least, one_of, within
from corerl.nn import compile, extraction, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, StateValue, expectile_loss, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.training import goals
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    name: str = "gciql"
    label: str = "GCIQL"

    expectile: float = within(0.9, "(0, 1)")  # expectile of V (0.5: mean, near 1: the best action)
    actor_loss: str = one_of("ddpg_bc", "awr")  # ddpg_bc: Q plus cloning | awr: weighted cloning
    alpha: float = at_least(0, 0.3)  # ddpg_bc: weight of cloning | awr: inverse temperature
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update


class GCIQL(PolicyActing):
    """GCIQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        shown, options = spec.observation_dim, cfg.value_options
        critic = Critics([shown, spec.action_dim, *cfg.hidden], spec.rngs, **options)
        self.critic = critic.to(spec.device)
        self.value = StateValue([shown, *cfg.hidden], spec.rngs, **options).to(spec.device)
        self.target = optim.target_of(self.critic)
        self.policy = goals.policy(cfg, spec)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._value_step = GradientStep(self.value_loss, (v, q), spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def value_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value and critics, towards the value goals."""
        inputs = goals.beside(batch.observations, batch.value_goals)
        with torch.no_grad():
            target_q = self.target(inputs, batch.actions).amin(1)
            after = self.value(goals.beside(batch.next_observations, batch.value_goals))
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * after
        v = self.value(inputs)
        value = expectile_loss(target_q - v, self.cfg.expectile).mean(-1)
        critic, metrics = regression(self.critic(inputs, batch.actions), y)
        return value + critic, metrics | {"value_loss": value, "value": v.mean(-1)}

    def policy_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the critics at the policy's goals, or imitates what is better than the value."""
        inputs = goals.beside(batch.observations, batch.actor_goals)

        def q_of(actions: Tensor) -> Tensor:
            return self.critic(inputs, actions).amin(1)

        if self.cfg.actor_loss == "ddpg_bc":
            return extraction.ddpg_bc(self.policy, inputs, batch.actions, q_of, self.cfg.alpha)
        with torch.no_grad():
            advantage = q_of(batch.actions) - self.value(inputs)
        return extraction.awr(self.policy, inputs, batch.actions, advantage, self.cfg.alpha)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Takes one step of everything, along gradients at its start."""
        value, metrics = self._value_step.gradients(batch)
        policy, others = self._policy_step.gradients(batch)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        self._value_step.apply(value)
        self._policy_step.apply(policy)
        return metrics | others


build = GCIQL


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = GCIQL(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
