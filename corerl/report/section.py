"""The options of a report, and its data on one collection of tasks in one unit."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from corerl.report import stats
from corerl.report.tables import Cell, Table, digits_of, same_budget
from corerl.report.units import UNITS

GAMMA = 100.0  # the optimality gap's threshold: scores are percentages
NAMES = {"iqm": "IQM", "median": "Median", "mean": "Mean", "optimality_gap": "Optimality gap"}


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    metric: str = "iqm"
    baseline: str | None = None
    replicates: int = 10_000
    best: bool = False
    unequal: bool = False
    risk: bool = False

    @property
    def protocol(self) -> str:
        return "best evaluation of every run" if self.best else "last evaluation of every run"

    @property
    def metrics(self) -> list[str]:
        """All metrics, the chosen one first."""
        return sorted(stats.METRICS, key=lambda m: m != self.metric)

    def may_compare(self, *cells: Cell) -> bool:
        """Tells whether a difference between these may be marked: they rest on equal numbers of steps."""
        return self.unequal or all(same_budget(cells[0], cell) for cell in cells)


@dataclass
class Section:
    """One collection of tasks with one unit: scores of different ones never meet."""

    name: str
    unit: str  # one of units.UNITS
    runs: pd.DataFrame  # one row per run: the evaluation that counts, `last_step` of the run
    history: pd.DataFrame  # every evaluation
    shared: list[str]  # tasks that every algorithm has, over which aggregates go
    aggregates: pd.DataFrame | None = None
    improvement: pd.DataFrame | None = None
    tables: list[Table] = field(default_factory=list)
    others: list[Table] = field(default_factory=list)  # published numbers of algorithms not run
    notes: list[str] = field(default_factory=list)
    returns: pd.DataFrame | None = None  # of every episode, where risk is shown (risk.py)
    folder: str = ""  # of its files, and its anchor on the page
    labels: dict[str, str] = field(default_factory=dict)  # as load.Results has them

    @property
    def scored(self) -> bool:
        """Tells whether its tasks share a scale, so that there are aggregates."""
        return self.unit != "raw"

    @property
    def heading(self) -> str:
        """Its collection, and the unit where it is not the usual one."""
        told = {"normalised": "", "success": " (success rates)", "raw": " (raw returns)"}
        return self.name + told[self.unit]

    @property
    def axis(self) -> str:
        """The label of a score on the axes of its figures."""
        return UNITS[self.unit][1]

    def digits(self, cells: Iterable[Cell | None]) -> int:
        """Returns the decimals of a table of its means: 1, and of raw returns as many as they need."""
        return 1 if self.scored else digits_of(cells)

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(self.runs["algorithm"]))

    @property
    def tasks(self) -> list[str]:
        return sorted(set(self.runs["task"]))

    @property
    def pooled(self) -> pd.DataFrame:
        """The runs on shared tasks."""
        return self.runs[self.runs["task"].isin(self.shared)]
