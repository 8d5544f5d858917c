"""SPOT: Supported Policy Optimization (Wu et al. 2022, arXiv:2202.06239).

TD3 whose actor stays where the data is dense. A variational auto-encoder learns the density of the data's
actions first. The actor then maximises

    Q(s, pi(s)) / mean |Q| + lambda * log pi_beta(pi(s) | s),

where the evidence lower bound (ELBO) of the auto-encoder stands for log pi_beta.

    python algos/spot.py task=corerl/pendulum steps=20000 algo.vae_steps=4000 seeds=3
    corerl train algo=spot task=d4rl/hopper-medium-v2 seeds=5
    corerl train algo=spot_finetune task=d4rl/antmaze-umaze-v2 seeds=4

The first `vae_steps` of `steps` fit the auto-encoder alone. With `algo.phase=both` they are part of
`online.pretrain_steps`. The auto-encoder stays fixed afterwards.

The default is the authors' code (thuml/SPOT at 4be91cc). `algo=spot_finetune` is CORL's
(tinkoff-ai/CORL at 6afec90, algorithms/finetune/spot.py), which has no offline file of SPOT.

    item                  authors                      CORL                        switch
 1  actor's dropout       0.1 on Gym, none on AntMaze  none                        dropout
 2  dropout in targets    yes: never put to eval()     -                           -
 3  discount online       0.995 on the large mazes,    0.995 on all mazes          online_discount
                          else 0.99
 4  optimisers online     resume with their moments    start over at the switch    restart_optimizers
 5  lambda online         falls to 0.2 of itself       AntMaze 0.2, Adroit 0.5     min_weight_share
 6  exploration           N(0, 0.1^2)                  clipped at noise_clip       -
 7  auto-encoder          one for all seeds, trained   each seed its own, trained  -
                          by a script of its own       first
 8  divergence            ends where Q is over 1e4     trains on                   -
 9  density               ELBO; importance-weighted    the same                    density, samples

Ours follows the authors in 1 and 2, and CORL in 6 to 8. Of the paper only the abstract was at hand, so the
equations here are those of the authors' code. The two densities of 9 have different scales. The ELBO is
averaged over features, which makes it kl_weight / (2 A) of a log-likelihood, plus a constant. The
importance-weighted estimate is the log-likelihood, so the same `weight` is 2 A / kl_weight times as strong.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.acting import TanhActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import gaussian_log_prob, smoothed
from corerl.nn.vae import BehaviourVAE
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "spot"
    label: str = "SPOT"

    weight: float = at_least(0, 1.0)  # lambda, weight of the density in the actor's loss
    normalize_q: bool = True  # divides Q by its mean absolute value in the actor's loss
    density: str = one_of("elbo", "iwae")  # log density by elbo | iwae (importance-weighted bound)
    samples: int = positive(1)  # number of latent samples per density estimate
    kl_weight: float = positive(0.5)  # beta, weight of the KL divergence in the auto-encoder's loss
    vae_steps: int = positive(100_000)  # number of first updates, of the auto-encoder alone
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, at each actor update
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    policy_delay: int = positive(2)  # critic updates per actor update

    actor_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    vae_lr: float = positive(1e-3)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    vae_width: int = positive(750)  # width of the auto-encoder's hidden layers
    dropout: float = within(0.1, "[0, 1)")  # dropout rate in the actor and its target
    actor_init: float | None = positive(None)  # bound on first output weights (null: as in torch)
    critic_init: float | None = positive(None)  # bound on first output weights (null: as in torch)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)

    exploration: float = at_least(0, 0.1)  # standard deviation of noise on actions in fine-tuning
    online_discount: float | None = within(None, "[0, 1]")  # discount in fine-tuning (null: same)
    min_weight_share: float = within(0.2, "[0, 1]")  # share of weight left when fine-tuning ends
    restart_optimizers: bool = False  # resets the optimisers when fine-tuning begins (CORL)

    def __post_init__(self):
        super().__post_init__()
        delay, spent = self.policy_delay, self.vae_steps
        require(
            spent % delay == 0,
            f"algo.vae_steps={spent} must be a multiple of algo.policy_delay={delay}, the number "
            "of updates that corerl makes at a time",
        )
        before = self.online.pretrain_steps
        require(
            self.phase != "both" or before > spent,
            f"algo.online.pretrain_steps={before} must be more than algo.vae_steps={spent}, the "
            "first of these updates, which train only the auto-encoder",
        )
        require(
            self.phase != "online" or self.online.checkpoint is not None,
            "algo.phase=online has no auto-encoder of the data. Choose algo.phase=both, or name a "
            "finished run of SPOT in algo.online.checkpoint",
        )

    def first_phase(self) -> tuple[int, str]:
        return 0 if self.phase == "online" else self.vae_steps, "algo.vae_steps"


class Draws(NamedTuple):
    """Random numbers of one critic update. Those of the actor are used with the last of a call."""

    next_actions: Tensor  # (S, B, A), normal, to smooth the target's action
    latents: Tensor  # (S, K, B, 2A), normal, for K samples of the density
    target_keys: Tensor | None = None  # (S, layers), for dropout in the target actor
    keys: Tensor | None = None  # (S, layers), for dropout in the actor


class Online(NamedTuple):
    """What fine-tuning changes, each `()`."""

    share: Tensor  # the share of weight that is left
    discount: Tensor


class SPOT(TanhActing):
    """SPOT agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        actor = networks.MLP(
            [O, *hidden, A], spec.lead, rngs, output_init=_within(cfg.actor_init), **cfg.mlp_options
        )
        critic = Critics(
            [O, A, *hidden], rngs, output_init=_within(cfg.critic_init), **cfg.mlp_options
        )
        self.actor, self.critic = actor.to(device), critic.to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.vae = BehaviourVAE(O, A, cfg.vae_width, rngs, **cfg.mlp_options).to(device)
        self.normalizer = spec.normalizer
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.actor_lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        self.vae_optimizer = optim.Adam(self.vae.parameters(), cfg.vae_lr)
        self._actor_step = GradientStep(self.actor_loss, self.actor_optimizer, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)
        self._vae_step = GradientStep(self.vae_loss, self.vae_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def vae_loss(self, batch: Batch, latents: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Minimises minus the ELBO of the data's actions, from one latent each: `latents` (S, B, 2A)."""
        error, divergence = self._elbo(batch.observations, batch.actions, latents[:, None])
        error, divergence = error.mean(-1), divergence.mean(-1)
        loss = error + self.cfg.kl_weight * divergence
        return loss, {"vae_loss": loss, "reconstruction_loss": error, "divergence": divergence}

    def critic_loss(
        self, batch: Batch, draws: Draws, online: Online | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Applies clipped double Q-learning with target policy smoothing (TD3)."""
        cfg = self.cfg
        discount = cfg.discount if online is None else online.discount
        with torch.no_grad():
            next_action = self._act(self.target_actor, batch.next_observations, draws.target_keys)
            next_action = smoothed(
                next_action, draws.next_actions, cfg.policy_noise, cfg.noise_clip
            )
            next_q = self.target_critic(batch.next_observations, next_action).amin(1)
            y = batch.rewards + discount * (1 - batch.terminated) * next_q
        return regression(self.critic(batch.observations, batch.actions), y)

    def actor_loss(
        self, batch: Batch, draws: Draws, online: Online | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -Q1(s, pi(s)) / mean |Q1| - lambda * log pi_beta(pi(s) | s)."""
        actions = self._act(self.actor, batch.observations, draws.keys)
        q = self.critic(batch.observations, actions)[:, 0]
        scale = 1 / q.detach().abs().mean(-1) if self.cfg.normalize_q else 1.0
        minus_density = self.minus_density(batch.observations, actions, draws.latents).mean(-1)
        weight = self.cfg.weight if online is None else self.cfg.weight * online.share
        loss = weight * minus_density - scale * q.mean(-1)
        return loss, {"actor_loss": loss, "minus_density": minus_density}

    def minus_density(self, observations: Tensor, actions: Tensor, latents: Tensor) -> Tensor:
        """Estimates -log pi_beta(a|s) `(S, B)`, up to scale and constant, from latents `(S, K, B, 2A)`."""
        if self.cfg.density == "elbo":
            error, divergence = self._elbo(observations, actions, latents)
            return error + self.cfg.kl_weight * divergence
        mean, log_std, latents, decoded = self._reconstructed(observations, actions, latents)
        zero, std = torch.zeros_like(latents), math.sqrt(self.cfg.kl_weight / 4)
        log_ratio = (
            gaussian_log_prob(decoded, torch.full_like(decoded, math.log(std)), actions[:, None])
            + gaussian_log_prob(zero, zero, latents)
            - gaussian_log_prob(mean, log_std, latents)
        )
        return math.log(latents.shape[1]) - torch.logsumexp(log_ratio, 1)

    def _elbo(self, observations: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the error of reconstruction and the divergence from the prior, each `(S, B)`."""
        mean, log_std, _, decoded = self._reconstructed(observations, actions, noise)
        error = (decoded - actions[:, None]).square().mean((1, 3))
        divergence = 0.5 * (mean.square() + torch.exp(2 * log_std) - 1) - log_std
        return error, divergence.mean(-1).squeeze(1)

    def _reconstructed(
        self, observations: Tensor, actions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns mean and log-std `(S, 1, B, 2A)`, K latents, and their decoded actions `(S, K, B, A)`."""
        mean, log_std = (x[:, None] for x in self.vae.encode(observations, actions))
        latents = mean + torch.exp(log_std) * noise
        samples = latents.shape[1]
        states = observations[:, None].expand(-1, samples, -1, -1).flatten(1, 2)
        decoded = self.vae.decode(states, latents.flatten(1, 2))
        return mean, log_std, latents, decoded.unflatten(1, (samples, -1))

    def _act(self, actor: nn.Module, observations: Tensor, keys: Tensor | None) -> Tensor:
        """Returns actions at a batch's states, with dropout by `keys` (S, layers)."""
        shape = (observations.shape[1], self.cfg.hidden_width)
        return torch.tanh(
            actor(observations, transformer.multipliers(keys, shape, self.cfg.dropout))
        )

    def fit(self, batches: list[Batch], draws: list[Draws]) -> dict[str, Tensor]:
        """Takes one step of the auto-encoder per batch."""
        for batch, drawn in zip(batches, draws, strict=True):
            metrics = self._vae_step(batch, drawn.latents[:, 0])
        return metrics

    def update(
        self, batches: list[Batch], draws: list[Draws], online: Online | None = None
    ) -> dict[str, Tensor]:
        """Takes one critic step per batch. With the last one the actor's and the targets'."""
        for batch, drawn in zip(batches, draws, strict=True):
            metrics = self._critic_step(batch, drawn, online)
        metrics |= self._actor_step(batch, drawn, online)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics

    def restart_optimizers(self) -> None:
        """Forgets the moments of actor and critics."""
        optim.restart(self.actor_optimizer, self.critic_optimizer)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Returns the action plus clipped noise, `(S, n, O)` and normal noise `(S, n, A)` to `(S, n, A)`."""
        return smoothed(self.act(observations), noise, self.cfg.exploration, self.cfg.noise_clip)


def _within(bound: float | None) -> networks.Init | None:
    return None if bound is None else networks.uniform(bound)


build = SPOT


def train(cfg: Config, run: Run) -> None:
    spent, _ = cfg.first_phase()
    run.cfg.policy_steps()  # raises where the auto-encoder leaves the policy none
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = SPOT(cfg, run.spec(buffer, normalizer))
    A, delay = buffer.action_dim, range(cfg.policy_delay)
    noise = run.normal("noise", cfg.batch_size, A)
    latents = run.normal("latents", cfg.samples, cfg.batch_size, 2 * A)
    keys = None
    if cfg.dropout and cfg.hidden_layers:
        keys = transformer.dropout_keys(run.seeds, 2 * cfg.hidden_layers, run.device)
    phases = Phases(cfg, run, buffer, agent, stride=cfg.policy_delay)
    parts = {"noise": noise, "latents": latents, "keys": keys} | phases.parts
    fit, update = (compile.captured(x, run.mode) for x in (agent.fit, agent.update))
    for step in run.steps(stride=cfg.policy_delay, agent=agent, buffer=buffer, **parts):
        if cfg.restart_optimizers and step == phases.after + cfg.policy_delay:
            agent.restart_optimizers()
        for _ in delay:
            phases.act(step, agent.explore)
        if phases.learns(step):
            batches = [phases.sample(step) for _ in delay]
            draws = [
                Draws(noise.next(), latents.next(), *(keys.next().chunk(2, 1) if keys else ()))
                for _ in delay
            ]
            if step <= spent:
                metrics = fit(batches, draws)
            else:
                metrics = update(batches, draws, _online(cfg, phases, step, run.device))
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


def _online(cfg: Config, phases: Phases, step: int, device: torch.device) -> Online | None:
    """Returns what fine-tuning changes at a step, or None where no step acts."""
    if cfg.phase == "offline":
        return None
    share, discount = 1.0, cfg.discount
    if phases.online(step):
        share = max(cfg.min_weight_share, phases.left(step + 1))  # after this step, as in CORL
        discount = cfg.discount if cfg.online_discount is None else cfg.online_discount
    # Made on the device: a copy to it would wait there for the update before.
    return Online(*(torch.full((), value, device=device) for value in (share, discount)))


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
