"""CVaR of returns, with bootstrap intervals over episodes and seeds."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from corerl.report.stats.bootstrap import REPLICATES, Runs, percentiles, replicate, sort_runs
from corerl.report.stats.estimates import mean_between
from corerl.risk.measures import check_samples


def cvar_of_seeds(
    samples: Sequence[np.ndarray], tau: float, *, replicates: int = REPLICATES
) -> tuple[float, float, float]:
    """Returns mean over seeds of each seed's `cvar`, and its 95 % bootstrap interval: value, low, high.

    `samples` holds one array of episodes per seed. A replicate draws seeds with replacement and, for
    each, its episodes with replacement. With one seed the interval is over its episodes alone; a single
    episode has none (NaN).
    """
    runs = [_sample_runs(one, tau) for one in samples]
    statistic = partial(_cvar, tau=tau)
    value = float(np.mean([statistic(one, one.weight[None])[0] for one in runs]))
    if not replicates or min(one.sizes.min() for one in runs) < 2:
        return value, np.nan, np.nan
    each = np.stack([replicate(one, statistic, replicates, i) for i, one in enumerate(runs)])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(runs), size=(len(runs), replicates))
    # The i-th to be drawn takes the replicate i further on: a seed drawn twice has other episodes each time.
    columns = (np.arange(replicates) + np.arange(len(runs))[:, None]) % replicates
    low, high = percentiles(each[drawn, columns].mean(0), 0.95)
    return value, float(low), float(high)


def _sample_runs(samples: np.ndarray, tau: float) -> Runs:
    samples = check_samples(samples, tau)
    return sort_runs(samples, np.zeros(samples.size, dtype=np.intp))


def _cvar(runs: Runs, weights: np.ndarray, tau: float) -> np.ndarray:
    return mean_between(runs.score, weights, 0.0, tau * runs.mass)
