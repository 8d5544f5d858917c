"""Conservative Q-Learning (Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779).

Soft actor-critic whose critics are pushed down on actions that the policy or chance would pick and up
on the data's actions: CQL(H), eq. 4, adds w * (log sum exp Q(s, .) - Q(s, a)) to the Bellman error.

    python algos/cql.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=cql task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=cql task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

The default is CORL's CQL, which follows young-geng/CQL. The published scores that can be traced come from it.
The authors' own code and NeoRL-2's are `cql_official`. CQL+ is `algo=cql_plus` (configs/cql_plus.yaml).

    item           paper             CORL, young-geng (the default)               switch
 1  proposals      uniform, pi(.|s)  and pi(.|s'), scored by Q at s like others   samples
 2  weighed by     their densities   densities alone, not 1 / (3 * samples)       importance_sampling
 3  max backup     -                 max of the smaller Q (AntMaze)               max_backup
 4  Lagrange loss  -                 a' * w * (gap - tau), a' begins at e         lagrange
 5  critics        -                 the second always has 3 layers; ours equal   critic_layers
 6  first weights  -                 orthogonal critics, outputs Glorot / 100     init
 7  fine-tuning    -                 the data alone changes                       phase
 8  alpha's loss   -                 log alpha's, at s                            tuning

CORL's AntMaze runs pair five layers with three, ours have `critic_layers` in both (5). Fine-tuning acts with
samples, the dataset is the replay's beginning, and the penalty keeps its weight. CORL's files set the same
weight twice (7), and make every layer orthogonal there, as `init=wsrl` does (6). On Kitchen the settings are
those with which WSRL pre-trains (zhouzypaul/wsrl at 891ee35). Its critics share an output layer, and its
alpha is a softplus, moved by the entropy at s' (8). A state is passed once through the policy and once
through the critics' first layer, however many actions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, within
from corerl.nn import compile, conservative, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.conservative import CQLNoise
from corerl.nn.critics import ManyActionCritics
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import ScaledTanhGaussian, TanhGaussian
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.run import Run

ORTHOGONAL, SMALL = networks.orthogonal(), networks.orthogonal(1e-2)
TORCH, GLOROT = networks.torch_init, networks.xavier(1e-2)
LECUN = networks.lecun, networks.variance_scaling(0.01)
WEIGHTS = {
    "corl": (ORTHOGONAL, SMALL, TORCH, GLOROT),
    "orthogonal": (ORTHOGONAL, SMALL, ORTHOGONAL, SMALL),
    "xavier": (TORCH, GLOROT, TORCH, GLOROT),
    "wsrl": (ORTHOGONAL, ORTHOGONAL, ORTHOGONAL, ORTHOGONAL),
    "offbench": (*LECUN, *LECUN),
}
"""First weights of the critics' hidden layers and outputs, and of the policy's."""


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "cql"
    label: str = "CQL"

    weight: float = at_least(0, 10.0)  # w, weight of the conservative penalty
    samples: int = positive(10)  # actions per proposal (uniform, policy at s and policy at s')
    temperature: float = positive(1.0)  # T in the penalty T * log sum exp(Q / T) - Q(s, a)
    importance_sampling: bool = True  # weights sampled actions by 1 / density (false: equally)
    gap_min: float | None = None  # lower limit of a row's log sum exp Q - Q(s, a) (null: none)
    gap_max: float | None = None  # upper limit of a row's log sum exp Q - Q(s, a) (null: none)
    lagrange: str = one_of("off", "young_geng")  # off | young_geng (scales w until the gap is tau)
    threshold: float = 0.8  # tau, the gap that lagrange aims for

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    max_backup: str = one_of("off", "min_first")  # off | min_first (target takes max of min Q)
    alpha: float = positive(1.0)  # temperature, or with tune_alpha=true a factor of the tuned one
    tune_alpha: bool = True  # tunes the temperature until the entropy is target_entropy
    target_entropy: float | None = added(None)  # entropy to reach (null: minus action dimension)
    tuning: str = added(one_of("log", "softplus"))  # log (learns log temperature) | softplus (WSRL)

    policy_lr: float = positive(3e-5)  # learning rate of policy and temperature
    critic_lr: float = positive(3e-4)  # learning rate of critics and Lagrange multiplier
    batch_size: int = positive(256)
    policy_layers: int = at_least(0, 3)
    critic_layers: int = positive(3)
    hidden_width: int = positive(256)
    init: str = one_of(*WEIGHTS)  # initial weights (xavier is young-geng's, offbench is CQL+'s)
    shared_output: bool = added(False)  # all critics share one output layer (WSRL)
    log_std_multiplier: float | None = 1.0  # initial scale of the log-std, learned (null: none)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)


class CQL(PolicyActing):
    """CQL agents of S seeds, trained together."""

    weights = WEIGHTS

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        policy, critic = _networks(cfg, spec, *self.weights[cfg.init])
        self.policy, self.critic = policy.to(spec.device), critic.to(spec.device)
        self.target = optim.target_of(self.critic)
        logarithm = cfg.tuning == "log"
        alpha = (
            networks.Scalar(0.0, spec.seeds) if logarithm else networks.SoftplusScalar(spec.seeds)
        )
        self.log_alpha = alpha.to(spec.device)
        start = 1.0 if cfg.lagrange == "young_geng" else 0.0
        self.log_alpha_prime = networks.Scalar(start, spec.seeds).to(spec.device)
        self.normalizer = spec.normalizer
        fallback = -float(spec.action_dim)
        self.target_entropy = fallback if cfg.target_entropy is None else cfg.target_entropy
        backups = 1 if cfg.max_backup == "off" else cfg.samples
        self.noise_counts = [1, backups, cfg.samples, cfg.samples]  # of the fields of CQLNoise

        critics = [*self.critic.parameters(), *self.log_alpha_prime.parameters()]
        alpha = self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.policy_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        q = self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        loss = self.alpha_loss if logarithm else self.softplus_loss
        self._alpha_step = GradientStep(loss, alpha, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        learned = self.log_alpha()  # a softplus already with tuning=softplus
        return self.cfg.alpha * (torch.exp(learned) if self.cfg.tuning == "log" else learned)

    # Losses. Batch fields are (S, B, ...), the policy's noise (S, B, A); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: CQLNoise) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -log alpha * (log pi + target entropy), young-geng's form. SAC's eq. 18 has alpha."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise.actions[:, 0])[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def softplus_loss(self, batch: Batch, noise: CQLNoise) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * (entropy at s' - target entropy), WSRL's form."""
        with torch.no_grad():
            log_pi = self.policy.sample_many(batch.next_observations, noise.backup)[1]
        entropy = -log_pi.mean((1, 2))
        loss = self.alpha * (entropy - self.target_entropy)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": entropy}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * log pi(a|s) - min(Q1, Q2)(s, a) at a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise)
        q = self.critic(batch.observations, actions[:, None]).amin(1).squeeze(1)
        loss = (self.alpha.detach()[:, None] * log_pi - q).mean(-1)
        return loss, {"policy_loss": loss}

    def critic_loss(
        self, batch: Batch, noise: CQLNoise, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds eq. 4 for both critics and the Lagrange multiplier's loss. `uniforms` (S, n, B, A)."""
        with torch.no_grad():
            y = self.backup(batch, noise.backup)
            states = batch.observations, batch.next_observations
            actions, log_density = conservative.proposals(self.policy, *states, noise, uniforms)
        all_actions = torch.cat([batch.actions[:, None], actions], 1)
        q, sampled = self.critic(batch.observations, all_actions).split([1, actions.shape[1]], 2)
        q = q.squeeze(2)
        bellman = (q - y[:, None]).square().mean(-1).sum(1)
        gap = self.gap(q, sampled, log_density).mean(-1)
        penalty, multiplier_loss = self.penalty(gap)
        metrics = {
            "bellman_loss": bellman,
            "gap": gap.mean(1),
            "alpha_prime": torch.exp(self.log_alpha_prime()),
            "q": q.mean((1, 2)),
            "q_sampled": sampled.mean((1, 2, 3)),
            "target_q": y.mean(-1),
        }
        return bellman + penalty + multiplier_loss, metrics

    def backup(self, batch: Batch, noise: Tensor) -> Tensor:
        """Returns y = r + discount * min Q'(s', a'), `(S, B)`, where a' ~ pi(.|s') or the best of several."""
        actions, _ = self.policy.sample_many(batch.next_observations, noise)
        value, _ = conservative.max_backup(self.target(batch.next_observations, actions))
        return batch.rewards + self.cfg.discount * (1 - batch.terminated) * value

    def gap(self, q: Tensor, sampled: Tensor, log_density: Tensor) -> Tensor:
        """Returns the gap of each sample, clipped: `(S, 2, B)`."""
        cfg = self.cfg
        unclipped = conservative.gap(
            q, sampled, log_density, cfg.importance_sampling, cfg.temperature
        )
        if cfg.gap_min is None and cfg.gap_max is None:
            return unclipped
        return unclipped.clamp(cfg.gap_min, cfg.gap_max)

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conservative term, and the loss of the multiplier, from gaps `(S, 2)`."""
        if self.cfg.lagrange == "off":
            return self.cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        return self.lagrangian(self.cfg.weight * (gap - self.cfg.threshold))

    def lagrangian(self, excess: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `penalty` with a multiplier that grows while the `excess` `(S, 2)` is positive."""
        multiplier = torch.exp(self.log_alpha_prime()).clamp(0, 1e6)
        return multiplier.detach() * excess.sum(1), -multiplier * excess.detach().mean(1)

    def update(self, batch: Batch, noise: CQLNoise, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything. All gradients are of the parameters before it."""
        alpha, metrics = self._alpha_step.gradients(batch, noise)
        policy, policy_metrics = self._policy_step.gradients(batch, noise.actions[:, 0])
        critic_metrics = self._critic_step(batch, noise, uniforms)
        self._alpha_step.apply(alpha)
        self._policy_step.apply(policy)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | policy_metrics | critic_metrics


def _networks(
    cfg: Config, spec: Spec, q_hidden: Any, q_output: Any, pi_hidden: Any, pi_output: Any
) -> tuple[TanhGaussian, ManyActionCritics]:
    """Makes policy and critics. The last four arguments draw the first weights."""
    O, A, rngs = spec.observation_dim, spec.action_dim, spec.rngs
    options = {"init": q_hidden, "output_init": q_output, "shared_output": cfg.shared_output}
    sizes = [O, A, *[cfg.hidden_width] * cfg.critic_layers]
    critic = ManyActionCritics(sizes, rngs, **options, **cfg.mlp_options)
    options = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
    options |= {"init": pi_hidden, "output_init": pi_output} | cfg.mlp_options
    sizes = [O, *[cfg.hidden_width] * cfg.policy_layers, A]
    if cfg.log_std_multiplier is None:
        return TanhGaussian(sizes, spec.lead, rngs, **options), critic
    options["multiplier"] = cfg.log_std_multiplier
    return ScaledTanhGaussian(sizes, spec.lead, rngs, **options), critic


build = CQL


def train(cfg: Config, run: Run) -> None:
    learn(CQL, cfg, run)


def learn(kind: type[CQL], cfg: Config, run: Run, cloned: int = 0) -> None:
    """Trains CQL, or an agent that changes its update. The first `cloned` updates are its `warm_start`."""
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = kind(cfg, run.spec(buffer, normalizer))
    per_action = (cfg.batch_size, buffer.action_dim)
    normal = run.normal("noise", sum(agent.noise_counts), *per_action, block=32)
    uniforms = run.uniform("uniform", cfg.samples, *per_action, block=32)
    update = compile.captured(agent.update, run.mode)
    warm_start = compile.captured(agent.warm_start, run.mode) if cloned else update
    phases = Phases(cfg, run, buffer, agent)
    state = {"agent": agent, "buffer": buffer, "noise": normal, "uniforms": uniforms}
    for step in run.steps(**state, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            step_of_all = warm_start if step <= cloned else update
            noise = CQLNoise(*normal.next().split(agent.noise_counts, 1))
            metrics = step_of_all(phases.sample(step), noise, uniforms.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
