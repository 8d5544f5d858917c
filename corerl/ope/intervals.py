"""Intervals of an estimate over episodes, which are taken as independent draws.

    bootstrap   percentiles over episodes drawn with replacement; the weights' means are drawn along
    t           Student's, of the contributions of episodes
    hoeffding   of the contributions' range
    bernstein   of their range and variance (Maurer and Pontil 2009, theorem 4)

The last two hold at every sample size for contributions within bounds that were known beforehand. A
contribution is what one episode adds to the mean: its weighted return (`dr`: with the critic's terms;
`fqe`: V(s_0)). The bounds are the observed range unless others are given, so in that case they are no
guarantee; and of self-normalised weights, whose contributions are not independent, there are none.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from corerl.config import require
from corerl.errors import CorerlError
from corerl.ope.estimators import Terms

BY_RANGE = ("hoeffding", "bernstein")
METHODS = ("bootstrap", "t", *BY_RANGE)
_CELLS = 1 << 22  # counts per block of replicates


def interval(
    terms: Terms,
    method: str = "bootstrap",
    level: float = 0.95,
    *,
    bounds: tuple[float, float] | None = None,
    replicates: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns low and high, or NaN where the method does not apply: one episode, or self-normalised weights.

    Args:
        bounds: of an episode's contribution, for `hoeffding` and `bernstein`.

    Raises:
        CorerlError: an unknown method, a level outside (0, 1), or a contribution outside the bounds.
    """
    require(method in METHODS, f"interval={method} is not one of {', '.join(METHODS)}")
    check_level(level)
    n = len(terms.values)
    if n < 2:
        return math.nan, math.nan
    if method == "bootstrap":
        return percentiles(resampled(terms, replicates, seed), level)
    if method == "t":
        return _around(terms, stats.t.ppf(0.5 + level / 2, n - 1) * _std(terms) / math.sqrt(n))
    if terms.weights is not None:
        return math.nan, math.nan
    x = terms.contributions
    low, high = (x.min(), x.max()) if bounds is None else bounds
    _check_within(x, low, high)
    width, alpha = high - low, 1 - level
    if method == "hoeffding":
        return _around(terms, width * math.sqrt(math.log(2 / alpha) / (2 * n)))
    log = math.log(4 / alpha)
    by_variance = _std(terms) * math.sqrt(2 * log / n)
    return _around(terms, by_variance + 7 * width * log / (3 * (n - 1)))


def resampled(terms: Terms, replicates: int, seed: int = 0) -> np.ndarray:
    """Returns the estimate `(replicates,)` from episodes drawn with replacement."""
    return over_draws(terms.of_counts, len(terms.values), replicates, seed)


def over_draws(statistic, episodes: int, replicates: int, seed: int = 0) -> np.ndarray:
    """Returns `statistic(counts (B, E)) -> (B, ...)` over bootstrap counts of `episodes`, in blocks."""
    rng = np.random.default_rng(seed)
    block = max(1, _CELLS // episodes)
    even = np.full(episodes, 1 / episodes)
    parts = [
        statistic(
            rng.multinomial(episodes, even, size=min(block, replicates - start)).astype(float)
        )
        for start in range(0, replicates, block)
    ]
    return np.concatenate(parts)


def percentiles(draws: np.ndarray, level: float) -> tuple[float, float]:
    """Returns the middle `level` of the draws."""
    low, high = np.percentile(draws, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def check_level(level: float) -> None:
    """Raises CorerlError for a level outside (0, 1)."""
    require(0 < level < 1, f"level={level} must lie in (0, 1)")


def within(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Tells which numbers lie between the bounds, up to rounding."""
    slack = 1e-6 * max(abs(x) for x in (low, high, 0.0) if math.isfinite(x))  # rewards are float32
    return (x >= low - slack) & (x <= high + slack)


def _check_within(contributions: np.ndarray, low: float, high: float) -> None:
    inside = within(contributions, low, high)
    if not inside.all():
        first = int(inside.argmin())
        raise CorerlError(
            f"Episode {first} of {len(inside)} contributes {contributions[first]:.6g} to the mean, outside "
            f"the bounds {low:g} and {high:g}. Give wider bounds for the weighted return (for fqe, "
            "V(s_0)), or leave bounds out to use the observed range."
        )


def _std(terms: Terms) -> float:
    return float(terms.contributions.std(ddof=1))


def _around(terms: Terms, half: float) -> tuple[float, float]:
    return terms.value - half, terms.value + half
