"""Three arms that are compared unevenly (Zhu, Jordan and Jiao 2023, arXiv:2301.11270).

Arms 1, 2 and 3 pay 1, 0.9 and 0, once. Of n questions, n - 1 are about arms 1 and 2, and one is about arms 2
and 3. By the Bradley-Terry model that one answer prefers arm 3 with probability sigmoid(-0.9) = 0.289, for
every n. Then the most likely reward is largest for arm 3, which loses 1.
"""

import numpy as np

from corerl.config import require
from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

REWARDS = (1.0, 0.9, 0.0)


class ThreeArmsEnv(FiniteEnv):
    """One step and three actions. `questions` says which arms are compared."""

    def __init__(self):
        mdp = FiniteMDP.from_matrices(
            np.ones((1, 3, 1)), np.array([REWARDS]), horizon=1, actions=("1", "2", "3")
        )
        super().__init__(mdp)

    def questions(self, count: int, size: int) -> np.ndarray:
        """Returns the arms of each question, `(count, size)`. With size 3 every question has all three.

        Raises:
            CorerlError: the size is neither 2 nor 3.
        """
        require(
            size in (2, 3),
            f"algo.ranked={size} must be 2 or 3, because this task has only three arms to compare",
        )
        arms = np.tile(np.arange(size), (count, 1))
        if size == 2:
            arms[-1] = 1, 2
        return arms
