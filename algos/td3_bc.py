"""TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860).

TD3 whose policy also imitates the data: the actor maximises lambda * Q - (pi(s) - a)^2, with lambda
scaled by the size of Q so that one alpha serves every task (eq. 5).

    python algos/td3_bc.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=td3_bc task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=td3_bc_neorl2 task=neorl2/DMSD seeds=[7,42,210]

Differences, each with its reason:
 1. The authors' code counts before it tests, so that the first actor update comes at step 2; one call
    here is `policy_delay` critic updates and then one of the actor and the targets, which is the same.
 2. Eq. 5 averages |Q| over the data's actions. The authors' code, which made the numbers, averages
    |Q1| over the policy's; so here.
 3. The paper leaves states as they are on AntMaze (configs/td3_bc.yaml follows it, with CORL's r - 1);
    CORL normalises everywhere: algo.data.normalize_states=true.
 4. The paper's scores are on D4RL's v0 data; compare v2 runs with reruns only.

NeoRL-2's TD3+BC (`algo=td3_bc_neorl2`; Gao et al. 2025, its code is offlinerl 0.0.2) has an actor of one
hidden layer more than the critics (`actor_layers`), normalises states inside the policy only
(`raw_critic`), and moves actor and targets with the first critic update of each two (`actor_first`).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import later, require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "td3_bc"
    label: str = "TD3+BC"

    alpha: float = 2.5  # weight of Q against imitation, eq. 5
    discount: float = 0.99
    polyak: float = 0.005  # share of the new networks in their targets, at each actor update
    policy_noise: float = 0.2  # smoothing of the target action: std, and where it is clipped
    noise_clip: float = 0.5
    policy_delay: int = 2  # critic updates per actor update

    lr: float = 3e-4  # of actor and critics
    batch_size: int = 256
    hidden_layers: int = 2
    hidden_width: int = 256
    actor_layers: int | None = added(at_least(1, None))  # null: as many as the critics
    actor_first: bool = added(False)  # the first critic update of policy_delay brings the actor's
    raw_critic: bool = added(False)  # only the policy sees normalised states
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    def __post_init__(self):
        require(self.alpha > 0, f"algo.alpha={self.alpha} must be positive")
        require(self.policy_delay > 0, f"algo.policy_delay={self.policy_delay} must be positive")


class TD3BC(Stateful):
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
        seeds = len(rngs)
        own = [cfg.hidden_width] * (cfg.actor_layers or cfg.hidden_layers)
        actor = networks.MLP([observation_dim, *own, action_dim], (seeds,), rngs)
        critic = networks.MLP([observation_dim + action_dim, *hidden, 1], (seeds, 2), rngs)
        self.actor, self.critic = actor.to(device), critic.to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = normalizer or nn.Identity()
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._actor_gradients = compile.gradients(
            self.actor_loss, self.actor_optimizer.parameters, mode
        )
        self._critic_gradients = compile.gradients(
            self.critic_loss, self.critic_optimizer.parameters, mode
        )

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped double Q-learning with target policy smoothing; `noise` (S, B, A) is standard normal."""
        cfg = self.cfg
        with torch.no_grad():
            smoothing = (noise * cfg.policy_noise).clamp(-cfg.noise_clip, cfg.noise_clip)
            next_action = self._policy(self.target_actor, batch.next_observations) + smoothing
            next_action = next_action.clamp(-1, 1)
            next_q = self._q(self.target_critic, batch.next_observations, next_action).amin(1)
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * next_q
        q = self._q(self.critic, batch.observations, batch.actions)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 5: -lambda * Q1(s, pi(s)) + mean squared distance to the data's action."""
        actions = self._policy(self.actor, batch.observations)
        q = self._q(self.critic, batch.observations, actions)[:, 0]
        weight = self.cfg.alpha / q.detach().abs().mean(-1)
        imitation = (actions - batch.actions).square().mean((1, 2))
        loss = imitation - weight * q.mean(-1)
        return loss, {"actor_loss": loss, "imitation_loss": imitation}

    def _policy(self, actor: nn.Module, observations: Tensor) -> Tensor:
        """Actions at a batch's states, which come normalised unless the critics see them raw."""
        return torch.tanh(
            actor(self.normalizer(observations) if self.cfg.raw_critic else observations)
        )

    @staticmethod
    def _q(critic: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        """Both critics, `(S, 2, B)`."""
        return critic(torch.cat([observations, actions], -1)[:, None]).squeeze(-1)

    def update(self, batches: list[Batch], noises: list[Tensor]) -> dict[str, Tensor]:
        """One critic update per batch; with the last one (or the first) the actor's and the targets'."""
        improved_at = 0 if self.cfg.actor_first else len(batches) - 1
        for i, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
            grads, metrics = self._critic_gradients(batch, noise)
            self.critic_optimizer.step(grads)
            if i == improved_at:
                more = self._improve(batch)
        return metrics | more

    def _improve(self, batch: Batch) -> dict[str, Tensor]:
        grads, metrics = self._actor_gradients(batch)
        self.actor_optimizer.step(grads)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.actor(self.normalizer(observations)))


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, raw=cfg.raw_critic)
    agent = TD3BC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    shape = (cfg.batch_size, buffer.action_dim)
    noise = seeding.normal(run.seeds, "noise", shape, run.device)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    for step in run.steps(stride=cfg.policy_delay, agent=agent, buffer=buffer, noise=noise):
        metrics = update([buffer.sample() for _ in delay], [noise.next() for _ in delay])
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
