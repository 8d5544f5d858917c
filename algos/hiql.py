"""HIQL: hierarchical implicit Q-learning (Park, Ghosh, Eysenbach and Levine 2023, arXiv:2307.11949).

GCIVL's value is too noisy to tell single steps apart when the goal is far. So one value serves two policies:
the high one looks `subgoal_steps` ahead and names a subgoal, and the low one makes single steps towards it.
Subgoals are points of a learned sphere.

    python algos/hiql.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=hiql task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The losses, with the subgoal w, `subgoal_steps` rows later or at the goal, and phi of length sqrt(rep_dim):

    value     GCIVL's, of V(s, phi(s, g))
    high      -min(exp(high_alpha (V(w, g) - V(s, g))), 100) log pi_h(phi(s, w) | s, g)
    low       -min(exp(low_alpha (V(s', w) - V(s, w))), 100) log pi_l(a | s, phi(s, w))

V is the mean of both values. Acting, the high policy's mean is scaled to length sqrt(rep_dim).

Ours is OGBench's code (seohongpark/ogbench at 1d41409), which made the published numbers.

    item                ours, OGBench                             else
 1  phi                 one for all: the target values read the   -
                        online phi, and only the value lags
 2  policies            give phi no gradient                      images there: the low one does
 3  near the goal       the subgoal is the goal, so that the      -
                        high policy looks less far
 4  random high goals   keep the subgoal of their own episode     -
 5  expectile           0.7                                       GCIVL: 0.9
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos import gcivl
from corerl.buffers.goals import SubgoalBatch
from corerl.config import at_least, positive, require, within
from corerl.nn import compile, extraction, networks, optim
from corerl.nn.critics import Critics
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.policies import UnitGaussian
from corerl.training import goals
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    name: str = "hiql"
    label: str = "HIQL"

    subgoal_steps: int = positive(25)  # steps from a state to its subgoal
    rep_dim: int = positive(10)  # size of phi, the representation of a subgoal
    expectile: float = within(0.7, "(0, 1)")  # V is this expectile of its one-step targets
    high_alpha: float = at_least(0, 3.0)  # high-level policy's inverse temperature (0: cloning)
    low_alpha: float = at_least(0, 3.0)  # low-level policy's inverse temperature (0: cloning)
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.goals.augment,
            f"algo.goals.augment={self.goals.augment} is for algorithms with one policy, but hiql has two. "
            "Leave algo.goals.augment out",
        )


class Representation(networks.MLP):
    """phi: a state and a goal, side by side, to a point of a sphere, `(S, B, O + G)` to `(S, B, rep_dim)`."""

    def forward(self, inputs: Tensor) -> Tensor:
        return on_sphere(super().forward(inputs))


class HIQL(Stateful):
    """HIQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        sizes = self._sizes = goals.Sizes.of(spec)
        goals.check_whole_states(cfg, sizes)
        rngs, device, options = spec.rngs, spec.device, cfg.value_options
        shown, low = spec.observation_dim, sizes.state + cfg.rep_dim
        phi = Representation([shown, *cfg.hidden, cfg.rep_dim], spec.lead, rngs, **options)
        self.phi = phi.to(device)
        critics = Critics([sizes.state, cfg.rep_dim, *cfg.hidden], rngs, **options)
        self.critics = critics.to(device)
        self.target_critics = optim.target_of(self.critics)
        high = UnitGaussian([shown, *cfg.hidden, cfg.rep_dim], rngs, **cfg.policy_options)
        low = UnitGaussian([low, *cfg.hidden, sizes.action], rngs, **cfg.policy_options)
        self.high, self.low = high.to(device), low.to(device)
        parts = (self.phi, self.critics, self.high, self.low)
        self.optimizers = [optim.Adam(part.parameters(), cfg.lr) for part in parts]
        self._step = GradientStep(self.loss, self.optimizers, spec.mode)

    def values(self, observations: Tensor, goal: Tensor) -> Tensor:
        """Returns both values of states and goals, `(S, 2, B)`."""
        return self.critics(observations, self.phi(goals.beside(observations, goal)))

    def target_values(self, observations: Tensor, goal: Tensor) -> Tensor:
        """Returns the target critics' values, at the phi of today."""
        return self.target_critics(observations, self.phi(goals.beside(observations, goal)))

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def high_loss(self, batch: SubgoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitates the subgoals that come nearer to the goal."""
        advantage = self._gain(batch.observations, batch.high_targets, batch.high_goals)
        inputs = goals.beside(batch.observations, batch.high_goals)
        with torch.no_grad():
            subgoal = self.phi(goals.beside(batch.observations, batch.high_targets))
        return extraction.awr(self.high, inputs, subgoal, advantage, self.cfg.high_alpha)

    def low_loss(self, batch: SubgoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitates the actions that come nearer to the subgoal."""
        advantage = self._gain(batch.observations, batch.next_observations, batch.low_goals)
        with torch.no_grad():
            subgoal = self.phi(goals.beside(batch.observations, batch.low_goals))
        inputs = goals.beside(batch.observations, subgoal)
        return extraction.awr(self.low, inputs, batch.actions, advantage, self.cfg.low_alpha)

    @torch.no_grad()
    def _gain(self, here: Tensor, there: Tensor, goal: Tensor) -> Tensor:
        """Returns how much more a place is worth than another, `(S, B)`."""
        return (self.values(there, goal) - self.values(here, goal)).mean(1)

    def loss(self, batch: SubgoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of value and policies, which share no parameter with a gradient."""
        value, metrics = gcivl.value_loss(self.values, self.target_values, batch, self.cfg)
        high, of_high = self.high_loss(batch)
        low, of_low = self.low_loss(batch)
        metrics |= {f"high_{name}": number for name, number in of_high.items()}
        return value + high + low, metrics | {f"low_{name}": x for name, x in of_low.items()}

    def update(self, batch: SubgoalBatch) -> dict[str, Tensor]:
        """Takes one step of everything. The target follows the critics of before it."""
        grads, metrics = self._step.gradients(batch)
        optim.polyak(self.target_critics, self.critics, self.cfg.polyak)
        self._step.apply(grads)
        return metrics

    def _low_inputs(self, observations: Tensor) -> Tensor:
        """Returns states beside the subgoals of the high policy, from states beside goals."""
        shown = self.normalizer(observations)
        subgoal = on_sphere(self.high(shown))
        return goals.beside(shown[..., : self._sizes.state], subgoal)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the low policy's action at raw states beside goals, `(S, n, O + G)` to `(S, n, A)`."""
        return self.low.mode(self._low_inputs(observations))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples the low policy's action, with normal noise `(S, n, A)`."""
        return self.low.draw(self._low_inputs(observations), noise)


def on_sphere(x: Tensor) -> Tensor:
    """Scales vectors to the length of the root of their size."""
    return x / x.norm(dim=-1, keepdim=True) * math.sqrt(x.shape[-1])


build = HIQL


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = HIQL(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample_subgoals(cfg.subgoal_steps)))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
