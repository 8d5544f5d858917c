"""What judging policies takes and gives: options, and rows of estimates with what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from corerl.config import require
from corerl.ope import intervals
from corerl.ope.fqe import Settings

STATISTICS = ("mean", "variance", "cvar 0.1", "quantile 0.1", "quantile 0.5", "quantile 0.9")
"""Statistics of the methods that estimate the whole law of returns."""


@dataclass
class Options:
    """The options of judging policies. Every estimate of one table shares them."""

    discount: float = 0.99  # discount of the estimated return
    horizon: int | None = None  # steps that count in each episode (null: longest episode's length)
    leave_out_cut: bool = False  # leaves out episodes that stop early without a terminal state
    behaviour: str = "recorded"  # recorded (in the data) | fitted (by a model) | auto (recorded)
    clip: float | None = None  # quantile at which importance weights are clipped (null: none)
    kernel: str = "gaussian"  # kernel over continuous actions, for deterministic policies
    bandwidth: float = 1.0  # kernel width, in standard deviations of the recorded actions
    interval: str = "bootstrap"  # method of the confidence intervals
    level: float = 0.95  # confidence level of the intervals
    bounds: tuple[float, float] | None = None  # known range of an episode's weighted return
    statistics: Sequence[str] = STATISTICS  # statistics of the return to estimate
    upper: float | None = None  # largest possible return (null: the largest recorded)
    finite: bool = False  # FQE counts rewards only up to the horizon (false: without a limit)
    fqe: Settings = field(default_factory=Settings)
    seed: int = 0  # seed of all random draws

    def __post_init__(self):
        kinds = ("recorded", "fitted", "auto")
        require(
            self.behaviour in kinds, f"behaviour={self.behaviour} is not one of {', '.join(kinds)}"
        )
        require(self.bandwidth > 0, f"bandwidth={self.bandwidth} must be positive")
        intervals.check_level(self.level)
        if self.bounds is not None:
            self._check_bounds(*self.bounds)

    def _check_bounds(self, low: float, high: float) -> None:
        require(
            -np.inf < low < high < np.inf,
            f"bounds={low:g} {high:g} must be two finite numbers, the lower one first",
        )
        require(
            self.interval in intervals.BY_RANGE,
            f"interval={self.interval} does not use bounds. Leave bounds out, or choose "
            f"{' or '.join(intervals.BY_RANGE)}",
        )


IMPOSSIBLE = "beyond any possible return"


class Row(NamedTuple):
    """One estimate of one policy.

    `ess` is the effective number of episodes (for per-decision weights the mean over steps), `episodes`
    how many there are, `clipped` the share of them with a clipped weight; NaN without weights.
    """

    seed: int
    method: str
    statistic: str
    value: float
    low: float
    high: float
    episodes: int
    ess: float
    clipped: float
    note: str = ""


@dataclass(frozen=True)
class Judgement:
    """Rows of estimates, and what all of them rest on, in words."""

    rows: list[Row]
    facts: dict[str, str]
    discount: float

    def of(self, method: str, statistic: str = "mean") -> np.ndarray:
        """Returns one statistic of every policy, `(S,)`."""
        return np.array(
            [r.value for r in self.rows if (r.method, r.statistic) == (method, statistic)]
        )

    def impossible(self, method: str) -> np.ndarray:
        """Tells for every policy whether no policy could earn what this method says of it, `(S,)`."""
        rows = [r for r in self.rows if (r.method, r.statistic) == (method, "mean")]
        return np.array([r.note.startswith(IMPOSSIBLE) for r in rows])
