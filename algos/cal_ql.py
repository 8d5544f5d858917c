"""Cal-QL: Calibrated Q-Learning (Nakamoto, Zhai, Singh et al. 2023, arXiv:2303.05479).

CQL pushes the values of its policy's actions so far down that fine-tuning first has to unlearn it. Here
they are pushed no lower than the return that the data's behaviour got from the same state (eq. 5.1), so
that pre-trained values are on the environment's scale when fine-tuning begins.

    python algos/cal_ql.py task=corerl/pendulum steps=30000 algo.online.pretrain_steps=20000
    corerl train algo=cal_ql task=d4rl/antmaze-large-diverse-v2 seeds=5

Of `steps`, the first `online.pretrain_steps` are updates on the data and the others steps of the
environment, with one update each on a batch that is half the data's.

Differences from the paper and from the authors' code (nakamotoo/Cal-QL at ac6eafe):
 1. Fine-tuning makes an update after every step of the environment; the authors collect an episode and
    make as many updates as it has steps. Their later code (WSRL) does as here.
 2. A step's return is known when its episode has ended, so that batches leave out the running one; and
    the first update waits for the environment's time limit, when every seed has ended an episode (the
    authors' later code).
 3. The return of a time-limited episode is the sum to its end (authors). `failure_reward` names the raw
    reward of a step without success: an episode of nothing else counts reward / (1 - discount).
 4. The authors drop a time-limited episode's last row before they sum; here its reward counts.
 5. Only the policy's actions are bounded from below, not the uniform ones (paper and authors).
 6. There is no entropy in the backup, and it takes the best of `samples` next actions by the smaller
    critic (authors); `max_backup=false` takes one.
 7. `critics`, `asked` and `layer_norm` make the ensemble that WSRL pre-trains; two critics, all asked
    and not normalised, are Cal-QL's own.
 8. All losses come from the parameters at the start of a step (authors). Critics' losses are summed.
 9. CORL's port turns the calibration off while fine-tuning; the authors do not.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor, nn

from corerl import seeding
from corerl.algos.cql import Policy
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.nn import compile, ensembles, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "cal_ql"
    label: str = "Cal-QL"

    weight: float = 5.0  # of the conservative penalty
    samples: int = 10  # actions from each of the three proposals
    importance_sampling: bool = True
    calibrate: bool = True  # false: CQL
    failure_reward: float | None = None  # raw, of a step without success in a sparse task; see 3
    lagrange: bool = False  # the weight adapts so that the gap meets threshold
    threshold: float = 0.8

    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every update
    max_backup: bool = True  # the best of `samples` next actions
    critics: int = 2
    asked: int | None = None  # random critics in a backup or a penalty; null: all
    layer_norm: bool = False

    policy_lr: float = 1e-4  # also of the temperature
    critic_lr: float = 3e-4  # also of the Lagrange multiplier
    batch_size: int = 256
    policy_layers: int = 2
    critic_layers: int = 2
    hidden_width: int = 256
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "both"  # both | offline: pre-training alone | online: from a checkpoint
    online: Online = field(
        default_factory=lambda: Online(pretrain_steps=250_000, offline_ratio=0.5)
    )

    def __post_init__(self):
        check(self)
        require(self.weight >= 0, f"algo.weight={self.weight} must not be negative")
        require(self.samples > 0, f"algo.samples={self.samples} must be positive")
        asked = self.critics if self.asked is None else self.asked
        require(
            0 < asked <= self.critics,
            f"algo.asked={self.asked} must be a number of critics up to {self.critics}",
        )
        require(
            self.phase == "offline" or self.online.offline_ratio is not None,
            "algo.online.offline_ratio=null: returns are known of ended episodes only, so that the "
            "data's share must be a number",
        )


class CalQL(Stateful):
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
        self.target_entropy = -float(action_dim)
        self.uniform_log_density = -action_dim * math.log(2)  # of [-1, 1]^A
        policy, critic = self.make_networks(observation_dim, action_dim, rngs)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        temperature, multiplier = self.make_multipliers(len(rngs))
        self.temperature, self.multiplier = temperature.to(device), multiplier.to(device)
        critics = [*self.critic.parameters(), *self.multiplier.parameters()]
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        self.temperature_optimizer = optim.Adam(self.temperature.parameters(), cfg.policy_lr)
        self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        pi, alpha = self.policy_optimizer.parameters, self.temperature_optimizer.parameters
        self._gradients = compile.gradients(self.loss, [*pi, *alpha, *critics], mode)

    def make_networks(
        self, observation_dim: int, action_dim: int, rngs
    ) -> tuple[nn.Module, nn.Module]:
        """The policy and the critics, initialised."""
        cfg = self.cfg
        inits = {"init": networks.orthogonal(), "output_init": networks.orthogonal(1e-2)}
        sizes = [observation_dim, *[cfg.hidden_width] * cfg.policy_layers, action_dim]
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        policy = Policy(sizes, (len(rngs),), rngs, multiplier=1.0, **limits, **inits)
        sizes = [observation_dim + action_dim, *[cfg.hidden_width] * cfg.critic_layers, 1]
        norms = {"layer_norm": 1e-6, "norm_first": True} if cfg.layer_norm else {}
        return policy, ensembles.Critics(sizes, cfg.critics, rngs, **norms, **inits)

    def make_multipliers(self, seeds: int) -> tuple[nn.Module, nn.Module]:
        """The logarithms of the temperature and of the Lagrange multiplier."""
        return networks.Scalar(0.0, seeds), networks.Scalar(1.0, seeds)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, with its gradient."""
        return torch.exp(self.temperature())

    @property
    def draws(self) -> list[int]:
        """Normal actions per row: of the policy, for the backup, and proposals at s and s'."""
        backups = self.cfg.samples if self.cfg.max_backup else 1
        return [1, backups, self.cfg.samples, self.cfg.samples]

    # Losses. Batch fields are (S, B, ...), returns (S, B), noise (S, sum(draws), B, A), uniforms
    # (S, samples, B, A) and asked (S, 2, critics), all but noise uniform; each loss is (S,).

    def loss(
        self, batch: Batch, returns: Tensor, noise: Tensor, uniforms: Tensor, asked: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Every loss of a step; no parameter is in two of them."""
        one, backup, here, there = noise.split(self.draws, dim=1)
        policy, log_pi, more = self.policy_loss(batch, one)
        y, next_log_pi = self.backup(batch, backup, self.pick(asked[:, 0]))
        temperature = self.temperature_loss(log_pi, next_log_pi)
        proposals = self.proposals(batch, here, there, uniforms)
        critic, metrics = self.critic_loss(batch, y, returns, *proposals, self.pick(asked[:, 1]))
        return policy + temperature + critic, metrics | more

    def policy_loss(self, batch: Batch, noise: Tensor):
        """alpha * log pi(a|s) - min Q(s, a) at a ~ pi(.|s), over all critics; and log pi `(S, B)`."""
        mean, log_std = self.policy(batch.observations)
        actions, log_pi = policies.squash(mean[:, None], log_std[:, None], noise)
        frozen = {name: p.detach() for name, p in self.critic.named_parameters()}
        q = torch.func.functional_call(self.critic, frozen, (batch.observations, actions))
        log_pi = log_pi[:, 0]
        loss = (self.alpha.detach()[:, None] * log_pi - q.amin(1)[:, 0]).mean(-1)
        return loss, log_pi, {"policy_loss": loss, "entropy": -log_pi.mean(-1)}

    def temperature_loss(self, log_pi: Tensor, next_log_pi: Tensor) -> Tensor:
        """-log alpha * (log pi + target entropy), as the authors have it; SAC's eq. 18 has alpha."""
        return -self.temperature() * (log_pi.detach() + self.target_entropy).mean(-1)

    @torch.no_grad()
    def backup(self, batch: Batch, noise: Tensor, asked: Tensor | None) -> tuple[Tensor, Tensor]:
        """y = r + discount * max_a' min Q'(s', a') over the drawn a' ~ pi(.|s'), `(S, B)`.

        Also returns their log-densities `(S, n, B)`.
        """
        mean, log_std = self.policy(batch.next_observations)
        actions, log_pi = policies.squash(mean[:, None], log_std[:, None], noise)
        q = ensembles.call(self.target, asked, batch.next_observations, actions)
        value = q.amin(1).amax(1)
        return batch.rewards + self.cfg.discount * (1 - batch.terminated) * value, log_pi

    @torch.no_grad()
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

    def critic_loss(
        self,
        batch: Batch,
        y: Tensor,
        returns: Tensor,
        actions: Tensor,
        log_density: Tensor,
        asked: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The Bellman error of all critics, the penalty of those asked, and the multiplier's loss."""
        q = self.critic(batch.observations, batch.actions[:, None]).squeeze(2)
        bellman = (q - y[:, None]).square().mean(-1).sum(1)
        sampled = ensembles.call(self.critic, asked, batch.observations, actions)
        of_data = q if asked is None else q.gather(1, asked[..., None].expand(-1, -1, q.shape[2]))
        gap, bounded = self.gap(of_data, sampled, log_density, returns)
        penalty, multiplier_loss = self.penalty(gap.mean((1, 2)))
        metrics = {
            "bellman_loss": bellman,
            "gap": gap.mean((1, 2)),
            "bounded": bounded,
            "q": q.mean((1, 2)),
            "q_sampled": sampled.mean((1, 2, 3)),
            "target_q": y.mean(-1),
            "alpha": self.alpha,
        }
        return bellman + self.cfg.critics * penalty + multiplier_loss, metrics

    def gap(self, q: Tensor, sampled: Tensor, log_density: Tensor, returns: Tensor):
        """log sum exp of the samples, the policy's at least `returns`, less Q(s, a): `(S, M, B)`.

        Also returns the share of the policy's samples that the returns bound, `(S,)`.
        """
        chance, policy = sampled.split([self.cfg.samples, 2 * self.cfg.samples], dim=2)
        bound = returns[:, None, None]
        bounded = (policy < bound).to(policy.dtype).mean((1, 2, 3))
        if self.cfg.calibrate:
            policy = torch.maximum(policy, bound)
        values = torch.cat([chance, policy], 2)
        if self.cfg.importance_sampling:
            values = values - log_density[:, None]
        else:
            values = torch.cat([values, q[:, :, None]], 2)
        return torch.logsumexp(values, 2) - q, bounded

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """The conservative term per critic, and the loss of its multiplier, from the mean gap `(S,)`."""
        if not self.cfg.lagrange:
            return self.cfg.weight * gap, torch.zeros_like(gap)
        excess = self.cfg.weight * (gap - self.cfg.threshold)
        multiplier = torch.exp(self.multiplier()).clamp(0, 1e6)
        return multiplier.detach() * excess, -multiplier * excess.detach()

    def pick(self, uniforms: Tensor) -> Tensor | None:
        """The critics that are asked, from uniform draws `(S, critics)`; None where all are."""
        if self.cfg.asked is None:
            return None
        return ensembles.without_replacement(uniforms, self.cfg.critics, self.cfg.asked)

    def update(
        self, batch: Batch, returns: Tensor, noise: Tensor, uniforms: Tensor, asked: Tensor
    ) -> dict[str, Tensor]:
        """One step of everything."""
        grads, metrics = self._gradients(batch, returns, noise, uniforms, asked)
        optim.step(self.optimizers(), grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    def optimizers(self) -> tuple[optim.Adam, optim.Adam, optim.Adam]:
        """In the order of their gradients."""
        return self.policy_optimizer, self.temperature_optimizer, self.critic_optimizer

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        return self.policy.sample(self.normalizer(observations), noise)[0]

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """tanh of the mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy.mode(self.normalizer(observations))


def returns_to_go(rewards: np.ndarray, discount: float, failure: float | None) -> np.ndarray:
    """Discounted sums to the end of an episode, `(n,)`; see difference 3 for `failure`."""
    if failure is not None and (rewards == np.float32(failure)).all():
        return np.full(len(rewards), failure / (1 - discount))
    return lfilter([1.0], [1.0, -discount], rewards[::-1].astype(np.float64))[::-1]


def label_of(cfg: Config) -> partial:
    """`returns_to_go` of an episode's learned rewards, under these settings."""
    failure = cfg.failure_reward
    if failure is not None:
        failure = float(preprocessing.affine(np.float32(failure), np.float32(1), cfg.data))
    return partial(returns_to_go, discount=cfg.discount, failure=failure)


def per_episode(dataset: Dataset, label) -> np.ndarray:
    """`label` of each episode's rewards, `(N,)`."""
    return np.concatenate([label(r) for r in np.split(dataset.rewards, dataset.episode_ends[:-1])])


def random_numbers(agent: CalQL, run: Run, action_dim: int) -> dict[str, seeding.Stream]:
    """The streams that `update` takes, in its order."""
    cfg, seeds, device = agent.cfg, run.seeds, run.device
    per_action = (cfg.batch_size, action_dim)
    return {
        "noise": seeding.normal(seeds, "noise", (sum(agent.draws), *per_action), device, 32),
        "uniforms": seeding.uniform(seeds, "uniform", (cfg.samples, *per_action), device, 32),
        "asked": seeding.uniform(seeds, "asked", (2, cfg.critics), device),
    }


def train(cfg: Config, run: Run) -> None:
    label = label_of(cfg)
    data, normalizer = preprocessing.load(
        run, cfg.data, cfg.batch_size, labels=partial(per_episode, label=label)
    )
    sizes = (data.observation_dim, data.action_dim)
    agent = CalQL(cfg, *sizes, run.rngs(), normalizer=normalizer, device=run.device, mode=run.mode)
    phases = Phases(cfg, run, data, agent, label=label)
    draws = random_numbers(agent, run, data.action_dim)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=data, **draws, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            batch, returns = phases.sample_labelled(step)
            metrics = update(batch, returns, *(stream.next() for stream in draws.values()))
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
