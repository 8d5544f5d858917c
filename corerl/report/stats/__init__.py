"""Estimates over runs, with intervals: IQM, profiles, probability of improvement, CVaR.

The estimates are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", computed by `rliable.metrics`. The intervals come from our own bootstrap.
Scores come as a tidy table, one row per run, with the columns `algorithm`, `task`, `seed` and
`score`; no axis is ever positional, and tasks may have different numbers of seeds.

    from corerl.report import stats

    stats.aggregate(table, gamma=100)                         # every metric, of scores up to 100
    stats.estimate(table, "iqm", "IQL").low
    stats.probability_of_improvement(table, "IQL", "BC")
    stats.to_rliable(table)                                   # its dictionary of score matrices
"""

from corerl.report.stats.bootstrap import REPLICATES
from corerl.report.stats.comparisons import (
    mean_band,
    mean_interval,
    probability_of_improvement,
    welch_interval,
)
from corerl.report.stats.cvar import cvar_of_seeds
from corerl.report.stats.estimates import (
    METRICS,
    Estimate,
    aggregate,
    curves,
    estimate,
    profiles,
)
from corerl.report.stats.score_tables import best, check, common_steps, final, to_rliable

__all__ = [
    "METRICS",
    "REPLICATES",
    "Estimate",
    "aggregate",
    "best",
    "check",
    "common_steps",
    "curves",
    "cvar_of_seeds",
    "estimate",
    "final",
    "mean_band",
    "mean_interval",
    "probability_of_improvement",
    "profiles",
    "to_rliable",
    "welch_interval",
]
