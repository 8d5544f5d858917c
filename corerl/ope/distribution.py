"""The whole law of a policy's returns from episodes of another (Huang et al. 2021, Chandak et al. 2021).

F(x) = mean_i w_i 1{G_i <= x} with the weights of whole episodes is unbiased, and clipped to 1, which biases
it and what is read off it: weight beyond 1 is taken from the largest returns, and mass that the weights leave
over lies at an upper bound of the return. Self-normalised, the weights sum to one and no bound is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from corerl.config import require
from corerl.ope import intervals
from corerl.ope.logs import Logs, Weights
from corerl.risk.finite_mdp import Law
from corerl.risk.measures import cvar_of_law


class ReturnLaw:
    """The estimated law of one policy's returns.

    Args:
        normalised: divide the weights by their mean.
        upper: the largest possible return, where mass is left over; None for the largest recorded.

    Raises:
        CorerlError: `upper` lies below a recorded return.
    """

    def __init__(
        self, logs: Logs, weights: Weights, *, normalised: bool = False, upper: float | None = None
    ):
        largest = float(logs.returns.max())
        upper = largest if upper is None else upper
        require(
            upper >= largest,
            f"upper={upper} must be at least {largest:.6g}, the largest recorded return",
        )
        self._values, self._place = np.unique(logs.returns, return_inverse=True)
        self._values = np.append(self._values, upper)
        self._weights, self._normalised = weights.last, normalised

    @property
    def law(self) -> Law:
        """Values and probabilities, those of probability 0 left out."""
        return Law.of(self._values, self._probabilities(self._once)[0])

    @property
    def missing(self) -> float:
        """The mass that the weights left over and that was put at the upper bound."""
        return float(self._probabilities(self._once)[0, -1])

    @property
    def beyond(self) -> float:
        """The mass beyond 1 that the weights have and that was cut off at the largest returns."""
        return 0.0 if self._normalised else max(0.0, float(self._weights.mean()) - 1)

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """Returns F at `x`."""
        cumulated = np.cumsum(self._probabilities(self._once)[0])
        return np.append(0.0, cumulated)[np.searchsorted(self._values, x, side="right")]

    def statistic(self, name: str) -> float:
        """Returns `mean`, `variance`, `cvar TAU` or `quantile LEVEL`.

        CVaR is of the lower tail, higher is better, the atom at its boundary split; a quantile is the
        smallest value whose cumulated probability reaches the level.
        """
        return float(self._of_counts(self._once, [name])[0, 0])

    def intervals(
        self, names: Sequence[str], level: float = 0.95, *, replicates: int = 1000, seed: int = 0
    ) -> list[tuple[float, float]]:
        """Returns percentile bootstrap intervals of statistics, over episodes drawn with replacement.

        NaN for one episode.

        Raises:
            CorerlError: a level outside (0, 1).
        """
        intervals.check_level(level)
        if len(self._weights) < 2:
            return [(math.nan, math.nan)] * len(names)
        draws = intervals.over_draws(
            lambda counts: self._of_counts(counts, names), len(self._weights), replicates, seed
        )
        return [intervals.percentiles(column, level) for column in draws.T]

    @property
    def _once(self) -> np.ndarray:
        return np.ones((1, len(self._weights)))

    def _of_counts(self, counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Statistics `(B, len(names))` from how often each episode was drawn, `(B, E)`."""
        probabilities = self._probabilities(counts)
        return np.stack([_statistic(self._values, probabilities, name) for name in names], 1)

    def _probabilities(self, counts: np.ndarray) -> np.ndarray:
        """Returns the probability of every value, the bound last, `(B, K + 1)`."""
        mass = self._of_values(counts * self._weights)
        drawn = counts.sum(1, keepdims=True)
        if self._normalised:
            total = mass.sum(1, keepdims=True)
            even = self._of_values(counts) / drawn  # a draw of episodes without any weight
            mass = np.where(total > 0, mass / np.where(total > 0, total, 1), even)
            return np.hstack([mass, np.zeros((len(mass), 1))])
        below = np.minimum(np.cumsum(mass / drawn, 1), 1.0)
        return np.diff(np.hstack([below, np.ones((len(below), 1))]), axis=1, prepend=0.0)

    def _of_values(self, of_episodes: np.ndarray) -> np.ndarray:
        """Sums `(B, K)` over the episodes of each return."""
        order = np.argsort(self._place, kind="stable")
        starts = np.searchsorted(self._place[order], np.arange(len(self._values) - 1))
        return np.add.reduceat(of_episodes[:, order], starts, axis=1)


def _statistic(values: np.ndarray, probabilities: np.ndarray, name: str) -> np.ndarray:
    """Returns `(B,)` from laws `(B, K)` on ascending values."""
    kind, _, level = name.partition(" ")
    if kind == "mean":
        return probabilities @ values
    if kind == "variance":
        apart = values - (probabilities @ values)[:, None]
        return (probabilities * apart**2).sum(1)
    if kind == "cvar":
        return cvar_of_law(values, probabilities, float(level))
    require(
        kind == "quantile",
        f"{name} is not a statistic. Choose mean, variance, cvar TAU or quantile LEVEL",
    )
    reached = np.cumsum(probabilities, 1) >= float(level) - 1e-12
    return values[reached.argmax(1)]
