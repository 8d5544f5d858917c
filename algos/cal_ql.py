"""Cal-QL: Calibrated Q-Learning (Nakamoto, Zhai, Singh et al. 2023, arXiv:2303.05479).

CQL pushes the values of its policy's actions so far down that fine-tuning first has to unlearn it. Here
they are pushed no lower than the return that the data's behaviour got from the same state (eq. 5.1), so
that pre-trained values are on the environment's scale when fine-tuning begins.

    python algos/cal_ql.py task=corerl/pendulum steps=30000 algo.online.pretrain_steps=20000
    corerl train algo=cal_ql task=d4rl/antmaze-large-diverse-v2 seeds=5

Of `steps`, the first `online.pretrain_steps` are updates on the data and the others steps of the
environment, with one update each on a batch that is half the data's.

What differs from the paper and from the authors' code (nakamotoo/Cal-QL at ac6eafe), and its switch.

    item               paper              authors                   ours                     switch
 1  fine-tuning        -                  an episode, then as       an update after a step,  -
                                          many updates              like their later code
 2  replay             -                  ended episodes            and the first update     -
                                                                    waits (later code)
 3  return at a limit  -                  the sum to the end        the authors'             failure_reward
 4  last row there     -                  dropped before the sum    its reward counts        -
 5  bounded below      policy's actions   policy's actions          policy's, not uniform    calibrate
 6  backup             -                  the best of `samples` by  the authors'             max_backup
                                          the smaller critic, and
                                          no entropy
 7  critics            two                two                       two, or WSRL's ensemble  critics
 8  losses             -                  from a step's start       so; sum over critics     -
 9  bound in tuning    -                  stays; CORL's: off        stays                    -
10  alpha's loss       -                  log alpha's, at s         the authors'             tuning
    initial outputs    -                  orthogonal / 100; CORL    the authors'             init
                                          does not divide

The later code is WSRL's (zhouzypaul/wsrl at 891ee35), and so are the settings on Kitchen: its alpha is a
softplus that the entropy at s' moves (10), and its critics have their last layer in common
(`shared_output`). A return is known when its episode has ended: batches leave out the running ones, and the
first update waits for the environment's time limit, when every seed has ended one (2). `failure_reward`
names the raw reward of a step without success: an episode of nothing else counts reward / (1 - discount)
(3). `critics`, `critic_subsample`, `layer_norm` and `shared_output` make an ensemble as WSRL's, but for its
draws with replacement and the LayerNorm in its policy (7): `algo=wsrl` has all of it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.nn import compile, conservative, ensembles, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.conservative import CQLNoise
from corerl.nn.critics import ManyActionCritics
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import ScaledTanhGaussian, TanhGaussian
from corerl.training import preprocessing, return_labels
from corerl.training.conservative_noise import ConservativeNoise
from corerl.training.offline_to_online import FineTuning, Online, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "cal_ql"
    label: str = "Cal-QL"

    weight: float = at_least(0, 5.0)  # weight of the conservative penalty
    samples: int = positive(10)  # actions per proposal (uniform, policy at s and policy at s')
    importance_sampling: bool = True  # weights sampled actions by 1 / density (false: equally)
    calibrate: bool = True  # pushes the policy's Q no lower than the data's returns (false: CQL)
    failure_reward: float | None = None  # episodes of only this reward count as endless (null: off)
    lagrange: bool = False  # adapts the penalty's weight until the gap of Q is threshold
    threshold: float = 0.8  # wanted gap between sampled Q and the data's Q (lagrange=true)

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    max_backup: bool = True  # targets take the best of `samples` next actions (false: one action)
    critics: int = positive(2)  # number of critics
    critic_subsample: int | None = positive(None)  # critics drawn in backup and penalty (null: all)
    layer_norm: bool = False  # LayerNorm in the critics, before each activation
    tuning: str = added(one_of("log", "softplus"))  # log (learns log temperature) | softplus (WSRL)

    policy_lr: float = positive(1e-4)  # learning rate of policy and temperature
    critic_lr: float = positive(3e-4)  # learning rate of critics and Lagrange multiplier
    batch_size: int = positive(256)
    policy_layers: int = at_least(0, 2)
    critic_layers: int = positive(2)
    hidden_width: int = positive(256)
    init: str = added(one_of("authors", "wsrl"))  # authors (output weights / 100) | wsrl (unscaled)
    shared_output: bool = added(False)  # all critics share one output layer (WSRL)
    log_std_multiplier: float | None = added(1.0)  # initial scale of log-std, learned (null: none)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "both"  # both | offline (pre-training only) | online (checkpoint or from scratch)
    online: Online = group(Online, pretrain_steps=250_000, offline_ratio=0.5)

    def __post_init__(self):
        super().__post_init__()
        ensembles.check(self)
        require(
            self.phase == "offline" or self.online.offline_ratio is not None,
            "algo.online.offline_ratio=null is not possible, because Cal-QL needs returns of ended "
            "episodes. Set the offline share of a batch, as in 0.5",
        )


# What WSRL pre-trains with as well. Batch fields are (S, B, ...), losses (S,); `cfg` is either's.


def policy_loss(
    policy: TanhGaussian, critic: ManyActionCritics, alpha: Tensor, batch: Batch, noise: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Computes alpha * log pi(a|s) - min Q(s, a) at a ~ pi(.|s), over all critics. Also log pi `(S, B)`."""
    actions, log_pi = policy.sample_many(batch.observations, noise)
    frozen = {name: p.detach() for name, p in critic.named_parameters()}
    q = torch.func.functional_call(critic, frozen, (batch.observations, actions))
    log_pi = log_pi[:, 0]
    loss = (alpha.detach()[:, None] * log_pi - q.amin(1)[:, 0]).mean(-1)
    return loss, log_pi, {"policy_loss": loss, "entropy": -log_pi.mean(-1)}


@torch.no_grad()
def backup(
    policy: TanhGaussian,
    target: ManyActionCritics,
    discount: float,
    batch: Batch,
    noise: Tensor,
    subset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns y = r + discount * max_a' min Q'(s', a') over the drawn a' ~ pi(.|s'), `(S, B)`.

    Also returns their log-densities `(S, K, B)`. `subset` `(S, M)` are the critics of the minimum.
    """
    actions, log_pi = policy.sample_many(batch.next_observations, noise)
    q = ensembles.call(target, subset, batch.next_observations, actions)
    value, _ = conservative.max_backup(q)
    return batch.rewards + discount * (1 - batch.terminated) * value, log_pi


def calibrated_gap(
    cfg: Any, q: Tensor, sampled: Tensor, log_density: Tensor, returns: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns `conservative.gap` with the policy's values no lower than `returns` `(S, B)` (eq. 5.1).

    Also returns the share of the policy's samples that the returns bound, `(S,)`.
    """
    uniform, policy = sampled.split([cfg.samples, 2 * cfg.samples], dim=2)
    bound = returns[:, None, None]
    share = (policy < bound).to(policy.dtype).mean((1, 2, 3))
    if cfg.calibrate:
        sampled = torch.cat([uniform, torch.maximum(policy, bound)], 2)
    return conservative.gap(q, sampled, log_density, cfg.importance_sampling), share


def bellman_and_gap(
    cfg: Any,
    policy: TanhGaussian,
    critic: ManyActionCritics,
    batch: Batch,
    y: Tensor,
    returns: Tensor,
    noise: CQLNoise,
    uniforms: Tensor,
    subset: Tensor | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Returns the Bellman error of all critics, and the mean gap of those in `subset`, `(S,)` each.

    Targets and returns are `(S, B)`, uniforms `(S, samples, B, A)` on [0, 1).
    """
    states = batch.observations, batch.next_observations
    with torch.no_grad():
        actions, log_density = conservative.proposals(policy, *states, noise, uniforms)
    q = critic(batch.observations, batch.actions[:, None]).squeeze(2)
    bellman = (q - y[:, None]).square().mean(-1).sum(1)
    sampled = ensembles.call(critic, subset, batch.observations, actions)
    data_q = q if subset is None else q.gather(1, subset[..., None].expand(-1, -1, q.shape[2]))
    gaps, bounded = calibrated_gap(cfg, data_q, sampled, log_density, returns)
    gap = gaps.mean((1, 2))
    metrics = {
        "bellman_loss": bellman,
        "gap": gap,
        "bounded": bounded,
        "q": q.mean((1, 2)),
        "q_sampled": sampled.mean((1, 2, 3)),
        "target_q": y.mean(-1),
    }
    return bellman, gap, metrics


class CalQL(PolicyActing):
    """Cal-QL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        self.target_entropy = -float(spec.action_dim)
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        outer = networks.orthogonal(1e-2) if cfg.init == "authors" else networks.orthogonal()
        options = {"init": networks.orthogonal(), "output_init": outer}
        options["activation"] = cfg.mlp_options["activation"]
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        sizes = [O, *[cfg.hidden_width] * cfg.policy_layers, A]
        if cfg.log_std_multiplier is None:
            policy = TanhGaussian(sizes, spec.lead, rngs, **limits, **options)
        else:
            multiplier = cfg.log_std_multiplier
            policy = ScaledTanhGaussian(
                sizes, spec.lead, rngs, multiplier=multiplier, **limits, **options
            )
        norms = {"layer_norm": 1e-6, "norm_first": True} if cfg.layer_norm else {}
        sizes = [O, A, *[cfg.hidden_width] * cfg.critic_layers]
        heads = {"heads": cfg.critics, "shared_output": cfg.shared_output}
        critic = ManyActionCritics(sizes, rngs, **heads, **norms, **options)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        logarithm = cfg.tuning == "log"
        alpha = (
            networks.Scalar(0.0, spec.seeds) if logarithm else networks.SoftplusScalar(spec.seeds)
        )
        self.temperature = alpha.to(device)
        self.multiplier = networks.Scalar(1.0, spec.seeds).to(device)
        critics = [*self.critic.parameters(), *self.multiplier.parameters()]
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.policy_lr)
        self.temperature_optimizer = alpha
        q = self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        self._step = GradientStep(self.losses, (pi, alpha, q), spec.mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        value = self.temperature()  # its logarithm, but WSRL's is as it is
        return torch.exp(value) if self.cfg.tuning == "log" else value

    def losses(
        self, batch: Batch, returns: Tensor, noise: CQLNoise, uniforms: Tensor, subsets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds every loss of a step. No parameter is in two of them.

        Returns are `(S, B)`. Uniforms `(S, samples, B, A)` and subsets `(S, 2, critics)` are on [0, 1).
        """
        cfg, chosen = self.cfg, self.subset(subsets[:, 0])
        pi, log_pi, policy_metrics = policy_loss(
            self.policy, self.critic, self.alpha, batch, noise.actions
        )
        y, next_log_pi = backup(self.policy, self.target, cfg.discount, batch, noise.backup, chosen)
        penalised = self.subset(subsets[:, 1])
        bellman, gap, metrics = bellman_and_gap(
            cfg, self.policy, self.critic, batch, y, returns, noise, uniforms, penalised
        )
        penalty, multiplier_loss = self.penalty(gap)
        loss = pi + self.temperature_loss(log_pi, next_log_pi)
        loss = loss + (bellman + cfg.critics * penalty + multiplier_loss)
        return loss, metrics | policy_metrics | {"alpha": self.alpha}

    def subset(self, uniforms: Tensor) -> Tensor | None:
        """Returns the critics of a backup or a penalty, from uniform draws `(S, critics)`. None is all."""
        return ensembles.subset(uniforms, self.cfg.critics, self.cfg.critic_subsample)

    def temperature_loss(self, log_pi: Tensor, next_log_pi: Tensor) -> Tensor:
        """Computes -log alpha * (log pi + target entropy), the authors' form. SAC's eq. 18 has alpha.

        WSRL's: alpha * (entropy - target entropy) at the next states, from log-densities `(S, K, B)`.
        """
        if self.cfg.tuning == "softplus":
            return self.temperature() * (-next_log_pi.mean((1, 2)) - self.target_entropy)
        return -self.temperature() * (log_pi.detach() + self.target_entropy).mean(-1)

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conservative term per critic, and its multiplier's loss, from the mean gap `(S,)`."""
        if not self.cfg.lagrange:
            return self.cfg.weight * gap, torch.zeros_like(gap)
        excess = self.cfg.weight * (gap - self.cfg.threshold)
        multiplier = torch.exp(self.multiplier()).clamp(0, 1e6)
        return multiplier.detach() * excess, -multiplier * excess.detach()

    def update(
        self, batch: Batch, returns: Tensor, noise: CQLNoise, uniforms: Tensor, subsets: Tensor
    ) -> dict[str, Tensor]:
        """Takes one step of everything."""
        metrics = self._step(batch, returns, noise, uniforms, subsets)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics


build = CalQL


def train(cfg: Config, run: Run) -> None:
    label = return_labels.label_of(cfg)
    labels = partial(return_labels.per_episode, label=label)
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, labels=labels)
    agent = CalQL(cfg, run.spec(data, normalizer))
    phases = Phases(cfg, run, data, agent, label=label)
    noise = ConservativeNoise(cfg, run, data.action_dim)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=data, **noise.streams, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            batch, returns = phases.sample_labelled(step)
            metrics = update(batch, returns, *noise.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
