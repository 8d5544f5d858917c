"""Conservative Q-Learning (Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779).

Soft actor-critic whose critics are pushed down on actions that the policy or chance would pick and up
on the data's actions: CQL(H), eq. 4, adds w * (log sum exp Q(s, .) - Q(s, a)) to the Bellman error.

    python algos/cql.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=cql task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=cql task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

The authors' code is known not to give the paper's numbers; the published ones that can be traced come
from CORL, whose CQL follows young-geng/CQL. That is the default; `table=cql_official` is the authors'.

Differences, each with its reason:
 1. The log-sum-exp is estimated from `samples` uniform actions, as many of pi(.|s) and as many of
    pi(.|s'), the last scored by Q at s like the others (every public code; the paper names the first
    two). `importance_sampling` weighs them by their densities; the constant 1/(3 * samples) is left out.
    `importance_sampling=false` is the authors' version 2: Q(s, a) joins the set, nothing is weighed.
 2. There is no entropy in the backup (authors and CORL); `backup_entropy=true` is SAC's.
 3. `max_backup` takes the best of `samples` next actions: `min_first` maximises the smaller critic
    (young-geng, CORL), `per_critic` each critic before the minimum (authors).
 4. Lagrange: `young_geng` holds alpha' * w * (gap - threshold), starting at alpha' = e, and `official`
    alpha' * (w * gap - threshold), starting at 1; a threshold does not carry over between them.
 5. Both critics have `critic_layers`. CORL's second critic always has three, so that its AntMaze runs
    pair five layers with three.
 6. All losses come from the parameters at the start of a step (young-geng, CORL); `order=alpha_first`
    moves the temperature before the others look at it (authors).
 7. `bc_steps` starts with policy steps on alpha * log pi - log pi(a_data), as the paper's code does on
    some sets. In CORL the switch exists but scores fresh samples instead of the data's actions.
 8. CORL's `orthogonal_init` reaches its critics only; `init=corl` does the same, `init=orthogonal` both.
 9. The authors also clamp the mean to +-9 inside the log-density; that is left out.
10. A state is passed once through the policy and once through the critics' first layer, however many
    actions are asked about; the numbers are the same.
11. Fine-tuning changes nothing but the data: actions are samples, the dataset is the replay's
    beginning, and the penalty keeps its weight (CORL, whose files set the same weight twice).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, ensembles, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "cql"
    label: str = "CQL"

    weight: float = 10.0  # w of the conservative penalty
    samples: int = 10  # actions from each of the three proposals
    temperature: float = 1.0  # T of T * log sum exp(Q / T)
    importance_sampling: bool = True
    gap_min: float | None = None  # each sample's log sum exp - Q(s, a) is clipped to this range
    gap_max: float | None = None
    lagrange: str = "off"  # off | young_geng | official: w adapts so that the gap meets threshold
    threshold: float = 0.8  # tau of the Lagrange version

    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every update
    max_backup: str = "off"  # off | min_first | per_critic
    backup_entropy: bool = False
    alpha: float = 1.0  # the temperature of the policy; where it is tuned, its factor
    tune_alpha: bool = True  # towards an entropy of minus the action dimension
    bc_steps: int = 0  # updates in which the policy clones the data

    policy_lr: float = 3e-5  # also of the temperature
    critic_lr: float = 3e-4  # also of the Lagrange multiplier
    batch_size: int = 256
    policy_layers: int = 3
    critic_layers: int = 3
    hidden_width: int = 256
    init: str = "corl"  # corl | orthogonal | xavier (young-geng's other) | official
    log_std_multiplier: float | None = 1.0  # start of a learned scale of the log-std; null for none
    log_std_min: float = -20.0
    log_std_max: float = 2.0

    order: str = "joint"  # joint (young-geng, CORL) | alpha_first (authors)
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    phase: str = "offline"  # offline | both: then online fine-tuning | online: from a checkpoint
    online: Online = field(default_factory=Online)

    def __post_init__(self):
        check(self)
        require(self.weight >= 0, f"algo.weight={self.weight} must not be negative")
        require(self.samples > 0, f"algo.samples={self.samples} must be positive")
        require(self.temperature > 0, f"algo.temperature={self.temperature} must be positive")
        require(self.bc_steps >= 0, f"algo.bc_steps={self.bc_steps} must not be negative")
        choices = {
            "lagrange": ("off", "young_geng", "official"),
            "max_backup": ("off", "min_first", "per_critic"),
            "init": ("corl", "orthogonal", "xavier", "official"),
            "order": ("joint", "alpha_first"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            require(value in known, f"algo.{name}={value} is not one of {', '.join(known)}")
        require(
            not (self.backup_entropy and self.max_backup == "per_critic"),
            "algo.backup_entropy=true needs one best action, and algo.max_backup=per_critic has two",
        )


class Policy(policies.TanhGaussian):
    """A squashed Gaussian with a learned scale and shift of its log-std (young-geng)."""

    def __init__(self, *args, multiplier: float, offset: float = -1.0, **kwargs):
        super().__init__(*args, **kwargs)
        seeds = self.body.layers[0].weight.shape[0]
        self.multiplier = networks.Scalar(multiplier, seeds)
        self.offset = networks.Scalar(offset, seeds)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(observations).chunk(2, dim=-1)
        scale, shift = self.multiplier()[:, None, None], self.offset()[:, None, None]
        return mean, (scale * log_std + shift).clamp(*self.limits)


class CQL(Stateful):
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
        seeds = len(rngs)
        policy, critic = _networks(cfg, observation_dim, action_dim, rngs)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.log_alpha = networks.Scalar(0.0, seeds).to(device)
        start = 1.0 if cfg.lagrange == "young_geng" else 0.0
        self.log_alpha_prime = networks.Scalar(start, seeds).to(device)
        self.normalizer = normalizer or nn.Identity()
        self.target_entropy = -float(action_dim)
        self.uniform_log_density = -action_dim * math.log(2)  # of [-1, 1]^A
        backups = 1 if cfg.max_backup == "off" else cfg.samples
        self.draws = [1, backups, cfg.samples, cfg.samples]  # policy, s', and proposals at s and s'

        critics = [*self.critic.parameters(), *self.log_alpha_prime.parameters()]
        self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.policy_lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        pi = self.policy_optimizer.parameters
        self._alpha_gradients = compile.gradients(
            self.alpha_loss, self.alpha_optimizer.parameters, mode
        )
        self._policy_gradients = compile.gradients(self.policy_loss, pi, mode)
        self._cloning_gradients = compile.gradients(self.cloning_loss, pi, mode)
        self._critic_gradients = compile.gradients(self.critic_loss, critics, mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        return self.cfg.alpha * torch.exp(self.log_alpha())

    # Losses. Batch fields are (S, B, ...), noise is (S, sum(draws), B, A); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-log alpha * (log pi + target entropy), as young-geng has it; SAC's eq. 18 has alpha."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise[:, 0])[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """alpha * log pi(a|s) - min(Q1, Q2)(s, a) at a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise[:, 0])
        q = self.critic(batch.observations, actions[:, None]).amin(1).squeeze(1)
        loss = (self.alpha.detach()[:, None] * log_pi - q).mean(-1)
        return loss, {"policy_loss": loss}

    def cloning_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The warm start's: alpha * log pi(a|s) - log pi(a_data|s)."""
        log_pi = self.policy.sample(batch.observations, noise[:, 0])[1]
        of_data = self.policy.log_prob(batch.observations, batch.actions)
        loss = (self.alpha.detach()[:, None] * log_pi - of_data).mean(-1)
        return loss, {"policy_loss": loss}

    def critic_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 4 for both critics, and the Lagrange multiplier's loss. `uniforms` (S, n, B, A)."""
        _, backup, here, there = noise.split(self.draws, dim=1)
        with torch.no_grad():
            y = self.backup(batch, backup)
            actions, log_density = self.proposals(batch, here, there, uniforms)
        everything = torch.cat([batch.actions[:, None], actions], 1)
        q, sampled = self.critic(batch.observations, everything).split([1, actions.shape[1]], 2)
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
        """y = r + discount * min Q'(s', a'), `(S, B)`; a' ~ pi(.|s') or the best of several."""
        mean, log_std = self.policy(batch.next_observations)
        actions, log_pi = policies.squash(mean[:, None], log_std[:, None], noise)
        q = self.target(batch.next_observations, actions)
        if self.cfg.max_backup == "per_critic":
            value = q.amax(2).amin(1)
        else:
            value, best = q.amin(1).max(1)
        if self.cfg.backup_entropy:
            log_pi = log_pi.gather(1, best[:, None]).squeeze(1)
            value = value - self.alpha[:, None] * log_pi
        return batch.rewards + self.cfg.discount * (1 - batch.terminated) * value

    def proposals(
        self, batch: Batch, here: Tensor, there: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Actions `(S, 3n, B, A)`: uniform, of pi(.|s), of pi(.|s'); their log-densities."""
        actions = [2 * uniforms - 1]
        log_densities = [torch.full_like(uniforms[..., 0], self.uniform_log_density)]
        for states, noise in ((batch.observations, here), (batch.next_observations, there)):
            mean, log_std = self.policy(states)
            action, log_pi = policies.squash(mean[:, None], log_std[:, None], noise)
            actions.append(action)
            log_densities.append(log_pi)
        return torch.cat(actions, 1), torch.cat(log_densities, 1)

    def gap(self, q: Tensor, sampled: Tensor, log_density: Tensor) -> Tensor:
        """T * log sum exp(Q / T) over the samples, less Q at the data's action: `(S, 2, B)`."""
        t = self.cfg.temperature
        if self.cfg.importance_sampling:
            values = sampled - log_density[:, None]
        else:
            values = torch.cat([sampled, q[:, :, None]], 2)
        gap = t * torch.logsumexp(values / t, dim=2) - q
        if self.cfg.gap_min is None and self.cfg.gap_max is None:
            return gap
        return gap.clamp(self.cfg.gap_min, self.cfg.gap_max)

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """The conservative term, and the loss of the multiplier, from gaps `(S, 2)`."""
        cfg = self.cfg
        if cfg.lagrange == "off":
            return cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        if cfg.lagrange == "young_geng":
            excess = cfg.weight * (gap - cfg.threshold)
        else:
            excess = cfg.weight * gap - cfg.threshold
        alpha_prime = torch.exp(self.log_alpha_prime()).clamp(0, 1e6)
        return alpha_prime.detach() * excess.sum(1), -alpha_prime * excess.detach().mean(1)

    def update(self, batch: Batch, noise: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
        """One step of everything."""
        return self._update(self._policy_gradients, batch, noise, uniforms)

    def warm_start(self, batch: Batch, noise: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
        """One step of everything, in which the policy clones the data."""
        return self._update(self._cloning_gradients, batch, noise, uniforms)

    def _update(self, policy_gradients, batch: Batch, noise: Tensor, uniforms: Tensor):
        alpha, metrics = self._alpha_gradients(batch, noise)
        if self.cfg.order == "alpha_first":
            self.alpha_optimizer.step(alpha)
        policy, more = policy_gradients(batch, noise)
        critic, most = self._critic_gradients(batch, noise, uniforms)
        if self.cfg.order == "joint":
            self.alpha_optimizer.step(alpha)
        self.policy_optimizer.step(policy)
        self.critic_optimizer.step(critic)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | more | most

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """tanh of the mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy.mode(self.normalizer(observations))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        return self.policy.sample(self.normalizer(observations), noise)[0]


def _networks(
    cfg: Config, observation_dim: int, action_dim: int, rngs: list[torch.Generator]
) -> tuple[policies.TanhGaussian, ensembles.Critics]:
    inner, outer = {
        "xavier": (networks.torch_init, networks.xavier(1e-2)),
        "orthogonal": (networks.orthogonal(), networks.orthogonal(1e-2)),
        "corl": (networks.orthogonal(), networks.orthogonal(1e-2)),
        "official": (networks.uniform(bias=0.1), networks.uniform(1e-3)),
    }[cfg.init]
    sizes = [observation_dim + action_dim, *[cfg.hidden_width] * cfg.critic_layers, 1]
    critic = ensembles.Critics(sizes, 2, rngs, init=inner, output_init=outer)
    if cfg.init == "corl":
        inner, outer = networks.torch_init, networks.xavier(1e-2)
    sizes = [observation_dim, *[cfg.hidden_width] * cfg.policy_layers, action_dim]
    limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
    inits = {"init": inner, "output_init": outer}
    if cfg.log_std_multiplier is None:
        return policies.TanhGaussian(sizes, (len(rngs),), rngs, **limits, **inits), critic
    policy = Policy(sizes, (len(rngs),), rngs, multiplier=cfg.log_std_multiplier, **limits, **inits)
    return policy, critic


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = CQL(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    per_action = (cfg.batch_size, buffer.action_dim)
    noise = seeding.normal(run.seeds, "noise", (sum(agent.draws), *per_action), run.device, 32)
    uniforms = seeding.uniform(run.seeds, "uniform", (cfg.samples, *per_action), run.device, 32)
    update = compile.captured(agent.update, run.mode)
    warm_start = compile.captured(agent.warm_start, run.mode)
    phases = Phases(cfg, run, buffer, agent)
    state = {"agent": agent, "buffer": buffer, "noise": noise, "uniforms": uniforms}
    for step in run.steps(**state, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            step_of_all = warm_start if step <= cfg.bc_steps else update
            metrics = step_of_all(phases.sample(step), noise.next(), uniforms.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
