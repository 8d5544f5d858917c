"""Estimates over runs, with intervals: IQM, profiles, probability of improvement, CVaR.

The estimates are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (rliable). Scores come as a tidy table, one row per run, with the columns
`algorithm`, `task`, `seed` and `score`; no axis is ever positional, and tasks may have different
numbers of seeds.

A bootstrap replicate is a weight on every run: how often it was drawn. Every estimate is therefore
one function of weighted runs, written once; with all weights equal it is the point estimate. Runs
are sorted once, before any replicate is drawn, so that no replicate sorts.

Where tasks have different numbers of seeds every task counts the same: a run weighs 1 / (number of
seeds of its task). With equal numbers all estimates equal rliable's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from corerl.errors import CorerlError, nearest
from corerl.risk.measures import check_samples

METRICS = ("iqm", "median", "mean", "optimality_gap")
REPLICATES = 50_000  # rliable's default; 0.1 s for 10 seeds on 15 tasks
_CELLS = 1 << 16  # replicates x runs per block: what stays in the second-level cache


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


@dataclass(frozen=True)
class _Runs:
    """The runs of one algorithm in ascending order of score."""

    score: np.ndarray  # (N,) float64, ascending
    task: np.ndarray  # (N,) index of the run's task
    order: np.ndarray  # (N,) position of the run among the runs grouped by task
    sizes: np.ndarray  # (T,) seeds of each task
    weight: np.ndarray  # (N,) a run's weight; 1 where all tasks have the same number of seeds

    @property
    def mass(self) -> float:
        return float(len(self.sizes) * self.sizes.max())


# ---------------------------------------------------------------------------------- score tables


def check(table: pd.DataFrame) -> pd.DataFrame:
    """The table itself, if it is a score table: the four columns, finite scores, no run twice.

    Raises CorerlError naming the missing column, or the algorithm, task and seed of a bad row.
    """
    for column in ("algorithm", "task", "seed", "score"):
        if column not in table.columns:
            raise CorerlError(
                f"A score table needs the columns algorithm, task, seed and score, but {column!r} "
                f"is missing; it has {', '.join(map(str, table.columns)) or 'none'}."
            )
    if not len(table):
        raise CorerlError("The score table has no rows, so there is nothing to estimate.")
    bad = ~np.isfinite(table["score"].to_numpy(dtype=np.float64))
    if bad.any():
        row = table.iloc[int(bad.argmax())]
        raise CorerlError(
            f"The score of {_run_name(row)} is {row['score']}; remove the run or report it as "
            "failed, because no estimate may skip it silently."
        )
    keys = [c for c in ("algorithm", "task", "seed", "step") if c in table.columns]
    twice = table.duplicated(keys)
    if twice.any():
        row = table.iloc[int(twice.to_numpy().argmax())]
        raise CorerlError(
            f"{_run_name(row)} stands in the score table twice; keep one row for each run, or give "
            "the configurations different algorithm names."
        )
    return table


def _run_name(row: pd.Series) -> str:
    step = f" at step {row['step']}" if "step" in row.index else ""
    return f"{row['algorithm']} on {row['task']} with seed {row['seed']}{step}"


def final(table: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every run (the headline), one row per run."""
    return _one_row_per_run(table, "step")


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The best evaluation of every run, one row per run: a maximum over training, biased up."""
    return _one_row_per_run(table, "score")


def _one_row_per_run(table: pd.DataFrame, largest: str) -> pd.DataFrame:
    check(table)
    if "step" not in table.columns:
        return table
    table = table.reset_index(drop=True)
    rows = table.groupby(["algorithm", "task", "seed"], sort=False)[largest].idxmax()
    return table.loc[rows].reset_index(drop=True)


def _runs(table: pd.DataFrame, algorithm: str | None = None) -> _Runs:
    check(table)
    names = list(dict.fromkeys(table["algorithm"]))
    if algorithm is None and len(names) > 1:
        raise CorerlError(
            f"The table holds {len(names)} algorithms ({', '.join(map(str, names[:5]))}); "
            "say which one to estimate."
        )
    if algorithm is not None:
        if algorithm not in names:
            raise CorerlError(f"The table has no {algorithm!r}.{nearest(str(algorithm), names)}")
        table = table[table["algorithm"] == algorithm]
    if table.duplicated(["task", "seed"]).any():
        raise CorerlError(
            "The table holds several steps of a run; take final(table) or best(table) first."
        )
    task, _ = pd.factorize(table["task"], sort=True)
    return _sorted_runs(table["score"].to_numpy(dtype=np.float64), task)


def _sorted_runs(score: np.ndarray, task: np.ndarray) -> _Runs:
    by_task = np.argsort(task, kind="stable")
    score, task = score[by_task], task[by_task]
    sizes = np.bincount(task)
    order = np.argsort(score, kind="stable")
    return _Runs(score[order], task[order], order, sizes, (sizes.max() / sizes)[task[order]])


# ---------------------------------------------------------------------------- weighted estimates
# Each takes the runs and weights (B, N) on them, and returns B estimates.


def _between(score: np.ndarray, weights: np.ndarray, low: float, high: float) -> np.ndarray:
    """Mean of the ascending scores between two cumulated weights, splitting boundary runs."""
    cumulated = np.cumsum(weights, axis=-1)
    np.clip(cumulated, low, high, out=cumulated)
    return np.diff(cumulated, axis=-1, prepend=low) @ score / (high - low)


def _iqm(runs: _Runs, weights: np.ndarray) -> np.ndarray:
    # A whole number of runs is cut on each side, as scipy's trim_mean (and so rliable) does.
    count = len(runs.score)
    cut = int(0.25 * count) / count * runs.mass
    return _between(runs.score, weights, cut, runs.mass - cut)


def _mean(runs: _Runs, weights: np.ndarray) -> np.ndarray:
    return weights @ runs.score / runs.mass


def _median(runs: _Runs, weights: np.ndarray) -> np.ndarray:
    member = np.zeros((len(runs.score), len(runs.sizes)))
    member[np.arange(len(runs.score)), runs.task] = runs.score / runs.sizes.max()
    return np.median(weights @ member, axis=-1)


def _optimality_gap(runs: _Runs, weights: np.ndarray, gamma: float) -> np.ndarray:
    return gamma - weights @ np.minimum(runs.score, gamma) / runs.mass


def _profile(runs: _Runs, weights: np.ndarray, taus: np.ndarray) -> np.ndarray:
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=-1)], axis=-1)
    return 1.0 - below[:, np.searchsorted(runs.score, taus, side="right")] / runs.mass


def _statistic(metric: str, gamma: float) -> Callable[[_Runs, np.ndarray], np.ndarray]:
    known = {
        "iqm": _iqm,
        "median": _median,
        "mean": _mean,
        "optimality_gap": partial(_optimality_gap, gamma=gamma),
    }
    if metric not in known:
        raise CorerlError(f"No metric {metric!r}; there are {', '.join(known)}.")
    return known[metric]


# -------------------------------------------------------------------------------------- bootstrap


def _draws(sizes: np.ndarray, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Blocks (b, N) of how often each run is drawn, seeds with replacement within their task."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    columns = {
        n: np.concatenate([np.arange(e - n, e) for e in ends[sizes == n]])
        for n in np.unique(sizes).tolist()
    }
    block = max(1, _CELLS // int(ends[-1]))
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        counts = np.empty((rows, ends[-1]))
        for n, where in columns.items():
            counts[:, where] = _counts(rng, n, len(where), rows)
        yield counts


def _counts(rng: np.random.Generator, n: int, runs: int, rows: int) -> np.ndarray:
    """(rows, runs) counts of n draws with replacement from n, for runs / n tasks of n seeds."""
    small = np.min_scalar_type(n - 1)
    drawn = rng.integers(n, size=(rows * runs // n, n), dtype=small)
    cells = drawn + np.arange(0, rows * runs, n)[:, None]
    return np.bincount(cells.ravel(), minlength=rows * runs).reshape(rows, runs)


def _replicate(runs: _Runs, statistic, replicates: int, seed: int) -> np.ndarray:
    blocks = _draws(runs.sizes, replicates, seed)
    return np.concatenate([statistic(runs, c[:, runs.order] * runs.weight) for c in blocks])


def _percentiles(replicates: np.ndarray, level: float) -> np.ndarray:
    tail = 50.0 * (1.0 - level)
    return np.percentile(replicates, [tail, 100.0 - tail], axis=0)


def _interval(runs: _Runs, statistic, replicates: int, seed: int, level: float) -> np.ndarray:
    """(2, ...) percentile interval; NaN where a task has one seed, whose spread nobody knows."""
    if runs.sizes.min() < 2 or not replicates:
        return np.full_like(statistic(runs, runs.weight[None]).repeat(2, axis=0), np.nan)
    return _percentiles(_replicate(runs, statistic, replicates, seed), level)


# --------------------------------------------------------------------------------------- estimates


def iqm(table: pd.DataFrame) -> float:
    """Mean of the middle half of all runs of one algorithm."""
    return _point(table, "iqm")


def median(table: pd.DataFrame) -> float:
    """Median over tasks of each task's mean, for a table of one algorithm."""
    return _point(table, "median")


def mean(table: pd.DataFrame) -> float:
    """Mean over tasks of each task's mean, for a table of one algorithm."""
    return _point(table, "mean")


def optimality_gap(table: pd.DataFrame, gamma: float = 1.0) -> float:
    """How far the runs fall short of `gamma` on average; scores above it count as `gamma`."""
    return _point(table, "optimality_gap", gamma)


def _point(table: pd.DataFrame, metric: str, gamma: float = 1.0) -> float:
    runs = _runs(table)
    return float(_statistic(metric, gamma)(runs, runs.weight[None])[0])


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
    """One of METRICS for one algorithm, with its stratified bootstrap percentile interval.

    Seeds are drawn with replacement within every task; `gamma` is the optimality gap's threshold.
    The interval is NaN where a task has a single seed. `replicates=0` leaves the interval out.
    """
    runs = _runs(table, algorithm)
    statistic = _statistic(metric, gamma)
    value = float(statistic(runs, runs.weight[None])[0])
    low, high = _interval(runs, statistic, replicates, seed, level)
    return Estimate(value, float(low), float(high), len(runs.sizes), *_count(runs.sizes))


def _count(sizes: np.ndarray) -> tuple[int, tuple[int, int]]:
    return int(sizes.sum()), (int(sizes.min()), int(sizes.max()))


def aggregate(
    table: pd.DataFrame, metrics: Sequence[str] = METRICS, **options: float
) -> pd.DataFrame:
    """`estimate` for every algorithm and metric.

    Columns: algorithm, metric, value, low, high, tasks, runs, seeds_min, seeds_max.
    """
    rows = []
    for algorithm in dict.fromkeys(table["algorithm"]):
        for metric in metrics:
            e = estimate(table, metric, algorithm, **options)
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
    """Fraction of runs with a score above each tau (K,), per algorithm, with pointwise intervals.

    Columns: algorithm, tau, value, low, high.
    """
    taus = np.asarray(taus, dtype=np.float64)
    statistic = partial(_profile, taus=taus)
    parts = []
    for algorithm in dict.fromkeys(table["algorithm"]):
        runs = _runs(table, algorithm)
        value = statistic(runs, runs.weight[None])[0]
        low, high = _interval(runs, statistic, replicates, seed, level)
        columns = {"algorithm": algorithm, "tau": taus, "value": value, "low": low, "high": high}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def probability_of_improvement(
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    replicates: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """P(a run of `x` scores above a run of `y`) on a task, ties one half, averaged over tasks.

    Per task this is the Mann-Whitney U statistic over n_x * n_y. Both algorithms need the same
    tasks. With drawn fractions w of each task's seeds a replicate is the mean of w_x' C w_y.
    """
    pairs = _pairwise(check(table), x, y)
    value = float(np.mean([c.mean() for c in pairs]))
    sizes = np.array([c.shape for c in pairs])
    low = high = np.nan
    if sizes.min() > 1 and replicates:
        low, high = _percentiles(_replicate_pairs(pairs, sizes, replicates, seed), level)
    return Estimate(value, float(low), float(high), len(pairs), *_count(sizes))


def _pairwise(table: pd.DataFrame, x: str, y: str) -> list[np.ndarray]:
    """For each task (n_x, n_y): 1 where the run of x is above the run of y, one half at a tie."""
    one, other = _by_task(table, x), _by_task(table, y)
    lonely = sorted(set(one) ^ set(other))
    if lonely:
        raise CorerlError(
            f"{x} and {y} have no common set of tasks: only one of them ran {lonely[0]}; "
            "compare on the tasks that both have."
        )
    pairs = ((one[t][:, None], other[t][None, :]) for t in one)
    return [(a > b) + 0.5 * (a == b) for a, b in pairs]


def _by_task(table: pd.DataFrame, algorithm: str) -> dict[str, np.ndarray]:
    _runs(table, algorithm)
    rows = table[table["algorithm"] == algorithm]
    return {t: g["score"].to_numpy(dtype=np.float64) for t, g in rows.groupby("task")}


def _replicate_pairs(
    pairs: list[np.ndarray], sizes: np.ndarray, replicates: int, seed: int
) -> np.ndarray:
    parts = []
    stops = np.cumsum(sizes.ravel())[:-1]
    for counts in _draws(sizes.ravel(), replicates, seed):
        drawn = np.split(counts, stops, axis=1)
        above = [
            np.einsum("bi,bi->b", wx @ c, wy) / c.size
            for c, wx, wy in zip(pairs, drawn[::2], drawn[1::2], strict=True)
        ]
        parts.append(np.mean(above, axis=0))
    return np.concatenate(parts)


def curves(table: pd.DataFrame, metric: str = "iqm", **options: float) -> pd.DataFrame:
    """`estimate` at every step that all runs of an algorithm evaluated (sample efficiency).

    Columns: algorithm, step, value, low, high.
    """
    check(table)
    options = {"replicates": 2000, **options}
    rows = []
    for algorithm, group in common_steps(table).groupby("algorithm", sort=False):
        for step, at in group.groupby("step"):
            e = estimate(at, metric, **options)
            rows.append((algorithm, step, e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["algorithm", "step", "value", "low", "high"])


def common_steps(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the steps that all runs of an algorithm evaluated."""
    runs = table.drop_duplicates(["algorithm", "task", "seed"])["algorithm"].value_counts()
    counts = table.groupby(["algorithm", "step"])["step"].transform("size")
    return table[counts == table["algorithm"].map(runs)]


# -------------------------------------------------------------------------------------------- risk


def cvar_interval(
    samples: np.ndarray,
    tau: float,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `cvar` over the samples; NaN for a single sample."""
    runs = _sample_runs(samples, tau)
    low, high = _interval(runs, partial(_cvar, tau=tau), replicates, seed, level)
    return float(low), float(high)


def cvar_of_seeds(
    samples: Sequence[np.ndarray],
    tau: float,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """Mean over seeds of each seed's `cvar`, and its percentile bootstrap interval: value, low, high.

    `samples` holds one array of episodes per seed. A replicate draws seeds with replacement and, for
    each, its episodes with replacement. With one seed the interval is over its episodes alone; a single
    episode has none (NaN).
    """
    runs = [_sample_runs(one, tau) for one in samples]
    statistic = partial(_cvar, tau=tau)
    value = float(np.mean([statistic(one, one.weight[None])[0] for one in runs]))
    if not replicates or min(one.sizes.min() for one in runs) < 2:
        return value, np.nan, np.nan
    each = np.stack(
        [_replicate(one, statistic, replicates, seed + i) for i, one in enumerate(runs)]
    )
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(runs), size=(len(runs), replicates))
    low, high = _percentiles(each[drawn, np.arange(replicates)].mean(0), level)
    return value, float(low), float(high)


def _sample_runs(samples: np.ndarray, tau: float) -> _Runs:
    samples = check_samples(samples, tau)
    return _sorted_runs(samples, np.zeros(samples.size, dtype=np.intp))


def _cvar(runs: _Runs, weights: np.ndarray, tau: float) -> np.ndarray:
    return _between(runs.score, weights, 0.0, tau * runs.mass)


# ------------------------------------------------------------------------------ means of few seeds


def mean_interval(scores: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval of the mean over seeds (n, ...): low and high (...); NaN for one seed.

    Ten seeds and fewer are too few for a percentile bootstrap of one task, which is too narrow.
    """
    n = len(scores)
    mean = np.mean(scores, axis=0)
    if n < 2:
        return mean * np.nan, mean * np.nan
    t = scipy_stats.t.ppf(0.5 + level / 2, n - 1)
    half = t * np.std(scores, axis=0, ddof=1) / np.sqrt(n)
    return mean - half, mean + half


def welch_interval(
    mean_x: float,
    std_x: float,
    n_x: int,
    mean_y: float,
    std_y: float,
    n_y: int,
    level: float = 0.95,
) -> tuple[float, float]:
    """Welch's interval of mean_x - mean_y from means and sample stds (ddof=1); NaN if an n is 1."""
    if min(n_x, n_y) < 2:
        return np.nan, np.nan
    x, y = std_x**2 / n_x, std_y**2 / n_y
    if x + y == 0.0:
        return mean_x - mean_y, mean_x - mean_y
    freedom = (x + y) ** 2 / (x**2 / (n_x - 1) + y**2 / (n_y - 1))
    half = float(scipy_stats.t.ppf(0.5 + level / 2, freedom)) * np.sqrt(x + y)
    return float(mean_x - mean_y - half), float(mean_x - mean_y + half)
