"""FQL: Flow Q-Learning (Park, Li and Levine 2025, arXiv:2502.02538).

A flow clones the data's actions, however many modes they have. A second policy makes an action of noise in
one step. It stays close to what the flow makes of the same noise, and climbs the critic. So no gradient goes
through the flow's steps, and acting needs none of them.

    python algos/fql.py task=corerl/pendulum steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=fql task=ogbench/cube-single-play-singletask-v0 seeds=8
    corerl train algo=fql_finetune task=d4rl/antmaze-medium-play-v2 seeds=8

The losses, with z and x_0 normal, t uniform and u the clip to [-1, 1]:

    critics   (Q_i(s, a) - r - discount * mean or min Q'(s', u(mu(s', z))))^2
    flow      |v(s, x_t, t) - (a - x_0)|^2,  x_t = (1 - t) x_0 + t a
    policy    alpha * |mu(s, z) - u(Euler(v, s, z))|^2 - mean Q(s, u(mu(s, z)))

The paper's text was not at hand in full. The equations are those of the authors' code (seohongpark/fql at
719d044), which made the published numbers.

    item               authors, ours                                      else
 1  distances          mean over action dimensions                        paper: squared norms, a sum. With a
                                                                          sum, alpha counts A times as much
 2  Q of the policy    mean of both critics, also where q_agg=min         -
 3  targets            follow the critics of before their step            Algorithm 1: after it
 4  steps              all gradients at the start of a step, one Adam     ours: an Adam each, as good
 5  distillation       mu before its clip, the flow's action after it     -
 6  acts               samples z, also when evaluated                     most algorithms: the mean
 7  scale of Q         alpha is tuned per task; later advice: divide by   normalize_q
                       mean |Q| and try 0.03 to 10
 8  first weights      Glorot's, biases 0, also of the last layers        -
 9  fine-tuning        one update per step of the environment, rows       the data's share falls as the replay
                       drawn from data and replay together                grows; online.offline_ratio
10  rewards            AntMaze: less 1                                    the table
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, flow, networks, optim
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "fql"
    label: str = "FQL"

    alpha: float = at_least(0, 10.0)  # weight of the distance to the flow's action (tune it first)
    q_agg: str = one_of("mean", "min")  # target Q is the mean | min of the two target critics
    normalize_q: bool = False  # divides Q by its mean absolute value in the policy's loss
    flow_steps: int = positive(10)  # Euler steps from noise to an action
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of all networks
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 4)
    hidden_width: int = positive(512)
    activation: str = activation("gelu_tanh")  # activation of the hidden layers
    critic_layer_norm: bool = True  # LayerNorm after every hidden activation of the critics
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)


class Draws(NamedTuple):
    """Random numbers of one update. All are normal but `times`."""

    next_actions: Tensor  # (S, B, A)
    path: Tensor  # (S, B, A), the start of the flow's path
    actions: Tensor  # (S, B, A), the noise that both policies turn into an action
    times: Tensor  # (S, B, 1), uniform


class FQL(Stateful):
    """FQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        sizes = [spec.observation_dim, spec.action_dim, *[cfg.hidden_width] * cfg.hidden_layers]
        options = cfg.mlp_options | {"init": networks.xavier()}
        normed = options | {"layer_norm": 1e-6 if cfg.critic_layer_norm else None}
        self.critic = Critics(sizes, spec.rngs, **normed).to(spec.device)
        self.flow = flow.Velocity(sizes, 1, spec.rngs, **options).to(spec.device)
        self.policy = flow.Velocity(sizes, 0, spec.rngs, **options).to(spec.device)
        self.target = optim.target_of(self.critic)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        v = self.flow_optimizer = optim.Adam(self.flow.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._actor_step = GradientStep(self._actor_loss, (v, pi), spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses both critics towards r + discount * Q'(s', mu(s', z)), Q' by `q_agg`."""
        with torch.no_grad():
            next_actions = self.policy(batch.next_observations, noise).clamp(-1, 1)
            next_q = self.target(batch.next_observations, next_actions)
            next_q = next_q.amin(1) if self.cfg.q_agg == "min" else next_q.mean(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        loss, metrics = regression(self.critic(batch.observations, batch.actions), y)
        return loss / 2, metrics | {"critic_loss": loss / 2}

    def flow_loss(self, batch: Batch, noise: Tensor, times: Tensor) -> Tensor:
        """Fits the velocity of the straight path from noise to the data's action."""
        field = partial(self.flow, batch.observations)
        return flow.matching_error(field, batch.actions, noise, times).mean(-1)

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Distils the flow into one step, and climbs the mean of both critics."""
        states = batch.observations
        with torch.no_grad():
            cloned = flow.euler(partial(self.flow, states), noise, self.cfg.flow_steps)
            cloned = cloned.clamp(-1, 1)
        actions = self.policy(states, noise)
        distance = (actions - cloned).square().mean((1, 2))
        q = self.critic(states, actions.clamp(-1, 1)).mean(1)
        scale = 1 / q.detach().abs().mean(-1) if self.cfg.normalize_q else 1.0
        loss = self.cfg.alpha * distance - scale * q.mean(-1)
        return loss, {"policy_loss": loss, "distillation": distance, "policy_q": q.mean(-1)}

    def _actor_loss(self, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        cloning = self.flow_loss(batch, draws.path, draws.times)
        loss, metrics = self.policy_loss(batch, draws.actions)
        return cloning + loss, metrics | {"flow_loss": cloning}

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Takes one step of everything, along gradients at its start."""
        critic, metrics = self._critic_step.gradients(batch, draws.next_actions)
        actor, others = self._actor_step.gradients(batch, draws)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        self._critic_step.apply(critic)
        self._actor_step.apply(actor)
        return metrics | others

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes an action of noise, `(S, n, O)` and normal `(S, n, A)` to `(S, n, A)`."""
        return self.policy(self.normalizer(observations), noise).clamp(-1, 1)


build = FQL


def parts(agent: FQL, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which samples."""
    return {"policy": SampledPolicy(agent.explore, [spec.action_dim], spec.identities)}


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    spec = run.spec(buffer, normalizer)
    agent = FQL(cfg, spec)
    noise = run.normal("noise", 3, cfg.batch_size, spec.action_dim)
    times = run.uniform("times", cfg.batch_size, 1)
    phases = Phases(cfg, run, buffer, agent)
    state = {"agent": agent, "buffer": buffer, "noise": noise, "times": times}
    state |= parts(agent, spec) | phases.parts
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**state):
        phases.act(step, agent.explore)
        if phases.learns(step):
            draws = Draws(*noise.next().unbind(1), times.next())
            run.log(step, update(phases.sample(step), draws) | phases.metrics())
        run.evaluate(step, state["policy"])
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
