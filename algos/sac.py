"""Soft Actor-Critic with automatic temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Maximises return plus entropy off policy: twin critics learn the soft value of a squashed Gaussian
policy (eqs. 5 and 6), the policy follows their minimum by reparameterisation (eq. 9), and the
temperature holds the policy's entropy at a target (eq. 18).

    python algos/sac.py task=gym/Pendulum-v1 steps=10000 seeds=3
    corerl train algo=sac task=gym/HalfCheetah-v4 steps=1000000 seeds=5

What differs, and its switch. The authors' code is softlearning at its last commit (13cf187), which is
not the paper's.

    item                paper    authors                 CleanRL            ours               switch
 1  policy's Q          min      mean (RLPD too)         min                min                actor_q
 2  temperature's step  -        draws again from the    draws again        the policy's own   -
                                 new policy
 3  its factor          alpha    alpha; at first (and    -                  alpha              -
                                 many ports) log(alpha)
 4  std                 -        softplus + 1e-5         tanh on [-5, 2]    exp of a clamped   log_std_min
 5  log(1 - tanh^2)     -        exact (in their first   1e-6 added         exact              -
                                 code 1e-6 added)
 6  critics' loss       -        half the sum            -                  sum (Adam: same)   -
 7  policy's updates    each     each                    2 at every second  each               actor_every
 8  critics' rate       -        -                       1e-3               3e-4               critic_lr
    temperature's       -        -                       1e-3               3e-4               temperature_lr
 9  random steps        -        10,000 (ten episodes)   5,000              10,000             random_steps
10  replay at update    -        -                       -                  before the step    -
11  time limit          -        -                       -                  is no end          -
12  initial weights     -        Glorot                  torch's            torch's            init
    Adam's epsilon      -        1e-7                    1e-8               1e-8               -

One sample and one gradient call for both (2) save a tenth of an update's arithmetic for the same mean.
log(alpha) (3) moves slower where alpha is large; 1e-6 (5) biases the entropy where actions saturate. An
update reads what the replay held before the step that it goes with (10), so that a GPU learns while the
simulators run. Only true terminals cut the bootstrap (11). The authors' weights (12) are `table=sac_paper`;
between hidden layers they are 1.7 times as large as torch's, and we could not tell which learns faster
(results/reproduced/sac).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import PolicyNoise, TanhGaussian, Temperature
from corerl.training.run import Run
from corerl.training.snapshots import Starts, environments

INITS = {"torch": networks.torch_init, "glorot": networks.xavier()}


@dataclass
class Config(MLPSettings):
    name: str = "sac"
    label: str = "SAC"

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every critic update
    initial_temperature: float = positive(1.0)  # first value of the entropy temperature alpha
    learn_temperature: bool = True  # learns alpha (false: alpha is fixed, Haarnoja et al. 2018a)
    target_entropy: float | None = None  # entropy that alpha aims for (null: -action dimension)
    actor_q: str = one_of("min", "mean")  # policy follows the min (paper) | mean (later code) of Q

    random_steps: int = positive(10_000)  # number of first steps, random and without updates
    utd: int = positive(1)  # critic updates per environment step
    actor_every: int = positive(1)  # critic updates per update of the policy (RLPD: utd)
    capacity: int = positive(1_000_000)  # transitions kept per seed

    actor_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    temperature_lr: float = positive(3e-4)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    init: str = added(one_of("torch", "glorot"))  # initial weights, torch (CleanRL) | glorot
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    start: Starts = added(group(Starts))

    def __post_init__(self):
        super().__post_init__()
        require(
            self.utd % self.actor_every == 0,
            f"algo.utd={self.utd} must be a multiple of algo.actor_every={self.actor_every}",
        )


def policy_and_temperature_loss(
    q: Tensor, log_prob: Tensor, alpha: Tensor, target_entropy: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds eq. 9, alpha * log pi - Q, and eq. 18: alpha `(S,)` grows where entropy is below its target.

    Q and log pi are those of the policy's own actions, `(S, B)`. RLPD's loss as well.
    """
    entropy = -log_prob.mean(-1)
    policy_loss = (alpha.detach()[:, None] * log_prob - q).mean(-1)
    loss = policy_loss + alpha * (entropy.detach() - target_entropy)
    return loss, {"policy_loss": policy_loss, "entropy": entropy, "temperature": alpha}


class SAC(PolicyActing):
    """SAC agents of S seeds. `experts` actions are drawn for every step of the policy."""

    experts = 1

    def __init__(self, cfg: Config, spec: Spec, policy: Callable[..., TanhGaussian] = TanhGaussian):
        """`policy` makes the policy's network, as `TanhGaussian` does."""
        self.cfg = cfg
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.target_entropy = -A if cfg.target_entropy is None else cfg.target_entropy
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        options = {"init": INITS[cfg.init]} | cfg.mlp_options
        self.policy = policy([O, *hidden, A], spec.lead, rngs, **limits, **options).to(device)
        self.critic = Critics([O, A, *hidden], rngs, **options).to(device)
        self.target = optim.target_of(self.critic)
        self.temperature = Temperature(spec.seeds, cfg.initial_temperature).to(device)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.actor_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self.temperature_optimizer = alpha
        learned = (pi, alpha) if cfg.learn_temperature else pi
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, learned, spec.mode)

    # Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. 5 and 6: both critics towards r + discount * (min Q' - alpha * log pi) at s'."""
        with torch.no_grad():
            next_actions, log_prob = self.policy.sample(batch.next_observations, noise)
            next_q = self.target(batch.next_observations, next_actions).amin(1)
            next_value = next_q - self.temperature()[:, None] * log_prob
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        return regression(self.critic(batch.observations, batch.actions), y)

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds eqs. 9 and 18 at the policy's own actions."""
        actions, log_prob = self.policy.sample(batch.observations, noise)
        q = self.critic(batch.observations, actions)
        q = q.amin(1) if self.cfg.actor_q == "min" else q.mean(1)
        return policy_and_temperature_loss(q, log_prob, self.temperature(), self.target_entropy)

    def update(self, batches: list[Batch], noises: list[PolicyNoise]) -> dict[str, Tensor]:
        """Takes one critic step per batch. Policy and temperature follow every `actor_every`-th of them."""
        metrics = {}
        for count, (batch, noise) in enumerate(zip(batches, noises, strict=True), start=1):
            metrics |= self._critic_step(batch, noise.next_actions)
            optim.polyak(self.target, self.critic, self.cfg.polyak)
            if count % self.cfg.actor_every == 0:
                metrics |= self._policy_step(batch, noise.actions)
        return metrics


build = SAC


def train(cfg: Config, run: Run) -> None:
    learn(SAC, cfg, run)


def learn(kind: type[SAC], cfg: Config, run: Run) -> None:
    """Trains SAC, or an agent that changes its policy."""
    envs = environments(run, cfg.start)
    agent = kind(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    capacity = min(cfg.capacity, run.cfg.steps)
    replay = ReplayBuffer(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    noise = run.normal("noise", 1 + agent.experts, cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    updates = range(cfg.utd)
    state = {"agent": agent, "envs": envs, "replay": replay}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)  # on the host before the update: see difference 10
        if step > cfg.random_steps:
            drawn = [noise.next() for _ in updates]
            noises = [PolicyNoise(x[:, 0], x[:, 1:].squeeze(1)) for x in drawn]
            metrics = update([replay.sample() for _ in updates], noises)
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        replay.add(envs.step(actions))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
