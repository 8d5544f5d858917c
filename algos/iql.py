"""Implicit Q-Learning (Kostrikov, Nair and Levine 2022, arXiv:2110.06169).

Never asks the critic about an action that is not in the data: a value function is fitted to an upper
expectile of Q over the data's actions (eq. 5), Q is backed up through that value (eq. 6), and the
policy is extracted by advantage-weighted regression (eq. 7). Where actions are discrete, critics read them
one-hot and the policy is categorical: no equation changes.

    python algos/iql.py task=corerl/pendulum steps=20000 seeds=3
    python algos/iql.py task=corerl/cartpole steps=5000 seeds=3
    corerl train algo=iql task=d4rl/hopper-medium-v2 seeds=10

What differs, and its switch. The default is the authors' code, and `table=iql_corl` is CORL's. The IQL that
made OGBench's published numbers is `iql_ogbench`.

    item            authors (the paper leaves 1 open)        CORL                        switch
 1  order           value; policy and Q with it; targets     all at the start of a step  order
 2  critic loss     sum over both critics                    mean                        critic_loss
 3  initialisation  orthogonal, gain sqrt(2), outputs too    torch's                     init
 4  log-std         one vector in [-5, 2], the mean by tanh  from -20                    log_std_min
 5  policy          Gaussian                                 deterministic on 2 hoppers  policy
 6  states          as they are                              normalised                  data.normalize_states
 7  return range    over filtered rows; ours: true episodes  drifts by rows              -
 8  dropout         after hidden layers (Adroit, Kitchen)    none when it made its       dropout
                                                             table; see the table
 9  fine-tuning     samples, constant rate (section 5.3)     noise of 0.03 where 5; the  policy
                                                             rate falls to 0 over the
                                                             data, and rises again
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, StateValue, expectile_loss, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import unsquashed
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    actions = "any"
    name: str = "iql"
    label: str = "IQL"

    expectile: float = within(0.7, "(0, 1)")  # tau (eq. 5), V is this expectile of Q (0.5: mean)
    beta: float = at_least(0, 3.0)  # inverse temperature of policy weights (eq. 7, 0: cloning)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    max_weight: float = positive(100.0)  # largest weight in the policy's loss (eq. 7)

    lr: float = positive(3e-4)  # learning rate of policy, value and critics
    cosine: bool = True  # learning rate of the policy decays to 0 over the run (phase=offline only)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    dropout: float = within(0.0, "[0, 1)")  # dropout rate in the policy
    log_std_min: float = -5.0
    log_std_max: float = 2.0

    policy: str = one_of("gaussian", "deterministic")  # gaussian | deterministic (squared error)
    order: str = one_of("value_first", "joint")  # value_first (authors) | joint (all at once, CORL)
    critic_loss: str = one_of("sum", "mean")  # sum (authors) | mean (CORL) over the two critics
    init: str = one_of("orthogonal", "torch")  # initial weights, orthogonal | torch (CORL)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    def needed_actions(self) -> tuple[str, str]:
        if self.actions == "any" and self.policy == "deterministic":  # has no probabilities
            return "continuous", " with algo.policy=deterministic"
        return super().needed_actions()


class IQL(PolicyActing):
    """IQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec, policy: Callable[..., Any] = unsquashed):
        """`policy` makes the policy's network, as `unsquashed` does."""
        self.cfg = cfg
        init = networks.orthogonal() if cfg.init == "orthogonal" else networks.torch_init
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        options = {"init": init} | cfg.mlp_options
        self.critic = Critics([O, A, *hidden], rngs, **options).to(device)
        self.value = StateValue([O, *hidden], rngs, **options).to(device)
        self.policy = policy(cfg, spec, **options)
        self.target = optim.target_of(self.critic)
        self.normalizer = spec.normalizer

        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        decays = cfg.cosine and cfg.phase == "offline"
        self.schedule = optim.Schedule(pi, optim.cosine(spec.steps)) if decays else None
        self._value_step = GradientStep(self.value_loss, v, spec.mode)
        self._pi_q_step = GradientStep(self._pi_q_loss, (pi, q), spec.mode, self.schedule)
        self._joint_step = GradientStep(self._joint_loss, (v, pi, q), spec.mode, self.schedule)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits V to the expectile of min(Q1, Q2) of the target critics at the data's actions (eq. 5)."""
        with torch.no_grad():
            target_q = self.target(batch.observations, batch.actions).amin(1)
        difference = target_q - self.value(batch.observations)
        loss = expectile_loss(difference, self.cfg.expectile).mean(-1)
        return loss, {"value_loss": loss, "advantage": difference.mean(-1), "target_q": target_q}

    def critic_loss(self, batch: Batch) -> Tensor:
        """Regresses both critics towards r + discount * V(s'), with no maximum over actions (eq. 6)."""
        with torch.no_grad():
            next_value = self.value(batch.next_observations)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        loss, _ = regression(self.critic(batch.observations, batch.actions), y)
        return loss if self.cfg.critic_loss == "sum" else loss / 2

    def policy_loss(self, batch: Batch, target_q: Tensor, uniforms: Tensor | None) -> Tensor:
        """Regresses towards the data's actions, weighted by exp(beta * advantage) (eq. 7)."""
        keep = networks.layer_masks(uniforms, self.cfg.dropout)
        return self.imitation(self.policy(batch.observations, keep), batch, target_q, self.cfg.beta)

    def imitation(
        self, mean: Tensor, batch: Batch, target_q: Tensor, beta: float | Tensor
    ) -> Tensor:
        """Weighs how far the data's actions are from `mean`. `beta` may be a number per row `(S, B)`."""
        with torch.no_grad():
            advantage = target_q - self.value(batch.observations)
            weight = torch.exp(beta * advantage).clamp(max=self.cfg.max_weight)
        if self.cfg.policy == "deterministic":
            distance = (mean - batch.actions).square().sum(-1)
        else:
            distance = -self.policy.log_prob_given(mean, batch.actions)
        return (weight * distance).mean(-1)

    def _pi_q_loss(self, batch: Batch, target_q: Tensor, uniforms: Tensor | None):
        policy, critic = self.policy_loss(batch, target_q, uniforms), self.critic_loss(batch)
        return policy + critic, {"policy_loss": policy, "critic_loss": critic}

    def _joint_loss(self, batch: Batch, uniforms: Tensor | None):
        value_loss, metrics = self.value_loss(batch)
        loss, others = self._pi_q_loss(batch, metrics["target_q"], uniforms)
        return value_loss + loss, metrics | others

    def update(self, batch: Batch, uniforms: Tensor | None = None) -> dict[str, Tensor]:
        """Takes one step of everything. `uniforms` (S, layers, B, width) are for dropout."""
        if self.cfg.order == "joint":
            metrics = self._joint_step(batch, uniforms)
        else:
            metrics = self._value_step(batch)
            metrics |= self._pi_q_step(batch, metrics["target_q"], uniforms)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | {"target_q": metrics["target_q"].mean(-1)}

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples an action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        if self.cfg.policy == "gaussian":
            return super().explore(observations, noise)
        return (self.act(observations) + 0.03 * noise).clamp(-1, 1)


build = IQL


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = IQL(cfg, run.spec(buffer, normalizer))
    dropout = run.dropout(cfg, cfg.batch_size)
    phases = Phases(cfg, run, buffer, agent)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, dropout=dropout, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            metrics = update(phases.sample(step), dropout and dropout.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
