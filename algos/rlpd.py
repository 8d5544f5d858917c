"""RLPD: Reinforcement Learning with Prior Data (Ball, Smith, Kostrikov and Levine 2023, arXiv:2302.02948).

SAC from scratch, with a dataset at hand. Three things make that enough, with no pre-training and no
penalty: every batch is half the dataset's and half the replay's (section 4.1), LayerNorm keeps critics
from extrapolating to unseen actions (4.2), and an ensemble takes many updates per step (4.3).

    python algos/rlpd.py task=corerl/pendulum steps=10000 algo.utd=4
    corerl train algo=rlpd task=d4rl/antmaze-large-diverse-v2 seeds=5

`steps` are those of the environment.

Differences from the paper and from the authors' code (ikostrikov/rlpd at c90fd4b):
 1. Every minibatch is half and half (paper); the authors cut one interleaved batch of `utd` times the
    size, which comes to the same.
 2. Policy and temperature follow once per step, on the last minibatch, after all critic updates, and
    share one sample (authors).
 3. The target entropy is -D/2 (authors; SAC's is -D, which users of their other code call the right
    one): `target_entropy`.
 4. `asked` critics make a backup, drawn without replacement; 1 on AntMaze (authors).
 5. `online.pretrain_steps` with phase=both begins with updates on the data alone (an option of the
    authors' code).
 6. LayerNorm stands before the activation, in the critics only, with epsilon 1e-6 (authors).
 7. Losses are summed over critics where the authors average, which Adam undoes.
 8. An update reads what the replay held before the step that it goes with, so that a GPU learns while
    the simulators run.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos.sac import Temperature
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, ensembles, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "rlpd"
    label: str = "RLPD"

    utd: int = 20  # critic updates per step of the environment
    critics: int = 10
    asked: int = 2  # random critics in a backup
    layer_norm: bool = True  # in the critics
    backup_entropy: bool = True
    actor_q: str = "mean"  # mean (authors) | min, over all critics

    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every critic update
    initial_temperature: float = 1.0
    target_entropy: float | None = None  # null: minus half the number of action dimensions

    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    temperature_lr: float = 3e-4
    batch_size: int = 256  # of one critic update
    hidden_layers: int = 2
    hidden_width: int = 256
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "online"  # online | both: after updates on the data | offline: those alone
    online: Online = field(default_factory=lambda: Online(warmup_steps=5_000, offline_ratio=0.5))

    def __post_init__(self):
        check(self)
        require(self.utd > 0, f"algo.utd={self.utd} must be positive")
        require(self.actor_q in ("mean", "min"), f"algo.actor_q={self.actor_q} unknown")
        require(self.initial_temperature > 0, "algo.initial_temperature must be positive")
        require(
            0 < self.asked <= self.critics,
            f"algo.asked={self.asked} must be a number of critics up to {self.critics}",
        )
        require(
            self.phase == "offline" or self.online.warmup_steps > 0,
            "algo.online.warmup_steps=0: the first update needs a replay that is not empty",
        )


class RLPD(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: nn.Module | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self.normalizer = normalizer or nn.Identity()
        given = cfg.target_entropy
        self.target_entropy = -action_dim / 2 if given is None else given
        hidden, lead = [cfg.hidden_width] * cfg.hidden_layers, (len(rngs),)
        policy = policies.TanhGaussian(
            [observation_dim, *hidden, action_dim],
            lead,
            rngs,
            log_std_min=cfg.log_std_min,
            log_std_max=cfg.log_std_max,
            init=networks.xavier(),
        )
        critic = networks.MLP(
            [observation_dim + action_dim, *hidden, 1],
            (*lead, cfg.critics),
            rngs,
            init=networks.xavier(),
            layer_norm=1e-6 if cfg.layer_norm else None,
            norm_first=True,
        )
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
            self.policy_and_temperature_loss,
            self.policy_optimizer.parameters + self.temperature_optimizer.parameters,
            mode,
        )

    # Losses. Batch fields are (S, B, ...), noise (S, B, A), asked (S, critics); each loss is (S,).

    def critic_loss(
        self, batch: Batch, noise: Tensor, asked: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """All critics towards r + discount * (min Q' of a few - alpha * log pi) at s' (Algorithm 1)."""
        chosen = ensembles.without_replacement(asked, self.cfg.critics, self.cfg.asked)
        with torch.no_grad():
            next_actions, log_prob = self.policy.sample(batch.next_observations, noise)
            inputs = torch.cat([batch.next_observations, next_actions], -1)[:, None]
            value = ensembles.call(self.target, chosen, inputs).squeeze(-1).amin(1)
            if self.cfg.backup_entropy:
                value = value - self.temperature()[:, None] * log_prob
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * value
        q = self._q(batch.observations, batch.actions)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def policy_and_temperature_loss(
        self, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """alpha * log pi - mean Q at the policy's own actions; alpha * (entropy - target entropy)."""
        actions, log_prob = self.policy.sample(batch.observations, noise)
        q = self._q(batch.observations, actions)
        q = q.mean(1) if self.cfg.actor_q == "mean" else q.amin(1)
        alpha, entropy = self.temperature(), -log_prob.mean(-1)
        policy_loss = (alpha.detach()[:, None] * log_prob - q).mean(-1)
        loss = policy_loss + alpha * (entropy.detach() - self.target_entropy)
        return loss, {"policy_loss": policy_loss, "entropy": entropy, "temperature": alpha}

    def _q(self, observations: Tensor, actions: Tensor) -> Tensor:
        """All critics, `(S, critics, B)`."""
        return self.critic(torch.cat([observations, actions], -1)[:, None]).squeeze(-1)

    def update(self, batches: list[Batch], noise: Tensor, asked: Tensor) -> dict[str, Tensor]:
        """A critic update per batch; policy and temperature follow on the last.

        `noise` (S, utd + 1, B, A) is normal, of the next actions and then of the policy's; `asked`
        (S, utd, critics) is uniform.
        """
        for i, batch in enumerate(batches):
            grads, metrics = self._critic_gradients(batch, noise[:, i], asked[:, i])
            self.critic_optimizer.step(grads)
            optim.polyak(self.target, self.critic, self.cfg.polyak)
        grads, more = self._policy_gradients(batches[-1], noise[:, -1])
        optim.step((self.policy_optimizer, self.temperature_optimizer), grads)
        return metrics | more

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        return self.policy.sample(self.normalizer(observations), noise)[0]

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The squashed mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy.mode(self.normalizer(observations))


def train(cfg: Config, run: Run) -> None:
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    sizes = (data.observation_dim, data.action_dim)
    agent = RLPD(cfg, *sizes, run.rngs(), normalizer=normalizer, device=run.device, mode=run.mode)
    phases = Phases(cfg, run, data, agent)
    per_step = (cfg.utd + 1, cfg.batch_size, data.action_dim)
    noise = seeding.normal(run.seeds, "noise", per_step, run.device, 32)
    asked = seeding.uniform(run.seeds, "asked", (cfg.utd, cfg.critics), run.device)
    uniform = seeding.uniform(run.seeds, "random actions", (1, data.action_dim), run.device)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "buffer": data, "noise": noise, "asked": asked, "uniform": uniform}
    for step in run.steps(**state, **phases.parts):
        learns, acts = phases.learns(step), phases.online(step)
        if acts:
            explore = agent.explore if learns else lambda *_: 2 * uniform.next() - 1
            actions = phases.choose(explore)  # on the host before the update: see difference 8
        if learns:
            batches = [phases.sample(step) for _ in range(cfg.utd)]
            run.log(step, update(batches, noise.next(), asked.next()) | phases.metrics())
        if acts:
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
