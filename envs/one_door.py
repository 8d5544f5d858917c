"""A proxy reward that is right where it was seen: a finite MDP with a proxy and a reference policy.

In the hall, job A pays 1 and job B nothing, and the proxy agrees. A door leads to a room for good, where a
step costs 1 and the proxy pays 2. The reference policy works at A and B alike and takes the door once in 500
steps, so that its proxy rewards correlate with the true ones.

A regulariser of actions lets a policy take the door, since that one unlikely action is cheap beside 19 steps
of proxy reward. Occupancies tell: the reference is hardly ever in the room (Laidlaw, Singhal and Dragan 2025,
arXiv:2403.03185). Here every strength of action regularisation makes the truth worse than the reference
(tests/algos/test_orpo.py).
"""

import numpy as np

from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

STEPS, DOOR = 20, 0.002


class OneDoorEnv(FiniteEnv):
    """Attributes: `proxy` `(S, A)`, the rewards that are optimised, and `reference` `(S, A)`, a policy."""

    def __init__(self):
        moves = np.zeros((2, 3, 2))
        moves[0, :2, 0] = moves[0, 2, 1] = moves[1, :, 1] = 1.0
        mdp = FiniteMDP.from_matrices(
            moves,
            np.array([[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]]),
            horizon=STEPS,
            states=("hall", "room"),
            actions=("job A", "job B", "door"),
        )
        super().__init__(mdp)
        self.proxy = np.array([[1.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
        work = (1 - DOOR) / 2
        self.reference = np.array([[work, work, DOOR], [1 / 3, 1 / 3, 1 / 3]])
