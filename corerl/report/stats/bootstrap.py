"""The stratified bootstrap: seeds are drawn with replacement within every task.

A replicate is a weight on every run: how often it was drawn. Every estimate is therefore also a
function of weighted runs; with all weights equal it is rliable's estimate. Runs are sorted once,
before any replicate is drawn, so that no replicate sorts.

Where tasks have different numbers of seeds every task counts the same: a run weighs 1 / (number of
seeds of its task).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

REPLICATES = 50_000  # rliable's default; 0.1 s for 10 seeds on 15 tasks
ROUNDING = 1e-12  # of an estimate's scale: what sums of equal numbers in other orders differ by
_CELLS = 1 << 16  # replicates x runs per block: what stays in the second-level cache
_KEPT = 100_000_000  # replicates x runs whose draws are kept, a byte each


@dataclass(frozen=True)
class Runs:
    """The runs of one algorithm in ascending order of score."""

    score: np.ndarray  # (N,) float64, ascending
    task: np.ndarray  # (N,) index of the run's task
    order: np.ndarray  # (N,) each run's index in the runs as grouped by task
    sizes: np.ndarray  # (T,) seeds of each task
    weight: np.ndarray  # (N,) a run's weight (1 if all tasks have the same number of seeds)

    @property
    def mass(self) -> float:
        return float(len(self.sizes) * self.sizes.max())

    @property
    def matrix(self) -> np.ndarray | None:
        """Scores (seeds, tasks), ascending on each task, or None if tasks differ in their seeds."""
        if self.sizes.min() < self.sizes.max():
            return None
        by_task = self.score[np.argsort(self.task, kind="stable")]
        return by_task.reshape(len(self.sizes), -1).T


def sort_runs(score: np.ndarray, task: np.ndarray) -> Runs:
    """Returns the runs (N,) of tasks numbered from 0, sorted once for all replicates."""
    by_task = np.argsort(task, kind="stable")
    score, task = score[by_task], task[by_task]
    sizes = np.bincount(task)
    order = np.argsort(score, kind="stable")
    return Runs(score[order], task[order], order, sizes, (sizes.max() / sizes)[task[order]])


def draws(sizes: np.ndarray, replicates: int, seed: int) -> Iterable[np.ndarray]:
    """Returns blocks (b, N) of how often each run is drawn, seeds with replacement within their task.

    Algorithms with as many seeds on each task have the same draws, which are kept in one block.
    """
    if replicates * int(sizes.sum()) <= _KEPT:
        return [_kept_draws(tuple(sizes.tolist()), replicates, seed)]
    return _drawn(sizes, replicates, seed)


@lru_cache(maxsize=4)
def _kept_draws(sizes: tuple[int, ...], replicates: int, seed: int) -> np.ndarray:
    small = np.min_scalar_type(max(sizes))
    blocks = _drawn(np.array(sizes), replicates, seed)
    return np.concatenate([block.astype(small) for block in blocks])


def _drawn(sizes: np.ndarray, replicates: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    columns = {
        n: np.concatenate([np.arange(e - n, e) for e in ends[sizes == n]])
        for n in np.unique(sizes).tolist()
    }
    block = _rows(sizes)
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        counts = np.empty((rows, ends[-1]))
        for n, where in columns.items():
            counts[:, where] = _counts(rng, n, len(where), rows)
        yield counts


def _rows(sizes: np.ndarray) -> int:
    return max(1, _CELLS // int(sizes.sum()))


def _counts(rng: np.random.Generator, n: int, runs: int, rows: int) -> np.ndarray:
    """Returns (rows, runs) counts of n draws with replacement from n, for runs / n tasks of n seeds."""
    small = np.min_scalar_type(n - 1)
    drawn = rng.integers(n, size=(rows * runs // n, n), dtype=small)
    cells = drawn + np.arange(0, rows * runs, n)[:, None]
    return np.bincount(cells.ravel(), minlength=rows * runs).reshape(rows, runs)


def replicate(runs: Runs, statistic, replicates: int, seed: int) -> np.ndarray:
    """Returns (replicates, ...) values of a function of weighted runs."""
    rows = _rows(runs.sizes)
    parts = []
    for block in draws(runs.sizes, replicates, seed):
        for i in range(0, len(block), rows):
            weights = block[i : i + rows, runs.order].astype(np.float64)
            weights *= runs.weight
            parts.append(statistic(runs, weights))
    return np.concatenate(parts)


def percentiles(replicates: np.ndarray, level: float) -> np.ndarray:
    """Returns (2, ...) ends of the central interval of this level, over the first axis."""
    tail = 50.0 * (1.0 - level)
    return np.percentile(replicates, [tail, 100.0 - tail], axis=0)


def interval(
    runs: Runs, statistic, scale: float, replicates: int, seed: int, level: float
) -> np.ndarray:
    """Returns (2, ...) percentile interval, or NaN where a task has one seed, whose spread nobody knows.

    Ends that only rounding of values of this scale sets apart, as where the seeds all scored the same, are
    equal.
    """
    if runs.sizes.min() < 2 or not replicates:
        return np.full_like(statistic(runs, runs.weight[None]).repeat(2, axis=0), np.nan)
    low, high = percentiles(replicate(runs, statistic, replicates, seed), level)
    scale = np.maximum(np.abs(low), scale)
    return np.stack([low, np.where(high - low <= ROUNDING * scale, low, high)])
