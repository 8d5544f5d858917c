"""AWAC: Advantage Weighted Actor Critic (Nair, Gupta, Dalal and Levine 2020, arXiv:2006.09359).

A critic of the current policy, bootstrapped on the policy's own actions, and a policy regressed to the
data's actions with weight exp(advantage / lambda), which keeps it near the data (Algorithm 1).

    python algos/awac.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=awac task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=awac task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

The default is CORL's, which made the published D4RL v2 scores; the paper's own are on other data.

Differences, each with its reason:
 1. The weights are clipped at 100 (`advantage_limit`, CORL); the authors' code may instead normalise
    them over the batch.
 2. The policy is a Gaussian that is not squashed, with one log-std for all states; its samples are
    clipped to the action bounds before the critics see them (CORL).
 3. The value of a state is min Q at one sample of the policy (CORL).
 4. The critics step first, and the policy's advantages come from the stepped critics (CORL).
 5. The evaluated mean is clipped to the action bounds; CORL leaves that to the simulator, whose control
    cost then counts the part beyond them.
 6. Fine-tuning changes nothing but the data: actions are samples, and the dataset is the replay's
    beginning (paper and CORL).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "awac"
    label: str = "AWAC"

    temperature: float = 1.0  # lambda: weights are exp(advantage / lambda)
    advantage_limit: float = 100.0  # largest weight of a sample
    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every update

    lr: float = 3e-4  # of policy and critics
    batch_size: int = 256
    hidden_layers: int = 3
    hidden_width: int = 256
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    phase: str = "offline"  # offline | both: then online fine-tuning | online: from a checkpoint
    online: Online = field(default_factory=Online)

    def __post_init__(self):
        check(self)
        require(self.temperature > 0, f"algo.temperature={self.temperature} must be positive")
        require(
            self.advantage_limit > 0,
            f"algo.advantage_limit={self.advantage_limit} must be positive",
        )


class Policy(nn.Module):
    """A Gaussian with one log-std per action dimension: `(S, B, O)` to a mean `(S, B, A)`."""

    def __init__(self, cfg: Config, sizes: list[int], rngs: list[torch.Generator]):
        super().__init__()
        self.body = networks.MLP(sizes, (len(rngs),), rngs)
        self.log_std = nn.Parameter(torch.zeros(len(rngs), 1, sizes[-1]))
        self.limits = (cfg.log_std_min, cfg.log_std_max)

    def forward(self, observations: Tensor) -> Tensor:
        return self.body(observations)

    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Actions within the bounds; `noise` is standard normal."""
        std = torch.exp(self.log_std.clamp(*self.limits))
        return (self(observations) + std * noise).clamp(-1, 1)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        log_std = self.log_std.clamp(*self.limits)
        return policies.gaussian_log_prob(self(observations), log_std, actions)


class AWAC(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        policy = Policy(cfg, [observation_dim, *hidden, action_dim], rngs)
        critic = networks.MLP([observation_dim + action_dim, *hidden, 1], (len(rngs), 2), rngs)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.normalizer = normalizer or nn.Identity()
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._policy_gradients = compile.gradients(
            self.policy_loss, self.policy_optimizer.parameters, mode
        )
        self._critic_gradients = compile.gradients(
            self.critic_loss, self.critic_optimizer.parameters, mode
        )

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Both critics towards r + discount * min Q'(s', a'), a' ~ pi(.|s')."""
        with torch.no_grad():
            next_actions = self.policy.sample(batch.next_observations, noise)
            next_q = self._q(self.target, batch.next_observations, next_actions).amin(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        q = self._q(self.critic, batch.observations, batch.actions)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-min(exp(A / lambda), 100) * log pi(a|s), A = min Q(s, a) - min Q(s, pi(s))."""
        with torch.no_grad():
            actions = self.policy.sample(batch.observations, noise)
            value = self._q(self.critic, batch.observations, actions).amin(1)
            q = self._q(self.critic, batch.observations, batch.actions).amin(1)
            advantage = q - value
            weight = torch.exp(advantage / self.cfg.temperature).clamp(max=self.cfg.advantage_limit)
        loss = -(weight * self.policy.log_prob(batch.observations, batch.actions)).mean(-1)
        return loss, {"policy_loss": loss, "advantage": advantage.mean(-1)}

    @staticmethod
    def _q(critic: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        """Both critics, `(S, 2, B)`."""
        return critic(torch.cat([observations, actions], -1)[:, None]).squeeze(-1)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One step of everything; `noise` (S, 2, B, A) is for the next states and the states."""
        grads, metrics = self._critic_gradients(batch, noise[:, 0])
        self.critic_optimizer.step(grads)
        grads, more = self._policy_gradients(batch, noise[:, 1])
        self.policy_optimizer.step(grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | more

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The mean action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy(self.normalizer(observations)).clamp(-1, 1)

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        return self.policy.sample(self.normalizer(observations), noise)


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = AWAC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    shape = (2, cfg.batch_size, buffer.action_dim)
    noise = seeding.normal(run.seeds, "noise", shape, run.device)
    phases = Phases(cfg, run, buffer, agent)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            metrics = update(phases.sample(step), noise.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
