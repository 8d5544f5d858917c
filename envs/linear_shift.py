"""Linear MDP of R2PVI's first experiment (Tang et al. 2025), whose dynamics shift after training.

    x1 -> x2 -> x3 -> x4    three steps, starting in x1
    x1, x2, x3 -> x5        with chance p(a) = 0.3 + 0.05 sum(a), for a in {-1, 1}^4
    x4                      the fail state: it holds and pays nothing
    x5                      holds and pays 1 per step

x2 and x3 pay p(a), x1 pays nothing. x1 and x2 lead to x4 with 0.001. The largest mean takes the largest p(a)
at once. Under the shift q, what led from x1 to x5 leads to x4 with chance q, and then the smallest p(a) is
best in x1. The numbers are those of the authors' code: horizon 3, delta 0.3, xi_norm 0.2
(panxulab/Robust-Regularized-Pessimistic-Value-Iteration, Simulated_Linear_MDP, at d552af7).
"""

from itertools import product

import numpy as np

from corerl.config import require
from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

STEPS, DELTA, XI, SLIP = 3, 0.3, 0.2, 0.001
FAIL, GOAL = 3, 4  # x4, x5


class LinearShiftEnv(FiniteEnv):
    """Attributes: `phi` (5, 16, 4) and `mu` (4, 5), P(s'|s,a) = <phi(s,a), mu(s')>."""

    def __init__(self):
        actions = np.array(list(product([-1, 1], repeat=4)))
        chance = DELTA + XI * actions.mean(1)  # (A,)
        self.phi = np.zeros((5, len(actions), 4))
        for state in range(3):
            self.phi[state, :, state], self.phi[state, :, 3] = 1 - chance, chance
        self.phi[FAIL, :, 2] = self.phi[GOAL, :, 3] = 1.0
        self.mu = np.zeros((4, 5))
        self.mu[[0, 1], [1, 2]], self.mu[:2, FAIL] = 1 - SLIP, SLIP
        self.mu[2, FAIL] = self.mu[3, GOAL] = 1.0
        rewards = self.phi[..., 3] * (np.arange(5) > 0)[:, None]
        names = tuple("".join("+" if sign > 0 else "-" for sign in a) for a in actions)
        super().__init__(
            FiniteMDP.from_matrices(
                self.phi @ self.mu,
                rewards,
                horizon=STEPS,
                states=("x1", "x2", "x3", "x4", "x5"),
                actions=names,
            )
        )

    def shifted(self, q: float) -> FiniteMDP:
        """Returns the MDP of the test environment at the shift `q` in [0, 1]."""
        require(0 <= q <= 1, f"The shift q={q} must lie in [0, 1]")
        kernel, chance = self.phi @ self.mu, self.phi[0, :, 3]
        kernel[0] = 0.0
        kernel[0, :, 1], kernel[0, :, FAIL], kernel[0, :, GOAL] = (
            1 - chance,
            q * chance,
            (1 - q) * chance,
        )
        return FiniteMDP.from_matrices(kernel, self.mdp.rewards, horizon=STEPS)
