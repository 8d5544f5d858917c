"""CODAC: conservative offline distributional actor-critic (Ma, Jayaraman and Bastani 2021, arXiv:2107.06106).

CQL's penalty, on the quantiles of a distributional critic: Z is pushed down where the policy or chance
would act and up at the data's actions, so that its quantiles are lower bounds. The actor is SAC's, on a
risk measure of Z: its mean (CODAC-N) or CVaR (CODAC-C).

    python algos/codac.py task=risk/pointmass steps=20000 seeds=3
    corerl train -m algo=codac task=risk/pointmass algo.objective=naive,mean eval.episodes=200

The objective is `naive` (risk/distortions.py): CVaR at tau of the return to come, state by state. Static
CVaR of the whole return, which reports show beside it, is another objective: algo=cvar_offline.

What differs, and its switch. The authors' code is JasonMa2016/CODAC (its version 2), and the default; of the
paper only its abstract was at hand, so that what is said of it here is our reading.

    item             paper              authors' code                    switch
 1  penalty at       mean over all N    one of the N fractions, drawn    penalty_fractions (32: all)
                     fractions          anew for each update
 2  CVaR's weights   1/tau              cut at 5 (from DSAC), so that    weight_limit (null: 1/tau)
                                        CVaR at 0.1 is halved against
                                        the entropy
 3  target entropy   -                  -3 whatever the action           target_entropy (null, the default:
                                                                         minus the action's dimension)
 4  target networks  -                  weights of their own at first;   -
                                        ours: copies
 5  log-density      -                  1e-6 inside the logarithm;       -
                                        ours: exact
 6  policy's first   -                  mean and std are Glorot's on     -
    outputs                             their own; ours: together, up
                                        to 5 % smaller
 7  left out         -                  a falling risk level, cloning    -
                                        first, fixed or learned
                                        fractions: in no file of theirs
 8  evaluation       -                  one episode on D4RL, of which     eval.episodes
                                        CVaR at 0.1 is the mean of
                                        none; 100 on PointMass
 9  PointMass        -                  raw actions of +-0.1: 4.6 nats   -
                                        more log-density, and most of
                                        the penalty's uniform actions
                                        cannot be played; ours: of +-1

The penalty's second part, at the data's actions, is over all N in both.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, conservative, embeddings, ensembles, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.conservative import CQLNoise
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.policies import TanhGaussian
from corerl.risk import distortions
from corerl.risk.quantiles import huber_quantile_loss, partition
from corerl.training import preprocessing, risk_summary
from corerl.training.run import Run


@dataclass
class Config(distortions.Distortion):
    name: str = "codac"
    label: str = "CODAC"

    objective: str = one_of(  # naive (CVaR of the future return) | wang (Wang's measure) | mean
        "naive", "wang", "mean"
    )
    weight_limit: float | None = positive(5.0)  # largest weight of a quantile in CVaR (null: none)

    weight: float = at_least(0, 10.0)  # omega, weight of the conservative penalty
    threshold: float | None = 10.0  # zeta, target of omega * gap (null: no Lagrange multiplier)
    samples: int = positive(10)  # actions per proposal (uniform, policy at s and policy at s')
    penalty_fractions: int = positive(1)  # quantile fractions drawn for the penalty (paper: all)

    fractions: int = positive(32)  # N, quantile fractions drawn for prediction and for target
    kappa: float = at_least(0, 1.0)  # error above which the quantile loss is linear (0: always)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    alpha: float = at_least(0, 0.2)  # temperature of the policy's entropy if tune_alpha=false
    tune_alpha: bool = False  # tunes the temperature, from 1, until the entropy is target_entropy
    target_entropy: float | None = None  # entropy to reach (null: -action dimension, authors: -3)

    policy_lr: float = positive(3e-5)  # learning rate of policy and temperature
    critic_lr: float = positive(3e-4)  # learning rate of critics and Lagrange multiplier
    cosine: bool = False  # learning rates of policy and critics decay to 0 (not in the paper)
    batch_size: int = positive(256)
    hidden_layers: int = positive(2)  # hidden layers (the embedded fraction enters the last one)
    hidden_width: int = positive(256)
    cosines: int = positive(64)  # number of cosines in the embedding of a quantile fraction
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    def __post_init__(self):
        super().__post_init__()
        count = self.penalty_fractions
        require(
            count <= self.fractions,
            f"algo.penalty_fractions={count} must be at most algo.fractions={self.fractions}",
        )


class Critics(nn.Module):
    """Two Z at `(S, B, O)`, `(S, K, B, A)` and fractions `(S, B, N)`: `(S, 2, K, B, N)`."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__()
        lead, rngs, width = (spec.seeds, 2), spec.rngs, cfg.hidden_width
        sizes = [spec.observation_dim + spec.action_dim, *[width] * (cfg.hidden_layers - 1)]
        pairs = itertools.pairwise(sizes)
        self.base = nn.ModuleList(networks.NormedLinear(a, b, lead, rngs) for a, b in pairs)
        self.embedding = networks.NormedLinear(cfg.cosines, sizes[-1], lead, rngs)
        self.merge = networks.NormedLinear(sizes[-1], width, lead, rngs)
        self.head = networks.Linear(width, 1, lead, rngs)
        self.cosines = embeddings.Cosines(cfg.cosines)

    def forward(self, observations: Tensor, actions: Tensor, fractions: Tensor) -> Tensor:
        seeds, k, batch, _ = actions.shape
        states = observations[:, None].expand(-1, k, -1, -1)
        x = torch.cat([states, actions], -1).view(seeds, 1, k * batch, -1)
        for layer in self.base:
            x = F.relu(layer(x))
        waves = self.cosines(fractions).flatten(1, 2)
        embedded = torch.sigmoid(self.embedding(waves[:, None])).unflatten(2, fractions.shape[1:])
        x = x.unflatten(2, (k, batch))[..., None, :] * embedded[:, :, None]
        values = self.head(F.relu(self.merge(x.flatten(2, 4))))
        return values.view(seeds, 2, k, batch, -1)


class CODAC(PolicyActing):
    """CODAC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        O, A, device = spec.observation_dim, spec.action_dim, spec.device
        sizes = [O, *[cfg.hidden_width] * cfg.hidden_layers, A]
        policy = TanhGaussian(sizes, spec.lead, spec.rngs, init=networks.xavier())
        self.policy = policy.to(device)
        self.critic = Critics(cfg, spec).to(device)
        self.target_policy = optim.target_of(self.policy)
        self.target_critic = optim.target_of(self.critic)
        self.log_alpha = networks.Scalar(0.0, spec.seeds).to(device)
        self.log_alpha_prime = networks.Scalar(0.0, spec.seeds).to(device)
        self.normalizer = spec.normalizer
        self.target_entropy = -float(A) if cfg.target_entropy is None else cfg.target_entropy

        critics = [*self.critic.parameters(), *self.log_alpha_prime.parameters()]
        alpha = self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.policy_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        z = self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        schedules = optim.cosine_schedules(spec.steps if cfg.cosine else None, pi, z)
        self.policy_schedule, self.critic_schedule = schedules
        self._alpha_step = GradientStep(self.alpha_loss, alpha, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode, self.policy_schedule)
        self._critic_step = GradientStep(self.critic_loss, z, spec.mode, self.critic_schedule)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, without gradient."""
        learned = self.log_alpha().detach()
        return learned.exp() if self.cfg.tune_alpha else torch.full_like(learned, self.cfg.alpha)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -log alpha * (log pi + target entropy)."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise)[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def policy_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * log pi(a|s) - the critics' least risk measure of Z(s, a), a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise)
        fractions, masses = partition(uniforms)
        z = self.critic(batch.observations, actions[:, None], fractions).squeeze(2)
        weights = distortions.weights(self.cfg, fractions)
        if self.cfg.weight_limit is not None:
            weights = weights.clamp(max=self.cfg.weight_limit)
        q = (z * (weights * masses)[:, None]).sum(-1).amin(1)
        loss = (self.alpha[:, None] * log_pi - q).mean(-1)
        return loss, {"policy_loss": loss}

    def critic_loss(
        self, batch: Batch, noise: CQLNoise, uniforms: Tensor, which: Tensor, proposed: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds both critics' quantile regression, the conservative term and the multiplier's loss.

        `uniforms` (S, 2, B, N) make fractions of the prediction and of the target, `which` (S, N) chooses
        the penalised ones, `proposed` (S, n, B, A) are uniform on [0, 1).
        """
        fractions = partition(uniforms[:, 0])[0]
        with torch.no_grad():
            y, masses = self.backup(batch, noise.backup[:, 0], uniforms[:, 1])
            states = batch.observations, batch.next_observations
            actions, log_density = conservative.proposals(self.policy, *states, noise, proposed)
        z = self.critic(batch.observations, batch.actions[:, None], fractions).squeeze(2)
        losses = huber_quantile_loss(
            z, y[:, None], fractions[:, None], self.cfg.kappa, masses[:, None]
        )
        regression = losses.mean(-1).sum(1) / self.cfg.fractions
        gap = self.gap(batch, z, self._penalised(fractions, which), actions, log_density)
        penalty, multiplier_loss = self.penalty(gap)
        metrics = {
            "quantile_loss": regression,
            "gap": gap.mean(1),
            "alpha_prime": torch.exp(self.log_alpha_prime()),
            "value": z.mean((1, 2, 3)),
        }
        return regression + penalty + multiplier_loss, metrics

    def backup(self, batch: Batch, noise: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Returns r + discount * (min Z'(s', a') - alpha log pi(a'|s')) at N fractions, and their masses."""
        s = batch.next_observations
        actions, log_pi = self.target_policy.sample(s, noise)
        fractions, masses = partition(uniforms)
        z = self.target_critic(s, actions[:, None], fractions).squeeze(2).amin(1)
        soft = z - (self.alpha[:, None] * log_pi)[..., None]
        discounts = self.cfg.discount * (1 - batch.terminated[..., None])
        return batch.rewards[..., None] + discounts * soft, masses

    def _penalised(self, fractions: Tensor, which: Tensor) -> Tensor:
        """Returns the fractions `(S, B, M)` at which the penalty stands: the same places in every row."""
        count = self.cfg.fractions
        chosen = ensembles.without_replacement(which, count, self.cfg.penalty_fractions)
        return fractions.gather(2, chosen[:, None].expand(-1, fractions.shape[1], -1))

    def gap(
        self, batch: Batch, z: Tensor, fractions: Tensor, actions: Tensor, log_density: Tensor
    ) -> Tensor:
        """Averages log sum exp Z(s, .) at the chosen fractions, less Z(s, a), over rows: `(S, 2)`."""
        sampled = self.critic(batch.observations, actions, fractions)
        weighted = sampled - log_density[:, None, ..., None]
        return torch.logsumexp(weighted, 2).mean((2, 3)) - z.mean((2, 3))

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conservative term, and the loss of the multiplier, from gaps `(S, 2)`."""
        cfg = self.cfg
        if cfg.threshold is None:
            return cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        excess = cfg.weight * gap - cfg.threshold
        alpha_prime = torch.exp(self.log_alpha_prime()).clamp(0, 1e6)
        return alpha_prime.detach() * excess.sum(1), -alpha_prime * excess.detach().mean(1)

    def update(
        self, batch: Batch, noise: Tensor, uniforms: Tensor, which: Tensor, proposed: Tensor
    ) -> dict[str, Tensor]:
        """Steps temperature, critics, policy and targets, in this order.

        `noise` (S, 2 + 2 n, B, A) has the parts of `Noise`, `uniforms` are (S, 3, B, N).
        """
        n = self.cfg.samples
        parts = CQLNoise(*noise.split([1, 1, n, n], 1))
        policy_noise = parts.actions[:, 0]
        metrics = self._alpha_step(batch, policy_noise)
        metrics |= self._critic_step(batch, parts, uniforms[:, :2], which, proposed)
        metrics |= self._policy_step(batch, policy_noise, uniforms[:, 2])
        optim.polyak(self.target_policy, self.policy, self.cfg.polyak)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        return metrics


build = CODAC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = CODAC(cfg, run.spec(buffer, normalizer))
    batch, n = (cfg.batch_size, buffer.action_dim), cfg.samples
    draws = {
        "noise": run.normal("noise", 2 + 2 * n, *batch, block=32),
        "fractions": run.uniform("fractions", 3, cfg.batch_size, cfg.fractions, block=32),
        "which": run.uniform("which", cfg.fractions, block=32),
        "proposed": run.uniform("proposed", n, *batch, block=32),
    }
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, **draws):
        metrics = update(buffer.sample(), *(stream.next() for stream in draws.values()))
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)
    risk_summary.print_summary(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
