"""TD3: twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger 2018, arXiv:1802.09477).

The target is the smaller of two critics, at an action with noise. The policy and the targets move with every
second update. TD3+BC adds imitation to it.

    python algos/td3.py task=gym/Pendulum-v1 steps=20000 algo.random_steps=1000 seeds=3
    corerl train algo=td3 task=gym/HalfCheetah-v4 seeds=3
    corerl train algo=td3 task=gym/gymnasium_robotics:FetchReach-v4 algo.hindsight=0.8 algo.random_steps=1000

The last one learns to reach goals by hindsight experience replay (corerl/buffers/hindsight.py).

The losses, with mu' and Q' the targets, e normal noise of `policy_noise`, clipped, and u the clip to [-1, 1]:

    critics   (Q_i(s, a) - r - discount * min_j Q'_j(s', u(mu'(s') + e)))^2
    policy    -Q_1(s, mu(s))

It acts with u(mu(s) + exploration * normal noise).

    item             authors (sfujim/TD3 at 34770cc), ours      paper                    CleanRL (fe8d8a0)
 1  rates            3e-4                                       1e-3                     3e-4
 2  batch            256                                        100                      256
 3  layers           256, 256                                   400, 300                 256, 256
 4  random steps     25,000, without an update                  10,000; 1,000 if short   25,000
 5  order            a step in the environment, then an         -                        as the authors
                     update; ours: the update first
 6  first weights    torch's                                    -                        torch's
 7  action's range   ours: [-1, 1]; noise scales with it        -                        scales with it
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.hindsight import HindsightReplay
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import added, at_least, group, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import TanhActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import smoothed
from corerl.training.environments import Environments
from corerl.training.run import Run
from corerl.training.snapshots import Starts, environments


@dataclass
class Config(MLPSettings):
    name: str = "td3"
    label: str = "TD3"

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, per policy update
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    policy_delay: int = positive(2)  # critic updates per policy update
    exploration: float = at_least(0, 0.1)  # standard deviation of the noise on actions in [-1, 1]

    random_steps: int = positive(25_000)  # number of first steps, random and without updates
    capacity: int = positive(1_000_000)  # transitions kept per seed

    hindsight: float = added(within(0.0, "[0, 1]"))  # share of goals replaced by later states (HER)

    lr: float = positive(3e-4)  # learning rate of policy and critics
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    start: Starts = added(group(Starts))


class TD3(TanhActing):
    """TD3 agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec, critics: int = 2):
        self.cfg, self.normalizer = cfg, spec.normalizer
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        options = cfg.mlp_options
        self.actor = networks.MLP([O, *hidden, A], spec.lead, rngs, **options).to(device)
        self.critic = Critics([O, A, *hidden], rngs, critics, **options).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        pi = self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._actor_step = GradientStep(self.actor_loss, pi, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A) and normal; each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses both critics towards the smaller target at the smoothed target action (eq. 15)."""
        next_q = self.next_q(batch, noise).amin(1)
        y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        return regression(self.critic(batch.observations, batch.actions), y)

    @torch.no_grad()
    def next_q(self, batch: Batch, noise: Tensor) -> Tensor:
        """Returns the target critics `(S, N, B)` at the smoothed target action."""
        cfg, following = self.cfg, batch.next_observations
        actions = torch.tanh(self.target_actor(following))
        actions = smoothed(actions, noise, cfg.policy_noise, cfg.noise_clip)
        return self.target_critic(following, actions)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the first critic."""
        q = self.critic(batch.observations, torch.tanh(self.actor(batch.observations)))[:, 0]
        return -q.mean(-1), {"actor_loss": -q.mean(-1)}

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Takes a step of the critics alone."""
        return self._critic_step(batch, noise)

    def update_all(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Takes a step of the critics, then one of the policy, which all targets follow."""
        metrics = self._critic_step(batch, noise) | self._actor_step(batch)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Adds noise to the action, `(S, n, O)` and normal `(S, n, A)` to `(S, n, A)`."""
        return (self.act(observations) + self.cfg.exploration * noise).clamp(-1, 1)


build = TD3


def train(cfg: Config, run: Run) -> None:
    learn(TD3, cfg, run)


def learn(kind: type[TD3], cfg: Config, run: Run) -> None:
    """Trains TD3, or an agent that changes its losses."""
    envs = environments(run, cfg.start)
    agent = kind(cfg, run.spec(envs))
    replay = make_replay(cfg, run, envs)
    noise = run.normal("noise", cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    update, update_all, explore = (
        compile.captured(call, run.mode) for call in (agent.update, agent.update_all, agent.explore)
    )
    state = {"agent": agent, "envs": envs, "replay": replay}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)
        if step > cfg.random_steps:
            made = step - cfg.random_steps
            learn = update_all if made % cfg.policy_delay == 0 else update
            metrics = learn(replay.sample(), noise.next())
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        replay.add(envs.step(actions))
        run.evaluate(step, agent.act)
        run.save(step)


def make_replay(cfg: Config, run: Run, envs: Environments) -> ReplayBuffer:
    """Returns the run's replay, with hindsight where the settings ask for it."""
    sizes, capacity = (envs.observation_dim, envs.action_dim), min(cfg.capacity, run.cfg.steps)
    if not cfg.hindsight:
        return ReplayBuffer(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    require(
        capacity == run.cfg.steps,
        f"algo.capacity={cfg.capacity} must be at least steps={run.cfg.steps}, because algo.hindsight keeps "
        "whole episodes",
    )
    env, options = run.task.make_env(), (run.seeds, cfg.batch_size, run.device)
    return HindsightReplay(env, cfg.hindsight, sizes, capacity, *options)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
