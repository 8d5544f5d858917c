"""Two small finite MDPs for algorithms with regret bounds, with the classes that these choose from.

    risk/low-rank         P(s'|s,a) = <phi(s,a), mu(s')> with two factors; phi and mu are unknown
    risk/linear-mixture   P(s'|s,a) = <theta, P_1..3(s'|s,a)>, a mixture of known kernels; theta is unknown

Both have 6 states, 3 actions and 4 steps, and start in state 0. In every live state one action pays 1/2
and is nearly safe, one pays 3/4 and one pays 1; the better paid, the likelier it leads to state 5, which
pays nothing and holds. Which is which differs from state to state, so that it has to be found out.
The optima of the mean, of the iterated and of the static CVaR are different policies. The classes are made
from fixed seeds, with the truth at a random place.
"""

from __future__ import annotations

import numpy as np

from corerl.envs.mdps import FiniteEnv
from corerl.risk.finite_mdp import FiniteMDP

STATES, ACTIONS, STEPS = 6, 3, 4
DEAD = STATES - 1
UNIT = 0.25
PAID = UNIT * np.array([2, 3, 4])  # by rank of risk
RISK = np.array([0.02, 0.12, 0.35])  # of the dead state's factor
HOLDS = 0.95  # the dead state


class LowRankEnv(FiniteEnv):
    """Attributes: `features` (F, S, A, 2) and `measures` (M, 2, S), finite classes that hold the truth.

    `phi` (S, A, 2) and `mu` (2, S) are the truth itself, for algorithms that know the features.
    """

    def __init__(self, candidates: int = 8, seed: int = 0):
        rng = np.random.default_rng(seed)
        ranks = [_ranks(rng) for _ in range(candidates)]
        features = np.stack([_features(r) for r in ranks])
        measures = np.stack([_measures(rng) for _ in range(candidates)])
        kernel = features[0] @ measures[0]
        super().__init__(FiniteMDP.from_matrices(kernel, _rewards(ranks[0]), horizon=STEPS))
        self.phi, self.mu = features[0], measures[0]
        self.features, self.measures = rng.permutation(features), rng.permutation(measures)


class MixtureEnv(FiniteEnv):
    """Attributes: `kernels` (3, S, A, S'). `models` (M, 3) and `payoffs` (R, S, A), which hold the truth."""

    def __init__(self, candidates: int = 20, seed: int = 0):
        rng = np.random.default_rng(seed)
        ranks = _ranks(rng)
        live = _measures(rng)[0]
        self.kernels = np.stack([_leads_to_death(ranks == i, live) for i in range(ACTIONS)])
        truth = RISK / RISK.sum()
        models = np.stack([truth, *rng.dirichlet(np.ones(ACTIONS), candidates - 1)])
        payoffs = np.stack(
            [_rewards(r) for r in (ranks, *(_ranks(rng) for _ in range(candidates - 1)))]
        )
        kernel = np.einsum("d,dsat->sat", truth, self.kernels)
        super().__init__(FiniteMDP.from_matrices(kernel, payoffs[0], horizon=STEPS))
        self.models, self.payoffs = rng.permutation(models), rng.permutation(payoffs)


def _ranks(rng: np.random.Generator) -> np.ndarray:
    """(S, A): how risky each action is in each state, 0 to 2."""
    return np.stack([rng.permutation(ACTIONS) for _ in range(STATES)])


def _features(ranks: np.ndarray) -> np.ndarray:
    """(S, A, 2): shares of the living and of the dead factor."""
    dead = RISK[ranks]
    dead[DEAD] = HOLDS
    return np.stack([1 - dead, dead], -1)


def _measures(rng: np.random.Generator) -> np.ndarray:
    """(2, S): where the living and the dead factor lead."""
    living = np.append(rng.dirichlet(np.ones(STATES - 1)), 0.0)
    return np.stack([living, np.eye(STATES)[DEAD] * 0.9 + 0.1 / STATES])


def _leads_to_death(deadly: np.ndarray, living: np.ndarray) -> np.ndarray:
    """(S, A, S'): a kernel in which the actions marked in `deadly` (S, A) mostly lead to the dead state."""
    risk = np.where(deadly, RISK.sum(), 0.0)
    risk[DEAD] = HOLDS
    return (1 - risk)[..., None] * living + risk[..., None] * np.eye(STATES)[DEAD]


def _rewards(ranks: np.ndarray) -> np.ndarray:
    """(S, A): better paid where riskier, nothing in the dead state."""
    paid = PAID[ranks]
    paid[DEAD] = 0.0
    return paid
