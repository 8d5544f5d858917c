"""The options of a report."""

from dataclasses import dataclass

from corerl.report import stats
from corerl.report.tables import Cell, same_budget

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
    rliable: bool = False

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
