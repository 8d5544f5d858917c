"""FamO2O: a family of policies, and a policy that chooses among them (Wang et al. 2023, arXiv:2310.17966).

A policy pi(a | s, beta) imitates with all inverse temperatures beta in [low, high], as IQL does with
one. A second policy, the balance, picks beta state by state so that Q is high. Critics and value are IQL's.

    pi        -min(exp(beta A), 100) log pi(a | s, beta), beta uniform on the data and the balance's online
    balance   alpha log h(u | s) - min Q'(s, a), a ~ pi(. | s, beta(u)), with an entropy of -1/2

    python algos/famo2o.py task=corerl/pendulum steps=5000 seeds=3
    corerl train algo=famo2o_finetune task=d4rl/antmaze-umaze-v2 seeds=6

`encoding=0` tells the policy no beta. Then low = high = 3 is IQL with beta = 3, bit for bit.

Differences, each with its reason:
 1. Built on IQL, as the authors' AntMaze runs (LeapLabTHU/FamO2O at ea9cb01). Their CQL family is left out.
 2. Actions are sampled with noise of their own. The code draws beta and the action from one random key.
 3. Rates are constant when fine-tuning, as there. Where all is offline, IQL's cosine is for the policy alone.
 4. The range is the code's: (1, 5), and (8, 14) on AntMaze.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from corerl.algos import iql
from corerl.algos.iql import IQL
from corerl.buffers.replay import Batch
from corerl.config import at_least, positive, require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.policies import GaussianPolicy, TanhGaussian, Temperature
from corerl.training import preprocessing
from corerl.training.offline_to_online import Phases
from corerl.training.run import Run


@dataclass
class Config(iql.Config):
    actions = "continuous"
    name: str = "famo2o"
    label: str = "FamO2O"

    beta: float = at_least(0, 3.0)  # no effect (low and high give the range of beta)
    low: float = at_least(0, 1.0)  # smallest inverse temperature beta of the family of policies
    high: float = at_least(0, 5.0)  # largest inverse temperature beta of the family of policies
    encoding: int = at_least(0, 6)  # sines and cosines of beta that the policy sees (0: none)
    encoding_base: float = positive(10_000.0)  # base of the frequencies of beta's sines and cosines

    balance_lr: float = positive(3e-4)  # learning rate of the policy that chooses beta
    temperature_lr: float = positive(3e-4)  # learning rate of the temperature of beta's entropy
    initial_temperature: float = positive(1.0)  # first value of the temperature of beta's entropy
    target_entropy: float = -0.5  # entropy that the choice of beta should have

    def __post_init__(self):
        super().__post_init__()
        require(
            self.beta == 3,
            f"algo.beta={self.beta} has no effect in famo2o. Set algo.low and algo.high instead",
        )
        require(
            self.low <= self.high, f"algo.low={self.low} must not be above algo.high={self.high}"
        )
        require(
            self.encoding % 2 == 0,
            f"algo.encoding={self.encoding} must be even, because half are sines and half cosines",
        )


class Draws(NamedTuple):
    """What an update draws."""

    dropout: Tensor | None  # the policy's dropout, as in IQL
    balance: (
        Tensor  # (S, 2, B, 1) standard normal: for the balance's loss, and for the policy's online
    )
    actions: Tensor  # (S, B, A) standard normal
    shares: Tensor | None  # (S, B), uniform on [0, 1), for the beta of data rows


class Balance(TanhGaussian):
    """A squashed Gaussian of one number per state, whose log-std is one for all states."""

    def __init__(self, sizes: Sequence[int], rngs: Sequence[torch.Generator], **others):
        nn.Module.__init__(self)
        self.body = networks.MLP(sizes, (len(rngs),), rngs, **others)
        self.log_std = nn.Parameter(torch.zeros(len(rngs), 1, 1))
        self.limits = (-10.0, 2.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.body(observations)
        return mean, self.log_std.clamp(*self.limits).expand_as(mean)


class Family(GaussianPolicy):
    """Policies by their inverse temperature. `choose` picks one per state where none is given."""

    choose: Callable[[Tensor], Tensor]

    def __init__(self, cfg: Config, spec: Spec, **others):
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        sizes = [spec.observation_dim + cfg.encoding, *hidden, spec.action_dim]
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        super().__init__(sizes, spec.rngs, **limits, **others)
        self.encoding = (cfg.encoding, cfg.encoding_base)
        self.to(spec.device)

    def forward(
        self,
        observations: Tensor,
        keep: Sequence[Tensor] | None = None,
        beta: Tensor | None = None,
    ) -> Tensor:
        """Returns the mean at states `(S, B, O)` and inverse temperatures `(S, B)`."""
        beta = self.choose(observations) if beta is None else beta
        inputs = torch.cat([observations, encoded(beta, *self.encoding)], -1)
        return super().forward(inputs, keep)


def encoded(beta: Tensor, size: int, base: float) -> Tensor:
    """Returns sines and cosines of beta / base^(2 i / size), in turns: `(..., size)`."""
    powers = torch.arange(size // 2, device=beta.device) * (2 / max(size, 1))
    angles = beta[..., None] / base**powers
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class FamO2O(IQL):
    """FamO2O agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec, Family)
        sizes = [spec.observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, 1]
        options = {"init": networks.orthogonal()} | cfg.mlp_options
        self.balance = Balance(sizes, spec.rngs, **options).to(spec.device)
        self.temperature = Temperature(spec.seeds, cfg.initial_temperature).to(spec.device)
        self.policy.choose = self.chosen
        h = self.balance_optimizer = optim.Adam(self.balance.parameters(), cfg.balance_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self.temperature_optimizer = alpha
        self._balance_step = GradientStep(self.balance_loss, (h, alpha), spec.mode)

    def chosen(self, observations: Tensor) -> Tensor:
        """Returns the balance's inverse temperature at states `(S, n, O)`, without noise: `(S, n)`."""
        return self._in_range(self.balance.mode(observations))

    def _in_range(self, u: Tensor) -> Tensor:
        low, high = self.cfg.low, self.cfg.high
        return low + (high - low) * (u.squeeze(-1) + 1) / 2

    def balance_loss(self, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha log h - min Q' of the family's actions, and the temperature's loss."""
        states = batch.observations
        u, log_prob = self.balance.sample(states, draws.balance[:, 0])
        beta = self._in_range(u)
        actions = self.policy(states, None, beta)
        if self.cfg.policy == "gaussian":
            actions = actions + self.policy.std * draws.actions
        alpha, entropy = self.temperature(), -log_prob.mean(-1)
        loss = -alpha.detach() * entropy - self.target(states, actions).amin(1).mean(-1)
        temperature_loss = alpha * (entropy.detach() - self.cfg.target_entropy)
        metrics = {"balance_loss": loss, "balance_entropy": entropy, "beta": beta.mean(-1)}
        return loss + temperature_loss, metrics | {"alpha": alpha}

    def policy_loss(self, batch: Batch, target_q: Tensor, draws: Draws) -> Tensor:
        """Imitates with inverse temperatures that are uniform, or those of the balance online."""
        with torch.no_grad():
            if draws.shares is None:
                beta = self._in_range(
                    self.balance.sample(batch.observations, draws.balance[:, 1])[0]
                )
            else:
                beta = self.cfg.low + (self.cfg.high - self.cfg.low) * draws.shares
        keep = networks.layer_masks(draws.dropout, self.cfg.dropout)
        mean = self.policy(batch.observations, keep, beta)
        return self.imitation(mean, batch, target_q, beta)

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Takes one step of everything. The policy sees the balance from before its step."""
        grads, metrics = self._balance_step.gradients(batch, draws)
        metrics |= super().update(batch, draws)
        self._balance_step.apply(grads)
        return metrics


build = FamO2O


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = FamO2O(cfg, run.spec(buffer, normalizer))
    dropout = run.dropout(cfg, cfg.batch_size)
    balance = run.normal("balance", 2, cfg.batch_size, 1)
    actions = run.normal("noise", cfg.batch_size, buffer.action_dim)
    shares = run.uniform("family", cfg.batch_size)
    phases = Phases(cfg, run, buffer, agent)
    pretrain = finetune = compile.captured(agent.update, run.mode)
    if phases.parts:  # which has other inputs
        finetune = compile.captured(agent.update, run.mode)
    streams = {"dropout": dropout, "balance": balance, "noise": actions, "shares": shares}
    for step in run.steps(agent=agent, buffer=buffer, **streams, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            online = phases.online(step)
            of_data = None if online else shares.next()
            draws = Draws(dropout and dropout.next(), balance.next(), actions.next(), of_data)
            metrics = (finetune if online else pretrain)(phases.sample(step), draws)
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
