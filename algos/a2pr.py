"""A2PR: policy regularisation towards the better action (Liu et al. 2024, arXiv:2405.19909).

TD3+BC whose policy imitates the data's action, or one that an auto-encoder makes of the policy's own, if Q is
higher there. The auto-encoder learns only from actions that beat the value of their state.

    V          (V(s) - min of r + discount min Q(s', a') over critics and targets)^2
    encoder    vae_weight 1{Q1(s, a) > V(s)} (rebuilt - a)^2 + KL / 2
    policy     -alpha Q1(s, pi) / mean |Q1| + mask 1{Q1(s, e) >= V or Q1(s, a) > V} (pi - e')^2,
               e the action that is rebuilt from pi, and e' the better one of e and a

    python algos/a2pr.py task=corerl/pendulum steps=5000 algo.vae_width=64 seeds=3
    corerl train algo=a2pr task=d4rl/hopper-medium-v2 seeds=5

With `anchor=data` and `mask=1` it is TD3+BC (algos/td3_bc.py) with its sizes, bit for bit.

Differences from the authors' code (ltlhuuu/A2PR at f92a2a4), each with its reason:
 1. The code adds two conditions that are true or false, so that both together count once. So here.
 2. The gradient of the policy's loss also passes through the rebuilt action, as there.
 3. The KL is a mean over latents, as there, and not their sum.
 4. V(s) in the losses is from before its own step, as there.
 5. The settings of three datasets are public. All others have the defaults.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos import td3_bc
from corerl.algos.td3_bc import TD3BC
from corerl.buffers.replay import Batch
from corerl.config import at_least, one_of, positive
from corerl.nn import compile, optim
from corerl.nn.critics import StateValue
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.policies import smoothed
from corerl.nn.vae import BehaviourVAE
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(td3_bc.Config):
    name: str = "a2pr"
    label: str = "A2PR"

    anchor: str = one_of(  # imitates better (of the data's and the VAE's action) | data (as TD3+BC)
        "better", "data"
    )
    mask: float = at_least(0, 0.5)  # weight of imitation against Q in the policy's loss
    vae_weight: float = at_least(0, 1.0)  # weight of the VAE's reconstruction error against its KL
    vae_lr: float = positive(1e-3)  # learning rate of the VAE
    vae_width: int = positive(750)  # width of the VAE's hidden layers
    hidden_layers: int = at_least(0, 4)  # hidden layers of critics and value network
    actor_layers: int | None = at_least(1, 3)  # hidden layers of the actor (null: hidden_layers)


class A2PR(TD3BC):
    """A2PR agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec)
        O, A, rngs = spec.observation_dim, spec.action_dim, spec.rngs
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        self.value = StateValue([O, *hidden], rngs, **cfg.mlp_options).to(spec.device)
        self.vae = BehaviourVAE(O, A, cfg.vae_width, rngs, **cfg.mlp_options).to(spec.device)
        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        vae = self.vae_optimizer = optim.Adam(self.vae.parameters(), cfg.vae_lr)
        self._value_step = GradientStep(self.value_loss, v, spec.mode)
        self._vae_step = GradientStep(self.vae_loss, vae, spec.mode)

    # Latents and noise are standard normal, (S, B, 2A) and (S, B, A); values are V(s) (S, B).

    def value_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits V to the least target of the critics and of the target critics."""
        cfg, following = self.cfg, batch.next_observations
        with torch.no_grad():
            actions = self._policy(self.target_actor, following)
            actions = smoothed(actions, noise, cfg.policy_noise, cfg.noise_clip)
            both = torch.cat([f(following, actions) for f in (self.critic, self.target_critic)], 1)
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * both.amin(1)
        values = self.value(batch.observations)
        loss = (values - y).square().mean(-1)
        return loss, {"value_loss": loss, "values": values}

    def vae_loss(
        self, batch: Batch, values: Tensor, latents: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Rebuilds the actions that beat their state's value."""
        rebuilt, divergence = self._rebuilt(batch.observations, batch.actions, latents)
        with torch.no_grad():
            good = self.critic(batch.observations, batch.actions)[:, 0] > values
        error = (rebuilt - batch.actions).square() * good[..., None]
        loss = self.cfg.vae_weight * error.mean((1, 2)) + 0.5 * divergence
        return loss, {"vae_loss": loss, "beats_value": good.float().mean(-1)}

    def actor_loss(
        self, batch: Batch, values: Tensor, latents: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes TD3+BC's loss, with the better action to imitate."""
        actions = self._policy(self.actor, batch.observations)
        q = self.critic(batch.observations, actions)[:, 0]
        weight = self.cfg.alpha / q.detach().abs().mean(-1)
        distance, metrics = (actions - batch.actions).square() * self.cfg.mask, {}
        if self.cfg.anchor == "better":
            anchor, counts, metrics = self.better(batch, actions, values, latents)
            distance = (actions - anchor).square() * counts[..., None]
        imitation = distance.mean((1, 2))
        loss = imitation - weight * q.mean(-1)
        return loss, metrics | {"actor_loss": loss, "imitation_loss": imitation}

    def better(
        self, batch: Batch, actions: Tensor, values: Tensor, latents: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the action to imitate `(S, B, A)`, and the weight of doing so `(S, B)`."""
        rebuilt, _ = self._rebuilt(batch.observations, actions, latents)
        with torch.no_grad():
            q_rebuilt = self.critic(batch.observations, rebuilt)[:, 0]
            q_data = self.critic(batch.observations, batch.actions)[:, 0]
            is_better = q_rebuilt >= q_data
            counts = (q_rebuilt >= values) | (q_data > values)
        anchor = torch.where(is_better[..., None], rebuilt, batch.actions)
        metrics = {"rebuilt_better": is_better.float().mean(-1)}
        return anchor, self.cfg.mask * counts, metrics

    def _rebuilt(
        self, observations: Tensor, actions: Tensor, latents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns actions through the auto-encoder, and the mean divergence from the prior `(S,)`."""
        mean, log_std = self.vae.encode(observations, actions)
        rebuilt = self.vae.decode(observations, mean + torch.exp(log_std) * latents)
        divergence = 0.5 * (mean.square() + torch.exp(2 * log_std) - 1) - log_std
        return rebuilt, divergence.mean((1, 2))

    def update(
        self, batches: list[Batch], noises: list[Tensor], latents: list[Tensor]
    ) -> dict[str, Tensor]:
        """Takes a step of critics, value and encoder per batch, and the actor's and targets' at the end.

        Latents are `(S, 2, B, 2A)`: for the encoder's loss and for the actor's.
        """
        for batch, noise, drawn in zip(batches, noises, latents, strict=True):
            metrics = self._critic_step(batch, noise)
            metrics |= self._value_step(batch, noise)
            values = metrics.pop("values")
            metrics |= self._vae_step(batch, values, drawn[:, 0])
        return metrics | self._improve(batch, values, drawn[:, 1])


build = A2PR


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = A2PR(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", cfg.batch_size, buffer.action_dim)
    latents = run.normal("latents", 2, cfg.batch_size, 2 * buffer.action_dim)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    parts = {"agent": agent, "buffer": buffer, "noise": noise, "latents": latents}
    for step in run.steps(stride=cfg.policy_delay, **parts):
        batches = [buffer.sample() for _ in delay]
        draws = ([stream.next() for _ in delay] for stream in (noise, latents))
        metrics = update(batches, *draws)
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
