"""SQIRL: shallow Q-iteration by regression (Laidlaw et al. 2024, ICLR, arXiv:2312.08369).

Many tasks need no clever exploration. A few steps of lookahead beyond random play suffice. SQIRL fixes the
actions of an episode one step after another. In iteration t it plays its policy for the first t steps, and
uniformly after them. It regresses k heads of one network on these episodes, and freezes the network as the
policy of step t:

    Q_1(s, a)     the discounted sum of rewards that followed
    Q_i+1(s, a)   r + discount * max_a' Q_i(s', a')
    policy of t   argmax Q_k

    python algos/sqirl.py task=risk/trap algo.lookahead=3 seeds=3
    corerl train -m algo=sqirl task=risk/trap algo.lookahead=1,2,3 seeds=5
    corerl train algo=sqirl task=gym/CartPole-v1 seeds=3

A step is an iteration, so an episode of T steps needs `steps` T. The policy of steps that are not fixed yet
is the last network's. For a task with a finite MDP the run prints the effective horizon: the k that is enough
(corerl/risk/effective_horizon.py).

Differences from the authors' code (cassidylaidlaw/effective-horizon at 54051f9, sb3/algorithms/sqirl.py):
 1. An iteration learns from its own episodes. There the rows of earlier ones stay in the replay.
 2. An iteration makes `updates` steps on rows drawn with replacement. There it is epochs over the rows.
 3. The losses of the k heads are added. There a running mean of each divides it.
 4. A Huber loss, atoms and an average of weights are left out, which are off there by default.
 5. The rate is 1e-3, there 1e-4. An iteration has 20 episodes, there as many as are set for each game.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.config import positive, require, seed_list, within
from corerl.nn import compile, optim
from corerl.nn.critics import ActionValues, gather_actions
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.risk.effective_horizon import effective_horizon
from corerl.risk.finite_mdp import FiniteMDP
from corerl.training.rollouts import Collector, Played, to_go
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    actions = "discrete"
    name: str = "sqirl"
    label: str = "SQIRL"

    lookahead: int = positive(1)  # k, number of lookahead steps, each with a head of the network
    discount: float = within(1.0, "[0, 1]")
    episodes: int = positive(20)  # m, episodes per iteration
    max_steps: int = positive(100)  # T, largest number of steps in an episode (longer: truncated)
    updates: int = positive(200)  # gradient updates per iteration

    lr: float = positive(1e-3)
    max_norm: float = positive(10.0)  # norm at which gradients are clipped
    batch_size: int = positive(128)
    hidden_layers: int = positive(2)
    hidden_width: int = positive(64)


class SQIRL(Stateful):
    """SQIRL agents of S seeds. `fixed` are the networks' weights by iteration, `(S, T, ...)` each.

    `q` maps `(S, B, O)` to `(S, B, A, k)`.
    """

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.actions = cfg, spec.action_dim
        shape = np.atleast_1d(spec.observation_dim).tolist()
        outputs, hidden = (spec.action_dim, cfg.lookahead), (cfg.hidden_layers, cfg.hidden_width)
        q = ActionValues(shape, outputs, *hidden, spec.rngs, **cfg.mlp_options)
        self.q = q.to(spec.device)
        self.fixed = {
            name: weights.new_zeros(len(weights), cfg.max_steps, *weights.shape[1:])
            for name, weights in self.q.state_dict().items()
        }
        self.clock = optim.Clock(spec.device)  # of iterations
        optimizer = self.optimizer = optim.Adam(self.q.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, optimizer, spec.mode, max_norm=cfg.max_norm)

    def loss(self, rows: "Rows", chosen: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses every head at the rows `chosen` `(S, B)`, leaving out those after an episode's end."""
        observations, actions, rewards, returns, following, going, alive = rows.at(chosen)
        with torch.no_grad():
            ahead = self.q(following)[..., :-1].amax(2) * going[..., None]
            targets = rewards[..., None] + self.cfg.discount * ahead
            targets = torch.cat([returns[..., None], targets], -1)
        q = gather_actions(self.q(observations), actions)
        error = (q - targets).square() * alive[..., None]
        losses = error.sum(1) / alive.sum(1, keepdim=True).clamp(min=1)
        return losses.sum(-1), {f"loss of q {i + 1}": x for i, x in enumerate(losses.unbind(-1))}

    def update(self, rows: "Rows", chosen: Tensor) -> dict[str, Tensor]:
        """Takes a step of the network."""
        return self._step(rows, chosen)

    @torch.no_grad()
    def fix(self) -> None:
        """Makes the network the policy of the next step of an episode."""
        for name, weights in self.q.state_dict().items():
            self.fixed[name][:, self.clock.count] = weights
        self.clock.step()

    @torch.no_grad()
    def best(self, observations: Tensor, t: int) -> Tensor:
        """Returns the actions `(S, n)` of step t."""
        if t >= int(self.clock.count):
            values = self.q(observations)
        else:
            weights = {name: kept[:, t] for name, kept in self.fixed.items()}
            values = torch.func.functional_call(self.q, weights, observations)
        return values[..., -1].argmax(-1)


class Rows(NamedTuple):
    """The steps of E episodes, `(S, E T, ...)`. After an end all is 0."""

    observations: Tensor  # (S, N, O)
    actions: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    returns: Tensor  # (S, N), discounted, from this step on
    following: Tensor  # (S, N, O)
    going: Tensor  # (S, N), 0 if the episode ends with this step
    alive: Tensor  # (S, N)

    @classmethod
    def of(cls, played: Played, discount: float) -> "Rows":
        """Returns the steps of played episodes."""
        following = F.pad(played.observations[:, :, 1:], (0, 0, 0, 1))
        going = F.pad(played.alive[..., 1:], (0, 1))
        returns = to_go(played.rewards, discount)
        parts = (played.observations, played.actions, played.rewards, returns)
        parts += (following, going, played.alive)
        return cls(*(x.flatten(1, 2) for x in parts))

    def at(self, chosen: Tensor) -> "Rows":
        """Returns the rows `(S, B)`."""
        seeds = torch.arange(len(chosen), device=chosen.device)[:, None]
        return Rows(*(x[seeds, chosen] for x in self))


def later_rows(uniforms: Tensor, first: int, cfg: Config) -> Tensor:
    """Returns the numbers of rows at step `first` of an episode or later, by uniform draws."""
    later = cfg.max_steps - first
    number = (uniforms * (cfg.episodes * later)).long()
    return number // later * cfg.max_steps + first + number % later


class StepPlayer:
    """The policy in play. With uniform draws `(S, T, n)` it is uniform where no step is fixed."""

    def __init__(self, agent: SQIRL, draws: Tensor | None = None):
        self._agent, self._draws, self._t = agent, draws, 0

    def begin(self, seeds: int, episodes: int) -> None:
        self._t = 0

    def reward(self, rewards: Tensor) -> None:
        self._t += 1

    def __call__(self, observations: Tensor) -> Tensor:
        t = min(self._t, self._agent.cfg.max_steps - 1)
        if self._draws is None or t < int(self._agent.clock.count):
            return self._agent.best(observations, t)
        return (self._draws[:, t] * self._agent.actions).long()


build = SQIRL


def parts(agent: SQIRL, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    return {"policy": StepPlayer(agent)}


def train(cfg: Config, run: Run) -> None:
    require(
        run.cfg.steps <= cfg.max_steps,
        f"steps={run.cfg.steps} must be at most algo.max_steps={cfg.max_steps}, because each "
        "step of training fixes the policy for one step of the episode",
    )
    sizes = (cfg.episodes, cfg.max_steps)
    collector = Collector(run.task.make_env, run.seeds, *sizes, run.device, cfg.discount)
    agent = SQIRL(cfg, run.spec(collector))
    draws = run.uniform("exploration", cfg.max_steps, cfg.episodes, block=1)
    chosen = run.uniform("batch", cfg.updates, cfg.batch_size, block=1)
    update = compile.captured(agent.update, run.mode)
    tell(run)
    for step in run.steps(agent=agent, collector=collector, draws=draws, chosen=chosen):
        played = collector.play(StepPlayer(agent, draws.next()))
        rows = Rows.of(played, cfg.discount)
        for numbers in later_rows(chosen.next(), step - 1, cfg).unbind(1):
            metrics = update(rows, numbers)
        agent.fix()
        run.log(step, metrics | {"return": played.rewards.sum(-1).mean(-1)})
        run.evaluate(step, StepPlayer(agent))
        run.save(step)


def tell(run: Run) -> None:
    """Prints the effective horizon of a finite MDP."""
    mdp = getattr(run.task.make_env().unwrapped, "mdp", None)
    if isinstance(mdp, FiniteMDP) and seed_list(run.cfg.seeds)[0] in run.seeds:
        k = effective_horizon(mdp)
        print(f"{run.task.id}  effective horizon {k}: algo.lookahead={k} is enough", flush=True)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
