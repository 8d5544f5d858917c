"""CRR: Critic Regularized Regression (Wang et al. 2020, arXiv:2006.15134).

Cloning, filtered by a critic of the policy itself. The policy maximises f * log pi(a|s) over the data,
where f is 1 for actions above the policy's average and 0 for the others (binary), or min(exp(A /
temperature), 20):

    A = Q(s, a) - mean of Q(s, a_j) over `samples` actions a_j ~ pi(.|s).

The critics learn r + discount * min Q'(s', a') with a' of the target policy.

    python algos/crr.py task=corerl/pendulum steps=10000 seeds=3
    corerl train algo=crr task=d4rl/hopper-medium-v0 seeds=10
    corerl train algo=crr_plus task=d4rl/hopper-medium-v2 seeds=4

The default is d3rlpy's (takuseno/d3rlpy at 38c34b6, reproductions/offline/crr.py), whose scores are
published. `algo=crr_plus` is CRR+ (Kang et al. 2023, arXiv:2306.00972; sail-sg/offbench at 4cd9efc,
configs/crr_cfgs.py). We had only the abstracts of the papers, so the description of CRR is our reading of
these two.

    item               d3rlpy                         offbench, CRR+                     switch
 1  filter             binary                         exp                                filter
 2  policy             Gaussian around tanh(mean)     squashed by tanh, a learned scale  policy
                                                      and shift of the log-std
 3  critics            one                            the smaller of two                 critics
 4  critic's loss      squared error                  errors above the target count 0.7, pessimism
                                                      those below 0.3
 5  samples            4                              50                                 samples
 6  order              critics, then the policy       all at a step's start              order
 7  layers             ReLU                           LayerNorm before each ReLU         norm_first
 8  first weights      torch's                        LeCun's, outputs of 1 % variance   init
 9  acts               one of 4 samples, by the       the mean; so is ours               -
                       softmax of their Q
10  samples for A      not clipped                    within the bounds; so are ours     -
11  mean and log-std   share their hidden layers;     two networks, the mean clipped     -
                       so do ours                     at 9
12  rewards            as they are                    Adroit, Kitchen: scaled to [-1, 1] -
                                                      by the data's range; ours are not

d3rlpy's scores come from acting as in 9. Its default copies targets every 100 updates. In its reproduction,
and here, they follow softly. offbench's `use_automatic_entropy_tuning` and `update_target_policy` change
nothing. With one sample, `filter=exp` weighs a row as AWAC does.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, expectile_loss
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import ScaledTanhGaussian, gaussian_log_prob
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "crr"
    label: str = "CRR"

    filter: str = one_of("binary", "exp")  # binary (weight 1 if advantage > 0) | exp (exponential)
    temperature: float = positive(1.0)  # divides the advantage in the exponent (filter=exp)
    max_weight: float = positive(20.0)  # largest weight of a row (filter=exp)
    baseline: str = one_of("mean", "max")  # advantage is Q minus mean | max Q of sampled actions
    samples: int = positive(4)  # actions sampled per state for the advantage's baseline
    critics: int = positive(1)  # number of critics (the smallest value counts)
    pessimism: float = within(0.5, "(0, 1)")  # weight of Q errors above the target (0.5: symmetric)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    order: str = one_of("critic_first", "joint")  # critic_first | joint (all at once, CRR+)

    policy: str = one_of("gaussian", "squashed")  # gaussian (mean through tanh) | squashed (CRR+)
    policy_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    norm_first: bool = False  # adds a LayerNorm before each activation (CRR+)
    init: str = one_of("torch", "offbench")  # initial weights, torch | offbench (LeCun's, for CRR+)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)


class CRRNoise(NamedTuple):
    """Standard normal draws for samples of the policies."""

    next_actions: Tensor  # (S, B, A)
    actions: Tensor  # (S, K, B, A)


class GaussianOfState(nn.Module):
    """A Gaussian around tanh of the mean. Mean and log-std depend on the state.

    Args:
        sizes: features of the observation, of each hidden layer, and of the action.
        lead, rngs, others: as for `MLP`. log_std_min, log_std_max: the log-std is clamped to this range.
    """

    def __init__(self, sizes, lead, rngs, *, log_std_min: float, log_std_max: float, **others):
        super().__init__()
        self.body = networks.MLP([*sizes[:-1], 2 * sizes[-1]], lead, rngs, **others)
        self.limits = (log_std_min, log_std_max)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean within the bounds and the log-std, `(S, B, A)` each."""
        mean, log_std = self.body(observations).chunk(2, -1)
        return torch.tanh(mean), log_std.clamp(*self.limits)

    def gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and log-std of the normal whose draws are clipped."""
        return self(observations)

    def draw(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions `(S, B, A)` with normal noise, clipped to the bounds."""
        return self.sample_many(observations, noise[:, None])[0][:, 0]

    def sample_many(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, None]:
        """Samples K actions per state `(S, K, B, A)`, from noise of that shape."""
        mean, log_std = (x[:, None] for x in self(observations))
        return (mean + torch.exp(log_std) * noise).clamp(-1, 1), None

    def mode(self, observations: Tensor) -> Tensor:
        """Returns the mean `(S, B, A)`."""
        return self(observations)[0]

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, B)` of given actions, before clipping."""
        return gaussian_log_prob(*self(observations), actions)


class CRR(PolicyActing):
    """CRR agents of S seeds, trained together."""

    policy: GaussianOfState | ScaledTanhGaussian

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        policy, critic = _networks(cfg, spec)
        self.policy, self.critic = policy.to(spec.device), critic.to(spec.device)
        self.target_policy = optim.target_of(self.policy)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        self._policy_step = GradientStep(self.policy_loss, self.policy_optimizer, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses all critics towards r + discount * min Q'(s', a'), a' of the target policy."""
        with torch.no_grad():
            next_actions = self.target_policy.draw(batch.next_observations, noise)
            next_q = self.target_critic(batch.next_observations, next_actions).amin(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        q = self.critic(batch.observations, batch.actions)
        errors = 2 * expectile_loss(y[:, None] - q, 1 - self.cfg.pessimism)  # the square at 0.5
        loss = errors.mean(-1).sum(1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighs -log pi(a|s) by the filter of A. `noise` (S, K, B, A)."""
        with torch.no_grad():
            advantage = self.advantage(batch, noise)
            weight = self.filter(advantage)
        log_prob = self.policy.log_prob(batch.observations, batch.actions)
        loss = -(weight * log_prob).mean(-1)
        metrics = {"policy_loss": loss, "advantage": advantage.mean(-1)}
        return loss, metrics | {"weight": weight.mean(-1)}

    def advantage(self, batch: Batch, noise: Tensor) -> Tensor:
        """Returns A `(S, B)`: min Q at the data's action less its mean, or maximum, over the policy's."""
        samples = noise.shape[1]
        actions, _ = self.policy.sample_many(batch.observations, noise)
        states = batch.observations[:, None].expand(-1, samples, -1, -1)
        sampled = self.critic(states.flatten(1, 2), actions.flatten(1, 2)).amin(1)
        sampled = sampled.unflatten(1, (samples, -1))
        baseline = sampled.mean(1) if self.cfg.baseline == "mean" else sampled.amax(1)
        return self.critic(batch.observations, batch.actions).amin(1) - baseline

    def filter(self, advantage: Tensor) -> Tensor:
        """Returns f of advantages `(S, B)`."""
        if self.cfg.filter == "binary":
            return (advantage > 0).to(advantage.dtype)
        return torch.exp(advantage / self.cfg.temperature).clamp(max=self.cfg.max_weight)

    def update(self, batch: Batch, noise: CRRNoise) -> dict[str, Tensor]:
        """Takes one step of critics and policy."""
        if self.cfg.order == "joint":
            critic, metrics = self._critic_step.gradients(batch, noise.next_actions)
            metrics |= self._policy_step(batch, noise.actions)
            self._critic_step.apply(critic)
        else:
            metrics = self._critic_step(batch, noise.next_actions)
            metrics |= self._policy_step(batch, noise.actions)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_policy, self.policy, self.cfg.polyak)
        return metrics


def _networks(cfg: Config, spec: Spec) -> tuple[GaussianOfState | ScaledTanhGaussian, Critics]:
    O, A, rngs = spec.observation_dim, spec.action_dim, spec.rngs
    hidden = [cfg.hidden_width] * cfg.hidden_layers
    inits = {
        "torch": (networks.torch_init, None),
        "offbench": (networks.lecun, networks.variance_scaling(0.01)),
    }[cfg.init]
    options = cfg.mlp_options | dict(zip(("init", "output_init"), inits, strict=True))
    if cfg.norm_first:
        options |= {"layer_norm": 1e-6, "norm_first": True}
    critic = Critics([O, A, *hidden], rngs, cfg.critics, **options)
    options |= {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
    sizes = [O, *hidden, A]
    if cfg.policy == "squashed":
        return ScaledTanhGaussian(sizes, spec.lead, rngs, multiplier=1.0, **options), critic
    return GaussianOfState(sizes, spec.lead, rngs, **options), critic


build = CRR


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = CRR(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", 1 + cfg.samples, cfg.batch_size, buffer.action_dim, block=32)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise):
        drawn = noise.next()
        metrics = update(buffer.sample(), CRRNoise(drawn[:, 0], drawn[:, 1:]))
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
