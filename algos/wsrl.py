"""WSRL: Warm-Start Reinforcement Learning (Zhou, Peng, Li, Levine and Kumar 2025, arXiv:2412.07762).

Fine-tuning without keeping the data: pre-train with Cal-QL or CQL, go on with the agent's whole state
and an empty replay, let the frozen policy act for K steps, then run SAC with many updates per step. The
K warm-up steps stand in for the data: they keep the values from falling before new ones are learned.

    python algos/wsrl.py task=corerl/pendulum steps=30000 algo.online.pretrain_steps=20000
    corerl train algo=wsrl task=d4rl/kitchen-mixed-v0 seeds=5

Of `steps`, the first `online.pretrain_steps` are updates on the data; then come `online.warmup_steps`
steps of the environment without an update, then the others, each with `utd` critic updates of
`batch_size` rows and one of policy and temperature on all their rows.

Where paper and authors' code (zhouzypaul/wsrl at 891ee35) leave a choice, and differences:
 1. Pre-training is Cal-QL with ten critics of which a backup and a penalty ask two, and LayerNorm before
    the activations of policy and critics (authors). `calibrate=false` is CQL, theirs on locomotion.
 2. The two critics are drawn with replacement (authors); RLPD draws without.
 3. The policy follows the minimum over all ten critics (authors); RLPD their mean.
 4. There is no entropy in the backup; the temperature is a softplus that starts at 1 and reads the
    entropy at next states (authors). Pre-training reads it off the backup's own samples.
 5. The Lagrange multiplier is a softplus that starts at 1, without the factor `weight` (authors; not
    Cal-QL's). It and the penalty are dropped while fine-tuning.
 6. `last_hidden_gain` scales the initial weights of the last hidden layer, not of the output (authors,
    whose name for it says otherwise).
 7. `policy_std=vector` is one standard deviation for all states (authors, AntMaze).
 8. `online_max_backup` takes the best of `samples` next actions also while fine-tuning (authors,
    AntMaze).
 9. `online.offline_ratio` keeps that share of the data in each batch (the authors' ablation).
10. The paper says 4 updates per step for the baselines too; the authors' scripts make one.
11. Losses are summed over critics where the authors average, which Adam undoes.
12. An update reads what the replay held before the step that it goes with, so that a GPU learns while
    the simulators run.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.algos import cal_ql
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, ensembles, networks, optim, policies
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "wsrl"
    label: str = "WSRL"

    utd: int = 4  # critic updates per step of the environment
    online_max_backup: bool = False  # the best of `samples` next actions while fine-tuning

    weight: float = 5.0  # of the conservative penalty, in pre-training
    samples: int = 10  # actions from each of its three proposals
    importance_sampling: bool = True
    calibrate: bool = True  # Cal-QL; false: CQL
    failure_reward: float | None = None  # raw, of a step without success in a sparse task
    lagrange: bool = False  # the weight adapts so that the gap meets threshold
    threshold: float = 0.8
    max_backup: bool = True  # the best of `samples` next actions in pre-training

    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every critic update
    critics: int = 10
    asked: int | None = 2  # random critics in a backup or a penalty; null: all
    layer_norm: bool = True  # before the activations of policy and critics

    policy_lr: float = 1e-4  # also of the temperature
    critic_lr: float = 3e-4  # also of the Lagrange multiplier
    batch_size: int = 256  # of one critic update
    policy_layers: int = 2
    critic_layers: int = 2
    hidden_width: int = 256
    last_hidden_gain: float = 1e-2
    policy_std: str = "state"  # state | vector
    std_min: float = 1e-5
    std_max: float = 10.0
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "both"  # both | offline: pre-training alone | online: from a checkpoint
    online: Online = field(
        default_factory=lambda: Online(
            pretrain_steps=250_000, warmup_steps=5_000, offline_ratio=0.0, capacity=2_000_000
        )
    )

    def __post_init__(self):
        check(self)
        require(self.utd > 0, f"algo.utd={self.utd} must be positive")
        require(self.weight >= 0, f"algo.weight={self.weight} must not be negative")
        require(self.samples > 0, f"algo.samples={self.samples} must be positive")
        asked = self.critics if self.asked is None else self.asked
        require(
            0 < asked <= self.critics,
            f"algo.asked={self.asked} must be a number of critics up to {self.critics}",
        )
        known = ("state", "vector")
        require(
            self.policy_std in known, f"algo.policy_std={self.policy_std} is not state or vector"
        )
        require(
            self.phase == "offline" or self.online.warmup_steps > 0,
            "algo.online.warmup_steps=0: fine-tuning needs a replay that is not empty",
        )


class Policy(policies.TanhGaussian):
    """A squashed Gaussian with LayerNorm; its log-std is an output, or one vector for all states."""

    def __init__(self, cfg: Config, sizes: list[int], rngs: list[torch.Generator]):
        nn.Module.__init__(self)
        self.limits = (math.log(cfg.std_min), math.log(cfg.std_max))
        self.log_std = None
        if cfg.policy_std == "vector":
            self.log_std = nn.Parameter(torch.zeros(len(rngs), 1, sizes[-1]))
        else:
            sizes = [*sizes[:-1], 2 * sizes[-1]]
        self.body = networks.MLP(sizes, (len(rngs),), rngs, **_layers(cfg))
        _shrink(self.body, cfg)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        out = self.body(observations)
        if self.log_std is None:
            mean, log_std = out.chunk(2, -1)
        else:
            mean, log_std = out, self.log_std.expand_as(out)
        return mean, log_std.clamp(*self.limits)


def _layers(cfg: Config) -> dict:
    norms = {"layer_norm": 1e-6, "norm_first": True} if cfg.layer_norm else {}
    return {"init": networks.orthogonal()} | norms


@torch.no_grad()
def _shrink(network: networks.MLP, cfg: Config) -> None:
    network.layers[-2].weight.mul_(cfg.last_hidden_gain / math.sqrt(2))


class Positive(networks.Scalar):
    """A learned positive number per seed, `(S,)`: a softplus that starts at 1."""

    def __init__(self, seeds: int):
        super().__init__(math.log(math.e - 1), seeds)

    def forward(self) -> Tensor:
        return F.softplus(self.value)


class WSRL(cal_ql.CalQL):
    """Cal-QL, whose `update` pre-trains, with SAC's `finetune`. S independent learners."""

    def __init__(self, cfg: Config, *sizes, mode: str = "off", **others):
        super().__init__(cfg, *sizes, mode=mode, **others)
        pi, alpha = self.policy_optimizer.parameters, self.temperature_optimizer.parameters
        self._bellman_gradients = compile.gradients(
            self.bellman_loss, self.critic_optimizer.parameters, mode
        )
        self._policy_gradients = compile.gradients(
            self.policy_and_temperature_loss, [*pi, *alpha], mode
        )

    def make_networks(self, observation_dim: int, action_dim: int, rngs):
        cfg = self.cfg
        sizes = [observation_dim, *[cfg.hidden_width] * cfg.policy_layers, action_dim]
        policy = Policy(cfg, sizes, rngs)
        sizes = [observation_dim + action_dim, *[cfg.hidden_width] * cfg.critic_layers, 1]
        critic = ensembles.Critics(sizes, cfg.critics, rngs, **_layers(cfg))
        _shrink(critic, cfg)
        return policy, critic

    def make_multipliers(self, seeds: int) -> tuple[nn.Module, nn.Module]:
        return Positive(seeds), Positive(seeds)

    @property
    def alpha(self) -> Tensor:
        return self.temperature()

    def pick(self, uniforms: Tensor) -> Tensor | None:
        if self.cfg.asked is None:
            return None
        return ensembles.with_replacement(uniforms, self.cfg.critics, self.cfg.asked)

    # Losses of both halves.

    def temperature_loss(self, log_pi: Tensor, next_log_pi: Tensor) -> Tensor:
        """alpha * (entropy at s' - target entropy)."""
        entropy = -next_log_pi.detach().mean((1, 2))
        return self.temperature() * (entropy - self.target_entropy)

    # Losses of pre-training: Cal-QL's, but for the multiplier.

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        if not self.cfg.lagrange:
            return super().penalty(gap)
        excess = gap - self.cfg.threshold
        return self.multiplier().detach() * excess, -self.multiplier() * excess.detach()

    # Losses of fine-tuning: SAC's. Noise is (S, n, B, A).

    def bellman_loss(
        self, batch: Batch, noise: Tensor, asked: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """All critics towards r + discount * min Q'(s', a') of the critics asked."""
        y, _ = self.backup(batch, noise, self.pick(asked))
        q = self.critic(batch.observations, batch.actions[:, None]).squeeze(2)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"bellman_loss": loss, "q": q.mean((1, 2)), "target_q": y.mean(-1)}

    def policy_and_temperature_loss(self, batch: Batch, noise: Tensor):
        """Both from the same parameters; `noise` (S, 2, B, A) is for the states and the next ones."""
        policy, log_pi, metrics = self.policy_loss(batch, noise[:, :1])
        with torch.no_grad():
            next_log_pi = self.policy.sample(batch.next_observations, noise[:, 1])[1]
        loss = policy + self.temperature_loss(log_pi, next_log_pi[:, None])
        return loss, metrics | {"alpha": self.alpha}

    def finetune(
        self, batches: list[Batch], backups: Tensor, noise: Tensor, asked: Tensor
    ) -> dict[str, Tensor]:
        """A critic update per batch, then one of policy and temperature on all rows together.

        `backups` (S, utd, n, B, A) and `noise` (S, 2, utd * B, A) are normal, `asked` (S, utd, critics)
        uniform.
        """
        for i, batch in enumerate(batches):
            grads, metrics = self._bellman_gradients(batch, backups[:, i], asked[:, i])
            self.critic_optimizer.step(grads)
            optim.polyak(self.target, self.critic, self.cfg.polyak)
        rows = Batch(*(torch.cat(fields, 1) for fields in zip(*batches, strict=True)))
        grads, more = self._policy_gradients(rows, noise)
        optim.step(self.optimizers()[:2], grads)
        return metrics | more


def train(cfg: Config, run: Run) -> None:
    labels = partial(cal_ql.per_episode, label=cal_ql.label_of(cfg))
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, labels=labels)
    sizes = (data.observation_dim, data.action_dim)
    agent = WSRL(cfg, *sizes, run.rngs(), normalizer=normalizer, device=run.device, mode=run.mode)
    phases = Phases(cfg, run, data, agent)
    pretraining = cal_ql.random_numbers(agent, run, data.action_dim)
    tuning = _random_numbers(cfg, run, data.action_dim) if phases.parts else {}
    pretrain = compile.captured(agent.update, run.mode)
    finetune = compile.captured(agent.finetune, run.mode)
    state = {"agent": agent, "buffer": data, **pretraining, **tuning, **phases.parts}
    for step in run.steps(**state):
        if not phases.online(step):
            batch, returns = data.sample_labelled()
            metrics = pretrain(batch, returns, *(s.next() for s in pretraining.values()))
            run.log(step, metrics | phases.metrics())
        else:
            actions = phases.choose(agent.explore)  # on the host before the update: see 12
            if phases.learns(step):
                batches = [phases.sample(step) for _ in range(cfg.utd)]
                metrics = finetune(batches, *(s.next() for s in tuning.values()))
                run.log(step, metrics | phases.metrics())
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


def _random_numbers(cfg: Config, run: Run, action_dim: int) -> dict[str, seeding.Stream]:
    """The streams that `finetune` takes, in its order."""
    seeds, device = run.seeds, run.device
    actions = cfg.samples if cfg.online_max_backup else 1
    backups = (cfg.utd, actions, cfg.batch_size, action_dim)
    noise = (2, cfg.utd * cfg.batch_size, action_dim)
    return {
        "backups": seeding.normal(seeds, "backups", backups, device, 32),
        "online_noise": seeding.normal(seeds, "online noise", noise, device, 32),
        "online_asked": seeding.uniform(seeds, "online asked", (cfg.utd, cfg.critics), device),
    }


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
