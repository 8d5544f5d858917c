"""A machine that may run hot only so often: a finite MDP with a cost and a budget.

Work pays 0, 0.6 or 1 a step and heats the machine, rest cools it. A step that begins at the highest of five
levels costs 1. Of 20 steps, at most `budget` may cost on average. Full work pays most and breaks the budget,
and the best policy that keeps it is random in some state (Altman 1999, section 3.3).
"""

from typing import Any

import numpy as np

from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

LEVELS, STEPS = 5, 20
PAY = (0.0, 0.6, 1.0)
UP, DOWN = (0.0, 0.3, 0.7), (0.9, 0.3, 0.0)
"""Chances of one level more, and of one level less, of each action."""


class OverheatEnv(FiniteEnv):
    """Attributes: `costs` `(1, S, A)` of a step, `budgets` `(1,)` of an episode's mean sum.

    `info["cost"]` is the cost of the step.
    """

    def __init__(self, budget: float = 2.0):
        level = np.eye(LEVELS)
        higher, lower = np.roll(level, 1, 1), np.roll(level, -1, 1)
        higher[-1], lower[0] = level[-1], level[0]
        up, down = (np.array(x)[None, :, None] for x in (UP, DOWN))
        moves = up * higher[:, None] + down * lower[:, None] + (1 - up - down) * level[:, None]
        mdp = FiniteMDP.from_matrices(
            moves,
            np.broadcast_to(PAY, (LEVELS, 3)),
            horizon=STEPS,
            states=tuple(f"heat {n}" for n in range(LEVELS)),
            actions=("rest", "half", "full"),
        )
        super().__init__(mdp)
        self.costs = np.zeros((1, LEVELS, 3))
        self.costs[0, -1] = 1.0
        self.budgets = np.array([budget])

    def step(self, action: int) -> tuple[Any, ...]:
        cost = float(self.costs[0, self.state, int(action)])
        *made, info = super().step(action)
        return *made, info | {"cost": cost}
