"""The sections of a report, one per collection of tasks: the numbers behind tables and figures."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report import figures, our_tables, published_tables, rliable_table, stats
from corerl.report.files import free_name
from corerl.report.load import Results
from corerl.report.options import GAMMA, Options
from corerl.report.tables import Cell, Table, digits_of, shared
from corerl.report.units import UNITS

TAKEN = {"data", "dialog", "how", "left-out", "runs", "switches", "tip"}
"""What the page names by itself; a section's folder is its anchor there."""
CURVE_REPLICATES = 2000  # per step; bands need less than the table's digits


@dataclass
class Section:
    """One collection of tasks with one unit: scores of different ones never meet."""

    name: str
    unit: str  # one of units.UNITS
    runs: pd.DataFrame  # one row per run, with the evaluation that counts and `last_step`
    history: pd.DataFrame  # every evaluation
    shared: list[str]  # tasks that every algorithm ran, for the aggregates
    cells: dict[tuple[str, str], Cell]  # the numbers of every algorithm and task
    aggregates: pd.DataFrame | None = None
    profiles: pd.DataFrame | None = None
    efficiency: pd.DataFrame | None = None  # the aggregate at every step that all seeds evaluated
    improvement: pd.DataFrame | None = None
    tables: list[Table] = field(default_factory=list)
    others: list[Table] = field(default_factory=list)  # published numbers of other algorithms
    notes: list[str] = field(default_factory=list)
    returns: pd.DataFrame | None = None  # return of every episode, if risk is shown (risk.py)
    folder: str = ""  # folder of its files, and its anchor on the page
    labels: dict[str, str] = field(default_factory=dict)  # `labels` of load.Results

    @property
    def scored(self) -> bool:
        """Tells whether its tasks share a scale, so that there are aggregates."""
        return self.unit != "raw"

    @property
    def heading(self) -> str:
        """Its collection, and the unit where it is not the usual one."""
        reported = {"normalised": "", "success": " (success rates)", "raw": " (raw returns)"}
        return self.name + reported[self.unit]

    @property
    def axis(self) -> str:
        """The label of a score on the axes of its figures."""
        return UNITS[self.unit][1]

    def digits(self, cells: Iterable[Cell | None]) -> int:
        """Returns the decimals of a table of its means: 1, and of raw returns as many as they need."""
        return 1 if self.scored else digits_of(cells)

    @property
    def steps(self) -> str:
        """The steps that all cells share, or empty."""
        return shared(cell.steps for cell in self.cells.values())

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


def sections(results: Results, options: Options) -> list[Section]:
    """Returns one section for each collection and unit, in the order in which they were read.

    Each has its runs, with the algorithms in their order, and their cells. `fill` adds the rest.

    Raises:
        CorerlError: the baseline is no algorithm that was read.
    """
    scores = results.scores
    if options.baseline is not None and options.baseline not in set(scores["algorithm"]):
        known = dict.fromkeys(scores["algorithm"])  # quoted, as names may have commas of their own
        raise CorerlError(
            f"--baseline {options.baseline!r} must be one of {', '.join(map(repr, known))}."
            + nearest(options.baseline, known)
        )
    collection = scores["task"].str.rpartition("/")[0].str.partition("/")[0]
    keys = list(dict.fromkeys(zip(collection, scores["unit"], strict=True)))
    found = []
    for name, unit in keys:
        rows = scores[(collection == name) & (scores["unit"] == unit)]
        found.append(_section(name, unit, rows, results.labels, options))
    for section in found:
        taken = TAKEN | {other.folder for other in found}
        unit = {"normalised": "", "success": "-success", "raw": "-raw"}[section.unit]
        section.folder = free_name(section.name + unit, taken)
    return found


def _section(
    name: str,
    unit: str,
    scores: pd.DataFrame,
    labels: dict[str, str],
    options: Options,
) -> Section:
    runs = stats.best(scores) if options.best else stats.final(scores)
    last = scores.groupby(["algorithm", "task", "seed"])["step"].max().rename("last_step")
    runs = runs.join(last, on=["algorithm", "task", "seed"])
    tasks = runs.groupby("algorithm")["task"].agg(set)
    common = sorted(set.intersection(*tasks))
    cells = our_tables.cells(runs)
    section = Section(name or "scores", unit, runs, scores, common, cells, labels=labels)
    if section.scored and common:
        values = stats.aggregate(section.pooled, [options.metric], replicates=0)
        values = values.set_index("algorithm")["value"]
        section.runs, section.history = _ordered(runs, values), _ordered(scores, values)
    section.notes += _notes(section, tasks)
    return section


def fill(section: Section, published: pd.DataFrame, options: Options) -> None:
    """Adds aggregates, profiles, curves, improvements and all tables."""
    if section.scored and section.shared:
        common = {"gamma": GAMMA, "replicates": options.replicates}
        with ThreadPoolExecutor(1) as second:  # numpy lets two cores share the bootstraps
            drawn = second.submit(_drawn, section, options)
            section.aggregates = stats.aggregate(section.pooled, **common)
            section.improvement = our_tables.improvement(section, options)
        section.profiles, section.efficiency = drawn.result()
    section.tables += our_tables.tables(section, options)
    if options.rliable and section.aggregates is not None:
        section.tables.append(rliable_table.table(section, options))
    section.tables += published_tables.comparisons(section, published, options)
    section.others += published_tables.others(section, published, options)


def _drawn(section: Section, options: Options) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Returns the profiles, and the curves of the chosen metric where there are two steps or more."""
    replicates = min(options.replicates, CURVE_REPLICATES)
    pooled = section.pooled
    taus = figures.profile_taus(pooled["score"])
    profiles = stats.profiles(pooled, taus, replicates=replicates)
    history = section.history[section.history["task"].isin(section.shared)]
    if not stats.common_steps(history).groupby("algorithm")["step"].nunique().gt(1).any():
        return profiles, None
    return profiles, stats.curves(history, options.metric, replicates=replicates)


def _ordered(runs: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Runs with the algorithms in descending order of their values."""
    key = runs["algorithm"].map(values)
    return runs.iloc[np.argsort(-key.to_numpy(), kind="stable")]


def _notes(section: Section, tasks: pd.Series) -> list[str]:
    if not section.scored:
        return [
            "These tasks have no reference scores, so the numbers are raw returns, without an "
            "aggregate over tasks."
        ]
    every = set.union(*tasks)
    notes = []
    if not section.shared:
        notes.append("No task was run by every algorithm, so there is no aggregate.")
    elif len(section.shared) < len(every):
        lacking = ", ".join(f"{a} lacks {len(every - t)}" for a, t in tasks.items() if every - t)
        notes.append(
            f"Aggregates are over the {len(section.shared)} of {len(every)} tasks that every "
            f"algorithm ran ({lacking})."
        )
    single = section.runs.groupby(["algorithm", "task"])["seed"].nunique()
    if (single == 1).any():
        notes.append(
            f"{int((single == 1).sum())} of {len(single)} cells have a single seed. Their standard "
            "deviation is unknown, so it is n/a, as is every interval that uses these cells."
        )
    return notes
