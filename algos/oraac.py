"""O-RAAC: offline risk-averse actor-critic (Urpi, Curi and Krause 2021, arXiv:2102.05371).

A variational auto-encoder imitates the behaviour policy; the actor moves its action by at most lambda per
dimension, and ascends a risk measure of an implicit quantile critic. Actions therefore stay near the data.

    python algos/oraac.py task=risk/pointmass steps=20000 seeds=3
    corerl train algo=oraac task=risk/hopper-medium-stochastic-v0 seeds=5 eval.episodes=200

The objective is `naive` (risk/distortions.py): CVaR at tau of the return to come, state by state. Static
CVaR of the whole return, which reports show beside it, is another objective: algo=cvar_offline.

What differs, and its switch. The authors' code is nuria95/O-RAAC; of the paper only its abstract was at hand,
so that what is said of it here is our reading.

    item            paper          authors' code                   ours                       switch
 1  measure         CVaR           Wang's in files of HalfCheetah  CVaR; table=oraac_official  objective
                                   (CPW and power in none)         is Wang's
 2  fractions       -              one set for a whole batch       the same; false: one set   shared_fractions
                                                                   per row, as IQN does
 3  quantile loss   summed over N  averaged over both sets         authors'                   -
                    (IQN)
 4  actor updates   -              after critic update 1, then     after every `policy_delay` policy_delay
                                   after every two
 5  end of VAE's    -              its loss has moved by less      the end of the run         -
    training                       than 0.03 for a while
 6  latent, played  -              0 with --eval, sampled in the   0                          -
                                   curves during training
 7  RAAC            an ablation    an ablation                     imitation=false: a plain   imitation
                                                                   actor and no VAE
 8  evaluation      -              20 episodes: CVaR at 0.1 sees   200 see twenty             eval.episodes
                                   two returns
 9  critic          -              ReLU                            ReLU; silu is smooth       activation
10  policy shown    -              the best evaluations by mean    the last; the best mean    corerl report
                                   and by CVaR, after the 30th                                --best

In 9 a critic of ReLUs is flat or kinked in the action where it should be rounded, and its best action stands
at a kink (tests/algos/test_gambles.py).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, embeddings, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.vae import BehaviourVAE
from corerl.risk import distortions
from corerl.risk.quantiles import huber_quantile_loss
from corerl.training import preprocessing, risk_summary
from corerl.training.run import Run


@dataclass
class Config(distortions.Distortion):
    name: str = "oraac"
    label: str = "O-RAAC"

    perturbation: float = within(0.25, "[0, 2]")  # lambda, largest change to the imitated action
    imitation: bool = True  # the actor changes a VAE's action (false: RAAC, without VAE)

    fractions: int = positive(32)  # number of quantile fractions of the critic and of its target
    policy_fractions: int = positive(8)  # number of quantile fractions in the actor's loss
    shared_fractions: bool = True  # one set of quantile fractions per batch (false: one per row)
    kappa: float = at_least(0, 1.0)  # error above which the quantile loss is linear (0: always)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, at each actor update
    policy_delay: int = positive(2)  # critic updates per actor update
    kl_weight: float = at_least(0, 0.5)  # weight of the KL divergence from the VAE's prior
    latent_clip: float = positive(0.5)  # bound at which sampled latents are clipped

    actor_lr: float = positive(1e-4)
    critic_lr: float = positive(1e-3)
    vae_lr: float = positive(1e-3)
    cosine: bool = False  # actor's and critic's learning rates decay to 0 (not in the paper)
    batch_size: int = positive(128)
    hidden_width: int = positive(256)  # width of the critic's first layers, for states and actions
    cosines: int = positive(16)  # number of cosines in the embedding of a quantile fraction
    embedding_width: int = positive(16)  # width of the product of critic and fraction features
    head_width: int = positive(32)  # width of the critic's last hidden layer
    activation: str = one_of("relu", "silu")  # relu (authors) | silu in the critic
    actor_widths: list[int] = field(  # widths of the actor's hidden layers
        default_factory=lambda: [400, 300]
    )
    vae_width: int = positive(750)  # width of the VAE's hidden layers
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    def __post_init__(self):
        super().__post_init__()
        widths = self.actor_widths
        require(all(w > 0 for w in widths), f"algo.actor_widths={widths} must all be positive")


class Latents(NamedTuple):
    """Standard normal draws `(S, B, 2A)`, for the VAE's loss and for the imitated actions."""

    vae: Tensor
    target_actor: Tensor
    actor: Tensor


class Fractions(NamedTuple):
    """Uniform fractions `(S, B or 1, ...)`."""

    predicted: Tensor  # (S, ., N)
    target: Tensor  # (S, ., N)
    policy: Tensor  # (S, ., K), before they are distorted


class Critic(nn.Module):
    """Z at states `(S, B, O)`, actions `(S, B, A)` and fractions `(S, B, N)` or `(S, 1, N)`: `(S, B, N)`."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__()
        lead, rngs, width, product = spec.lead, spec.rngs, cfg.hidden_width, cfg.embedding_width
        self.state = networks.Linear(spec.observation_dim, width, lead, rngs, _wide)
        self.action = networks.Linear(spec.action_dim, width, lead, rngs, _wide)
        self.both = networks.Linear(2 * width, product, lead, rngs, _wide)
        self.embedding = networks.Linear(cfg.cosines, product, lead, rngs, _wide)
        self.last = networks.Linear(product, cfg.head_width, lead, rngs, _wide)
        self.head = networks.Linear(cfg.head_width, 1, lead, rngs, networks.uniform(3e-4, bias=0))
        self.activation = F.relu if cfg.activation == "relu" else F.silu
        self.cosines = embeddings.Cosines(cfg.cosines, first=0)

    def forward(self, observations: Tensor, actions: Tensor, fractions: Tensor) -> Tensor:
        phi = self.activation
        x = phi(self.both(phi(torch.cat([self.state(observations), self.action(actions)], -1))))
        waves = self.cosines(fractions).flatten(1, 2)
        embedded = phi(self.embedding(waves)).unflatten(1, fractions.shape[1:])
        x = x[:, :, None] * embedded
        values = self.head(phi(self.last(x.flatten(1, 2))))
        return values.view(*x.shape[:-1])


def _wide(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """Initialises as the authors do: weights of N(0, 0.1^2), biases as torch makes them."""
    networks.torch_init(weight, bias, rng)
    weight.normal_(0, 0.1, generator=rng)


class ORAAC(Stateful):
    """O-RAAC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        O, A, device = spec.observation_dim, spec.action_dim, spec.device
        sizes = [O + A if cfg.imitation else O, *cfg.actor_widths, A]
        self.actor = networks.MLP(sizes, spec.lead, spec.rngs).to(device)
        self.critic = Critic(cfg, spec).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        actor = self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.actor_lr)
        critic = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        calls = spec.steps // cfg.policy_delay if cfg.cosine else None
        schedules = optim.cosine_schedules(calls, actor, critic)
        self.actor_schedule, self.critic_schedule = schedules
        self._actor_step = GradientStep(self.actor_loss, actor, spec.mode, schedules)
        self._critic_step = GradientStep(self.critic_loss, critic, spec.mode)
        self.latent_dim = 2 * A
        self.counts = (cfg.fractions, cfg.fractions, cfg.policy_fractions)
        if cfg.imitation:
            self.vae = BehaviourVAE(O, A, cfg.vae_width, spec.rngs).to(device)
            self.vae_optimizer = optim.Adam(self.vae.parameters(), cfg.vae_lr)
            self._vae_step = GradientStep(self.vae_loss, self.vae_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), latents (S, B, 2A) are standard normal; each loss is (S,).

    def vae_loss(self, batch: Batch, latents: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the decoded action's squared error and the divergence of the latent from its prior."""
        mean, log_std = self.vae.encode(batch.observations, batch.actions)
        decoded = self.vae.decode(batch.observations, mean + torch.exp(log_std) * latents)
        error = (decoded - batch.actions).square().mean((1, 2))
        variance = torch.exp(2 * log_std)
        divergence = (0.5 * (mean.square() + variance - 1) - log_std).mean((1, 2))
        loss = error + self.cfg.kl_weight * divergence
        return loss, {"vae_loss": loss, "imitation_loss": error}

    def critic_loss(
        self, batch: Batch, latents: Tensor, fractions: Tensor, next_fractions: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses Z at N fractions towards r + discount * Z' at N others, for the target actor's action."""
        cfg = self.cfg
        with torch.no_grad():
            s = batch.next_observations
            next_action = self._action(self.target_actor, s, latents)
            next_z = self.target_critic(s, next_action, next_fractions)
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
        """Returns clip(b + lambda * xi(s, b)) with b of the VAE, `(S, B, A)`."""
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
        """Steps VAE and critic on every batch, then the actor and the targets on the last.

        `latents` are (S, 3, B, 2A), standard normal, and `uniforms` (S, B or 1, N + N + K): the parts of
        `Latents` and `Fractions`.
        """
        metrics: dict[str, Tensor] = {}
        for batch, normal, uniform in zip(batches, latents, uniforms, strict=True):
            z, taus = Latents(*normal.unbind(1)), Fractions(*uniform.split(self.counts, -1))
            if self.cfg.imitation:
                metrics |= self._vae_step(batch, z.vae)
            metrics |= self._critic_step(batch, z.target_actor, taus.predicted, taus.target)
        metrics |= self._actor_step(batch, z.actor, taus.policy)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations for latent 0, `(S, n, O) -> (S, n, A)`."""
        zeros = observations.new_zeros(*observations.shape[:2], self.latent_dim)
        return self._action(self.actor, self.normalizer(observations), zeros)


build = ORAAC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = ORAAC(cfg, run.spec(buffer, normalizer))
    latents = run.normal("latents", len(Latents._fields), cfg.batch_size, agent.latent_dim)
    rows = 1 if cfg.shared_fractions else cfg.batch_size
    fractions = run.uniform("fractions", rows, sum(agent.counts), block=64)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    state = {"agent": agent, "buffer": buffer, "latents": latents, "fractions": fractions}
    for step in run.steps(stride=cfg.policy_delay, **state):
        draws = ([stream.next() for _ in delay] for stream in (latents, fractions))
        metrics = update([buffer.sample() for _ in delay], *draws)
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)
    risk_summary.print_summary(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
