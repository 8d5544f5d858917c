"""ReLOAD on SAC: constrained, with learned critics (Moskovitz et al. 2023, ICML, arXiv:2302.01275).

The cost of a `period` of steps is to stay within `budget`. SAC learns critics Q of the reward, with its
entropy, and critics C of the cost. The policy follows the Lagrangian L = min Q - mu C, and the multiplier mu
follows the excess of the cost. A period ends iteration k. Both use the last change too:

    policy      alpha log pi(a|s) - (2 L_k - L_k-1)(s, a),      L_k-1 = min Q_k-1 - mu_k-1 C_k-1
    multiplier  mu_k+1 = max(0, mu_k + eta_mu (2 g_k - g_k-1)),   g_k = (cost of the period - budget) / period

`gradient=plain` takes L_k and g_k alone. Without a cost it is SAC (algos/sac.py). `algo=reload` is the exact
form, on finite problems.

    python algos/reload_sac.py task=risk/HalfCheetah-velocity-v4 algo.hidden_width=64 steps=60000
    corerl train -m algo=reload_sac algo.gradient=optimistic,plain task=risk/HalfCheetah-velocity-v4 seeds=3

The last feature of an observation is the cost of the step before it, as in envs/velocity_cost.py. Networks do
not see it. `cost` of the metrics is the sum over the last period.

Differences. The abstract and a summary could be read, and there is no public code. All of the deep form is
our reading:
 1. The learner is SAC, and one critic pair learns the cost, whose mean is C.
 2. L_k-1 is of the critics as they were when the last period began.
 3. The cost of a period is that of its training steps, exploration included.
 4. A period is an episode of 1,000 steps. eta_mu is for the excess per step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corerl.algos import sac
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import at_least, one_of, positive, require
from corerl.data.tasks import Task
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.policies import PolicyNoise, TanhGaussian, Temperature
from corerl.training.run import Run
from corerl.training.snapshots import environments


@dataclass
class Config(sac.Config):
    name: str = "reload_sac"
    label: str = "ReLOAD-SAC"

    gradient: str = one_of("optimistic", "plain")  # optimistic (ReLOAD) | plain descent-ascent
    budget: float = at_least(0, 25.0)  # limit on the sum of costs in a period of steps
    period: int = positive(1_000)  # environment steps between updates of the Lagrange multiplier
    eta_mu: float = positive(1.0)  # step size of the Lagrange multiplier
    initial_multiplier: float = at_least(0, 0.0)  # first value of the Lagrange multiplier


class Costs(nn.Module):
    """The critics of a Lagrangian: `reward` and `cost`, two heads each, and its `multiplier` `(S,)`."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__()
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        init = sac.INITS[cfg.init]
        sizes = [spec.observation_dim - 1, spec.action_dim, *hidden]
        self.reward = Critics(sizes, spec.rngs, init=init, **cfg.mlp_options)
        self.cost = Critics(sizes, spec.rngs, init=init, **cfg.mlp_options)
        multiplier = torch.full((spec.seeds,), cfg.initial_multiplier)
        self.register_buffer("multiplier", multiplier)

    def lagrangian(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns min Q - mu C, `(S, B)`."""
        q, c = self.reward(observations, actions).amin(1), self.cost(observations, actions).mean(1)
        return q - self.multiplier[:, None] * c


class ReLOADSAC(PolicyActing):
    """ReLOAD-SAC agents of S seeds. `last` is `critic` of the period before. `target` follows `critic`."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, networks.WithoutLast()
        O, A, rngs, device = spec.observation_dim - 1, spec.action_dim, spec.rngs, spec.device
        self.target_entropy = -A if cfg.target_entropy is None else cfg.target_entropy
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        options = {"init": sac.INITS[cfg.init]} | cfg.mlp_options
        self.policy = TanhGaussian([O, *hidden, A], spec.lead, rngs, **limits, **options).to(device)
        self.critic = Costs(cfg, spec).to(device)
        self.target, self.last = optim.target_of(self.critic), optim.target_of(self.critic)
        self.temperature = Temperature(spec.seeds, cfg.initial_temperature).to(device)
        self.last_excess = torch.zeros(spec.seeds, device=device)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.actor_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self.temperature_optimizer = alpha
        learned = (pi, alpha) if cfg.learn_temperature else pi
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, learned, spec.mode)

    # Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses Q as SAC does, and C towards cost + discount * C' at s', without entropy."""
        costs, s, after = self.split(batch)
        going = self.cfg.discount * (1 - batch.terminated)
        with torch.no_grad():
            actions, log_prob = self.policy.sample(after, noise)
            entropy = -self.temperature()[:, None] * log_prob
            y = batch.rewards + going * (self.target.reward(after, actions).amin(1) + entropy)
            y_cost = costs + going * self.target.cost(after, actions).mean(1)
        loss, metrics = regression(self.critic.reward(s, batch.actions), y)
        cost_loss, found = regression(self.critic.cost(s, batch.actions), y_cost)
        return loss + cost_loss, metrics | {f"cost_{name}": x for name, x in found.items()}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Follows 2 L_k - L_k-1, and SAC's temperature loss."""
        _, s, _ = self.split(batch)
        actions, log_prob = self.policy.sample(s, noise)
        value = self.critic.lagrangian(s, actions)
        if self.cfg.gradient == "optimistic":
            value = 2 * value - self.last.lagrangian(s, actions)
        alpha, entropy = self.temperature(), -log_prob.mean(-1)
        loss = (alpha.detach()[:, None] * log_prob - value).mean(-1)
        total = loss + alpha * (entropy.detach() - self.target_entropy)
        return total, {"policy_loss": loss, "entropy": entropy, "temperature": alpha}

    @staticmethod
    def split(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the costs `(S, B)` of the steps, and states before and after without them."""
        after = batch.next_observations
        return after[..., -1], batch.observations[..., :-1], after[..., :-1]

    def update(self, batches: list[Batch], noises: list[PolicyNoise]) -> dict[str, Tensor]:
        """Takes SAC's steps, of all but the multiplier."""
        metrics = {}
        for count, (batch, noise) in enumerate(zip(batches, noises, strict=True), start=1):
            metrics |= self._critic_step(batch, noise.next_actions)
            for target, online in zip(self.target.children(), self.critic.children(), strict=True):
                optim.polyak(target, online, self.cfg.polyak)
            if count % self.cfg.actor_every == 0:
                metrics |= self._policy_step(batch, noise.actions)
        return metrics

    @torch.no_grad()
    def iterate(self, cost: Tensor) -> None:
        """Ends a period, whose steps cost the sums `(S,)`: moves the multiplier and remembers the critics."""
        excess = (cost - self.cfg.budget) / self.cfg.period
        ahead = excess
        if self.cfg.gradient == "optimistic":
            ahead = 2 * excess - self.last_excess
        optim.polyak(self.last, self.critic, 1.0)
        self.last_excess.copy_(excess)
        moved = self.critic.multiplier + self.cfg.eta_mu * ahead
        self.critic.multiplier.copy_(moved.clamp(min=0))


build = ReLOADSAC


def check_task(task: Task) -> None:
    """Raises CorerlError where an observation of the task does not end with a cost."""
    env = task.make_env()
    _, info = env.reset(seed=0)
    env.close()
    require(
        "cost" in info,
        f"{task.id} has no cost in info. Wrap its environment as envs/velocity_cost.py does, or take "
        "task=risk/HalfCheetah-velocity-v4",
    )


def train(cfg: Config, run: Run) -> None:
    check_task(run.task)
    envs = environments(run, cfg.start)
    agent = ReLOADSAC(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    capacity = min(cfg.capacity, run.cfg.steps)
    replay = ReplayBuffer(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    noise = run.normal("noise", 2, cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    costs, updates = Period(len(run.seeds)), range(cfg.utd)
    state = {"agent": agent, "envs": envs, "replay": replay, "costs": costs}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)
        if step > cfg.random_steps:
            noises = [PolicyNoise(*noise.next().unbind(1)) for _ in updates]
            metrics = update([replay.sample() for _ in updates], noises)
            now = {"cost": costs.last.to(run.device), "multiplier": agent.critic.multiplier}
            run.log(step, metrics | now | {"episode_return": envs.episode_returns})
        played = envs.step(actions)
        replay.add(played)
        costs.sum += torch.from_numpy(played.next_observations[:, -1].copy())
        if step % cfg.period == 0:
            costs.end()
            if step > cfg.random_steps:
                agent.iterate(costs.last.to(run.device))
        run.evaluate(step, agent.act)
        run.save(step)


class Period(Stateful):
    """The sums of costs `(S,)` on the host: `sum` of the running period, `last` of the one before."""

    def __init__(self, seeds: int):
        self.sum, self.last = torch.zeros(seeds), torch.zeros(seeds)

    def end(self) -> None:
        self.last.copy_(self.sum)
        self.sum.zero_()


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
