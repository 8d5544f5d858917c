"""Conservative Q-Learning (Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779).

Soft actor-critic whose critics are pushed down on actions that the policy or chance would pick and up
on the data's actions: CQL(H), eq. 4, adds w * (log sum exp Q(s, .) - Q(s, a)) to the Bellman error.

    python algos/cql.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=cql task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=cql task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

The authors' code is known not to give the paper's numbers; the published ones that can be traced come
from CORL, whose CQL follows young-geng/CQL. That is the default; `table=cql_official` is the authors'.

    item              paper             authors                  CORL, young-geng         switch
 1  proposals         uniform, pi(.|s)  and pi(.|s'), scored by  as the authors           samples
                                        Q at s like the others
 2  weighed by        their densities   or not, Q(s, a) joining  densities alone, not     importance_sampling
                                        them (version 2)         1 / (3 * samples)
 3  backup's entropy  -                 none                     none                     backup_entropy
 4  max backup        -                 max per critic, min      max of the smaller Q     max_backup
 5  Lagrange loss     -                 a' * (w * gap - tau)     a' * w * (gap - tau)     lagrange
    alpha' begins at  -                 1                        e                        lagrange
 6  critics' depth    -                 equal                    second always 3 layers   critic_layers
 7  order             -                 alpha is moved first     all at a step's start    order
 8  warm start        clones the data   40,000 updates, on all   scores fresh samples,    bc_steps
                      in its code       sets                     not the data's actions
 9  initial weights   -                 rlkit's: outputs +-1e-3, orthogonal critics,      init
                                        critics' +-3e-3          outputs Glorot / 100
10  mean in log pi    -                 clamped to +-9           as it is                 -
11  fine-tuning       -                 -                        the data alone changes   phase
12  alpha's loss      -                 log alpha's, at s        log alpha's, at s        tuning

SAC's entropy in the backup (3) is `backup_entropy=true`; `init=orthogonal` is of both (9), and so is
`init=wsrl`, whose outputs are orthogonal, too. rlkit draws hidden weights on +-1/sqrt of a layer's
outputs, for its inputs, and begins targets at weights of their own, ours at the critics' (9). On Kitchen
the settings are those with which WSRL pre-trains (zhouzypaul/wsrl at 891ee35): its alpha is a softplus,
moved by the entropy at s' (12). A threshold tau does not carry over between the two Lagrange losses (5).
CORL's AntMaze runs pair five layers with three, ours have `critic_layers` in both (6). Cloning is by the
data's actions (8). Fine-tuning acts with samples, the dataset is the replay's beginning and the penalty
keeps its weight; CORL's files set the same weight twice (11), and make every layer orthogonal there, as
`init=wsrl` does. `algo=cql_neorl2` is that of the NeoRL-2 benchmark (offlinerl 0.0.2), which follows the
authors but for its order (each is moved before the next looks), weights (torch's) and the entropy in its
backup. A state is passed once through the policy and once through the critics' first layer,
however many actions: the numbers are the same.

`algo=cql_plus` is CQL+ (Kang et al. 2023, arXiv:2306.00972; sail-sg/offbench at 4cd9efc,
configs/cql_cfgs.py). It has 50 samples, a target entropy of 0, LeCun's first weights with small outputs,
and ELUs. In offbench the policy has ReLUs, its mean and log-std are two networks, and the mean is clipped
at 9. It scales rewards of Adroit and Kitchen to [-1, 1] by the data's range, after a clip on Adroit. Ours
does neither.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, require, within
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


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "cql"
    label: str = "CQL"

    weight: float = at_least(0, 10.0)  # w, weight of the conservative penalty
    samples: int = positive(10)  # actions per proposal: uniform, policy at s and policy at s'
    temperature: float = positive(1.0)  # T in the penalty's T * log sum exp(Q / T)
    importance_sampling: bool = True  # weighs sampled actions by 1 / density (false: not at all)
    gap_min: float | None = None  # lower clip of each sample's log sum exp Q - Q(s, a) (null: none)
    gap_max: float | None = None  # upper clip of each sample's log sum exp Q - Q(s, a) (null: none)
    lagrange: str = one_of("off", "young_geng", "official")  # off | adapts w: young_geng | official
    threshold: float = 0.8  # tau, gap that lagrange holds (official: w * gap, below 0: fixed w)

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    max_backup: str = one_of(  # off | min_first: max of min Q over samples | per_critic: min of max
        "off", "min_first", "per_critic"
    )
    backup_entropy: bool = False  # adds the policy's entropy to the backup, as SAC does
    alpha: float = positive(1.0)  # temperature of the policy (tune_alpha=true: its factor)
    tune_alpha: bool = True  # tunes the temperature until the entropy is target_entropy
    target_entropy: float | None = added(None)  # entropy to reach (null: minus action dimension)
    tuning: str = added(one_of("log", "softplus"))  # temperature, learned as log | softplus (WSRL)
    bc_steps: int = at_least(0, 0)  # first updates, in which the policy clones the data

    policy_lr: float = positive(3e-5)  # learning rate of policy and temperature
    critic_lr: float = positive(3e-4)  # learning rate of critics and Lagrange multiplier
    batch_size: int = positive(256)
    policy_layers: int = at_least(0, 3)
    critic_layers: int = positive(3)
    hidden_width: int = positive(256)
    init: str = one_of(  # first weights (xavier: young-geng, torch: NeoRL-2, offbench: CQL+)
        "corl", "orthogonal", "xavier", "official", "wsrl", "torch", "offbench"
    )
    shared_output: bool = added(False)  # all critics share one output layer (WSRL)
    log_std_multiplier: float | None = 1.0  # start of a learned log-std scale (null: none)
    log_std_min: float = -20.0
    log_std_max: float = 2.0

    order: str = one_of(  # joint: at once (CORL) | alpha_first (authors) | in_turn (NeoRL-2)
        "joint", "alpha_first", "in_turn"
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.backup_entropy and self.max_backup == "per_critic"),
            "algo.backup_entropy=true needs one best action, but algo.max_backup=per_critic "
            "chooses one for each critic",
        )


class CQL(PolicyActing):
    """S independent learners."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        policy, critic = _networks(cfg, spec)
        self.policy, self.critic = policy.to(spec.device), critic.to(spec.device)
        self.target = optim.target_of(self.critic)
        logarithm = cfg.tuning == "log"
        alpha = networks.Scalar(0.0, spec.seeds) if logarithm else networks.Positive(spec.seeds)
        self.log_alpha = alpha.to(spec.device)
        start = 1.0 if cfg.lagrange == "young_geng" else 0.0
        self.log_alpha_prime = networks.Scalar(start, spec.seeds).to(spec.device)
        self.normalizer = spec.normalizer
        fallback = -float(spec.action_dim)
        self.target_entropy = fallback if cfg.target_entropy is None else cfg.target_entropy
        backups = 1 if cfg.max_backup == "off" else cfg.samples
        self.draws = [1, backups, cfg.samples, cfg.samples]  # K of each field of Noise

        critics = [*self.critic.parameters(), *self.log_alpha_prime.parameters()]
        alpha = self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.policy_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        q = self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        loss = self.alpha_loss if logarithm else self.softplus_loss
        self._alpha_step = GradientStep(loss, alpha, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode)
        self._cloning_step = GradientStep(self.cloning_loss, pi, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        alpha = self.log_alpha()  # which WSRL has as it is
        return self.cfg.alpha * (torch.exp(alpha) if self.cfg.tuning == "log" else alpha)

    # Losses. Batch fields are (S, B, ...), the temperature's and the policy's noise (S, B, A); each loss
    # is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -log alpha * (log pi + target entropy), young-geng's form. SAC's eq. 18 has alpha."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise)[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def softplus_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * (entropy at s' - target entropy), WSRL's form. Noise (S, K, B, A)."""
        with torch.no_grad():
            log_pi = self.policy.sample_many(batch.next_observations, noise)[1]
        entropy = -log_pi.mean((1, 2))
        loss = self.alpha * (entropy - self.target_entropy)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": entropy}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * log pi(a|s) - min(Q1, Q2)(s, a) at a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise)
        q = self.critic(batch.observations, actions[:, None]).amin(1).squeeze(1)
        loss = (self.alpha.detach()[:, None] * log_pi - q).mean(-1)
        return loss, {"policy_loss": loss}

    def cloning_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the warm start's loss: alpha * log pi(a|s) - log pi(a_data|s)."""
        log_pi = self.policy.sample(batch.observations, noise)[1]
        data_log_pi = self.policy.log_prob(batch.observations, batch.actions)
        loss = (self.alpha.detach()[:, None] * log_pi - data_log_pi).mean(-1)
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
        actions, log_pi = self.policy.sample_many(batch.next_observations, noise)
        q = self.target(batch.next_observations, actions)
        if self.cfg.max_backup == "per_critic":
            value = q.amax(2).amin(1)
        else:
            value, best = conservative.max_backup(q)
        if self.cfg.backup_entropy:
            log_pi = log_pi.gather(1, best[:, None]).squeeze(1)
            value = value - self.alpha[:, None] * log_pi
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
        cfg = self.cfg
        if cfg.lagrange == "off" or (cfg.lagrange == "official" and cfg.threshold < 0):
            return cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        if cfg.lagrange == "young_geng":
            excess = cfg.weight * (gap - cfg.threshold)
        else:
            excess = cfg.weight * gap - cfg.threshold
        alpha_prime = torch.exp(self.log_alpha_prime()).clamp(0, 1e6)
        return alpha_prime.detach() * excess.sum(1), -alpha_prime * excess.detach().mean(1)

    def update(self, batch: Batch, noise: CQLNoise, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything."""
        return self._update(self._policy_step, batch, noise, uniforms)

    def warm_start(self, batch: Batch, noise: CQLNoise, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything, in which the policy clones the data."""
        return self._update(self._cloning_step, batch, noise, uniforms)

    def _update(self, policy_step: GradientStep, batch: Batch, noise: CQLNoise, uniforms: Tensor):
        policy_noise, order = noise.actions[:, 0], self.cfg.order
        at = policy_noise if self.cfg.tuning == "log" else noise.backup
        alpha, metrics = self._alpha_step.gradients(batch, at)
        if order != "joint":
            self._alpha_step.apply(alpha)
        policy, policy_metrics = policy_step.gradients(batch, policy_noise)
        if order == "in_turn":
            policy_step.apply(policy)
        critic_metrics = self._critic_step(batch, noise, uniforms)
        if order == "joint":
            self._alpha_step.apply(alpha)
        if order != "in_turn":
            policy_step.apply(policy)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | policy_metrics | critic_metrics


def _networks(cfg: Config, spec: Spec) -> tuple[TanhGaussian, ManyActionCritics]:
    O, A, rngs = spec.observation_dim, spec.action_dim, spec.rngs
    inner, outer = {
        "xavier": (networks.torch_init, networks.xavier(1e-2)),
        "orthogonal": (networks.orthogonal(), networks.orthogonal(1e-2)),
        "corl": (networks.orthogonal(), networks.orthogonal(1e-2)),
        "official": (networks.uniform(bias=0.1, fan="out"), networks.uniform(3e-3)),
        "wsrl": (networks.orthogonal(), networks.orthogonal()),
        "torch": (networks.torch_init, networks.torch_init),
        "offbench": (networks.lecun, networks.lecun_uniform(0.01)),
    }[cfg.init]
    sizes = [O, A, *[cfg.hidden_width] * cfg.critic_layers]
    shared = {"shared_output": cfg.shared_output}
    critic = ManyActionCritics(
        sizes, rngs, init=inner, output_init=outer, **shared, **cfg.mlp_options
    )
    if cfg.init == "corl":
        inner, outer = networks.torch_init, networks.xavier(1e-2)
    if cfg.init == "official":
        outer = networks.uniform(1e-3)
    sizes = [O, *[cfg.hidden_width] * cfg.policy_layers, A]
    limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
    others = {"init": inner, "output_init": outer} | limits | cfg.mlp_options
    if cfg.log_std_multiplier is None:
        return TanhGaussian(sizes, spec.lead, rngs, **others), critic
    multiplier = cfg.log_std_multiplier
    return ScaledTanhGaussian(sizes, spec.lead, rngs, multiplier=multiplier, **others), critic


build = CQL


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = CQL(cfg, run.spec(buffer, normalizer))
    per_action = (cfg.batch_size, buffer.action_dim)
    normal = run.normal("noise", sum(agent.draws), *per_action, block=32)
    uniforms = run.uniform("uniform", cfg.samples, *per_action, block=32)
    update = compile.captured(agent.update, run.mode)
    warm_start = compile.captured(agent.warm_start, run.mode)
    phases = Phases(cfg, run, buffer, agent)
    cloned = 0 if cfg.online.checkpoint else cfg.bc_steps  # a policy that goes on has been cloned
    state = {"agent": agent, "buffer": buffer, "noise": normal, "uniforms": uniforms}
    for step in run.steps(**state, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            step_of_all = warm_start if step <= cloned else update
            noise = CQLNoise(*normal.next().split(agent.draws, 1))
            metrics = step_of_all(phases.sample(step), noise, uniforms.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
