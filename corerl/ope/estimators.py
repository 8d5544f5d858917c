"""Estimators of a policy's value from episodes of another.

With w_t = prod_{k<=t} pi_e(a_k|s_k) / pi_b(a_k|s_k), discount g, Q and V(s) = E_{a~pi_e} Q(s, a):

    is      w_T sum_t g^t r_t                                            trajectory weights
    pdis    sum_t g^t w_t r_t                                            per-decision (Precup et al. 2000)
    dr      sum_t g^t [w_t (r_t - Q(s_t, a_t)) + w_{t-1} V(s_t)]         Jiang and Li 2016, Thomas and
    fqe     V(s_0)                                                       Brunskill 2016 (arXiv:1604.00923)

each a mean over episodes. `snis`, `snpdis`, `sndr` divide every weight by its mean over the episodes:
biased and consistent. `snis` lies within the range of the recorded returns, each step of `snpdis` within that
of its rewards. With any Q at all `dr` has the mean of `pdis`.

An estimate is `sum_k mean(weight_k value_k) / mean(weight_k)` (`Terms`), so that one bootstrap and one
linearisation give every estimator its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corerl.errors import CorerlError
from corerl.ope.logs import Logs, Weights


class Model(NamedTuple):
    """FQE's values of the recorded steps, `(E, T)` each, 0 where no step was made."""

    q: np.ndarray  # Q(s_t, a_t)
    v: np.ndarray  # E_{a ~ pi_e} Q(s_t, a)


@dataclass(frozen=True, eq=False)
class Terms:
    """Values of an estimate and the weights to normalise, `(E, K)` each. None as weights is ones."""

    values: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self):
        if self.weights is not None and (self.weights.sum(0) == 0).any():
            raise CorerlError(
                "All weights are zero at some step, so self-normalised estimates do not exist. Choose a "
                "shorter --horizon, or a method without self-normalisation, such as `is` instead of `snis`."
            )

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.of_counts(np.ones((1, len(self.values))))[0])

    @property
    def numerators(self) -> np.ndarray:
        """Weighted values, `(E, K)`."""
        return self.values if self.weights is None else self.weights * self.values

    def of_counts(self, counts: np.ndarray) -> np.ndarray:
        """Estimates `(B,)` from how often each episode was drawn, `(B, E)`.

        A draw of episodes without any weight at a term weighs them alike there, as `ReturnLaw` does.
        """
        above, drawn = counts @ self.numerators, counts.sum(1, keepdims=True)
        if self.weights is None:
            return (above / drawn).sum(1)
        below, even = counts @ self.weights, counts @ self.values / drawn
        return np.divide(above, below, out=even, where=below != 0).sum(1)

    @property
    def contributions(self) -> np.ndarray:
        """Numbers `(E,)` whose mean is the estimate: each episode's, linearised where weights are
        normalised (the delta method), for intervals that rest on independent samples."""
        if self.weights is None:
            return self.values.sum(1)
        below = self.weights.mean(0)
        ratios = self.numerators.mean(0) / below
        influence = self.weights * (self.values - ratios) / below
        return ratios.sum() + influence.sum(1)


Estimator = Callable[[Logs, Weights | None, Model | None], Terms]


def trajectory_is(logs: Logs, weights: Weights, model: Model | None = None) -> Terms:
    """Returns w_T G."""
    return Terms((weights.last * logs.returns)[:, None])


def per_decision_is(logs: Logs, weights: Weights, model: Model | None = None) -> Terms:
    """Sums g^t w_t r_t over t."""
    return Terms(logs.discounts * weights.values * logs.rewards)


def self_normalised_is(logs: Logs, weights: Weights, model: Model | None = None) -> Terms:
    """Returns w_T G over the mean of w_T."""
    return Terms(logs.returns[:, None], weights.last[:, None])


def self_normalised_pdis(logs: Logs, weights: Weights, model: Model | None = None) -> Terms:
    """Sums g^t w_t r_t over t, every w_t over its mean."""
    return Terms(logs.discounts * logs.rewards, weights.values)


def doubly_robust(logs: Logs, weights: Weights, model: Model) -> Terms:
    """Sums g^t [w_t (r_t - Q(s_t, a_t)) + w_{t-1} V(s_t)] over t."""
    corrections = weights.values * (logs.rewards - model.q) * logs.alive
    return Terms(logs.discounts * (corrections + weights.previous * model.v * logs.alive))


def self_normalised_dr(logs: Logs, weights: Weights, model: Model) -> Terms:
    """Estimates as `doubly_robust`, each weight divided by the mean (Thomas and Brunskill's WDR)."""
    discounts = logs.discounts * logs.alive
    values = np.hstack([discounts * (logs.rewards - model.q), discounts * model.v])
    return Terms(values, np.hstack([weights.values, weights.previous]))


def direct(logs: Logs, weights: Weights | None, model: Model) -> Terms:
    """Returns V(s_0)."""
    return Terms(model.v[:, :1])


ESTIMATORS: dict[str, Estimator] = {
    "fqe": direct,
    "is": trajectory_is,
    "pdis": per_decision_is,
    "snis": self_normalised_is,
    "snpdis": self_normalised_pdis,
    "dr": doubly_robust,
    "sndr": self_normalised_dr,
}
LAWS = {"cdf": False, "sncdf": True}
"""Methods that estimate the whole law of returns, and whether they normalise the weights."""

METHODS = (*ESTIMATORS, *LAWS)
NEEDS_MODEL = ("fqe", "dr", "sndr")
NEEDS_WEIGHTS = tuple(name for name in METHODS if name != "fqe")
NORMALISED = ("snis", "snpdis", "sndr", "sncdf")
"""Methods that divide the weights by their means, so that a factor of all weights changes nothing."""
OF_EPISODES = ("is", "snis", *LAWS)
"""Methods whose weights are of whole episodes, rather than of each step."""


def weighs(methods: Sequence[str]) -> bool:
    """Tells whether one of `methods` weighs recorded episodes, which must then be whole."""
    return not set(methods).isdisjoint(NEEDS_WEIGHTS)
