"""ORPO on SAC: occupancy regularisation with a learned discriminator (Laidlaw, Singhal and Dragan 2025, ICLR,
arXiv:2403.03185).

Only a proxy of the true reward is known, and a reference policy that the proxy was checked with. SAC learns
from the proxy less a penalty on how far the policy's occupancy mu leaves the reference's mu_0. `algo=orpo` is
the exact form, on finite problems. A discriminator d tells states and actions of the latest steps from those
of the reference, and approaches the log-ratio:

    loss      mean softplus(-d) over the policy's + mean softplus(d) over the reference's; d -> log mu / mu_0
    reward    proxy - coefficient * slope(d),     the slope of the penalty in mu
    chi2      2 (e^d - 1)                         of  sum mu^2 / mu_0 - 1 = E_mu[e^d] - 1
    sqrt_chi2 (e^d - 1) / sqrt(E_mu[e^d] - 1)     of  its root
    kl        d                                   of  sum mu log(mu / mu_0) = E_mu[d]

The proxy is in standard deviations under the reference, so that coefficients mean what they mean in `orpo`.

    python algos/orpo_sac.py task=risk/pendulum-proxy
    corerl train -m algo=orpo_sac task=risk/pendulum-proxy algo.coefficient=0,0.03,0.1,0.3 seeds=3

The first `random_steps` are the reference's. The environment of a custom task has `reference(observations,
noise)`, which returns actions in [-1, 1] of normal noise. The last feature of its observations is the proxy
of the step before, as in envs/proxy_pendulum.py. Networks do not see the proxy.

Evaluations and `episode_return` are of the true reward, which no update reads. `proxy_return` is the sum of
proxies of each seed's last training episode. `chi2` and `kl` are what the discriminator says of the policy.
The replay keeps all steps, the reference's too.

What differs from the authors' code (cassidylaidlaw/orpo at 95cd1fa), and its switch.

    item                authors                              ours                          switch
 1  learner             PPO                                  SAC                           -
 2  policy's samples    of the iteration                     the latest steps              recent
 3  chi2                e^d - 1, half the slope              the slope                     coefficient
 4  sqrt_chi2           mean over samples, trimmed by 1 %    mean over a batch, clamped    clip
 5  d                   without bounds                       kept within +-clip            clip
 6  occupancy           of states, or states and actions     either                        measure
 7  total variation     sign d                               left out                      -
 8  unit of the proxy   its own, grid times its sigma        its sigma                     -

Where the mean of e^d - 1 is not positive, sqrt_chi2 takes e^d - 1 itself, as theirs does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.algos import sac
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import at_least, one_of, positive, require
from corerl.data.tasks import Task
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.policies import PolicyNoise
from corerl.nn.running import Spread
from corerl.training import spaces
from corerl.training.run import Run
from corerl.training.snapshots import environments


@dataclass
class Config(sac.Config):
    name: str = "orpo_sac"
    label: str = "ORPO-SAC"

    penalty: str = one_of("chi2", "sqrt_chi2", "kl")  # penalises occupancies' chi2 | sqrt_chi2 | kl
    coefficient: float = at_least(0, 0.1)  # penalty's weight, in standard deviations of the proxy
    measure: str = one_of("state_action", "state")  # compares occupancies by state_action | state
    recent: int = positive(2_000)  # number of latest steps that represent the policy's occupancy
    clip: float = positive(5.0)  # bound of the discriminator's output d, the log-ratio
    discriminator_lr: float = positive(3e-4)


class Discriminator(Stateful):
    """S networks that approach log mu / mu_0 of inputs `(S, B, features)`."""

    def __init__(self, cfg: Config, features: int, spec: Spec):
        self.cfg = cfg
        sizes = [features, *[cfg.hidden_width] * cfg.hidden_layers, 1]
        self.network = networks.MLP(sizes, spec.lead, spec.rngs).to(spec.device)
        self.optimizer = optim.Adam(self.network.parameters(), cfg.discriminator_lr)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns d, `(S, B)`."""
        return self.network(inputs).squeeze(-1).clamp(-self.cfg.clip, self.cfg.clip)

    def loss(self, policy: Tensor, reference: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the logistic loss of inputs of both, `(S, B, features)`."""
        d, d0 = (self.network(inputs).squeeze(-1) for inputs in (policy, reference))
        loss = F.softplus(-d).mean(-1) + F.softplus(d0).mean(-1)
        return loss, {"discriminator_loss": loss}

    def update(self, policy: Tensor, reference: Tensor) -> dict[str, Tensor]:
        """Takes one step, and adds the estimates of both divergences, `(S,)`."""
        metrics = self._step(policy, reference)
        with torch.no_grad():
            d = self(policy)
        return metrics | {"chi2": d.exp().mean(-1) - 1, "kl": d.mean(-1)}

    @torch.no_grad()
    def slope(self, inputs: Tensor, chi2: Tensor) -> Tensor:
        """Returns what the penalty subtracts from the reward at inputs, `(S, B)`. `chi2` `(S,)` is E_mu."""
        d = self(inputs)
        if self.cfg.penalty == "kl":
            return d
        if self.cfg.penalty == "chi2":
            return 2 * (d.exp() - 1)
        root = torch.where(chi2 > 0, chi2.clamp(min=1e-12).sqrt(), 1.0)
        return (d.exp() - 1) / root[:, None]


class ORPOSAC(sac.SAC):
    """ORPO-SAC agents of S seeds. `proxy` has the mean and variance of the proxy under the reference."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, replace(spec, observation_dim=spec.observation_dim - 1))
        self.normalizer = networks.WithoutLast()
        self.states = spec.observation_dim - 1
        features = self.states + (spec.action_dim if cfg.measure == "state_action" else 0)
        self.discriminator = Discriminator(cfg, features, spec)
        self.proxy = Spread(spec.seeds, spec.device)

    def update(
        self, batches: list[Batch], noises: list[PolicyNoise], policy: Tensor, reference: Tensor
    ) -> dict[str, Tensor]:
        """Takes a step of the discriminator, and SAC's on penalised proxies.

        Args:
            policy, reference: observations and actions of the latest steps and of the reference's,
                `(S, B, O + A)`.
        """
        found = self.discriminator.update(self.inputs(policy), self.inputs(reference))
        return super().update([self.penalised(b, found["chi2"]) for b in batches], noises) | found

    def inputs(self, rows: Tensor) -> Tensor:
        """Returns what the discriminator sees of observations and actions, `(S, B, features)`."""
        states = rows[..., : self.states]
        if self.cfg.measure == "state":
            return states
        return torch.cat([states, rows[..., self.states + 1 :]], -1)

    @torch.no_grad()
    def penalised(self, batch: Batch, chi2: Tensor) -> Batch:
        """Returns the batch without proxies in its states, and with rewards to learn from."""
        rows = self.inputs(torch.cat([batch.observations, batch.actions], -1))
        proxies = batch.next_observations[..., -1] - self.proxy.mean[:, None]
        gains = proxies / self.proxy.variance.sqrt()[:, None].clamp(min=1e-6)
        return batch._replace(
            observations=batch.observations[..., :-1],
            next_observations=batch.next_observations[..., :-1],
            rewards=gains - self.cfg.coefficient * self.discriminator.slope(rows, chi2),
        )


build = ORPOSAC


def check_task(task: Task, cfg: Config, steps: int) -> None:
    """Raises CorerlError where the task has no reference policy, or changes its observations or actions, or
    where the run ends with the reference's steps."""
    spaces.check_as_shown(task, "the reference policy")
    env = task.make_env()
    require(
        hasattr(env.unwrapped, "reference"),
        f"{task.id} has no reference policy. Its environment needs reference(observations, noise), and a "
        "proxy reward as the last feature of its observations, as task=risk/pendulum-proxy has",
    )
    env.close()
    require(
        steps > cfg.random_steps,
        f"steps={steps} must be more than algo.random_steps={cfg.random_steps}, in which only the "
        "reference policy acts",
    )


def train(cfg: Config, run: Run) -> None:
    check_task(run.task, cfg, run.cfg.steps)
    envs = environments(run, cfg.start)
    reference = run.task.make_env().unwrapped.reference
    agent = ORPOSAC(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    replay = ReplayBuffer(*sizes, run.cfg.steps, run.seeds, cfg.batch_size, run.device)
    noise = run.normal("noise", 2, cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    chosen = run.uniform("discriminator", 2, cfg.batch_size)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    proxies = Proxies(len(run.seeds))
    state = {"agent": agent, "envs": envs, "replay": replay, "proxies": proxies}
    state |= {"noise": noise, "exploration": exploration, "chosen": chosen}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = by_reference(reference, envs.look(), exploration.next())
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)
        if step > cfg.random_steps:
            noises = [PolicyNoise(*noise.next().unbind(1)) for _ in range(cfg.utd)]
            rows = compared(replay, chosen.next(), len(replay) - cfg.random_steps, cfg)
            metrics = update([replay.sample() for _ in noises], noises, *rows)
            now = {"proxy_return": proxies.last.to(run.device)}
            run.log(step, metrics | now | {"episode_return": envs.episode_returns})
        played = envs.step(actions)
        replay.add(played)
        proxies.add(played)
        if step <= cfg.random_steps:
            paid = torch.from_numpy(played.next_observations[:, -1:].copy())
            agent.proxy.update(paid.to(run.device))
        run.evaluate(step, agent.act)
        run.save(step)


def by_reference(reference: Callable, observations: Tensor, noise: Tensor) -> Tensor:
    """Returns the reference's actions `(S, 1, A)`, which it computes on the host."""
    return torch.from_numpy(reference(observations.cpu().numpy(), noise.cpu().numpy()))


def compared(
    replay: ReplayBuffer, uniforms: Tensor, played: int, cfg: Config
) -> tuple[Tensor, Tensor]:
    """Returns rows of the policy and of the reference `(S, B, O + A)`, drawn by uniforms `(S, 2, B)`.

    Until the policy has played, the reference's own latest steps stand for it.
    """
    recent = min(cfg.recent, played) if played else min(cfg.recent, cfg.random_steps)
    latest = len(replay) - 1 - (uniforms[:, 0] * recent).long()
    first = (uniforms[:, 1] * cfg.random_steps).long()
    return tuple(replay.segments(rows, 1).squeeze(-2) for rows in (latest, first))


class Proxies(Stateful):
    """The sums of proxies `(S,)` of each seed's running episode and, as `last`, of the one before."""

    def __init__(self, seeds: int):
        self.sum, self.last = torch.zeros(seeds), torch.zeros(seeds)

    def add(self, played) -> None:
        """Adds a step of every seed."""
        over = torch.from_numpy(played.terminated | played.truncated)
        self.sum += torch.from_numpy(played.next_observations[:, -1].copy())
        self.last.copy_(torch.where(over, self.sum, self.last))
        self.sum *= ~over

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Drops the sums of these seeds' running episodes `(S,)` bool, which cannot continue."""
        self.sum[torch.from_numpy(seeds)] = 0


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
