"""What a report says about each collection of tasks: the numbers behind tables and figures."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report import stats
from corerl.report.files import file_name
from corerl.report.load import Results
from corerl.report.published import sample_std, short_source
from corerl.report.tables import (
    DOWN,
    UP,
    Cell,
    Column,
    Row,
    Table,
    plural,
    shared_n,
)

GAMMA = 100.0  # scores are normalised x100
NAMES = {"iqm": "IQM", "median": "Median", "mean": "Mean", "optimality_gap": "Optimality gap"}
TOP_RULE = "Best of a row, and what Welch's 95% interval cannot tell from it, is emphasised."
DIFFERENCE_RULE = (
    f"{UP}/{DOWN} after a published number: ours is higher/lower, because Welch's 95% interval of "
    "the difference excludes zero, or, where the source gives no std or seeds, because the number "
    "lies outside our 95% t interval of the mean. No mark: no such difference, or we have one seed."
)


@dataclass(frozen=True)
class Options:
    metric: str = "iqm"
    baseline: str | None = None
    replicates: int = 10_000
    best: bool = False

    @property
    def protocol(self) -> str:
        return "best evaluation of every run" if self.best else "last evaluation of every run"

    @property
    def metrics(self) -> list[str]:
        """All metrics, the chosen one first."""
        return sorted(stats.METRICS, key=lambda m: m != self.metric)


@dataclass
class Section:
    """One collection with one unit: scores of different collections never meet."""

    name: str
    normalised: bool
    runs: pd.DataFrame  # one row per run: the evaluation that counts
    history: pd.DataFrame  # every evaluation
    shared: list[str]  # tasks that every algorithm has, over which aggregates go
    aggregates: pd.DataFrame | None = None
    improvement: pd.DataFrame | None = None
    tables: list[Table] = field(default_factory=list)
    others: list[Table] = field(default_factory=list)  # published numbers of algorithms not run
    notes: list[str] = field(default_factory=list)
    returns: pd.DataFrame | None = None  # of every episode, for risky tasks (corerl/report/risk.py)

    folder: str = ""  # of its files, and its anchor on the page

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(self.runs["algorithm"]))

    @property
    def pooled(self) -> pd.DataFrame:
        """The runs on shared tasks."""
        return self.runs[self.runs["task"].isin(self.shared)]


def sections(results: Results, published: pd.DataFrame, options: Options) -> list[Section]:
    """One section for each collection and unit, in the order in which they were read."""
    scores = results.scores
    if options.baseline is not None and options.baseline not in set(scores["algorithm"]):
        known = dict.fromkeys(scores["algorithm"])
        raise CorerlError(
            f"The baseline {options.baseline!r} is not among {', '.join(known)}."
            + nearest(options.baseline, known)
        )
    collection = scores["task"].str.rpartition("/")[0].str.partition("/")[0]
    keys = list(dict.fromkeys(zip(collection, scores["unit"], strict=True)))
    found = [
        _section(
            name, unit, scores[(collection == name) & (scores["unit"] == unit)], published, options
        )
        for name, unit in keys
    ]
    for section in found:
        taken = {other.folder for other in found}
        section.folder = next(name for name in _folders(section) if name not in taken)
    return found


def _folders(section: Section) -> Iterator[str]:
    """Names for its folder: two collections may read alike once they are file names."""
    name = file_name(section.name if section.normalised else f"{section.name}-raw")
    yield name
    yield from (f"{name}-{i}" for i in itertools.count(2))


def _section(
    name: str, unit: str, scores: pd.DataFrame, published: pd.DataFrame, options: Options
) -> Section:
    runs = stats.best(scores) if options.best else stats.final(scores)
    tasks = runs.groupby("algorithm")["task"].agg(set)
    shared = sorted(set.intersection(*tasks))
    normalised = unit == "normalised"
    section = Section(name or "scores", normalised, runs, scores, shared)
    section.notes += _notes(section, tasks)
    if normalised and shared:
        pooled = section.pooled
        common = {"gamma": GAMMA, "replicates": options.replicates}
        section.aggregates = stats.aggregate(pooled, **common)
        section.runs = _ordered(runs, section.aggregates, options.metric)
        section.history = _ordered(scores, section.aggregates, options.metric)
        section.improvement = _improvement(section, options)
    section.tables.append(_headline(section, options))
    if section.improvement is not None:
        section.tables.append(_improvement_table(section.improvement, len(shared)))
    section.tables += _comparisons(section, published, options)
    section.others += _others(section, published, options)
    return section


def _notes(section: Section, tasks: pd.Series) -> list[str]:
    notes = []
    if not section.normalised:
        notes.append(
            "These tasks have no reference scores: the numbers are raw returns, and there is no "
            "aggregate across tasks."
        )
        return notes
    every = set.union(*tasks)
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
            f"{int((single == 1).sum())} of {len(single)} cells have a single seed: their spread "
            "is unknown, so their std and every interval that rests on them are n/a."
        )
    return notes


def _ordered(runs: pd.DataFrame, aggregates: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Runs with the algorithms in descending order of the metric."""
    values = aggregates[aggregates["metric"] == metric].set_index("algorithm")["value"]
    key = runs["algorithm"].map(values)
    return runs.iloc[np.argsort(-key.to_numpy(), kind="stable")]


# ------------------------------------------------------------------------------------ our numbers


def _headline(section: Section, options: Options) -> Table:
    names = section.algorithms
    cells = _cells(section.runs)
    tasks = sorted(set(section.runs["task"]))
    rows = [_task_row(t, _emphasise([cells.get((a, t)) for a in names])) for t in tasks]
    columns = tuple(
        Column(a, shared_n([row.cells[i] for row in rows])) for i, a in enumerate(names)
    )
    if section.aggregates is not None:
        rows += [_aggregate_row(section, metric, names, options) for metric in options.metrics]
    unit = "normalised score ×100" if section.normalised else "raw return"
    notes = [f"Per task: mean ± standard deviation over seeds (ddof 1). {TOP_RULE}"]
    if section.aggregates is not None:
        notes.append(
            f"Aggregates over {plural(len(section.shared), 'task')} with 95% stratified bootstrap intervals "
            f"({options.replicates:,} replicates); optimality gap at γ = 100, lower is better."
        )
    return Table(
        "scores",
        f"{section.name}: {unit}, {options.protocol}",
        "task",
        columns,
        tuple(rows),
        notes=tuple(notes),
    )


def _cells(runs: pd.DataFrame) -> dict[tuple[str, str], Cell]:
    return {
        key: Cell(
            g.mean(),
            g.std(ddof=1) if len(g) > 1 else math.nan,
            *stats.mean_interval(g),
            str(len(g)),
        )
        for key, g in runs.groupby(["algorithm", "task"])["score"]
    }


def _task_row(task: str, cells: Iterable[Cell | None]) -> Row:
    """A row that shows the task without its collection, which heads the section."""
    return Row(task.partition("/")[2] or task, tuple(cells), key=task)


def _emphasise(cells: list[Cell | None]) -> tuple[Cell | None, ...]:
    known = [c for c in cells if c is not None]
    if len(known) < 2:
        return tuple(cells)
    top = max(known, key=lambda c: c.value)
    return tuple(c if c is None else replace(c, top=c is top or _equal(c, top)) for c in cells)


def _equal(cell: Cell, top: Cell) -> bool:
    """Whether Welch's interval of the difference holds zero (False if unknown)."""
    low, high = stats.welch_interval(
        *(top.value, top.std, int(top.n)), *(cell.value, cell.std, int(cell.n))
    )
    return low <= 0.0 <= high


def _aggregate_row(section: Section, metric: str, names: list[str], options: Options) -> Row:
    rows = section.aggregates[section.aggregates["metric"] == metric].set_index("algorithm")
    sign = -1 if metric == "optimality_gap" else 1
    top = (sign * rows["value"]).max()
    cells = []
    for name in names:
        r = rows.loc[name]
        cells.append(
            Cell(
                r["value"],
                low=r["low"],
                high=r["high"],
                interval=True,
                top=sign * r["value"] == top,
            )
        )
    if len(names) == 1:
        cells = [replace(c, top=False) for c in cells]
    return Row(f"{NAMES[metric]} [95% CI]", tuple(cells), aggregate=True)


def _improvement(section: Section, options: Options) -> pd.DataFrame | None:
    """P(x > y) of every algorithm over the baseline, or of the first over every other."""
    names = section.algorithms
    if len(names) < 2 or (options.baseline and options.baseline not in names):
        return None
    base = options.baseline
    pairs = [(x, base) for x in names if x != base] if base else [(names[0], y) for y in names[1:]]
    rows = []
    for x, y in pairs:
        e = stats.probability_of_improvement(section.pooled, x, y, replicates=options.replicates)
        rows.append((x, y, e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["x", "y", "value", "low", "high"])


def _improvement_table(improvement: pd.DataFrame, tasks: int) -> Table:
    rows = tuple(
        Row(f"P({r.x} > {r.y})", (Cell(r.value, low=r.low, high=r.high, interval=True),))
        for r in improvement.itertuples()
    )
    note = f"A random run against a random run of the same task, ties one half; {plural(tasks, 'task')}."
    column = (Column("probability [95% CI]"),)
    title = "Probability of improvement"
    return Table("improvement", title, "", column, rows, digits=2, notes=(note,))


# ------------------------------------------------------------------------------ published numbers


def _matching(published: pd.DataFrame, section: Section, options: Options) -> pd.DataFrame:
    """Rows for our tasks under a protocol like ours; an unstated protocol counts as the last."""
    best = published["protocol"].str.startswith("best")
    return published[published["task"].isin(set(section.runs["task"])) & (best == options.best)]


def _same_algorithm(published: pd.Series, label: str) -> pd.Series:
    """A published name is ours, or ours without what `split by` appended."""
    return published.map(lambda name: label == name or label.startswith(f"{name} "))


def _comparisons(section: Section, published: pd.DataFrame, options: Options) -> list[Table]:
    rows = _matching(published, section, options)
    tables = []
    for label in section.algorithms:
        theirs = rows[_same_algorithm(rows["algorithm"], label)] if len(rows) else rows
        if len(theirs):
            tables.append(_comparison(section, label, theirs, options))
    return tables


def _comparison(section: Section, label: str, theirs: pd.DataFrame, options: Options) -> Table:
    ours = section.runs[section.runs["algorithm"] == label]
    own = _cells(ours)
    tasks = sorted(set(ours["task"]) & set(theirs["task"]))
    sources = theirs["source"].map(short_source)
    order = sources[theirs["task"].isin(tasks)].value_counts(sort=True).index
    cells = {t: [own[label, t]] for t in tasks}
    columns, notes = [], []
    for source in order:
        column = theirs[sources == source].drop_duplicates("task").set_index("task")
        for t in tasks:
            cells[t].append(_published_cell(column, t, own[label, t]))
        columns.append(_published_column(source, column, [cells[t][-1] for t in tasks]))
        notes.append(_source_note(source, theirs[sources == source]))
    head = Column(f"{label}, ours", shared_n([own[label, t] for t in tasks]))
    return Table(
        f"published-{_slug(label)}",
        f"{label} beside published numbers, {options.protocol}",
        "task",
        (head, *columns),
        tuple(_task_row(t, cells[t]) for t in tasks),
        notes=(DIFFERENCE_RULE, *notes),
        compares=True,
    )


def _published_cell(column: pd.DataFrame, task: str, ours: Cell | None) -> Cell | None:
    if task not in column.index:
        return None
    r = column.loc[task]
    n = "" if math.isnan(r["seeds"]) else f"{r['seeds']:g}"
    cell = Cell(r["mean"], r["std"], n=n)
    return cell if ours is None else replace(cell, mark=difference(ours, r))


def difference(ours: Cell, theirs: pd.Series) -> str:
    """UP or DOWN where the intervals say that ours is higher or lower (DIFFERENCE_RULE), or ""."""
    if int(ours.n) < 2:
        return ""
    std = sample_std(theirs["std"], theirs["seeds"], theirs["ddof"])
    if math.isnan(std) or not theirs["seeds"] > 1:
        low, high = ours.low - theirs["mean"], ours.high - theirs["mean"]
    else:
        own = (ours.value, ours.std, int(ours.n))
        low, high = stats.welch_interval(*own, theirs["mean"], std, int(theirs["seeds"]))
    return UP if low > 0 else DOWN if high < 0 else ""


def _published_column(name: str, column: pd.DataFrame, cells: list[Cell | None]) -> Column:
    return Column(name, shared_n(cells), "; ".join(dict.fromkeys(column["source"])))


def _source_note(name: str, rows: pd.DataFrame) -> str:
    where = (s.removeprefix(f"{name} (").removesuffix(")") for s in dict.fromkeys(rows["source"]))
    sources = "; ".join(w for w in where if w != name) or "source as named"
    protocols = " / ".join(dict.fromkeys(rows["protocol"].replace("", "protocol not stated")))
    notes = [n for n in dict.fromkeys(rows["notes"]) if n]
    told = f"; {notes[0]}" if len(notes) == 1 else ""
    return f"{name}: {sources}; {protocols}{told}."


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in label).strip("-").lower()


def _others(section: Section, published: pd.DataFrame, options: Options) -> list[Table]:
    """Published numbers of algorithms that were not run, one column per algorithm and source."""
    rows = _matching(published, section, options)
    for label in section.algorithms:
        rows = rows[~_same_algorithm(rows["algorithm"], label)] if len(rows) else rows
    if not len(rows):
        return []
    tasks = sorted(set(rows["task"]))
    cells, columns, notes = {t: [] for t in tasks}, [], {}
    sources = rows["source"].map(short_source)
    for (algorithm, source), group in rows.groupby(["algorithm", sources], sort=False):
        column = group.drop_duplicates("task").set_index("task")
        for t in tasks:
            cells[t].append(_published_cell(column, t, None))
        columns.append(
            _published_column(f"{algorithm}, {source}", column, [cells[t][-1] for t in tasks])
        )
        notes.setdefault(source, _source_note(source, group))
    return [
        Table(
            "published-others",
            "Published numbers of algorithms that were not run here",
            "task",
            tuple(columns),
            tuple(_task_row(t, cells[t]) for t in tasks),
            notes=tuple(notes.values()),
        )
    ]
