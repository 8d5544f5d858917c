"""Comparisons of algorithms: probability of improvement, and intervals of means of few seeds."""

import numpy as np
import pandas as pd
from rliable import metrics
from scipy import special

from corerl.errors import CorerlError
from corerl.report.stats.bootstrap import draws, percentiles
from corerl.report.stats.estimates import Estimate, count_seeds
from corerl.report.stats.score_tables import check, one_unit, scores_by_task


def probability_of_improvement(
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    replicates: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Returns P(a run of `x` scores above one of `y`) on a task, ties one half, averaged over tasks.

    The value is that of `rliable.metrics`, one task at a time because tasks may have different numbers of
    seeds: the Mann-Whitney U statistic over n_x * n_y. Both algorithms need the same tasks, and one unit on
    each. With drawn fractions w of each task's seeds a replicate is the mean of w_x' C w_y.
    """
    pairs = _common_tasks(check(table), x, y)
    each = [metrics.probability_of_improvement(a[:, None], b[:, None]) for a, b in pairs]
    value = float(np.mean(each))
    sizes = np.array([(len(a), len(b)) for a, b in pairs])
    low = high = np.nan
    if sizes.min() > 1 and replicates:
        low, high = percentiles(_replicate_pairs(pairs, sizes, replicates, seed), level)
    return Estimate(value, float(low), float(high), len(pairs), *count_seeds(sizes))


def _common_tasks(table: pd.DataFrame, x: str, y: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each task the scores of x (n_x,) and of y (n_y,)."""
    one, other = scores_by_task(table, x), scores_by_task(table, y)
    lonely = sorted(set(one) ^ set(other))
    if lonely:
        raise CorerlError(
            f"{x} and {y} must have the same tasks, but only one of them ran {lonely[0]}. "
            "Keep the tasks that both have."
        )
    for _, both in table[table["algorithm"].isin([x, y])].groupby("task", observed=True):
        one_unit(both)
    return [(one[t], other[t]) for t in one]


def _above(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns (n_x, n_y): 1 where the run of x is above the run of y, one half at a tie."""
    return (x[:, None] > y) + 0.5 * (x[:, None] == y)


def _replicate_pairs(
    pairs: list[tuple[np.ndarray, np.ndarray]], sizes: np.ndarray, replicates: int, seed: int
) -> np.ndarray:
    parts, matrices = [], [_above(a, b) for a, b in pairs]
    stops = np.cumsum(sizes.ravel())[:-1]
    for counts in draws(sizes.ravel(), replicates, seed):
        drawn = np.split(counts, stops, axis=1)
        above = [
            np.einsum("bi,bi->b", wx @ c, wy) / c.size
            for c, wx, wy in zip(matrices, drawn[::2], drawn[1::2], strict=True)
        ]
        parts.append(np.mean(above, axis=0))
    return np.concatenate(parts)


def mean_interval(scores: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Returns Student's t interval of the mean over seeds (n, ...): low and high. NaN for one seed.

    Ten seeds and fewer are too few for a percentile bootstrap of one task, which is too narrow.
    """
    n = len(scores)
    mean, std = mean_and_std(scores)
    if n < 2:
        return std, std
    half = special.stdtrit(n - 1, 0.5 + level / 2) * std / np.sqrt(n)
    return mean - half, mean + half


def mean_and_std(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation (ddof 1) over seeds (n, ...). The latter is NaN for one seed.

    Seeds that are all alike have their score and 0, which sums miss by their rounding.
    """
    scores = np.asarray(scores, dtype=np.float64)
    mean = np.mean(scores, axis=0)
    if len(scores) < 2:
        return mean, mean * np.nan
    alike = np.ptp(scores, axis=0) == 0.0
    std = np.where(alike, 0.0, np.std(scores, axis=0, ddof=1))[()]
    return np.where(alike, scores[0], mean)[()], std


def mean_band(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `mean_interval` for drawing: NaN for two seeds as well.

    Student's t of two seeds is 13 standard errors either way, which would set the figure's scale and
    hide all curves.
    """
    low, high = mean_interval(scores)
    return (low, high) if len(scores) > 2 else (low * np.nan, high * np.nan)


def welch_interval(
    mean_x: float,
    std_x: float,
    n_x: int,
    mean_y: float,
    std_y: float,
    n_y: int,
    level: float = 0.95,
) -> tuple[float, float]:
    """Returns Welch's interval of mean_x - mean_y from means and sample stds (ddof=1). NaN if an n is 1."""
    if min(n_x, n_y) < 2:
        return np.nan, np.nan
    x, y = std_x**2 / n_x, std_y**2 / n_y
    if x + y == 0.0:
        return mean_x - mean_y, mean_x - mean_y
    freedom = (x + y) ** 2 / (x**2 / (n_x - 1) + y**2 / (n_y - 1))
    half = float(special.stdtrit(freedom, 0.5 + level / 2)) * np.sqrt(x + y)
    return float(mean_x - mean_y - half), float(mean_x - mean_y + half)
