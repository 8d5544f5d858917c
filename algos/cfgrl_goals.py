"""CFGRL for goals: guidance sharpens cloning (Frans, Park, Abbeel and Levine 2025, arXiv:2505.23458).

A flow clones each action given a later state of its episode. For a tenth of the rows a learned vector stands
in the goal's place. When it acts, its velocity goes from the one without a goal towards the one with it, and
beyond:

    velocity  v = v(s, x, t | none) + w (v(s, x, t | g) - v(s, x, t | none))

w = 1 is cloning of reached goals with a flow. A larger w prefers the actions that tell the goal apart, and
needs no value. No update reads w, so you can change it after training. With rewards: algos/cfgrl.py.

    python algos/cfgrl_goals.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl evaluate RUN algo.guidance=0,1,2,3

The loss, with noise x_0, a time t, x_t = (1 - t) x_0 + t a, and o the goal g or the vector:

    flow      (v(s, x_t, t | o) - (a - x_0))^2

Ours is the authors' code (ogbench/agents/flowgcbc.py, kvfrans/cfgrl_submit at 545677e).

    item                authors, ours                          else
 1  w                   3 (as in mhyatt000/cfgrl at 6b95e5a)   their first file: 1
 2  one network         the vector has a goal's size. Goals    cfgrl: a label beside the state
                        near it share its velocity
 3  goals               uniform over the rest of the episode   -
 4  goals' features     only the position, on their tasks      ours: all but in mazes with robots
                        named `oraclerep` (`goals.columns`)
 5  evaluation          20 episodes of each goal               ours: 50, as OGBench
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import acting, at_least, group, positive, within
from corerl.nn import compile, embeddings, flow, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.training import goals
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    name: str = "cfgrl_goals"
    label: str = "CFGRL with goals"

    guidance: float = acting(at_least(0, 3.0))  # guidance w (0: clones without goal, 1: with goal)
    flow_steps: int = acting(positive(16))
    drop: float = within(0.1, "(0, 1)")  # share of rows trained without a goal
    hidden_layers: int = at_least(0, 4)
    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=0.0)


class Draws(NamedTuple):
    """Random numbers of one update."""

    path: Tensor  # (S, B, A), normal, the start of the flow's path
    uniform: Tensor  # (S, B, 2), the flow's time, and whether the goal or label is dropped


class CFGRLGoals(Stateful):
    """Goal-conditioned CFGRL agents of S seeds. `none` (S, 1, G) stands for no goal."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        self.sizes = goals.Sizes.of(spec)
        options = cfg.mlp_options | {"init": networks.xavier()}
        sizes = [spec.observation_dim, self.sizes.action, *cfg.hidden]
        self.flow = flow.Velocity(sizes, 1, spec.rngs, **options).to(spec.device)
        goal = self.sizes.goal
        table = embeddings.Embedding(1, goal, spec.lead, spec.rngs, goal**-0.5).to(spec.device)
        self.none: nn.Parameter = table.weight
        parameters = [*self.flow.parameters(), self.none]
        self.optimizer = optim.Adam(parameters, cfg.lr)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def loss(self, batch: GoalBatch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Clones the actions, given the goal or none, `(S,)`."""
        times, chance = draws.uniform.split(1, -1)
        shown = torch.where(chance < self.cfg.drop, self.none, batch.actor_goals)
        field = partial(self.flow, goals.beside(batch.observations, shown))
        loss = flow.matching_error(field, batch.actions, draws.path, times).mean(-1)
        return loss, {"flow_loss": loss}

    def update(self, batch: GoalBatch, draws: Draws) -> dict[str, Tensor]:
        return self._step(batch, draws)

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes an action of noise, `(S, n, O + G)` and normal `(S, n, A)` to `(S, n, A)`."""
        towards = self.normalizer(observations)
        nowhere = self.none.expand(-1, towards.shape[1], -1)
        without = goals.beside(towards[..., : self.sizes.state], nowhere)
        fields = (partial(self.flow, states) for states in (without, towards))
        field = flow.guided(*fields, self.cfg.guidance)
        return flow.euler(field, noise, self.cfg.flow_steps).clamp(-1, 1)


build = CFGRLGoals


def parts(agent: CFGRLGoals, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which samples."""
    return {"policy": SampledPolicy(agent.explore, [spec.action_dim], spec.identities)}


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    spec = goals.spec(run, buffer)
    agent = CFGRLGoals(cfg, spec)
    noise = run.normal("noise", cfg.batch_size, spec.action_dim)
    uniform = run.uniform("times and drops", cfg.batch_size, 2)
    policy = parts(agent, spec)["policy"]
    state = {"agent": agent, "buffer": buffer, "noise": noise, "uniform": uniform, "policy": policy}
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**state):
        run.log(step, update(buffer.sample(), Draws(noise.next(), uniform.next())))
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
