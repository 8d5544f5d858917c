"""Self-play on a matrix of preferences: the minimax winner, exactly and by multiplicative weights.

P[i, j] is the probability that i is preferred to j, and P[j, i] is the rest. The minimax winner is the
lottery that no other is preferred to on average (von Neumann winner). Where one choice beats all others it is
that one. In rock, paper, scissors it is a third of each.
"""

import numpy as np
from scipy import optimize

from corerl.config import require


def minimax_winner(preferences: np.ndarray) -> np.ndarray:
    """Returns the lottery `(n,)` with the largest least probability of being preferred, by HiGHS.

    Raises:
        CorerlError: the matrix is not square, or P[i, j] + P[j, i] is not 1.
    """
    preferences = _checked(preferences)
    count = len(preferences)
    found = optimize.linprog(
        np.append(np.zeros(count), -1.0),
        A_ub=np.hstack([-preferences.T, np.ones((count, 1))]),
        b_ub=np.zeros(count),
        A_eq=np.append(np.ones(count), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * count + [(None, None)],
    )
    return np.maximum(found.x[:-1], 0)


def self_play(
    preferences: np.ndarray, rate: float, rounds: int, start: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Plays w <- w exp(rate P w) against itself and returns the average and the last lottery, `(n,)` each.

    The average approaches the minimax winner. `start` is positive everywhere; None is uniform.
    """
    preferences = _checked(preferences)
    logits = np.zeros(len(preferences)) if start is None else np.log(start)
    total = np.zeros(len(preferences))
    for _ in range(rounds):
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        total += weights
        logits = logits + rate * preferences @ weights
    return total / rounds, weights


def _checked(preferences: np.ndarray) -> np.ndarray:
    preferences = np.asarray(preferences, np.float64)
    require(
        preferences.ndim == 2 and preferences.shape[0] == preferences.shape[1],
        f"preferences have shape {preferences.shape}, but must be a square matrix",
    )
    require(
        np.allclose(preferences + preferences.T, 1.0),
        "preferences[i, j] + preferences[j, i] must be 1 for all i and j",
    )
    return preferences
