"""CRL: contrastive RL (Eysenbach et al. 2022, arXiv:2206.07568).

A classifier tells the states that follow a pair of state and action from those that follow others. At its
best, its logit is the log of how much likelier the behaviour is to come to the goal than chance. The policy
climbs it.

    python algos/crl.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=crl task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The losses, over the B x B pairs of a batch, with d the length of an embedding:

    logits    f_j(s, a, g) = phi_j(s, a) . psi_j(g) / sqrt(d),  j = 1, 2
    critics   binary cross-entropy: 1 for a row's own goal, 0 for those of the other rows
    policy    ddpg_bc:  -f(s, mu, g) / mean |f| - alpha log pi(a | s, g),  f = min_j f_j, mu clipped
              awr:      -min(exp(alpha (f(s, a, g) - h(s, g))), 100) log pi(a | s, g),  h a classifier
                        without actions
              with max(f, log log_floor) and max(h, log log_floor) for f and h

With M(g | s, a) the discounted law of what follows, and p(g) that of the goals, the best logit is
log M / p - log(B - 1). So it is a value of the behaviour, not of the best policy.

Ours is OGBench's code (seohongpark/ogbench at 1d41409). The published numbers are older than its change
15594e3 of June 2025: their code has log_floor = 1e-6.

    item                ours, OGBench                              else
 1  value               the logit, whose mean may cross 0          its exponential is the value
 2  wrong negatives     rows of other episodes may reach the goal  -
 3  end of an episode   the geometric law is cut at its last row   endless episodes
 4  policy's goals      uniform over the rest of the episode       authors: those of the classifier
 5  least likelihood    log_floor = 0                              1e-6 until June 2025
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import added, at_least, group, one_of, positive
from corerl.nn import compile, extraction, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.networks import MLP
from corerl.training import goals
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    name: str = "crl"
    label: str = "CRL"

    actor_loss: str = one_of("ddpg_bc", "awr")  # ddpg_bc (Q plus cloning) | awr (weighted cloning)
    alpha: float = at_least(0, 0.1)  # weight of cloning (ddpg_bc) or inverse temperature (awr)
    log_floor: float = added(at_least(0, 0.0))  # the policy sees log max(exp f, log_floor)
    latent_dim: int = positive(512)  # d, size of the embeddings of (s, a) and of the goal
    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=0.0)


class Classifiers(nn.Module):
    """N classifiers of pairs: what comes first and a goal are embedded apart.

    Args:
        first, goal: features of both. cfg: with hidden layers and `latent_dim`.
        heads: N.
    """

    def __init__(
        self, first: int, goal: int, cfg: Config, rngs: Sequence[torch.Generator], heads: int
    ):
        super().__init__()
        lead, ends = (len(rngs), heads), [*cfg.hidden, cfg.latent_dim]
        self.first = MLP([first, *ends], lead, rngs, **cfg.value_options)
        self.goal = MLP([goal, *ends], lead, rngs, **cfg.value_options)

    def embedded(self, first: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds `(S, B, ...)` twice to `(S, N, B, d)`. Their products are the logits."""
        phi, psi = self.first(first[:, None]), self.goal(goals[:, None])
        return phi / math.sqrt(phi.shape[-1]), psi

    def forward(self, first: Tensor, goals: Tensor) -> Tensor:
        """Returns the logits of each row's own goal, `(S, N, B)`."""
        phi, psi = self.embedded(first, goals)
        return (phi * psi).sum(-1)


class CRL(PolicyActing):
    """CRL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        sizes = goals.Sizes.of(spec)
        critic = Classifiers(sizes.state + sizes.action, sizes.goal, cfg, spec.rngs, heads=2)
        self.critic = critic.to(spec.device)
        optimizers = [optim.Adam(self.critic.parameters(), cfg.lr)]
        self.value = None
        if cfg.actor_loss == "awr":
            value = Classifiers(sizes.state, sizes.goal, cfg, spec.rngs, heads=1)
            self.value = value.to(spec.device)
            optimizers.append(optim.Adam(self.value.parameters(), cfg.lr))
        self.policy = goals.policy(cfg, spec)
        self.optimizers = [*optimizers, optim.Adam(self.policy.parameters(), cfg.lr)]
        self._critic_step = GradientStep(self.critic_loss, optimizers, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, self.optimizers[-1], spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Classifies pairs of a batch, and adds the loss of a classifier without actions if there is one."""
        first = torch.cat([batch.observations, batch.actions], -1)
        loss, metrics = contrast(self.critic, first, batch.value_goals)
        if self.value is None:
            return loss, metrics
        value, _ = contrast(self.value, batch.observations, batch.value_goals)
        return loss + value, metrics | {"value_loss": value}

    def policy_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the logits at the policy's goals, or imitates what is likelier to reach them."""
        inputs = goals.beside(batch.observations, batch.actor_goals)

        def logit_of(actions: Tensor) -> Tensor:
            first = torch.cat([batch.observations, actions], -1)
            return self._floored(self.critic(first, batch.actor_goals).amin(1))

        if self.value is None:
            return extraction.ddpg_bc(self.policy, inputs, batch.actions, logit_of, self.cfg.alpha)
        with torch.no_grad():
            without = self._floored(self.value(batch.observations, batch.actor_goals).squeeze(1))
            advantage = logit_of(batch.actions) - without
        return extraction.awr(self.policy, inputs, batch.actions, advantage, self.cfg.alpha)

    def _floored(self, logits: Tensor) -> Tensor:
        """Raises logits to the log of the floor. Those that are raised have no gradient."""
        floor = self.cfg.log_floor
        return logits.clamp(min=math.log(floor)) if floor else logits

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Takes one step of everything, along gradients at its start."""
        critic, metrics = self._critic_step.gradients(batch)
        policy, others = self._policy_step.gradients(batch)
        self._critic_step.apply(critic)
        self._policy_step.apply(policy)
        return metrics | others


def contrast(
    classifiers: Classifiers, first: Tensor, goals: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the cross-entropy of all pairs of a batch, a mean over pairs and classifiers."""
    phi, psi = classifiers.embedded(first, goals)
    logits = phi @ psi.mT
    own = torch.eye(logits.shape[-1], device=logits.device, dtype=logits.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, own.expand_as(logits), reduction="none")
    loss = loss.mean((1, 2, 3))
    chosen = logits.mean(1).argmax(-1) == own.argmax(-1)
    return loss, {"critic_loss": loss, "accuracy": chosen.to(loss.dtype).mean(-1)}


build = CRL


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = CRL(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
