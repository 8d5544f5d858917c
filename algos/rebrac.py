"""ReBRAC (Tarasov et al. 2023, arXiv:2305.09836): TD3+BC with the details that matter turned up.

The imitation penalty acts on the actor and, separately weighted, on the target of the critic; critics
have LayerNorm; networks are deeper and batches larger (section 3).

    python algos/rebrac.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=rebrac task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=rebrac_finetune task=d4rl/antmaze-umaze-v2 seeds=4

What differs; the default made the published numbers.

    item            paper      authors' code                  ours                     switch
 1  targets         -          actor: from before its step;   authors'                 stale_actor_target
                               critic: from after it
 2  critic's layers LayerNorm  ReLU, LayerNorm (eps 1e-6)     authors'                 critic_layer_norm
 3  imitation       squared    summed over action dimensions  authors' (TD3+BC: mean)  -
 4  coefficients    appendix   differ on four hopper sets     those beside the scores  the table
 5  AntMaze rates   1e-4 both  3e-4 and 5e-5                  authors'                 actor_lr, critic_lr
 6  no next action  -          such rows are not in D4RL      left out                 -
 7  fine-tuning     -          CORL: half data, beta_2 off,   CORL's; all steps of a   online, min_bc_share
                               beta_1 falls, no noise         call before its updates
 8  first weights   -          +-1/sqrt(inputs), bias 0.1     authors'                 init

FQL's authors' (seohongpark/fql at 719d044), whose numbers stand for ReBRAC on OGBench, is
`algo=rebrac_ogbench`: JAX's GELUs, Glorot's weights, gradients of actor and critics at a step's start, which
is where both targets follow, too; of every two updates the second gives the actor a gradient, here the first,
and one Adam of all networks moves it on along zero in the other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import TanhActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import smoothed
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Online, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "rebrac"
    label: str = "ReBRAC"

    actor_bc_coef: float = at_least(0, 0.01)  # beta_1, weight of imitation in the actor's loss
    critic_bc_coef: float = at_least(0, 0.01)  # beta_2, weight of imitation in the critics' target
    normalize_q: bool = True  # divides Q by its mean absolute value in the actor's loss
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, at each actor update
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    policy_delay: int = positive(2)  # critic updates per actor update
    stale_actor_target: bool = True  # the actor's target moves before the actor's step (authors)
    order: str = added(one_of("critic_first", "joint"))  # critic_first | joint (all at once, FQL)

    actor_lr: float = positive(1e-3)
    critic_lr: float = positive(1e-3)
    adam_eps: float = added(positive(1e-8))
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    layer_norm: bool = added(False)  # LayerNorm in the actor
    critic_layer_norm: bool = True  # LayerNorm in the critics
    init: str = added(  # initial weights, authors | glorot (FQL) | lecun (unifloral)
        one_of("authors", "glorot", "lecun")
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    min_bc_share: float = within(0.5, "[0, 1]")  # share of actor_bc_coef left when fine-tuning ends
    online: Online = group(Online, offline_ratio=0.5)


def _lecun(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """Initialises as Flax's layers, with biases of 0.1."""
    networks.lecun(weight, bias, rng)
    bias.fill_(0.1)


def layers(cfg: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of `MLP` for the actor and for the critics. `cfg` is also TD3-AWR's."""
    small = (networks.uniform(1e-3), networks.uniform(3e-3))
    init, of_actor, of_critic = {
        "authors": (networks.uniform(bias=0.1), *small),
        "glorot": (networks.xavier(), networks.xavier(0.1), networks.xavier()),
        "lecun": (_lecun, *small),
    }[cfg.init]
    norm = {"layer_norm": 1e-6 if cfg.critic_layer_norm else None}
    shared = cfg.mlp_options | {"init": init}
    return shared | {"output_init": of_actor}, shared | {"output_init": of_critic} | norm


class ReBRAC(TanhActing):
    """ReBRAC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs = spec.observation_dim, spec.action_dim, spec.rngs
        of_actor, of_critic = layers(cfg)
        actor = networks.MLP([O, *hidden, A], spec.lead, rngs, **of_actor)
        critic = Critics([O, A, *hidden], rngs, **of_critic)
        self.actor, self.critic = actor.to(spec.device), critic.to(spec.device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        eps = {"eps": cfg.adam_eps}
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.actor_lr, **eps)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr, **eps)
        self._actor_gradients = compile.gradients(
            self.actor_loss, self.actor_optimizer.parameters, spec.mode
        )
        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,). `bc_factors` (2,) multiply beta_1 and
    # beta_2 while fine-tuning.

    def critic_loss(
        self, batch: Batch, noise: Tensor, bc_factors: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Towards r + discount * (min Q' - beta_2 * |a' - a'_data|^2), summed over both critics."""
        cfg = self.cfg
        with torch.no_grad():
            next_action = torch.tanh(self.target_actor(batch.next_observations))
            next_action = smoothed(next_action, noise, cfg.policy_noise, cfg.noise_clip)
            penalty = (next_action - batch.next_actions).square().sum(-1)
            next_q = self.target_critic(batch.next_observations, next_action).amin(1)
            beta_2 = (
                cfg.critic_bc_coef if bc_factors is None else cfg.critic_bc_coef * bc_factors[1]
            )
            next_q = next_q - beta_2 * penalty
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * next_q
        return regression(self.critic(batch.observations, batch.actions), y)

    def actor_loss(
        self, batch: Batch, bc_factors: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes beta_1 * |pi(s) - a|^2 - lambda * min(Q1, Q2)(s, pi(s))."""
        actions = torch.tanh(self.actor(batch.observations))
        q = self.critic(batch.observations, actions).amin(1)
        scale = 1 / q.detach().abs().mean(-1) if self.cfg.normalize_q else 1.0
        imitation = (actions - batch.actions).square().sum(-1).mean(-1)
        beta_1 = self.cfg.actor_bc_coef
        beta_1 = beta_1 if bc_factors is None else beta_1 * bc_factors[0]
        loss = beta_1 * imitation - scale * q.mean(-1)
        return loss, {"actor_loss": loss, "imitation_loss": imitation}

    def update(
        self, batches: list[Batch], noises: list[Tensor], bc_factors: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Takes one critic step per batch. The actor and the targets follow the first of them."""
        joint = self.cfg.order == "joint"
        if joint:
            metrics = self._update_both(batches[0], noises[0], bc_factors)
        else:
            metrics = self._critic_step(batches[0], noises[0], bc_factors)
            metrics |= self._update_actor(batches[0], bc_factors)
        for batch, noise in zip(batches[1:], noises[1:], strict=True):
            metrics |= self._critic_step(batch, noise, bc_factors)
            if joint:
                optim.zero_step(self.actor_optimizer)
        return metrics

    def _update_actor(self, batch: Batch, bc_factors: Tensor | None) -> dict[str, Tensor]:
        grads, metrics = self._actor_gradients(batch, bc_factors)
        if self.cfg.stale_actor_target:
            optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        self.actor_optimizer.step(grads)
        if not self.cfg.stale_actor_target:
            optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        return metrics

    def _update_both(
        self, batch: Batch, noise: Tensor, bc_factors: Tensor | None
    ) -> dict[str, Tensor]:
        """Takes all gradients, and moves the targets, before anything else is stepped."""
        actor, metrics = self._actor_gradients(batch, bc_factors)
        critic, others = self._critic_step.gradients(batch, noise, bc_factors)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        self._critic_step.apply(critic)
        self.actor_optimizer.step(actor)
        return metrics | others

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Returns the same action: CORL fine-tunes without exploration noise."""
        return self.act(observations)


build = ReBRAC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, next_actions=True)
    agent = ReBRAC(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", cfg.batch_size, buffer.action_dim)
    phases = Phases(cfg, run, buffer, agent, stride=cfg.policy_delay)
    parts = {"agent": agent, "buffer": buffer, "noise": noise} | phases.parts
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    for step in run.steps(stride=cfg.policy_delay, **parts):
        for _ in delay:
            phases.act(step, agent.explore)
        if phases.learns(step):
            batches, noises = [phases.sample(step) for _ in delay], [noise.next() for _ in delay]
            bc_factors = None
            if cfg.phase != "offline":
                ahead = phases.left(step - cfg.policy_delay + 1)  # at the call's first update
                bc_factors = _bc_factors(cfg, ahead, phases.online(step), run.device)
            metrics = update(batches, noises, bc_factors)
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


def _bc_factors(cfg: Config, ahead: float, online: bool, device: torch.device) -> Tensor:
    """Returns what remains of beta_1 and beta_2, where this share of the fine-tuning lies ahead."""
    of_actor = max(cfg.min_bc_share, ahead) if online else 1.0
    bc_factors = (of_actor, 0.0 if online else 1.0)
    # Made on the device: a copy to it would wait there for the update before.
    return torch.stack([torch.full((), factor, device=device) for factor in bc_factors])


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
