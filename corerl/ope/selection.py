"""Quality of the choice among policies by estimates: ranks, regret, errors, and risk.

Every function takes estimates and true values `(n,)` of the same policies. They need not share a unit:
only the order of the estimates is used, and thresholds are given for each.

    regret@k        best true value, less the best among the k that are estimated highest
                    (Fu et al. 2021, arXiv:2103.16596, there divided by the range of true values)
    SharpeRatio@k   (best@k - the behaviour policy's value) / std@k over the true values of those k
                    (Kiyohara et al. 2024, arXiv:2311.18207): the gain of trying k policies
                    against the spread of what is tried
    type I, II      the share of bad policies that is judged good, of good ones that is judged bad
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from corerl.config import require
from corerl.ope.intervals import percentiles
from corerl.report.colours import looks


class Top(NamedTuple):
    """True values of the k policies that are estimated highest."""

    best: float
    worst: float
    mean: float
    std: float


def members(labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the rows that bear each label, in the order in which the labels come."""
    return {
        label: np.flatnonzero([other == label for other in labels])
        for label in dict.fromkeys(labels)
    }


def rank_correlation(estimates: np.ndarray, truths: np.ndarray) -> float:
    """Returns Spearman's correlation. NaN for fewer than three policies, or where one side is constant."""
    estimates, truths = _checked(estimates, truths)
    if len(truths) < 3 or np.ptp(estimates) == 0 or np.ptp(truths) == 0:
        return math.nan
    return float(stats.spearmanr(estimates, truths).statistic)


def rank_interval(
    estimates: np.ndarray, truths: np.ndarray, *, groups: Sequence[str] | None = None
) -> tuple[float, float]:
    """Returns a 95 % percentile bootstrap interval of the rank correlation.

    Policies are drawn, as if independent, or with `groups` `(n,)` whole groups: policies of one algorithm
    are alike, and so is what is wrong about their estimates. NaN for fewer than three of what is drawn.
    """
    estimates, truths = _checked(estimates, truths)
    drawn = [*members(range(len(truths)) if groups is None else groups).values()]
    if len(drawn) < 3:
        return math.nan, math.nan
    rng, draws = np.random.default_rng(0), []
    for chosen in rng.integers(len(drawn), size=(2_000, len(drawn))):
        rows = np.concatenate([drawn[i] for i in chosen])
        a, b = (stats.rankdata(x[rows]) - (len(rows) + 1) / 2 for x in (estimates, truths))
        size = math.sqrt((a @ a) * (b @ b))  # 0 where one policy was drawn every time
        if size > 0:
            draws.append((a @ b) / size)
    if not draws:
        return math.nan, math.nan
    return percentiles(np.array(draws), 0.95)


def top(estimates: np.ndarray, truths: np.ndarray, k: int) -> Top:
    """Returns best@k, worst@k, mean@k and std@k (with k as divisor)."""
    estimates, truths = _checked(estimates, truths)
    require(0 < k <= len(truths), f"k={k} must be from 1 to {len(truths)}, the number of policies")
    chosen = truths[np.argsort(-estimates, kind="stable")[:k]]
    return Top(*map(float, (chosen.max(), chosen.min(), chosen.mean(), chosen.std())))


def regret(estimates: np.ndarray, truths: np.ndarray, k: int = 1) -> float:
    """Returns regret@k as a share of the range of true values: 0 for the best choice, 1 for the worst.

    Of policies with equal estimates the first are chosen.
    """
    best, spread = np.max(truths), np.ptp(truths)
    lost = best - top(estimates, truths, k).best
    return float(lost / spread) if spread else 0.0


def sharpe_ratio(estimates: np.ndarray, truths: np.ndarray, behaviour: float, k: int) -> float:
    """Returns SharpeRatio@k, or NaN where the k policies have no spread, as one alone."""
    of = top(estimates, truths, k)
    # Not by the deviation: that of equal numbers may be one of rounding.
    return (of.best - behaviour) / of.std if of.best > of.worst else math.nan


def error_rates(
    estimates: np.ndarray, truths: np.ndarray, thresholds: tuple[float, float]
) -> tuple[float, float]:
    """Returns type I and type II error rates, or NaN where no policy is bad, or none is good.

    Args:
        thresholds: from which an estimate and from which a true value counts as good.
    """
    estimates, truths = _checked(estimates, truths)
    judged, good = estimates >= thresholds[0], truths >= thresholds[1]
    false_alarm = float(judged[~good].mean()) if (~good).any() else math.nan
    missed = float((~judged)[good].mean()) if good.any() else math.nan
    return false_alarm, missed


def overrated(
    estimates: np.ndarray, truths: np.ndarray, labels: Sequence[str]
) -> dict[str, tuple[int, float, float]]:
    """Returns for every label how many policies bear it, and their mean ranks by estimate and by truth.

    A rank is a share, 0 for the worst policy and 1 for the best; ties share theirs. A label whose first
    rank is above its second is overrated.
    """
    estimates, truths = _checked(estimates, truths)
    ranks = [(stats.rankdata(x) - 1) / max(1, len(x) - 1) for x in (estimates, truths)]
    return {
        label: (len(mine), *(float(x[mine].mean()) for x in ranks))
        for label, mine in members(labels).items()
    }


def last(estimates: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Returns estimates, the marked ones `(n,)` below all others: those policies are chosen last.

    A value that no policy can earn is no estimate, and says that the critic diverged.
    """
    estimates = np.asarray(estimates, float)
    low = estimates[~marked].min() if (~marked).any() else 0.0
    below = min(low - 1, np.nextafter(low, -np.inf))  # 1 less of a huge number is the number
    return np.where(marked, below, estimates)


class Selection(NamedTuple):
    """The quality of one method's choice. Intervals and shares as in the functions of this file."""

    method: str
    policies: int
    rank: float
    rank_low: float
    rank_high: float
    rank_low_of_groups: float  # ends of the interval from a bootstrap over algorithms
    rank_high_of_groups: float
    regret_1: float
    regret_3: float
    type_1: float
    type_2: float
    sharpe_3: float
    mse: float


def assess(
    method: str,
    estimates: np.ndarray,
    truths: np.ndarray,
    behaviour: tuple[float, float],
    *,
    groups: Sequence[str] | None = None,
    same_unit: bool = False,
) -> Selection:
    """Computes all of it for one method.

    Args:
        behaviour: the behaviour policy's value in the estimates' unit and in the true values'.
        groups: which policies are of one algorithm, `(n,)`; None leaves that interval out.
        same_unit: estimates are of the true values themselves, so that their error has a meaning.
    """
    k = min(3, len(truths))
    mse = float(np.square(estimates - truths).mean()) if same_unit else math.nan
    unknown = (math.nan, math.nan)
    return Selection(
        *(method, len(truths), rank_correlation(estimates, truths)),
        *rank_interval(estimates, truths),
        *(unknown if groups is None else rank_interval(estimates, truths, groups=groups)),
        *(regret(estimates, truths), regret(estimates, truths, k)),
        *error_rates(estimates, truths, behaviour),
        *(sharpe_ratio(estimates, truths, behaviour[1], k), mse),
    )


def draw(
    estimates: dict[str, np.ndarray],
    truths: np.ndarray,
    labels: Sequence[str],
    behaviour: float,
):
    """Draws estimates against true values, and regret@k and SharpeRatio@k, one row per method.

    `labels` `(n,)` names the groups that share a colour; `behaviour` is its true value. An estimate far
    from all others, as of a critic that diverged, is a triangle at the edge, or they would be one line.
    """
    from matplotlib.figure import Figure

    from corerl.report.figures import in_legend

    figure = Figure(figsize=(11.5, 3.4 * len(estimates)), layout="constrained")
    axes = figure.subplots(len(estimates), 3, squeeze=False)
    ks, colours = np.arange(1, len(truths) + 1), looks(labels)
    for row, (method, values) in zip(axes, estimates.items(), strict=True):
        shown = _without_outliers(values)
        for label, mine in members(labels).items():
            style = {"color": colours[label]["color"], "label": in_legend(label)}
            row[0].plot(shown[mine], truths[mine], "o", ms=5, **style)
            for away, marker in ((shown > values, "<"), (shown < values, ">")):
                at = mine[away[mine]]
                row[0].plot(shown[at], truths[at], marker, ms=9, color=style["color"])
        row[0].axhline(behaviour, color="0.6", lw=1, ls="--")
        row[0].set(xlabel=f"estimate by {method}", ylabel="return in the simulator")
        row[0].set_title(f"rank correlation {rank_correlation(values, truths):.2f}", fontsize=10)
        row[1].plot(ks, [regret(values, truths, k) for k in ks], "o-", ms=3)
        row[1].set(xlabel="k", ylabel="regret@k (share of the range)", ylim=(-0.03, 1.03))
        row[2].plot(ks, [sharpe_ratio(values, truths, behaviour, k) for k in ks], "o-", ms=3)
        row[2].set(xlabel="k", ylabel="SharpeRatio@k")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8)
    return figure


def _without_outliers(values: np.ndarray) -> np.ndarray:
    """Returns values, those further than three interquartile ranges from the middle half cut there."""
    low, high = np.percentile(values, [25, 75])
    return np.clip(values, low - 3 * (high - low), high + 3 * (high - low))


def _checked(estimates: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    estimates, truths = np.asarray(estimates, float), np.asarray(truths, float)
    require(
        estimates.shape == truths.shape and estimates.ndim == 1 and len(truths) > 0,
        f"Estimates {estimates.shape} and true values {truths.shape} must have one entry for each policy",
    )
    require(
        bool(np.isfinite(estimates).all() and np.isfinite(truths).all()),
        "Every policy needs a finite estimate and a finite true value. Leave out policies without them",
    )
    return estimates, truths
