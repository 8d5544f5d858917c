"""TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860).

TD3 whose policy also imitates the data: the actor maximises lambda * Q - (pi(s) - a)^2, with lambda
scaled by the size of Q so that one alpha serves every task (eq. 5).

    python algos/td3_bc.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=td3_bc task=d4rl/hopper-medium-v2 seeds=10

Differences, each with its reason:
 1. The authors' code counts before it tests, so that the first actor update comes at step 2; one call
    here is `policy_delay` critic updates and then one of the actor and the targets, which is the same.
 2. Eq. 5 averages |Q| over the data's actions. The authors' code, which made the numbers, averages
    |Q1| over the policy's; so here.
 3. The paper leaves states as they are on AntMaze (configs/td3_bc.yaml follows it, with CORL's r - 1);
    CORL normalises everywhere: algo.data.normalize_states=true.
 4. The paper's scores are on D4RL's v0 data; compare v2 runs with reruns only.

NeoRL-2's, with raw states for the critics, is `td3_bc_neorl2`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, positive, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import TanhActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import smoothed
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "td3_bc"
    label: str = "TD3+BC"

    alpha: float = positive(2.5)  # weight of Q against imitation (eq. 5)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, at each actor update
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    policy_delay: int = positive(2)  # critic updates per actor update

    lr: float = positive(3e-4)  # learning rate of actor and critics
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    actor_layers: int | None = added(  # hidden layers of the actor (null: hidden_layers)
        at_least(1, None)
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)


class TD3BC(TanhActing):
    """TD3+BC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        actor_hidden = [cfg.hidden_width] * (cfg.actor_layers or cfg.hidden_layers)
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.actor = networks.MLP([O, *actor_hidden, A], spec.lead, rngs, **cfg.mlp_options).to(
            device
        )
        self.critic = Critics([O, A, *hidden], rngs, **cfg.mlp_options).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._actor_step = GradientStep(self.actor_loss, self.actor_optimizer, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Applies clipped double Q-learning with target policy smoothing. `noise` (S, B, A) is normal."""
        cfg = self.cfg
        with torch.no_grad():
            next_action = self._policy(self.target_actor, batch.next_observations)
            next_action = smoothed(next_action, noise, cfg.policy_noise, cfg.noise_clip)
            next_q = self.target_critic(batch.next_observations, next_action).amin(1)
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * next_q
        return regression(self.critic(batch.observations, batch.actions), y)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes eq. 5: -lambda * Q1(s, pi(s)) + mean squared distance to the data's action."""
        actions = self._policy(self.actor, batch.observations)
        q = self.critic(batch.observations, actions)[:, 0]
        weight = self.cfg.alpha / q.detach().abs().mean(-1)
        imitation = (actions - batch.actions).square().mean((1, 2))
        loss = imitation - weight * q.mean(-1)
        return loss, {"actor_loss": loss, "imitation_loss": imitation}

    def _policy(self, actor: nn.Module, observations: Tensor) -> Tensor:
        return torch.tanh(actor(observations))

    def update(self, batches: list[Batch], noises: list[Tensor]) -> dict[str, Tensor]:
        """Takes one critic step per batch. With the last one the actor's and the targets'."""
        for batch, noise in zip(batches, noises, strict=True):
            metrics = self._critic_step(batch, noise)
        return metrics | self._improve(batch)

    def _improve(self, *inputs: Any) -> dict[str, Tensor]:
        metrics = self._actor_step(*inputs)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics


build = TD3BC


def train(cfg: Config, run: Run) -> None:
    learn(TD3BC, cfg, run)


def learn(kind: type[TD3BC], cfg: Config, run: Run, *, raw: bool = False) -> None:
    """Trains TD3+BC, or an agent that changes its update. `raw` leaves states to the agent to normalise."""
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, raw=raw)
    agent = kind(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", cfg.batch_size, buffer.action_dim)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    for step in run.steps(stride=cfg.policy_delay, agent=agent, buffer=buffer, noise=noise):
        metrics = update([buffer.sample() for _ in delay], [noise.next() for _ in delay])
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
