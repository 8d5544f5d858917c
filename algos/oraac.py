"""O-RAAC: offline risk-averse actor-critic (Urpi, Curi and Krause 2021, arXiv:2102.05371).

A variational auto-encoder imitates the behaviour policy; the actor moves its action by at most lambda per
dimension, and ascends a risk measure of an implicit quantile critic. Actions therefore stay near the data.

    python algos/oraac.py task=risk/pointmass steps=20000 seeds=3
    corerl train algo=oraac task=risk/hopper-medium-stochastic-v0 seeds=5 eval.episodes=200

The objective is `naive` (risk/distortions.py): CVaR at tau of the return to come, state by state. Static
CVaR of the whole return, which reports show beside it, is another objective: algo=cvar_offline.

Differences. The authors' code is nuria95/O-RAAC; of the paper only its abstract was at hand, so that what
is said of it here is our reading.
 1. `objective=wang` is what the authors' HalfCheetah files set (configs/oraac_official.yaml), and CVaR what
    the paper reports. Their two other measures (CPW, power), which no file of theirs uses, are left out.
 2. The authors draw one set of fractions for a whole batch; `shared_fractions=false` draws them for each
    row, as IQN does.
 3. The quantile Huber loss is averaged over both sets of fractions (authors); IQN sums over the predicted.
 4. The authors' first actor update comes after one critic update, then one after every two; one call here
    is `policy_delay` critic updates, then one of the actor and the targets.
 5. The authors end the VAE's training once its loss has moved by less than 0.03 for a while; here it goes
    on to the end.
 6. To evaluate, the latent is 0 (authors' --eval); their curves during training sample it.
 7. `imitation=false` is RAAC, their ablation: a plain actor and no VAE.
 8. The authors' tables rest on evaluations of 20 episodes, of whose returns CVaR at 0.1 sees two;
    eval.episodes=200 sees twenty.
 9. `activation=silu` makes the critic smooth in the action. With the authors' ReLU it is flat or kinked
    where it should be rounded, and its best action stands at a kink (tests/algos/test_gambles.py).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import Stateful
from corerl.risk import distortions
from corerl.risk.quantiles import huber_quantile_loss
from corerl.training import preprocessing, risk_summary
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "oraac"
    label: str = "O-RAAC"

    objective: str = "naive"  # naive: CVaR of the return to come | wang | mean
    tau: float | None = 0.1  # the share of worst returns that counts; null with wang
    eta: float = -0.75  # of wang; negative is averse
    perturbation: float = 0.25  # lambda: how far the actor may move the imitated action
    imitation: bool = True  # false: RAAC, an actor without the VAE

    fractions: int = 32  # predicted per update, and as many of the target
    policy_fractions: int = 8  # averaged in the actor's loss
    shared_fractions: bool = True  # one set for the whole batch (authors) or one per row
    kappa: float = 1.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    polyak: float = 0.005  # share of the new networks in their targets, at each actor update
    policy_delay: int = 2  # critic updates per actor update
    kl_weight: float = 0.5  # of the prior in the VAE's loss
    latent_clip: float = 0.5  # of sampled latents

    actor_lr: float = 1e-4
    critic_lr: float = 1e-3
    vae_lr: float = 1e-3
    cosine: bool = False  # ours: the rates of actor and critic decay to 0 over the run
    batch_size: int = 128
    hidden_width: int = 256  # of the critic's first layers, one of states and one of actions
    cosines: int = 16  # of the fraction's embedding
    embedding_width: int = 16  # where state and action meet the fraction
    head_width: int = 32  # after that
    activation: str = "relu"  # of the critic: relu (authors) | silu
    actor_widths: list[int] = field(default_factory=lambda: [400, 300])
    vae_width: int = 750
    data: preprocessing.Preprocess = field(default_factory=preprocessing.Preprocess)

    def __post_init__(self):
        distortions.check(self)
        limit = self.perturbation
        require(0 <= limit <= 2, f"algo.perturbation={limit} must lie in [0, 2]")
        require(self.kappa >= 0, f"algo.kappa={self.kappa} must not be negative")
        require(self.kl_weight >= 0, f"algo.kl_weight={self.kl_weight} must not be negative")
        name = self.activation
        require(name in ("relu", "silu"), f"algo.activation={name} is not relu or silu")
        for name in ("policy_delay", "fractions", "policy_fractions", "cosines", "latent_clip"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")


class VAE(nn.Module):
    """The behaviour policy, conditioned on states (BCQ's; Fujimoto, Meger and Precup 2019)."""

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        lead, hidden, latents = (len(rngs),), [cfg.vae_width] * 2, 2 * action_dim
        self.encoder = networks.MLP(
            [observation_dim + action_dim, *hidden, 2 * latents], lead, rngs
        )
        self.decoder = networks.MLP([observation_dim + latents, *hidden, action_dim], lead, rngs)

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std of the latent, `(S, B, 2A)` each."""
        mean, log_std = self.encoder(torch.cat([observations, actions], -1)).chunk(2, -1)
        return mean, log_std.clamp(-4, 15)

    def decode(self, observations: Tensor, latents: Tensor) -> Tensor:
        return torch.tanh(self.decoder(torch.cat([observations, latents], -1)))


class Critic(nn.Module):
    """Z at states `(S, B, O)`, actions `(S, B, A)` and fractions `(S, B, N)` or `(S, 1, N)`: `(S, B, N)`."""

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        lead, width, meeting = (len(rngs),), cfg.hidden_width, cfg.embedding_width
        self.state = networks.Linear(observation_dim, width, lead, rngs, _wide)
        self.action = networks.Linear(action_dim, width, lead, rngs, _wide)
        self.both = networks.Linear(2 * width, meeting, lead, rngs, _wide)
        self.embedding = networks.Linear(cfg.cosines, meeting, lead, rngs, _wide)
        self.last = networks.Linear(meeting, cfg.head_width, lead, rngs, _wide)
        self.head = networks.Linear(cfg.head_width, 1, lead, rngs, networks.uniform(3e-4, bias=0))
        self.activation = F.relu if cfg.activation == "relu" else F.silu
        counts = torch.arange(cfg.cosines, dtype=torch.get_default_dtype())
        self.register_buffer("frequencies", math.pi * counts, persistent=False)

    def forward(self, observations: Tensor, actions: Tensor, fractions: Tensor) -> Tensor:
        phi = self.activation
        x = phi(self.both(phi(torch.cat([self.state(observations), self.action(actions)], -1))))
        waves = torch.cos(fractions[..., None] * self.frequencies).flatten(1, 2)
        embedded = phi(self.embedding(waves)).unflatten(1, fractions.shape[1:])
        x = x[:, :, None] * embedded
        values = self.head(phi(self.last(x.flatten(1, 2))))
        return values.view(*x.shape[:-1])


def _wide(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """The authors': weights of N(0, 0.1^2), biases as torch makes them."""
    networks.torch_init(weight, bias, rng)
    weight.normal_(0, 0.1, generator=rng)


class ORAAC(Stateful):
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
        inputs = observation_dim + action_dim if cfg.imitation else observation_dim
        sizes = [inputs, *cfg.actor_widths, action_dim]
        self.actor = networks.MLP(sizes, (len(rngs),), rngs).to(device)
        self.critic = Critic(cfg, observation_dim, action_dim, rngs).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = normalizer or nn.Identity()
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.actor_lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        self._schedule(steps)
        self.latent_dim = 2 * action_dim
        self.draws_per_state = 2 * cfg.fractions + cfg.policy_fractions
        actor, critic = self.actor_optimizer.parameters, self.critic_optimizer.parameters
        self._actor_gradients = compile.gradients(self.actor_loss, actor, mode)
        self._critic_gradients = compile.gradients(self.critic_loss, critic, mode)
        if cfg.imitation:
            self.vae = VAE(cfg, observation_dim, action_dim, rngs).to(device)
            self.vae_optimizer = optim.Adam(self.vae.parameters(), cfg.vae_lr)
            vae = self.vae_optimizer.parameters
            self._vae_gradients = compile.gradients(self.vae_loss, vae, mode)

    def _schedule(self, steps: int) -> None:
        if self.cfg.cosine:
            falls = optim.cosine(steps // self.cfg.policy_delay)
            self.actor_schedule = optim.Schedule(self.actor_optimizer, falls)
            self.critic_schedule = optim.Schedule(self.critic_optimizer, falls)

    # Losses. Batch fields are (S, B, ...), latents (S, B, 2A) are standard normal; each loss is (S,).

    def vae_loss(self, batch: Batch, latents: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared error of the decoded action, plus the divergence of the latent from its prior."""
        mean, log_std = self.vae.encode(batch.observations, batch.actions)
        decoded = self.vae.decode(batch.observations, mean + torch.exp(log_std) * latents)
        error = (decoded - batch.actions).square().mean((1, 2))
        variance = torch.exp(2 * log_std)
        divergence = (0.5 * (mean.square() + variance - 1) - log_std).mean((1, 2))
        loss = error + self.cfg.kl_weight * divergence
        return loss, {"vae_loss": loss, "imitation_loss": error}

    def critic_loss(
        self, batch: Batch, latents: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Z at N fractions towards r + discount * Z' at N others, for the target actor's action."""
        cfg = self.cfg
        fractions, others = uniforms.split([cfg.fractions, cfg.fractions], -1)
        with torch.no_grad():
            s = batch.next_observations
            next_z = self.target_critic(s, self._action(self.target_actor, s, latents), others)
            discounts = cfg.discount * (1 - batch.terminated[..., None])
            y = batch.rewards[..., None] + discounts * next_z
        z = self.critic(batch.observations, batch.actions, fractions)
        loss = huber_quantile_loss(z, y, fractions, cfg.kappa).mean(-1) / cfg.fractions
        return loss, {"critic_loss": loss, "value": z.mean((1, 2))}

    def actor_loss(
        self, batch: Batch, latents: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus the risk measure of Z(s, pi(s)): the mean of its quantiles at distorted fractions."""
        actions = self._action(self.actor, batch.observations, latents)
        fractions = distortions.fractions(self.cfg, uniforms)
        loss = -self.critic(batch.observations, actions, fractions).mean((1, 2))
        return loss, {"actor_loss": loss}

    def _action(self, actor: nn.Module, observations: Tensor, latents: Tensor) -> Tensor:
        """clip(b + lambda * xi(s, b)) with b of the VAE, `(S, B, A)`."""
        if not self.cfg.imitation:
            return torch.tanh(actor(observations))
        with torch.no_grad():
            clip = self.cfg.latent_clip
            imitated = self.vae.decode(observations, latents.clamp(-clip, clip))
        moved = torch.tanh(actor(torch.cat([observations, imitated], -1)))
        return (imitated + self.cfg.perturbation * moved).clamp(-1, 1)

    def update(
        self, batches: list[Batch], latents: list[Tensor], uniforms: list[Tensor]
    ) -> dict[str, Tensor]:
        """VAE and critic on every batch, then the actor and the targets on the last.

        `latents` are (S, 3, B, 2A), standard normal; `uniforms` (S, B or 1, N + N + K).
        """
        metrics: dict[str, Tensor] = {}
        parts = [self.draws_per_state - self.cfg.policy_fractions, self.cfg.policy_fractions]
        for batch, z, u in zip(batches, latents, uniforms, strict=True):
            if self.cfg.imitation:
                grads, metrics = self._vae_gradients(batch, z[:, 0])
                self.vae_optimizer.step(grads)
            grads, more = self._critic_gradients(batch, z[:, 1], u.split(parts, -1)[0])
            self.critic_optimizer.step(grads)
        grads, most = self._actor_gradients(batch, z[:, 2], u.split(parts, -1)[1])
        self.actor_optimizer.step(grads)
        if self.cfg.cosine:
            self.actor_schedule.step()
            self.critic_schedule.step()
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics | more | most

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The action at raw observations for latent 0, `(S, n, O) -> (S, n, A)`."""
        zeros = observations.new_zeros(*observations.shape[:2], self.latent_dim)
        return self._action(self.actor, self.normalizer(observations), zeros)


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = ORAAC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        steps=run.cfg.steps,
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    shape = (3, cfg.batch_size, agent.latent_dim)
    latents = seeding.normal(run.seeds, "latents", shape, run.device)
    rows = 1 if cfg.shared_fractions else cfg.batch_size
    shape = (rows, agent.draws_per_state)
    fractions = seeding.uniform(run.seeds, "fractions", shape, run.device, block=64)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    state = {"agent": agent, "buffer": buffer, "latents": latents, "fractions": fractions}
    for step in run.steps(stride=cfg.policy_delay, **state):
        batches = [buffer.sample() for _ in delay]
        metrics = update(
            batches, [latents.next() for _ in delay], [fractions.next() for _ in delay]
        )
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)
    risk_summary.tell(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
