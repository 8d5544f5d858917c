"""IFQL: Implicit Flow Q-Learning (Park, Li and Levine 2025, arXiv:2502.02538), IDQL with a flow.

Critics and value are IQL's, so no critic is asked about an action outside the data. The policy is a flow that
clones the data. It acts by the best of `samples` actions that the flow makes, as IDQL does with a diffusion
model (Hansen-Estruch et al. 2023, arXiv:2304.10573). Number and steps of the samples are chosen when it acts:
see `corerl evaluate RUN algo.samples=64`.

    python algos/ifql.py task=corerl/pendulum steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=ifql task=ogbench/scene-play-singletask-v0 seeds=8

Ours is the authors' code (seohongpark/fql at 719d044, agents/ifql.py), a baseline of FQL's paper.

    item               authors, ours                             else
 1  order              all gradients at the start of a step      IQL: value, then policy and critics
 2  targets            follow the critics of before their step   IQL: after it
 3  the best action    by the smaller of the online critics      IDQL: by the smaller of the targets
 4  samples            32 in all published commands              IDQL: 32 to 128 per task
 5  acts               always the best sample, also online       IDQL: also by softmax, with --steer
 6  networks           four layers of 512, LayerNorm in critics  IDQL: a residual network
                       and value, GELU, Glorot's weights
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import acting, at_least, group, positive, within
from corerl.nn import candidates, compile, flow, networks, optim
from corerl.nn.critics import Critics, StateValue, expectile_loss, regression
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "ifql"
    label: str = "IFQL"

    expectile: float = within(0.9, "(0, 1)")  # V is this expectile of Q (0.5: mean, near 1: max)
    samples: int = acting(positive(32))  # number of proposed actions (the best by Q is played)
    flow_steps: int = acting(positive(10))  # Euler steps from noise to an action
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of all networks
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 4)
    hidden_width: int = positive(512)
    activation: str = activation("gelu_tanh")  # activation of the hidden layers
    critic_layer_norm: bool = True  # LayerNorm after the activations of critics and value network
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)


class Draws(NamedTuple):
    """Random numbers of one update."""

    path: Tensor  # (S, B, A), the start of the flow's path
    times: Tensor  # (S, B, 1), uniform


class Implicit(NamedTuple):
    """Losses of IQL's critics and value `(S,)`, and what the policy and a run's metrics read."""

    value_loss: Tensor
    critic_loss: Tensor  # sum over both critics
    advantage: Tensor  # (S, B), of the data's actions by the target critics
    q: Tensor  # (S, 2, B), of the data's actions by the online critics
    value: Tensor  # (S, B), V of their states
    metrics: dict[str, Tensor]


def implicit(agent: Any, batch: Batch) -> Implicit:
    """Computes IQL's losses (2110.06169, eq. 5 and 6) for an agent with `critic`, `target` and `value`."""
    with torch.no_grad():
        target_q = agent.target(batch.observations, batch.actions).amin(1)
        next_value = agent.value(batch.next_observations)
        y = batch.rewards + agent.cfg.discount * (1 - batch.terminated) * next_value
    q, value = agent.critic(batch.observations, batch.actions), agent.value(batch.observations)
    advantage = target_q - value
    value_loss = expectile_loss(advantage, agent.cfg.expectile).mean(-1)
    critic_loss, metrics = regression(q, y)
    metrics |= {"value_loss": value_loss, "advantage": advantage.mean(-1)}
    found = (x.detach() for x in (advantage, q, value))
    return Implicit(value_loss, critic_loss, *found, metrics)


class IFQL(Stateful):
    """IFQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = cfg.mlp_options | {"init": networks.xavier()}
        normed = options | {"layer_norm": 1e-6 if cfg.critic_layer_norm else None}
        self.critic = Critics([O, A, *hidden], rngs, **normed).to(device)
        self.value = StateValue([O, *hidden], rngs, **normed).to(device)
        self.flow = flow.Velocity([O, A, *hidden], 1, rngs, **options).to(device)
        self.target = optim.target_of(self.critic)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        self.flow_optimizer = optim.Adam(self.flow.parameters(), cfg.lr)
        optimizers = self.critic_optimizer, self.value_optimizer, self.flow_optimizer
        self._step = GradientStep(self.loss, optimizers, spec.mode)

    def flow_loss(self, batch: Batch, draws: Draws) -> Tensor:
        """Fits the velocity of the straight path from noise to the data's action, `(S,)`."""
        field = partial(self.flow, batch.observations)
        return flow.matching_error(field, batch.actions, draws.path, draws.times).mean(-1)

    def loss(self, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value, critics and flow, which share no parameter."""
        iql, cloning = implicit(self, batch), self.flow_loss(batch, draws)
        loss = iql.value_loss + iql.critic_loss + cloning
        return loss, iql.metrics | {"flow_loss": cloning}

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Takes one step of everything. Targets follow the critics of before it."""
        grads, metrics = self._step.gradients(batch, draws)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        self._step.apply(grads)
        return metrics

    @torch.no_grad()
    def propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes an action of noise by the flow, `(S, n, O)` and normal `(S, n, A)` to `(S, n, A)`."""
        field = partial(self.flow, self.normalizer(observations))
        return flow.euler(field, noise, self.cfg.flow_steps).clamp(-1, 1)

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Returns the best of K actions, from normal noise `(S, n, K, A)`, `(S, n, A)`."""
        states, count = candidates.per_candidate(observations, noise.shape[2]), noise.shape[2]
        actions = self.propose(states, noise.flatten(1, 2)).unflatten(1, (-1, count))
        q = candidates.values(self.critic, self.normalizer(observations), actions)
        return candidates.best(actions, q.amin(1))


build = IFQL


def parts(agent: IFQL, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    shape = [agent.cfg.samples, spec.action_dim]
    return {"policy": SampledPolicy(agent.explore, shape, spec.identities)}


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    spec = run.spec(buffer, normalizer)
    agent = IFQL(cfg, spec)
    noise = run.normal("noise", cfg.batch_size, spec.action_dim)
    times = run.uniform("times", cfg.batch_size, 1)
    phases = Phases(cfg, run, buffer, agent, noise=(cfg.samples, spec.action_dim))
    state = {"agent": agent, "buffer": buffer, "noise": noise, "times": times}
    state |= parts(agent, spec) | phases.parts
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**state):
        phases.act(step, agent.explore)
        if phases.learns(step):
            metrics = update(phases.sample(step), Draws(noise.next(), times.next()))
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, state["policy"])
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
