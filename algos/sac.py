"""Soft Actor-Critic with automatic temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Maximises return plus entropy off policy: twin critics learn the soft value of a squashed Gaussian
policy (eqs. 5 and 6), the policy follows their minimum by reparameterisation (eq. 9), and the
temperature holds the policy's entropy at a target (eq. 18).

    python algos/sac.py task=gym/Pendulum-v1 steps=10000 seeds=3
    corerl train algo=sac task=gym/HalfCheetah-v4 steps=1000000 seeds=5

Differences. The authors' code is softlearning at its last commit (13cf187), which is not the paper's.
 1. The policy follows min(Q1, Q2), as in the paper and CleanRL; the authors' later code takes the mean
    (`actor_q=mean`; RLPD does too).
 2. Policy and temperature share one sample and one gradient call. The authors and CleanRL draw again
    from the new policy for the temperature, a tenth of an update's arithmetic for the same mean.
 3. The temperature's loss is alpha * (...), eq. 18 and the authors' last code; their first release and
    many ports write log(alpha) * (...), which moves slower where alpha is large.
 4. The standard deviation is exp of a clamped output. The authors' last code has softplus + 1e-5,
    CleanRL a tanh onto [-5, 2]. log(1 - tanh^2) is computed without the usual 1e-6, which biases the
    entropy where actions saturate.
 5. Both critics' squared errors are summed; the authors halve them, which Adam undoes.
 6. One policy update per critic update (paper); CleanRL makes two at every second step, with critic
    rates of 1e-3 and 5,000 random steps (the authors: ten episodes, 10,000 steps).
 7. An update reads what the replay held before the step that it goes with, so that a GPU learns while
    the simulators run.
 8. A time limit is no end: only true terminals cut the bootstrap (paper: not discussed).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import Stateful
from corerl.training.environments import Environments
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "sac"
    label: str = "SAC"

    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every critic update
    initial_temperature: float = 1.0  # alpha at the start
    learn_temperature: bool = True  # false: alpha stays as it is (Haarnoja et al. 2018a)
    target_entropy: float | None = None  # null: minus the number of action dimensions
    actor_q: str = "min"  # min (paper) | mean (authors' later code), over the two critics

    random_steps: int = 10_000  # first steps of each seed, with uniform actions and no update
    utd: int = 1  # critic updates per environment step
    actor_every: int = 1  # critic updates per update of policy and temperature; RLPD: utd
    capacity: int = 1_000_000  # transitions kept per seed

    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    temperature_lr: float = 3e-4
    batch_size: int = 256
    hidden_layers: int = 2
    hidden_width: int = 256
    log_std_min: float = -20.0
    log_std_max: float = 2.0

    def __post_init__(self):
        require(self.actor_q in ("min", "mean"), f"algo.actor_q={self.actor_q} unknown")
        require(self.initial_temperature > 0, "algo.initial_temperature must be positive")
        require(self.random_steps > 0, f"algo.random_steps={self.random_steps} must be positive")
        require(self.capacity > 0, f"algo.capacity={self.capacity} must be positive")
        require(
            self.actor_every > 0 and self.utd > 0 and self.utd % self.actor_every == 0,
            f"algo.utd={self.utd} must be a positive multiple of algo.actor_every={self.actor_every}",
        )


class Policy(nn.Module):
    """A Gaussian squashed by tanh, mean and log-std from one network, `(S, B, O) -> (S, B, A)`."""

    def __init__(self, cfg: Config, sizes: list[int], rngs: list[torch.Generator]):
        super().__init__()
        self.body = networks.MLP([*sizes[:-1], 2 * sizes[-1]], (len(rngs),), rngs)
        self.limits = (cfg.log_std_min, cfg.log_std_max)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std before squashing."""
        mean, log_std = self.body(observations).chunk(2, -1)
        return mean, log_std.clamp(*self.limits)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-density `(S, B)` (appendix C); `noise` is standard normal."""
        mean, log_std = self(observations)
        raw = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log(1 - tanh(raw)^2)
        return torch.tanh(raw), (gaussian - log_slope).sum(-1)


class Temperature(nn.Module):
    """alpha per seed, `(S,)`, kept positive by its logarithm."""

    def __init__(self, seeds: int, initial: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((seeds,), math.log(initial)))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


class SAC(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self.target_entropy = -action_dim if cfg.target_entropy is None else cfg.target_entropy
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        policy = Policy(cfg, [observation_dim, *hidden, action_dim], rngs)
        critic = networks.MLP([observation_dim + action_dim, *hidden, 1], (len(rngs), 2), rngs)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.temperature = Temperature(len(rngs), cfg.initial_temperature).to(device)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.actor_lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        self.temperature_optimizer = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self._critic_gradients = compile.gradients(
            self.critic_loss, self.critic_optimizer.parameters, mode
        )
        self._policy_gradients = compile.gradients(
            self._policy_and_temperature_loss,
            self.policy_optimizer.parameters + self.temperature_optimizer.parameters,
            mode,
        )

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. 5 and 6: both critics towards r + discount * (min Q' - alpha * log pi) at s'."""
        with torch.no_grad():
            next_actions, log_prob = self.policy.sample(batch.next_observations, noise)
            next_q = self._q(self.target, batch.next_observations, next_actions).amin(1)
            next_value = next_q - self.temperature()[:, None] * log_prob
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        q = self._q(self.critic, batch.observations, batch.actions)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 9: alpha * log pi - Q at the policy's own actions; also returns log pi `(S, B)`."""
        actions, log_prob = self.policy.sample(batch.observations, noise)
        both = self._q(self.critic, batch.observations, actions)
        q = both.amin(1) if self.cfg.actor_q == "min" else both.mean(1)
        return (self.temperature().detach()[:, None] * log_prob - q).mean(-1), log_prob

    def temperature_loss(self, log_prob: Tensor) -> Tensor:
        """Eq. 18: alpha grows where the entropy is below its target."""
        return -self.temperature() * (log_prob.detach().mean(-1) + self.target_entropy)

    def _policy_and_temperature_loss(self, batch: Batch, noise: Tensor):
        policy_loss, log_prob = self.policy_loss(batch, noise)
        loss = policy_loss + self.temperature_loss(log_prob)
        metrics = {
            "policy_loss": policy_loss,
            "entropy": -log_prob.mean(-1),
            "temperature": self.temperature(),
        }
        return loss, metrics

    @staticmethod
    def _q(critic: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        """Both critics, `(S, 2, B)`."""
        return critic(torch.cat([observations, actions], -1)[:, None]).squeeze(-1)

    def update(self, batches: list[Batch], noises: list[Tensor]) -> dict[str, Tensor]:
        """A critic update per batch; policy and temperature follow every `actor_every`-th of them.

        `noises` are `(S, 2, B, A)`: for the next action and for the policy's.
        """
        metrics = {}
        for count, (batch, noise) in enumerate(zip(batches, noises, strict=True), start=1):
            metrics |= self._update_critic(batch, noise[:, 0])
            if count % self.cfg.actor_every == 0:
                metrics |= self._update_policy(batch, noise[:, 1])
        return metrics

    def _update_critic(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        grads, metrics = self._critic_gradients(batch, noise)
        self.critic_optimizer.step(grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    def _update_policy(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        grads, metrics = self._policy_gradients(batch, noise)
        self.policy_optimizer.step(grads[:-1])
        if self.cfg.learn_temperature:
            self.temperature_optimizer.step(grads[-1:])
        return metrics

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        mean, log_std = self.policy(observations)
        return torch.tanh(mean + log_std.exp() * noise)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The squashed mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.policy(observations)[0])


def train(cfg: Config, run: Run) -> None:
    envs = Environments(run.task.make_env, run.seeds, run.device)
    sizes = (envs.observation_dim, envs.action_dim)
    agent = SAC(cfg, *sizes, run.rngs(), device=run.device, mode=run.mode)
    capacity = min(cfg.capacity, run.cfg.steps)
    replay = ReplayBuffer(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    shape = (2, cfg.batch_size, envs.action_dim)
    noise = seeding.normal(run.seeds, "noise", shape, run.device)
    exploration = seeding.normal(run.seeds, "exploration", (1, envs.action_dim), run.device)
    uniform = seeding.uniform(run.seeds, "random actions", (1, envs.action_dim), run.device)
    update = compile.captured(agent.update, run.mode)
    draws = range(cfg.utd)
    state = {"agent": agent, "envs": envs, "replay": replay}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = agent.explore(envs.look(), exploration.next())
        actions = actions.cpu()  # on the host before the update is queued: see difference 7
        if step > cfg.random_steps:
            metrics = update([replay.sample() for _ in draws], [noise.next() for _ in draws])
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        replay.add(envs.step(actions))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
