"""Aggregates over tasks, profiles and curves of one algorithm, as functions of weighted runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from rliable import metrics

from corerl.errors import CorerlError
from corerl.report.stats.bootstrap import REPLICATES, Runs, interval
from corerl.report.stats.score_tables import common_steps, comparable, runs_of, sorted_runs

METRICS = ("iqm", "median", "mean", "optimality_gap")


@dataclass(frozen=True)
class Estimate:
    """A number, its interval (NaN where some task has one seed), and what both rest on."""

    value: float
    low: float
    high: float
    tasks: int
    runs: int
    seeds: tuple[int, int]  # fewest and most seeds of any task

    @property
    def n(self) -> str:
        """`"10"`, or `"3-10"` where tasks differ: the number of seeds to print beside the value."""
        fewest, most = self.seeds
        return str(most) if fewest == most else f"{fewest}-{most}"


# Each takes the runs and weights (B, N) on them, and returns B estimates.


def mean_between(score: np.ndarray, weights: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns the mean of the ascending scores between two cumulated weights, splitting boundary runs."""
    cumulated = np.zeros((len(score) + 1, len(weights))).T  # in memory as the weights are
    np.cumsum(weights, axis=-1, out=cumulated[:, 1:])
    np.clip(cumulated, low, high, out=cumulated)
    return np.diff(cumulated) @ score / (high - low)


def _iqm(runs: Runs, weights: np.ndarray) -> np.ndarray:
    # A whole number of runs is cut on each side, as scipy's trim_mean (and so rliable) does.
    count = len(runs.score)
    cut = int(0.25 * count) / count * runs.mass
    return mean_between(runs.score, weights, cut, runs.mass - cut)


def _mean(runs: Runs, weights: np.ndarray) -> np.ndarray:
    return weights @ runs.score / runs.mass


def _median(runs: Runs, weights: np.ndarray) -> np.ndarray:
    member = np.zeros((len(runs.score), len(runs.sizes)))
    member[np.arange(len(runs.score)), runs.task] = runs.score / runs.sizes.max()
    ordered, half = np.sort(weights @ member), len(runs.sizes) // 2
    return (ordered[:, half] + ordered[:, -1 - half]) / 2  # as np.median, in less time


def _optimality_gap(runs: Runs, weights: np.ndarray, gamma: float) -> np.ndarray:
    return gamma - weights @ np.minimum(runs.score, gamma) / runs.mass


def _profile(runs: Runs, weights: np.ndarray, taus: np.ndarray) -> np.ndarray:
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=-1)], axis=-1)
    return 1.0 - below[:, np.searchsorted(runs.score, taus, side="right")] / runs.mass


def _statistic(metric: str, gamma: float) -> Callable[[Runs, np.ndarray], np.ndarray]:
    known = {
        "iqm": _iqm,
        "median": _median,
        "mean": _mean,
        "optimality_gap": partial(_optimality_gap, gamma=gamma),
    }
    if metric not in known:
        raise CorerlError(f"There is no metric {metric!r}. Known: {', '.join(known)}.")
    return known[metric]


def rliable_metrics(gamma: float) -> dict[str, Callable[[np.ndarray], float]]:
    """Returns rliable's function of a score matrix (runs, tasks) for each of METRICS."""
    return {
        "iqm": metrics.aggregate_iqm,
        "median": metrics.aggregate_median,
        "mean": metrics.aggregate_mean,
        "optimality_gap": partial(metrics.aggregate_optimality_gap, gamma=gamma),
    }


def estimate(
    table: pd.DataFrame,
    metric: str = "iqm",
    algorithm: str | None = None,
    *,
    gamma: float = 1.0,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Estimates one of METRICS for one algorithm, with its stratified bootstrap percentile interval.

    The value is that of `rliable.metrics`, which needs the same number of seeds on every task. Where tasks
    differ, every run weighs 1 / (seeds of its task). The mean, the median and the optimality gap are then
    rliable's after repeating runs until all tasks have equally many. The IQM drops int(N / 4) / N of the
    weight of all N runs on each side, and counts a run at the boundary in part.

    Seeds are drawn with replacement within every task; `gamma` is the optimality gap's threshold.
    The interval is NaN where a task has a single seed. `replicates=0` leaves the interval out.
    """
    runs = runs_of(table, algorithm)
    return _estimates(runs, [metric], gamma, replicates, seed, level)[0]


def _estimates(
    runs: Runs,
    names: Sequence[str],
    gamma: float = 1.0,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> list[Estimate]:
    """Makes `estimate` of several metrics from the same replicates."""
    parts = [_statistic(name, gamma) for name in names]

    def statistic(runs: Runs, weights: np.ndarray) -> np.ndarray:
        return np.stack([part(runs, weights) for part in parts], axis=-1)

    if runs.matrix is None:
        values = statistic(runs, runs.weight[None])[0]
    else:
        values = [rliable_metrics(gamma)[name](runs.matrix) for name in names]
    ends = interval(runs, statistic, np.abs(runs.score).max(), replicates, seed, level)
    rest = (len(runs.sizes), *count_seeds(runs.sizes))
    return [
        Estimate(float(value), float(low), float(high), *rest)
        for value, low, high in zip(values, *ends, strict=True)
    ]


def count_seeds(sizes: np.ndarray) -> tuple[int, tuple[int, int]]:
    return int(sizes.sum()), (int(sizes.min()), int(sizes.max()))


def aggregate(
    table: pd.DataFrame, metrics: Sequence[str] = METRICS, **options: float
) -> pd.DataFrame:
    """Makes `estimate` of every algorithm and metric. All need the same tasks, and one unit.

    Columns: algorithm, metric, value, low, high, tasks, runs, seeds_min, seeds_max.
    """
    rows = []
    for algorithm, of_it in comparable(table).groupby("algorithm", sort=False, observed=True):
        found = _estimates(runs_of(of_it), metrics, **options)
        for metric, e in zip(metrics, found, strict=True):
            rows.append((algorithm, metric, e.value, e.low, e.high, e.tasks, e.runs, *e.seeds))
    names = "algorithm metric value low high tasks runs seeds_min seeds_max"
    return pd.DataFrame(rows, columns=names.split())


def profiles(
    table: pd.DataFrame,
    taus: np.ndarray,
    *,
    replicates: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """Returns the fraction of runs with a score above each tau (K,), per algorithm, with pointwise intervals.

    All algorithms need the same tasks, and one unit. Columns: algorithm, tau, value, low, high.
    """
    taus = np.asarray(taus, dtype=np.float64)
    statistic = partial(_profile, taus=taus)
    parts = []
    for algorithm, of_it in comparable(table).groupby("algorithm", sort=False, observed=True):
        runs = runs_of(of_it)
        value = statistic(runs, runs.weight[None])[0]
        low, high = interval(runs, statistic, 1.0, replicates, seed, level)
        columns = {"algorithm": algorithm, "tau": taus, "value": value, "low": low, "high": high}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def curves(table: pd.DataFrame, metric: str = "iqm", **options: float) -> pd.DataFrame:
    """Makes `estimate` at every step that all runs of an algorithm evaluated (sample efficiency).

    All algorithms need the same tasks, and one unit. Columns: algorithm, step, value, low, high.
    """
    common = common_steps(comparable(table))
    options = {"replicates": 2000, **options}
    rows = []
    for algorithm, group in common.groupby("algorithm", sort=False, observed=True):
        for step, at in group.groupby("step"):
            (e,) = _estimates(sorted_runs(at), [metric], **options)
            rows.append((algorithm, step, e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["algorithm", "step", "value", "low", "high"])
