"""CODAC: conservative offline distributional actor-critic (Ma, Jayaraman and Bastani 2021, arXiv:2107.06106).

CQL's penalty, on the quantiles of a distributional critic: Z is pushed down where the policy or chance
would act and up at the data's actions, so that its quantiles are lower bounds. The actor is SAC's, on a
risk measure of Z: its mean (CODAC-N) or CVaR (CODAC-C).

    python algos/codac.py task=risk/pointmass steps=20000 seeds=3
    corerl train -m algo=codac task=risk/pointmass algo.objective=naive,mean eval.episodes=200

The objective is `naive` (risk/distortions.py): CVaR at tau of the return to come, state by state. Static
CVaR of the whole return, which reports show beside it, is another objective: algo=cvar_offline.

Differences. The authors' code is JasonMa2016/CODAC (its version 2); of the paper only its abstract was at
hand, so that what is said of it here is our reading.
 1. The penalty stands at `penalty_fractions` of the N fractions, drawn anew for each update: one in the
    authors' code, `penalty_fractions=32` (all) is the paper's mean over fractions. Its second part, at the
    data's actions, is over all N in both.
 2. CVaR's weights 1/tau are cut at `weight_limit` 5 in the authors' code (from DSAC), which halves CVaR at
    0.1 against the entropy term; null leaves them as they are.
 3. The authors' target entropy is -3 whatever the action (`target_entropy=-3`); null is minus its dimension.
 4. The authors' target networks begin with weights of their own; ours are copies.
 5. The authors' log-density has 1e-6 inside the logarithm; ours is exact.
 6. Options that none of the authors' files sets are left out: a falling risk level, cloning to begin with,
    fixed or learned fractions.
 7. The authors evaluate with one episode, of which their CVaR at 0.1 is the mean of none.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, ensembles, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.risk import distortions
from corerl.risk.quantiles import huber_quantile_loss
from corerl.training import preprocessing, risk_summary
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "codac"
    label: str = "CODAC"

    objective: str = "naive"  # naive (CODAC-C): CVaR of the return to come | mean (CODAC-N) | wang
    tau: float | None = 0.1  # the share of worst returns that counts; null with wang
    eta: float = -0.75  # of wang; negative is averse
    weight_limit: float | None = 5.0  # of a quantile in the risk measure (authors); null: none

    weight: float = 10.0  # omega, of the conservative penalty
    threshold: float | None = 10.0  # zeta, which omega * gap is held to; null: no multiplier
    samples: int = 10  # actions from each of the three proposals
    penalty_fractions: int = 1  # at which the penalty stands (authors); all of them: the paper

    fractions: int = 32  # N, predicted per update, and as many of the target
    kappa: float = 1.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    polyak: float = 0.005  # share of the new networks in their targets, every update
    alpha: float = 0.2  # temperature, where it is not tuned
    tune_alpha: bool = False  # from 1 towards target_entropy
    target_entropy: float | None = None  # null: minus the action dimension; authors: -3

    policy_lr: float = 3e-5  # also of the temperature
    critic_lr: float = 3e-4  # also of the Lagrange multiplier
    cosine: bool = False  # ours: the rates of policy and critics decay to 0 over the run
    batch_size: int = 256
    hidden_layers: int = 2  # the last one comes after state-action and fraction have met
    hidden_width: int = 256
    cosines: int = 64  # of the fraction's embedding
    data: preprocessing.Preprocess = field(default_factory=preprocessing.Preprocess)

    def __post_init__(self):
        distortions.check(self)
        for name in ("weight", "alpha", "kappa"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")
        for name in ("samples", "hidden_layers", "cosines", "fractions"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        count = self.penalty_fractions
        require(
            0 < count <= self.fractions,
            f"algo.penalty_fractions={count} must lie in [1, {self.fractions}], algo.fractions",
        )


class Critics(nn.Module):
    """Two Z at `(S, B, O)`, `(S, K, B, A)` and fractions `(S, B, N)`: `(S, 2, K, B, N)`."""

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        lead, width = (len(rngs), 2), cfg.hidden_width
        sizes = [observation_dim + action_dim, *[width] * (cfg.hidden_layers - 1)]
        pairs = itertools.pairwise(sizes)
        self.base = nn.ModuleList(Normed(a, b, lead, rngs) for a, b in pairs)
        self.embedding = Normed(cfg.cosines, sizes[-1], lead, rngs)
        self.merge = Normed(sizes[-1], width, lead, rngs)
        self.head = networks.Linear(width, 1, lead, rngs)
        counts = torch.arange(1, cfg.cosines + 1, dtype=torch.get_default_dtype())
        self.register_buffer("frequencies", math.pi * counts, persistent=False)

    def forward(self, observations: Tensor, actions: Tensor, fractions: Tensor) -> Tensor:
        seeds, k, batch, _ = actions.shape
        states = observations[:, None].expand(-1, k, -1, -1)
        x = torch.cat([states, actions], -1).view(seeds, 1, k * batch, -1)
        for layer in self.base:
            x = F.relu(layer(x))
        waves = torch.cos(fractions[..., None] * self.frequencies).flatten(1, 2)
        embedded = torch.sigmoid(self.embedding(waves[:, None])).unflatten(2, fractions.shape[1:])
        x = x.unflatten(2, (k, batch))[..., None, :] * embedded[:, :, None]
        values = self.head(F.relu(self.merge(x.flatten(2, 4))))
        return values.view(seeds, 2, k, batch, -1)


class Normed(nn.Module):
    """A linear layer and the normalisation of what it gives."""

    def __init__(self, inputs: int, outputs: int, lead: tuple[int, ...], rngs):
        super().__init__()
        self.linear = networks.Linear(inputs, outputs, lead, rngs)
        self.norm = networks.LayerNorm(outputs, lead)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def partition(uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """[0, 1] cut at random into N pieces, none tiny: their middles and lengths, `(..., N)` each."""
    masses = uniforms + 0.1
    masses = masses / masses.sum(-1, keepdim=True)
    return masses.cumsum(-1) - 0.5 * masses, masses


class CODAC(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed.

    `steps`: updates to come.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        steps: int,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        seeds = len(rngs)
        sizes = [observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, action_dim]
        policy = policies.TanhGaussian(sizes, (seeds,), rngs, init=networks.xavier())
        self.policy = policy.to(device)
        self.critic = Critics(cfg, observation_dim, action_dim, rngs).to(device)
        self.target_policy = optim.target_of(self.policy)
        self.target_critic = optim.target_of(self.critic)
        self.log_alpha = networks.Scalar(0.0, seeds).to(device)
        self.log_alpha_prime = networks.Scalar(0.0, seeds).to(device)
        self.normalizer = normalizer or nn.Identity()
        wanted = cfg.target_entropy
        self.target_entropy = -float(action_dim) if wanted is None else wanted
        self.uniform_log_density = -action_dim * math.log(2)  # of [-1, 1]^A
        self.noises = [1, 1, cfg.samples, cfg.samples]  # policy, s', and proposals at s and s'

        critics = [*self.critic.parameters(), *self.log_alpha_prime.parameters()]
        self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.policy_lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        self.critic_optimizer = optim.Adam(critics, cfg.critic_lr)
        if cfg.cosine:
            self.policy_schedule = optim.Schedule(self.policy_optimizer, optim.cosine(steps))
            self.critic_schedule = optim.Schedule(self.critic_optimizer, optim.cosine(steps))
        alpha, pi = self.alpha_optimizer.parameters, self.policy_optimizer.parameters
        self._alpha_gradients = compile.gradients(self.alpha_loss, alpha, mode)
        self._policy_gradients = compile.gradients(self.policy_loss, pi, mode)
        self._critic_gradients = compile.gradients(self.critic_loss, critics, mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed, `(S,)`, without gradient."""
        learned = self.log_alpha().detach()
        return learned.exp() if self.cfg.tune_alpha else torch.full_like(learned, self.cfg.alpha)

    # Losses. Batch fields are (S, B, ...), noise is (S, sum(noises), B, A); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-log alpha * (log pi + target entropy)."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise[:, 0])[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss * float(self.cfg.tune_alpha), {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def policy_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """alpha * log pi(a|s) - min over both critics of the risk measure of Z(s, a), a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise[:, 0])
        fractions, masses = partition(uniforms)
        z = self.critic(batch.observations, actions[:, None], fractions).squeeze(2)
        weights = distortions.weights(self.cfg, fractions)
        if self.cfg.weight_limit is not None:
            weights = weights.clamp(max=self.cfg.weight_limit)
        q = (z * (weights * masses)[:, None]).sum(-1).amin(1)
        loss = (self.alpha[:, None] * log_pi - q).mean(-1)
        return loss, {"policy_loss": loss}

    def critic_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor, which: Tensor, proposed: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Quantile regression of both critics, the conservative term and the multiplier's loss.

        `uniforms` (S, 2, B, N) make fractions of the prediction and of the target, `which` (S, N) chooses
        the penalised ones, `proposed` (S, n, B, A) are uniform on [0, 1).
        """
        _, backup, here, there = noise.split(self.noises, dim=1)
        fractions = partition(uniforms[:, 0])[0]
        with torch.no_grad():
            y, masses = self.backup(batch, backup[:, 0], uniforms[:, 1])
            actions, log_density = self.proposals(batch, here, there, proposed)
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
        """r + discount * (min Z'(s', a') - alpha log pi(a'|s')) at N fractions; what each weighs."""
        s = batch.next_observations
        actions, log_pi = self.target_policy.sample(s, noise)
        fractions, masses = partition(uniforms)
        z = self.target_critic(s, actions[:, None], fractions).squeeze(2).amin(1)
        soft = z - (self.alpha[:, None] * log_pi)[..., None]
        discounts = self.cfg.discount * (1 - batch.terminated[..., None])
        return batch.rewards[..., None] + discounts * soft, masses

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

    def _penalised(self, fractions: Tensor, which: Tensor) -> Tensor:
        """The fractions `(S, B, M)` at which the penalty stands; their places are those of all rows."""
        count = self.cfg.fractions
        chosen = ensembles.without_replacement(which, count, self.cfg.penalty_fractions)
        return fractions.gather(2, chosen[:, None].expand(-1, fractions.shape[1], -1))

    def gap(
        self, batch: Batch, z: Tensor, fractions: Tensor, actions: Tensor, log_density: Tensor
    ) -> Tensor:
        """Mean over rows of log sum exp Z(s, .) at the chosen fractions, less that of Z(s, a): `(S, 2)`."""
        sampled = self.critic(batch.observations, actions, fractions)
        weighed = sampled - log_density[:, None, ..., None]
        return torch.logsumexp(weighed, 2).mean((2, 3)) - z.mean((2, 3))

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """The conservative term, and the loss of the multiplier, from gaps `(S, 2)`."""
        cfg = self.cfg
        if cfg.threshold is None:
            return cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        excess = cfg.weight * gap - cfg.threshold
        alpha_prime = torch.exp(self.log_alpha_prime()).clamp(0, 1e6)
        return alpha_prime.detach() * excess.sum(1), -alpha_prime * excess.detach().mean(1)

    def update(
        self, batch: Batch, noise: Tensor, uniforms: Tensor, which: Tensor, proposed: Tensor
    ) -> dict[str, Tensor]:
        """Temperature, critics, policy and targets, in this order. `uniforms` (S, 3, B, N)."""
        alpha, metrics = self._alpha_gradients(batch, noise)
        self.alpha_optimizer.step(alpha)
        critic, more = self._critic_gradients(batch, noise, uniforms[:, :2], which, proposed)
        self.critic_optimizer.step(critic)
        policy, most = self._policy_gradients(batch, noise, uniforms[:, 2])
        self.policy_optimizer.step(policy)
        if self.cfg.cosine:
            self.policy_schedule.step()
            self.critic_schedule.step()
        optim.polyak(self.target_policy, self.policy, self.cfg.polyak)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        return metrics | more | most

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """tanh of the mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy.mode(self.normalizer(observations))


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = CODAC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        steps=run.cfg.steps,
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    batch, n = (cfg.batch_size, buffer.action_dim), cfg.fractions

    def uniform(name: str, *shape: int) -> seeding.Stream:
        return seeding.uniform(run.seeds, name, shape, run.device, block=32)

    draws = {
        "noise": seeding.normal(run.seeds, "noise", (sum(agent.noises), *batch), run.device, 32),
        "fractions": uniform("fractions", 3, cfg.batch_size, n),
        "which": uniform("which", n),
        "proposed": uniform("proposed", cfg.samples, *batch),
    }
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, **draws):
        metrics = update(buffer.sample(), *(stream.next() for stream in draws.values()))
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)
    risk_summary.tell(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
