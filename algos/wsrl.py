"""WSRL: Warm-Start Reinforcement Learning (Zhou, Peng, Li, Levine and Kumar 2025, arXiv:2412.07762).

Fine-tuning without keeping the data: pre-train with Cal-QL or CQL, go on with the agent's whole state
and an empty replay, let the frozen policy act for K steps, then run SAC with many updates per step. The
K warm-up steps stand in for the data: they keep the values from falling before new ones are learned.

    python algos/wsrl.py task=corerl/pendulum steps=30000 algo.online.pretrain_steps=20000
    corerl train algo=wsrl task=d4rl/kitchen-mixed-v0 seeds=5

Of `steps`, the first `online.pretrain_steps` are updates on the data; then come `online.warmup_steps`
steps of the environment without an update, then the others, each with `utd` critic updates of
`batch_size` rows and one of policy and temperature on all their rows.

What paper and authors' code (zhouzypaul/wsrl at 891ee35) leave open, and its switch. Ours is the authors'
but for 11 and 12.

    item                  authors                                   others, or ours       switch
 1  pre-training          Cal-QL with LayerNorm and ten critics of  CQL on locomotion     calibrate
                          which two make a backup and a penalty     (theirs)
 2  the two critics       drawn with replacement                    RLPD: without         critic_subsample
 3  policy follows        the minimum over all ten                  RLPD: their mean      -
 4  temperature           a softplus from 1, by the entropy at s';  pre-training: at the  -
                          no entropy in the backup                  backup's own samples
 5  Lagrange multiplier   a softplus from 1, not times `weight`;    Cal-QL: times it      lagrange
                          it and the penalty are dropped online
 6  initial weights       of the last hidden layer are scaled; its  -                     last_hidden_gain
                          name in their code says the output's
 7  AntMaze's std         one vector for all states                 -                     policy_std
 8  AntMaze's backup      the best of `samples` online, too         -                     online_max_backup
 9  data kept online      none; a share of it in an ablation        -                     offline_ratio
10  baselines' updates    one per step in the scripts               paper: four           utd
11  losses over critics   averaged                                  summed (Adam: same)   -
12  replay at an update   with the newest step                      before that step      -
13  Adams without loss    with utd > 1 all step at every update,    paper: none           zero_steps
                          along zero where no loss is taken
14  gap on Kitchen        less the logarithm of the samples' number with it: a constant   -
15  the critics' output   one layer for all ten, on hidden layers   RLPD, Cal-QL: each    shared_output
                          of their own                              has its own

LayerNorm stands before the activations of policy and critics (1). An update reads what the replay
held before the step that it goes with (12), so that a GPU learns while the simulators run. In the authors'
`update_high_utd` a network that is not updated has a loss of zero, and its Adam steps all the same (13): at
four critic updates the policy moves 2.2 times as far along a constant gradient as by its own step alone
(the square root of five), more along a noisy one, and the critics 1.1 times.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos import cal_ql
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, ensembles, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.conservative import CQLNoise
from corerl.nn.critics import ManyActionCritics
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import TanhGaussian
from corerl.training import preprocessing, return_labels
from corerl.training.conservative_noise import ConservativeNoise
from corerl.training.offline_to_online import FineTuning, Online, Phases, check_warmup
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "wsrl"
    label: str = "WSRL"

    utd: int = positive(4)  # critic updates per step of the environment
    zero_steps: bool = True  # with utd > 1, optimisers also step where they have no loss
    online_max_backup: bool = False  # fine-tuning targets take the best of `samples` next actions

    weight: float = at_least(0, 5.0)  # weight of the conservative penalty in pre-training
    samples: int = positive(10)  # actions per proposal (uniform, policy at s and policy at s')
    importance_sampling: bool = True  # weights sampled actions by 1 / density (false: equally)
    calibrate: bool = True  # pushes the policy's Q no lower than the data's returns (false: CQL)
    failure_reward: float | None = None  # episodes of only this reward count as endless (null: off)
    lagrange: bool = False  # adapts the penalty's weight until the gap of Q is threshold
    threshold: float = 0.8  # wanted gap between sampled Q and the data's Q (lagrange=true)
    max_backup: bool = True  # pre-training targets take the best of `samples` next actions

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every critic update
    critics: int = positive(10)  # number of critics
    critic_subsample: int | None = positive(2)  # critics drawn for a backup or penalty (null: all)
    shared_output: bool = True  # all critics share one output layer
    layer_norm: bool = True  # LayerNorm before the activations of policy and critics

    policy_lr: float = positive(1e-4)  # learning rate of policy and temperature
    critic_lr: float = positive(3e-4)  # learning rate of critics and Lagrange multiplier
    batch_size: int = positive(256)  # rows of one critic update
    policy_layers: int = positive(2)
    critic_layers: int = positive(2)
    hidden_width: int = positive(256)
    last_hidden_gain: float = at_least(0, 1e-2)  # gain of the last hidden layer's initial weights
    policy_std: str = one_of("state", "vector")  # state (a network's output) | vector (one for all)
    std_min: float = positive(1e-5)  # smallest standard deviation of the policy
    std_max: float = positive(10.0)  # largest standard deviation of the policy
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "both"  # both | offline (pre-training only) | online (checkpoint or from scratch)
    online: Online = group(
        Online, pretrain_steps=250_000, warmup_steps=5_000, offline_ratio=0.0, capacity=2_000_000
    )

    def __post_init__(self):
        super().__post_init__()
        ensembles.check(self)
        check_warmup(self)


class Policy(TanhGaussian):
    """A squashed Gaussian with LayerNorm. Its log-std is an output, or one vector for all states."""

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
    return {"init": networks.orthogonal(), "activation": cfg.mlp_options["activation"]} | norms


@torch.no_grad()
def _shrink(network: networks.MLP, cfg: Config) -> None:
    network.layers[-2].weight.mul_(cfg.last_hidden_gain / math.sqrt(2))


class Draws(NamedTuple):
    """Random numbers of one fine-tuning step with U critic updates. All are normal but `subsets`."""

    backups: Tensor  # (S, U, K, B, A), for K samples of the policy at next states
    actions: Tensor  # (S, U * B, A)
    next_actions: Tensor  # (S, U * B, A)
    subsets: Tensor  # (S, U, critics), uniform, for the critics that make the backup


class WSRL(PolicyActing):
    """WSRL agents of S seeds: `update` pre-trains as Cal-QL does, `finetune` is SAC's."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.target_entropy = -float(A)
        policy = Policy(cfg, [O, *[cfg.hidden_width] * cfg.policy_layers, A], rngs)
        sizes = [O, A, *[cfg.hidden_width] * cfg.critic_layers]
        heads = {"heads": cfg.critics, "shared_output": cfg.shared_output}
        critic = ManyActionCritics(sizes, rngs, **heads, **_layers(cfg))
        _shrink(critic, cfg)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.temperature = networks.SoftplusScalar(spec.seeds).to(device)
        self.multiplier = networks.SoftplusScalar(spec.seeds).to(device)
        critics = [*self.critic.parameters(), *self.multiplier.parameters()]
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.policy_lr)
        self.temperature_optimizer = alpha
        q = self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        self._pretraining_step = GradientStep(self.pretraining_losses, (pi, alpha, q), spec.mode)
        self._critic_step = GradientStep(self.bellman_loss, q, spec.mode)
        joint = self.policy_and_temperature_loss
        self._policy_step = GradientStep(joint, (pi, alpha), spec.mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        return self.temperature()

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def pretraining_losses(
        self, batch: Batch, returns: Tensor, noise: CQLNoise, uniforms: Tensor, subsets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds Cal-QL's losses of a step, with the temperature's and the penalty that follow.

        Returns are `(S, B)`. Uniforms `(S, samples, B, A)` and subsets `(S, 2, critics)` are on [0, 1).
        """
        cfg, chosen = self.cfg, self.subset(subsets[:, 0])
        pi, _, policy_metrics = cal_ql.policy_loss(
            self.policy, self.critic, self.alpha, batch, noise.actions
        )
        backup = self.policy, self.target, cfg.discount, batch, noise.backup, chosen
        y, next_log_pi = cal_ql.backup(*backup)
        penalised = self.subset(subsets[:, 1])
        bellman, gap, metrics = cal_ql.bellman_and_gap(
            cfg, self.policy, self.critic, batch, y, returns, noise, uniforms, penalised
        )
        penalty, multiplier_loss = self.penalty(gap)
        loss = pi + self.temperature_loss(next_log_pi)
        loss = loss + (bellman + cfg.critics * penalty + multiplier_loss)
        return loss, metrics | policy_metrics | {"alpha": self.alpha}

    def temperature_loss(self, next_log_pi: Tensor) -> Tensor:
        """Computes alpha * (entropy at s' - target entropy), from log-densities at s' `(S, K, B)`."""
        entropy = -next_log_pi.detach().mean((1, 2))
        return self.alpha * (entropy - self.target_entropy)

    def subset(self, uniforms: Tensor) -> Tensor | None:
        """Returns the critics of a backup or a penalty, from uniform draws `(S, critics)`. None is all."""
        draw = ensembles.with_replacement
        return ensembles.subset(uniforms, self.cfg.critics, self.cfg.critic_subsample, draw)

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conservative term per critic, and its multiplier's loss, from the mean gap `(S,)`."""
        if not self.cfg.lagrange:
            return self.cfg.weight * gap, torch.zeros_like(gap)
        excess = gap - self.cfg.threshold
        return self.multiplier().detach() * excess, -self.multiplier() * excess.detach()

    def update(
        self, batch: Batch, returns: Tensor, noise: CQLNoise, uniforms: Tensor, subsets: Tensor
    ) -> dict[str, Tensor]:
        """Takes one step of pre-training."""
        metrics = self._pretraining_step(batch, returns, noise, uniforms, subsets)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    # Fine-tuning: SAC's.

    def bellman_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses all critics towards r + discount * min Q'(s', a') of a subset. `noise` (S, K, B, A)."""
        chosen, discount = self.subset(uniforms), self.cfg.discount
        y, _ = cal_ql.backup(self.policy, self.target, discount, batch, noise, chosen)
        q = self.critic(batch.observations, batch.actions[:, None]).squeeze(2)
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"bellman_loss": loss, "q": q.mean((1, 2)), "target_q": y.mean(-1)}

    def policy_and_temperature_loss(
        self, batch: Batch, noise: Tensor, next_noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds both, from the same parameters. The noises (S, B, A) are for states and next states."""
        policy, _, metrics = cal_ql.policy_loss(
            self.policy, self.critic, self.alpha, batch, noise[:, None]
        )
        with torch.no_grad():
            next_log_pi = self.policy.sample(batch.next_observations, next_noise)[1]
        loss = policy + self.temperature_loss(next_log_pi[:, None])
        return loss, metrics | {"alpha": self.alpha}

    def finetune(self, batches: list[Batch], draws: Draws) -> dict[str, Tensor]:
        """Takes one critic step per batch, then one of policy and temperature on all rows together."""
        zero_steps = self.cfg.zero_steps and len(batches) > 1
        for i, batch in enumerate(batches):
            metrics = self._critic_step(batch, draws.backups[:, i], draws.subsets[:, i])
            if zero_steps:
                optim.zero_step(self.policy_optimizer, self.temperature_optimizer)
            optim.polyak(self.target, self.critic, self.cfg.polyak)
        all_rows = Batch(*(torch.cat(fields, 1) for fields in zip(*batches, strict=True)))
        metrics |= self._policy_step(all_rows, draws.actions, draws.next_actions)
        if zero_steps:
            optim.zero_step(self.critic_optimizer)  # also of the multiplier, which no loss has here
        return metrics


build = WSRL


def train(cfg: Config, run: Run) -> None:
    labels = partial(return_labels.per_episode, label=return_labels.label_of(cfg))
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, labels=labels)
    agent = WSRL(cfg, run.spec(data, normalizer))
    phases = Phases(cfg, run, data, agent)
    noise = ConservativeNoise(cfg, run, data.action_dim)
    tuning = _streams(cfg, run, data.action_dim) if phases.parts else {}
    pretrain = compile.captured(agent.update, run.mode)
    finetune = compile.captured(agent.finetune, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "buffer": data, **noise.streams, **tuning, **phases.parts}
    for step in run.steps(**state):
        if not phases.online(step):
            batch, returns = data.sample_labelled()
            metrics = pretrain(batch, returns, *noise.next())
            run.log(step, metrics | phases.metrics())
        else:
            actions = phases.choose(explore)  # on the host before the update: see 12
            if phases.learns(step):
                backups, normal, subsets = (stream.next() for stream in tuning.values())
                batches = [phases.sample(step) for _ in range(cfg.utd)]
                metrics = finetune(batches, Draws(backups, *normal.unbind(1), subsets))
                run.log(step, metrics | phases.metrics())
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


def _streams(cfg: Config, run: Run, action_dim: int) -> dict[str, seeding.Stream]:
    """Makes what `finetune` draws from, by the names in a checkpoint."""
    actions = cfg.samples if cfg.online_max_backup else 1
    backups = (cfg.utd, actions, cfg.batch_size, action_dim)
    rows = cfg.utd * cfg.batch_size
    return {
        "backups": run.normal("backups", *backups, block=32),
        "online_noise": run.normal("online noise", 2, rows, action_dim, block=32),
        "online_asked": run.uniform("online asked", cfg.utd, cfg.critics),
    }


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
