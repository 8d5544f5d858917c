"""CFGRL: Classifier-Free Guidance RL (Frans, Park, Abbeel and Levine 2025, arXiv:2505.23458).

Guidance of a flow is policy improvement. One flow clones the data twice: all of it, and with the label
"better than V" the actions of positive advantage alone. When it acts, its velocity goes from the first
towards the second, and on beyond:

    v = v(s, x, t | all) + w (v(s, x, t | better) - v(s, x, t | all))

w = 0 is behaviour cloning, and w = 1 clones the better actions. The weight w is a dial that is turned after
training, since no update reads it. Critics and value are IQL's.

    python algos/cfgrl.py task=corerl/pendulum steps=10000 seeds=3 algo.hidden_width=64
    corerl evaluate RUN algo.guidance=0,1,1.5,2,3

Of the paper the abstract and its main table were at hand. Ours is the authors' code for ExORL
(rlbase/algs_offline/iql_diffusion.py, in the copy mhyatt000/cfgrl at 9ca4da4). The paper's numbers on OGBench
are from other files: algos/cfgrl_ogbench.py for its single tasks, and algos/cfgrl_goals.py for its goals.

    item                authors, ours                             else
 1  label               A > 0; its weights exp(A / temperature)   paper, cfgrl_ogbench: A >= 0
                        are computed and overwritten
 2  both velocities     fitted to every row, the one of all rows  cfgrl_ogbench: the label is dropped for a
                        times 0.1                                 tenth of the rows
 3  times of the loss   multiples of 1/32, the ends too, read by  cfgrl_ogbench: uniform; time_grid=null
                        16 sinusoids of 10,000 t
 4  order               all gradients at a step's start; targets  IQL: value first; targets follow the
                        follow the critics of before it           new critics
 5  LayerNorm           before activations; not in the flow's     -
                        last hidden layer
 6  score               of one w; ours: the run's own             authors' log: the best of 7 weights, at
                                                                  every evaluation
 7  w                   1, 1.5, 3, 5, 10, 30, 100                 paper: 1, 1.25, 1.5, 2, 3. Ours: 1.5 is
                                                                  the default

It does not help everywhere. The paper's own table has it below AWR on quadruped-walk (762 to 776).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from corerl.algos.ifql import Draws, implicit
from corerl.buffers.replay import Batch
from corerl.config import acting, at_least, group, positive, within
from corerl.nn import compile, embeddings, flow, networks, optim
from corerl.nn.critics import Critics, StateValue
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.training import preprocessing
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run

ALL, BETTER = 0, 1
"""Labels of the flow."""
TIME_FEATURES, LABEL_FEATURES = 16, 32


@dataclass
class Config(MLPSettings):
    name: str = "cfgrl"
    label: str = "CFGRL"

    guidance: float = acting(at_least(0, 1.5))  # guidance w (0: clones all actions, 1: better ones)
    flow_steps: int = acting(positive(32))  # Euler steps from noise to an action
    expectile: float = within(0.9, "(0, 1)")  # V is this expectile of Q (0.5: mean, near 1: max)
    all_weight: float = positive(0.1)  # weight of the loss that clones all rows without a label
    time_grid: int | None = positive(32)  # n, where flow times are multiples of 1/n (null: uniform)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of all networks
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(512)
    activation: str = activation("mish")  # activation of the hidden layers
    norm_first: bool = True  # adds a LayerNorm before each activation
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)


def sinusoids(times: Tensor) -> Tensor:
    """Returns cosines and sines of 10,000 t, `(S, B, 1)` to `(S, B, 16)`."""
    half = TIME_FEATURES // 2
    numbers = torch.arange(half, dtype=times.dtype, device=times.device)
    angles = 10_000 * times * torch.exp(-math.log(10_000) * numbers / half)
    return torch.cat([torch.cos(angles), torch.sin(angles)], -1)


class LabelledVelocity(nn.Module):
    """A velocity with a label: `(S, B, O)`, `(S, B, A)` and times `(S, B, 1)` to `(S, B, A)`.

    Args:
        sizes, rngs, others: as for `flow.Velocity`.
    """

    def __init__(self, sizes: Sequence[int], rngs: Sequence[torch.Generator], **others):
        super().__init__()
        std = LABEL_FEATURES**-0.5
        self.labels = embeddings.Embedding(2, LABEL_FEATURES, (len(rngs),), rngs, std)
        self.body = flow.Velocity(sizes, TIME_FEATURES + LABEL_FEATURES, rngs, **others)
        if len(self.body.norms) and others.get("norm_first"):
            self.body.norms[-1] = nn.Identity()

    def forward(self, label: int, observations: Tensor, x: Tensor, times: Tensor) -> Tensor:
        labels = self.labels.weight[:, label, None].expand(-1, x.shape[1], -1)
        return self.body(observations, x, sinusoids(times), labels)


class CFGRL(Stateful):
    """CFGRL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = cfg.mlp_options | {"init": networks.xavier()}
        if cfg.norm_first:
            options |= {"layer_norm": 1e-6, "norm_first": True}
        self.critic = Critics([O, A, *hidden], rngs, **options).to(device)
        self.value = StateValue([O, *hidden], rngs, **options).to(device)
        options |= {"output_init": networks.lecun}
        self.flow = LabelledVelocity([O, A, *hidden], rngs, **options).to(device)
        self.target = optim.target_of(self.critic)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        self.flow_optimizer = optim.Adam(self.flow.parameters(), cfg.lr)
        optimizers = self.critic_optimizer, self.value_optimizer, self.flow_optimizer
        self._step = GradientStep(self.loss, optimizers, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def flow_loss(self, batch: Batch, better: Tensor, draws: Draws) -> Tensor:
        """Clones the rows that are `better` `(S, B)` with their label, and all rows without one."""
        times = draws.times
        if (grid := self.cfg.time_grid) is not None:
            times = torch.floor(times * (grid + 1)) / grid

        def error(label: int) -> Tensor:
            field = partial(self.flow, label, batch.observations)
            return flow.matching_error(field, batch.actions, draws.path, times)

        return (better * error(BETTER) + self.cfg.all_weight * error(ALL)).mean(-1)

    def loss(self, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value, critics and flow, which share no parameter."""
        iql = implicit(self, batch)
        better = (iql.advantage > 0).to(iql.advantage.dtype)
        cloning = self.flow_loss(batch, better, draws)
        critic_loss = iql.critic_loss / 2
        metrics = {"critic_loss": critic_loss, "flow_loss": cloning, "better": better.mean(-1)}
        return iql.value_loss + critic_loss + cloning, iql.metrics | metrics

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Takes one step of everything. Targets follow the critics of before it."""
        grads, metrics = self._step.gradients(batch, draws)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        self._step.apply(grads)
        return metrics

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes an action of noise, `(S, n, O)` and normal `(S, n, A)` to `(S, n, A)`."""
        states = self.normalizer(observations)
        fields = (partial(self.flow, label, states) for label in (ALL, BETTER))
        field = flow.guided(*fields, self.cfg.guidance)
        return flow.euler(field, noise, self.cfg.flow_steps).clamp(-1, 1)


build = CFGRL


def parts(agent: CFGRL, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which samples."""
    return {"policy": SampledPolicy(agent.explore, [spec.action_dim], spec.identities)}


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    spec = run.spec(buffer, normalizer)
    agent = CFGRL(cfg, spec)
    noise = run.normal("noise", cfg.batch_size, spec.action_dim)
    times = run.uniform("times", cfg.batch_size, 1)
    policy = parts(agent, spec)["policy"]
    state = {"agent": agent, "buffer": buffer, "noise": noise, "times": times, "policy": policy}
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**state):
        metrics = update(buffer.sample(), Draws(noise.next(), times.next()))
        run.log(step, metrics)
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
