"""GCBC: goal-conditioned behaviour cloning (Lynch et al. 2019, arXiv:1903.01973; Ghosh et al., 1912.06088).

Whatever an episode reached later was its goal: the policy clones each action, given the state and a later
state of the same episode. It is the row with which every table of goals begins.

    python algos/gcbc.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train algo=gcbc task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The loss, with a goal g that the episode of (s, a) reaches later:

    policy    -log pi(a | s, g)

Ours is OGBench's (Park et al. 2025, arXiv:2410.20092; seohongpark/ogbench at 1d41409), with its goals
(corerl/buffers/goals.py).

    item                ours, OGBench                           GCSL (Ghosh et al.)
 1  data                a fixed dataset                         collected by the policy itself
 2  goals               uniform over the rest of the episode    the same
 3  deviation           1, not learned                          discrete actions
"""

from dataclasses import dataclass

from torch import Tensor

from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import group
from corerl.nn import compile, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.learner import GradientStep, Spec
from corerl.training import goals
from corerl.training.run import Run


@dataclass
class Config(goals.GoalSettings):
    name: str = "gcbc"
    label: str = "GCBC"

    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=0.0)


class GCBC(PolicyActing):
    """GCBC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.normalizer = goals.Shown(spec)
        self.policy = goals.policy(cfg, spec)
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the mean negative log-density of the actions, given state and goal, `(S,)`."""
        inputs = goals.beside(batch.observations, batch.actor_goals)
        loss = -self.policy.log_prob(inputs, batch.actions).mean(-1)
        return loss, {"policy_loss": loss}

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        return self._step(batch)


build = GCBC


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = GCBC(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
