"""Published numbers beside ours, and of algorithms that were not run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd

from corerl.report import stats
from corerl.report.files import free_name
from corerl.report.options import Options
from corerl.report.our_tables import task_row
from corerl.report.published import METRICS, sample_std, short_source
from corerl.report.tables import DOWN, UP, Cell, Column, Table, column, short

if TYPE_CHECKING:
    from corerl.report.sections import Section

DIFFERENCE_RULE = (
    f"{UP} or {DOWN} after a published number means that our number is higher or lower, and Welch's 95% "
    "interval of the difference excludes zero. If the source gives no standard deviation or number of "
    "seeds, its number must lie outside our 95% t interval instead. There is no mark if we have a single "
    "seed, or if all our seeds have equal scores. There is no mark if the source's protocol differs from "
    "ours or is not stated."
)
BUDGET_RULE = (
    "There is no mark where the numbers of steps differ, or where a source does not state its steps. "
    "The option --unequal adds these marks."
)
OTHERS = "published-others"  # the file of those that were not run


def of_our_kind(protocol: str) -> bool:
    """Tells the evaluation at the end or at a step, and the best, from means, training episodes and such."""
    return protocol.lower().startswith(("last", "at step", "best"))


def _matching(published: pd.DataFrame, section: Section, options: Options) -> pd.DataFrame:
    """Returns rows for our tasks in our unit: the best of runs with --best, and all others without."""
    best = published["protocol"].str.lower().str.startswith("best")
    unit = published["metric"].map(METRICS) == section.unit
    unit |= (published["metric"] == "score") & (section.unit == "success")  # AntMaze: both in one
    return published[
        published["task"].isin(set(section.runs["task"])) & (best == options.best) & unit
    ]


def _published_name(names: Iterable[str], algorithm: str, section: Section) -> str | None:
    """Returns the published name that is ours, or the longest that ours without settings (`tau=1`) is."""
    names = set(names)
    for label in (algorithm, section.labels.get(algorithm, algorithm)):
        if label in names:
            return label
        words = label.split(" ")
        while "=" in words.pop() and words:
            if (name := " ".join(words)) in names:
                return name
    return None


def _columns_of(rows: pd.DataFrame) -> pd.Series:
    """Names columns by their sources: in short, and in full where one has several numbers for a task.

    A protocol of another kind than ours is part of the name.
    """
    source, protocol = rows["source"], rows["protocol"].map(lambda x: x and f", {x}")
    other = protocol.mask(rows["protocol"].map(of_our_kind), "")
    steps = rows["steps"].map(lambda x: "" if math.isnan(x) else f", {short(x)} steps")
    names = source.map(short_source) + other
    for more in (source + other, source + steps + other, source + steps + protocol):
        names = names.mask(_twice(rows, names), more)
    again = names.groupby([rows["algorithm"], rows["task"], names]).cumcount() + 1
    return names.mask(again > 1, names + " [" + again.astype(str) + "]")


def _twice(rows: pd.DataFrame, names: pd.Series) -> pd.Series:
    """Names the columns that have several numbers of a task."""
    again = pd.DataFrame({"a": rows["algorithm"], "t": rows["task"], "n": names}).duplicated()
    return names.isin(names[again])


def comparisons(section: Section, published: pd.DataFrame, options: Options) -> list[Table]:
    """Returns a table for each of our algorithms that has published numbers on its own tasks."""
    rows = _matching(published, section, options)
    tables, taken = [], {OTHERS}
    for label in section.algorithms:
        ours = section.runs[section.runs["algorithm"] == label]
        own = rows["algorithm"] == _published_name(published["algorithm"], label, section)
        theirs = rows[own & rows["task"].isin(ours["task"])]
        if len(theirs):
            name = free_name(f"published-{_slug(label)}", taken)
            taken.add(name)
            tables.append(_comparison(name, section, label, theirs, options))
    return tables


def _comparison(
    name: str,
    section: Section,
    label: str,
    theirs: pd.DataFrame,
    options: Options,
) -> Table:
    """Tabulates published numbers, all of tasks that we ran, beside ours."""
    own = section.cells
    tasks = sorted(set(theirs["task"]))
    sources = _columns_of(theirs)
    order = sources.value_counts(sort=True).index
    found = {t: [own[label, t]] for t in tasks}
    columns = [column(f"{label}, ours", [own[label, t] for t in tasks], algorithm=label)]
    notes = []
    for source in order:
        rows = theirs[sources == source].set_index("task")
        for t in tasks:
            found[t].append(_published_cell(rows, t, own[label, t], options))
        columns.append(_column(source, rows, [found[t][-1] for t in tasks]))
        notes.append(_source_note(source, theirs[sources == source]))
    rules = [DIFFERENCE_RULE if options.unequal else f"{DIFFERENCE_RULE} {BUDGET_RULE}"]
    return Table(
        name,
        f"{label} beside published numbers, {options.protocol}",
        "task",
        tuple(columns),
        tuple(task_row(t, found[t]) for t in tasks),
        digits=section.digits(chain(*found.values())),
        notes=(*rules, *notes),
        compares=True,
    )


def _published_cell(
    rows: pd.DataFrame, task: str, ours: Cell | None, options: Options
) -> Cell | None:
    if task not in rows.index:
        return None
    r = rows.loc[task]
    n = "" if math.isnan(r["seeds"]) else str(int(r["seeds"]))
    budget = () if math.isnan(r["steps"]) else (int(r["steps"]),)
    cell = Cell(r["mean"], r["std"], n=n, budget=budget)
    if ours is None or not of_our_kind(r["protocol"]):
        return cell
    if not (options.unequal or (budget and options.may_compare(ours, cell))):
        return cell
    return replace(cell, mark=difference(ours, r))


def difference(ours: Cell, theirs: pd.Series) -> str:
    """Returns UP or DOWN where the intervals say that ours is higher or lower (DIFFERENCE_RULE), or ""."""
    if int(ours.n) < 2 or ours.std == 0.0:
        return ""
    std = sample_std(theirs["std"], theirs["seeds"], theirs["ddof"])
    if math.isnan(std) or not theirs["seeds"] > 1:
        low, high = ours.low - theirs["mean"], ours.high - theirs["mean"]
    else:
        own = (ours.value, ours.std, int(ours.n))
        low, high = stats.welch_interval(*own, theirs["mean"], std, int(theirs["seeds"]))
    return UP if low > 0 else DOWN if high < 0 else ""


def _column(name: str, rows: pd.DataFrame, found: list[Cell | None]) -> Column:
    reported = column(name, found, "; ".join(dict.fromkeys(rows["source"])))
    stated = any(cell is not None and cell.budget for cell in found)
    return reported if stated else replace(reported, steps="unstated")


def _source_note(name: str, rows: pd.DataFrame) -> str:
    where = (s.partition(" (")[2].removesuffix(")") for s in dict.fromkeys(rows["source"]))
    sources = "; ".join(filter(None, where)) or "source as named"
    protocols = " / ".join(dict.fromkeys(rows["protocol"].replace("", "protocol not stated")))
    notes = [n for n in dict.fromkeys(rows["notes"]) if n]
    reported = f"; {notes[0]}" if len(notes) == 1 else ""
    return f"{name}: {sources}; {protocols}{reported}."


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in label).strip("-").lower()


def others(section: Section, published: pd.DataFrame, options: Options) -> list[Table]:
    """Tabulates published numbers of algorithms that were not run, one column per algorithm and source."""
    rows = _matching(published, section, options)
    names = published["algorithm"]
    ran = {_published_name(names, algorithm, section) for algorithm in section.algorithms}
    rows = rows[~rows["algorithm"].isin(ran)]
    if not len(rows):
        return []
    tasks = sorted(set(rows["task"]))
    found, columns, notes = {t: [] for t in tasks}, [], {}
    sources = _columns_of(rows)
    for (algorithm, source), group in rows.groupby(["algorithm", sources], sort=False):
        of_task = group.set_index("task")
        for t in tasks:
            found[t].append(_published_cell(of_task, t, None, options))
        columns.append(_column(f"{algorithm}, {source}", of_task, [found[t][-1] for t in tasks]))
        notes.setdefault(source, _source_note(source, group))
    return [
        Table(
            OTHERS,
            "Published numbers of algorithms that were not run here",
            "task",
            tuple(columns),
            tuple(task_row(t, found[t]) for t in tasks),
            digits=section.digits(chain(*found.values())),
            notes=tuple(notes.values()),
        )
    ]
