"""Two groups of labellers who want different things of one robot: a finite MDP with a reward for each group.

The robot stands left, in the centre or right for eight steps, and begins in the centre. Seven of ten
labellers want it left, the others right. All accept the centre a little. The best policy for the average
reward goes left and leaves the others almost nothing (Chakraborty et al. 2024, arXiv:2402.08925).
"""

import numpy as np

from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

STEPS, LABELLERS = 8, 40
WANTED = np.array([[1.0, 0.2, 0.0], [0.0, 0.2, 1.0]])
"""What a step in each place pays, of each group."""
SHARES = np.array([0.7, 0.3])


class TwoGroupsEnv(FiniteEnv):
    """Attributes: `group_rewards` `(U, S, A)`, `groups` `(H,)`, the group of each labeller.

    The environment pays the mean reward over labellers.
    """

    def __init__(self):
        moves = np.zeros((3, 3, 3))
        for place in range(3):
            for action, step in enumerate((-1, 0, 1)):
                moves[place, action, min(max(place + step, 0), 2)] = 1.0
        self.groups = np.repeat([0, 1], np.round(SHARES * LABELLERS).astype(int))
        self.group_rewards = np.repeat(WANTED[:, :, None], 3, 2)
        mean = np.bincount(self.groups) / LABELLERS
        mdp = FiniteMDP.from_matrices(
            moves,
            np.tensordot(mean, self.group_rewards, 1),
            horizon=STEPS,
            start=np.array([0.0, 1.0, 0.0]),
            states=("left", "centre", "right"),
            actions=("go left", "stay", "go right"),
        )
        super().__init__(mdp)
