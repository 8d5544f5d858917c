"""CFGRL as its authors ran it on OGBench's single tasks (Frans et al. 2025, arXiv:2505.23458).

One flow clones every row, with one of three labels: "better" where the advantage A is at least 0, "worse"
where it is below 0, and "none" for a tenth of the rows. It acts as `cfgrl.py` does:

    velocity  v = v(s, x, t | none) + w (v(s, x, t | better) - v(s, x, t | none))

    python algos/cfgrl_ogbench.py task=corerl/pendulum steps=10000 seeds=3 algo.hidden_width=64
    corerl train algo=cfgrl_ogbench task=ogbench/cube-single-play-singletask-v0 seeds=4
    corerl evaluate RUN algo.guidance=0.5,1,1.25,1.5,2,3

The reference is kvfrans/cfgrl_submit at 545677e (ogbench/agents/flowiql.py and main.py). Its README names it
for the paper's runs on OGBench. `cfgrl.py` follows the authors' other file, for ExORL.

    item                authors, ours                             cfgrl.py
 1  labels              a row has one of three                    each row trains "all" with a weight of 0.1,
                                                                  and better rows train "better" too
 2  better              A >= 0, A of the online critics           A > 0, A of the target critics
 3  times of the loss   uniform, an input as they are             multiples of 1/32, 16 sinusoids
 4  critic loss         sum over both critics                     mean
 5  networks            four layers of 512, JAX's GELU            three layers of 512, Mish
 6  LayerNorm           after activations of critics and value    before activations, in the flow too
 7  first weights       Glorot's                                  the flow's last layer has LeCun's
 8  flow steps          16                                        32
 9  w                   1. Their log has 0.5, 1, 1.25, 1.5, 2     1.5
                        and 3. The paper tunes w, and we do not
                        know which w made its numbers
10  evaluation          20 episodes                               10 episodes

All gradients are those at a step's start, and targets follow the critics of before it, as in `cfgrl.py`.

It does not help everywhere. The paper's own table has it below AWR on antmaze-large (20 to 50).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.algos.cfgrl_goals import Draws
from corerl.algos.ifql import implicit
from corerl.buffers.replay import Batch
from corerl.config import acting, at_least, group, positive, within
from corerl.nn import compile, embeddings, flow, networks, optim
from corerl.nn.critics import Critics, StateValue
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.training import preprocessing
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run

NONE, WORSE, BETTER = 0, 1, 2
"""Labels of the flow."""
LABEL_FEATURES = 32


@dataclass
class Config(MLPSettings):
    name: str = "cfgrl_ogbench"
    label: str = "CFGRL (OGBench)"

    guidance: float = acting(at_least(0, 1.0))  # guidance w (0: clones all actions, 1: better ones)
    flow_steps: int = acting(positive(16))  # Euler steps from noise to an action
    drop: float = within(0.1, "(0, 1)")  # share of rows trained without a label
    expectile: float = within(0.9, "(0, 1)")  # V is this expectile of Q (0.5: mean, near 1: max)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of all networks
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 4)
    hidden_width: int = positive(512)
    activation: str = activation("gelu_tanh")  # activation of the hidden layers
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)


class CFGRLOnOGBench(Stateful):
    """OGBench's CFGRL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = cfg.mlp_options | {"init": networks.xavier()}
        normed = options | {"layer_norm": 1e-6}
        self.critic = Critics([O, A, *hidden], rngs, **normed).to(device)
        self.value = StateValue([O, *hidden], rngs, **normed).to(device)
        self.flow = flow.Velocity([O, A, *hidden], 1 + LABEL_FEATURES, rngs, **options).to(device)
        std = LABEL_FEATURES**-0.5
        self.labels = embeddings.Embedding(3, LABEL_FEATURES, spec.lead, rngs, std).to(device)
        self.target = optim.target_of(self.critic)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        parameters = [*self.flow.parameters(), *self.labels.parameters()]
        self.flow_optimizer = optim.Adam(parameters, cfg.lr)
        optimizers = self.critic_optimizer, self.value_optimizer, self.flow_optimizer
        self._step = GradientStep(self.loss, optimizers, spec.mode)

    def velocity(self, labels: Tensor, observations: Tensor, x: Tensor, times: Tensor) -> Tensor:
        """Returns the flow's velocity given a label per row `(S, B)`, `(S, B, A)`."""
        return self.flow(observations, x, times, self.labels(labels))

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def flow_loss(self, batch: Batch, better: Tensor, draws: Draws) -> Tensor:
        """Clones each row with its label, by whether it is `better` `(S, B)`, or with none."""
        times, chance = draws.uniform.split(1, -1)
        labels = torch.where(better, BETTER, WORSE)
        labels = torch.where(chance.squeeze(-1) < self.cfg.drop, NONE, labels)
        field = partial(self.velocity, labels, batch.observations)
        return flow.matching_error(field, batch.actions, draws.path, times).mean(-1)

    def loss(self, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value, critics and flow, which share no parameter."""
        iql = implicit(self, batch)
        better = iql.q.amin(1) >= iql.value
        cloning = self.flow_loss(batch, better, draws)
        metrics = iql.metrics | {"flow_loss": cloning, "better": better.to(cloning.dtype).mean(-1)}
        return iql.value_loss + iql.critic_loss + cloning, metrics

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
        none, better = (
            torch.full(noise.shape[:-1], label, device=noise.device) for label in (NONE, BETTER)
        )
        fields = (partial(self.velocity, labels, states) for labels in (none, better))
        field = flow.guided(*fields, self.cfg.guidance)
        return flow.euler(field, noise, self.cfg.flow_steps).clamp(-1, 1)


build = CFGRLOnOGBench


def parts(agent: CFGRLOnOGBench, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which samples."""
    return {"policy": SampledPolicy(agent.explore, [spec.action_dim], spec.identities)}


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    spec = run.spec(buffer, normalizer)
    agent = CFGRLOnOGBench(cfg, spec)
    noise = run.normal("noise", cfg.batch_size, spec.action_dim)
    uniform = run.uniform("times and drops", cfg.batch_size, 2)
    policy = parts(agent, spec)["policy"]
    state = {"agent": agent, "buffer": buffer, "noise": noise, "uniform": uniform, "policy": policy}
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**state):
        run.log(step, update(buffer.sample(), Draws(noise.next(), uniform.next())))
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
