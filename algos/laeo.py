"""LAEO: contrastive RL from examples of success (Hatch et al. 2023, L4DC, arXiv:2307.13101).

No reward and no goal of a policy: a few states show what success is. A classifier tells which states follow a
pair of state and action, as in CRL (algos/crl.py). The policy climbs its logits at the examples:

    logits    f_j(s, a, g) = phi_j(s, a) . psi_j(g) / sqrt(d),  j = 1, 2
    critics   binary cross-entropy: 1 for a later state of the row's episode, 0 for those of the other rows
    policy    -F(s, mu) / mean |F| - alpha log pi(a | s),  F over the examples g of min_j f_j(s, mu, g)

    python algos/laeo.py task=corerl/pendulum steps=10000 seeds=3
    corerl train -m algo=laeo task=corerl/pendulum algo.over=random,mean,logsumexp seeds=5

The examples are the `examples` states of the dataset that the largest rewards led to. Nothing else reads the
rewards. `over=logsumexp` is exact: (B - 1) times the mean of exp f is the value, under the behaviour, of the
reward (1 - discount) p(s | examples) / p(s). The other two average a logarithm.

Differences from the authors' code (laeo at 42707a4):
 1. There the policy is SAC's, with an entropy term and `bc_coef`. Here it is CRL's, of OGBench's code.
 2. `over=random` takes one example per row, as there. They double the states, which changes nothing without
    a goal.
 3. Examples come from rewards, where theirs come from a simulator's successes.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.algos.crl import Classifiers, contrast
from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import at_least, group, one_of, positive, require
from corerl.data.dataset import Dataset
from corerl.nn import compile, extraction, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.learner import GradientStep, Sizes, Spec
from corerl.nn.policies import UnitGaussian
from corerl.training import goals
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    knows_goals = False
    name: str = "laeo"
    label: str = "LAEO"

    examples: int = positive(200)  # number of success states, which the largest rewards led to
    over: str = one_of(  # random (f of one example) | mean | logsumexp, which the policy maximises
        "random", "mean", "logsumexp"
    )
    alpha: float = at_least(0, 0.1)  # weight of behaviour cloning in the policy's loss
    latent_dim: int = positive(64)  # d, size of the embeddings phi and psi
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=0.0)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.goals.columns is None,
            "algo.goals.columns makes goals of some columns of a state, but examples are whole states. "
            "Leave algo.goals.columns out",
        )


class LAEO(PolicyActing):
    """LAEO agents of S seeds. The examples are states of success, `(M, O)`."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A = spec.observation_dim, spec.action_dim
        self._examples = spec.facts["examples"].to(spec.device)
        self.critic = Classifiers(O + A, O, cfg, spec.rngs, heads=2).to(spec.device)
        policy = UnitGaussian([O, *cfg.hidden, A], spec.rngs, **cfg.policy_options)
        self.policy = policy.to(spec.device)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode)

    # Losses. Batch fields are (S, B, ...), uniform draws (S, B); each loss is (S,).

    def critic_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Classifies the pairs of a batch."""
        first = torch.cat([batch.observations, batch.actions], -1)
        return contrast(self.critic, first, batch.value_goals)

    def policy_loss(self, batch: GoalBatch, uniform: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the logits at the examples, with cloning beside."""

        def value(actions: Tensor) -> Tensor:
            return self.value(torch.cat([batch.observations, actions], -1), uniform)

        inputs = batch.observations
        return extraction.ddpg_bc(self.policy, inputs, batch.actions, value, self.cfg.alpha)

    def value(self, first: Tensor, uniform: Tensor) -> Tensor:
        """Returns F `(S, B)` of states and actions side by side. `uniform` draws an example per row."""
        count = len(self._examples)
        if self.cfg.over == "random":
            return self.critic(first, self._examples[(uniform * count).long()]).amin(1)
        shown = self._examples.expand(len(first), *self._examples.shape)
        phi, psi = self.critic.embedded(first, shown)
        logits = (phi @ psi.mT).amin(1)
        if self.cfg.over == "mean":
            return logits.mean(-1)
        return logits.logsumexp(-1) - math.log(count)

    def update(self, batch: GoalBatch, uniform: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything, along gradients at its start."""
        critic, metrics = self._critic_step.gradients(batch)
        policy, others = self._policy_step.gradients(batch, uniform)
        self._critic_step.apply(critic)
        self._policy_step.apply(policy)
        return metrics | others


build = LAEO


def facts(cfg: Config, dataset: Dataset) -> dict[str, Any]:
    """Returns the examples of success, `(M, O)`: the states that the largest rewards led to.

    Raises:
        CorerlError: all rewards are equal, or there are fewer steps than examples.
    """
    rows = np.flatnonzero(dataset.has_next)
    rewards = dataset.rewards[rows]
    require(
        len(rows) >= cfg.examples and rewards.min() < rewards.max(),
        f"algo.examples={cfg.examples} needs at least {cfg.examples} steps and rewards that differ, but "
        f"{dataset.id} has {len(rows)} steps with rewards from {rewards.min():g} to {rewards.max():g}",
    )
    best = rows[np.argsort(-rewards, kind="stable")[: cfg.examples]]
    return {"examples": torch.from_numpy(dataset.next_observations[best])}


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    sizes = Sizes(buffer.state_dim, buffer.action_dim)
    agent = LAEO(cfg, run.spec(sizes, facts=facts(cfg, run.dataset())))
    uniform = run.uniform("examples", cfg.batch_size)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, uniform=uniform):
        run.log(step, update(buffer.sample(), uniform.next()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
