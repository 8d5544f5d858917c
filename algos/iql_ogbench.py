"""IQL as FQL's authors ran it on OGBench (Park, Li and Levine 2025, arXiv:2502.02538).

`iql.py`'s value and critic losses (eqs. 5 and 6 of arXiv:2110.06169), and a policy that regresses to actions.

    corerl train algo=iql_ogbench task=ogbench/cube-single-play-singletask-v0 seeds=8

The reference is seohongpark/fql at 719d044 (agents/iql.py), which made OGBench's published numbers. It
differs from `iql.py` in these ways:
 1. All losses are taken at the start of a step, and targets follow the critics from before their step.
 2. The advantage of eq. 7 is that of the critics, not of their targets.
 3. The policy is a Gaussian with a standard deviation of 1, and its mean has no tanh. Here it is the mean
    alone, and its loss is twice the Gaussian's. Only Adam's epsilon sees the factor.
 4. Critics and value have LayerNorms, and all networks JAX's GELUs and Glorot's weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos.iql import IQL
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, positive, within
from corerl.nn import compile, networks, optim
from corerl.nn.critics import Critics, StateValue
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "iql_ogbench"
    label: str = "IQL"
    critic_loss, policy = "sum", "deterministic"  # what iql.py calls these

    expectile: float = within(0.9, "(0, 1)")  # tau (eq. 5), V is this expectile of Q (0.5: mean)
    beta: float = at_least(0, 10.0)  # inverse temperature of policy weights (eq. 7, 0: cloning)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    max_weight: float = positive(100.0)  # largest weight in the policy's loss (eq. 7)

    lr: float = positive(3e-4)  # learning rate of policy, value and critics
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 4)
    hidden_width: int = positive(512)
    activation: str = activation("gelu_tanh")  # activation of the hidden layers
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)


class IQLOnOGBench(IQL):
    """OGBench's IQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = {"init": networks.xavier()} | cfg.mlp_options
        normed = options | {"layer_norm": 1e-6}
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.critic = Critics([O, A, *hidden], rngs, **normed).to(device)
        self.value = StateValue([O, *hidden], rngs, **normed).to(device)
        options |= {"output_init": networks.xavier(0.1)}
        self.policy = networks.MLP([O, *hidden, A], spec.lead, rngs, **options).to(device)
        self.target = optim.target_of(self.critic)
        self.normalizer = spec.normalizer

        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, (v, pi, q), spec.mode)

    def policy_loss(self, batch: Batch) -> Tensor:
        """Regresses towards the data's actions, weighted by exp(beta * advantage) (eq. 7)."""
        with torch.no_grad():
            q = self.critic(batch.observations, batch.actions).amin(1)
            advantage = q - self.value(batch.observations)
            weight = torch.exp(self.cfg.beta * advantage).clamp(max=self.cfg.max_weight)
        distance = (self.policy(batch.observations) - batch.actions).square().sum(-1)
        return (weight * distance).mean(-1)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value, policy and critics, `(S,)`."""
        value, metrics = self.value_loss(batch)
        policy, critic = self.policy_loss(batch), self.critic_loss(batch)
        return value + policy + critic, metrics | {"policy_loss": policy, "critic_loss": critic}

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of everything. The targets see the critics from before it."""
        grads, metrics = self._step.gradients(batch)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        self._step.apply(grads)
        return metrics | {"target_q": metrics["target_q"].mean(-1)}

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the policy's mean within the bounds, `(S, n, O)` to `(S, n, A)`."""
        return self.policy(self.normalizer(observations)).clamp(-1, 1)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Adds normal noise of 0.03 to the action, `(S, n, O)` and `(S, n, A)` to `(S, n, A)`."""
        return (self.act(observations) + 0.03 * noise).clamp(-1, 1)


build = IQLOnOGBench


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = IQLOnOGBench(cfg, run.spec(buffer, normalizer))
    phases = Phases(cfg, run, buffer, agent)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            run.log(step, update(phases.sample(step)) | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
