"""The tables of our own numbers: every task, aggregates, and the probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from corerl.report import stats
from corerl.report.options import NAMES, Options
from corerl.report.stats.comparisons import mean_and_std
from corerl.report.tables import (
    ENOUGH_SEEDS,
    Cell,
    Column,
    Row,
    Table,
    column,
    plural,
)
from corerl.report.units import UNITS

if TYPE_CHECKING:
    from corerl.report.sections import Section

TOP_RULE = (
    "The best mean of a row is bold (in text, it has a *). Another mean is bold too if it lies in the best "
    "mean's 95% t interval and Welch's 95% interval of their difference contains zero. "
    f"This needs at least {ENOUGH_SEEDS} seeds of both. The best aggregate is bold."
)
UNEQUAL_RULE = (
    "Where a row's runs have different or unknown numbers of steps, no number is bold, and there "
    "is no probability of improvement. The option --unequal adds both."
)
FEW_RULE = (
    f"An interval or standard deviation of fewer than {ENOUGH_SEEDS} seeds is grey, with the number n of "
    "seeds. Such intervals are too narrow and miss the true value in more than 5% of cases."
)
FLAT_RULE = (
    "An interval is n/a where a bootstrap cannot vary, as with one seed, equal scores of all seeds, or "
    "algorithms that never overlap."
)


def few_rule(cells: Iterable[Cell]) -> list[str]:
    """Returns the note on spreads of few seeds, where there is one to speak of."""
    return [FEW_RULE] if any(cell.few and cell.n != "1" for cell in cells) else []


def flat_rule(cells: Iterable[Cell]) -> list[str]:
    """Returns the note on intervals of width zero, where there is one to speak of."""
    return [FLAT_RULE] if any(_flat(cell) for cell in cells) else []


def tables(section: Section, options: Options) -> list[Table]:
    """Returns the table of scores, and that of improvements where there is one."""
    found = [_scores(section, options)]
    if section.improvement is not None and len(section.improvement):
        found.append(_improvement_table(section, options))
    return found


def cells(runs: pd.DataFrame) -> dict[tuple[str, str], Cell]:
    """Returns {(algorithm, task): mean, std, t interval, seeds and steps} of runs with `last_step`."""
    return {key: _cell(group) for key, group in runs.groupby(["algorithm", "task"])}


def _cell(group: pd.DataFrame) -> Cell:
    scores = group["score"].to_numpy()
    return Cell(
        *mean_and_std(scores),
        *stats.mean_interval(scores),
        str(len(scores)),
        budget=_budget(group),
        pretrained=int(group["pretrained"].max()),
    )


def _budget(runs: pd.DataFrame) -> tuple[int | None, ...]:
    """Returns the distinct numbers of steps, with None after them where some runs' are unknown."""
    # A file without steps says 0. So does a run that has only learned from data yet, which is known.
    last = runs["last_step"].to_numpy()
    known = (last != 0) | (runs["pretrained"].to_numpy() > 0)
    steps = sorted({max(0, int(step)) for step in last[known]})
    return (*steps, None) if steps and not known.all() else tuple(steps)


def task_row(task: str, found: list[Cell | None]) -> Row:
    """Returns a row that shows the task without its collection, which heads the section."""
    return Row(task.partition("/")[2] or task, tuple(found), key=task)


# ------------------------------------------------------------------------------------ the headline


def _scores(section: Section, options: Options) -> Table:
    names, own = section.algorithms, section.cells
    rows = [
        task_row(t, _emphasised([own.get((a, t)) for a in names], options)) for t in section.tasks
    ]
    columns = [column(a, [row.cells[i] for row in rows], algorithm=a) for i, a in enumerate(names)]
    notes = [f"Rows of tasks show the mean ± standard deviation over seeds (ddof 1). {TOP_RULE}"]
    if section.aggregates is not None:
        equal = all(_comparable(row.cells, options) for row in rows if row.key in section.shared)
        rows += [_aggregate_row(section, metric, names, equal) for metric in options.metrics]
        notes.append(
            f"Aggregates are over {plural(len(section.shared), 'task')}, with 95% stratified bootstrap "
            f"intervals ({options.replicates:,} replicates). A lower optimality gap (at γ = 100) is better."
        )
    every = [cell for row in rows for cell in row.cells if cell is not None]
    if not all(_comparable(row.cells, Options()) for row in rows if not row.aggregate):
        notes.append(
            UNEQUAL_RULE if not options.unequal else "The runs have different numbers of steps."
        )
    notes += few_rule(every)
    notes += flat_rule(every)
    return Table(
        "scores",
        f"{section.name}: {UNITS[section.unit][0]}, {options.protocol}",
        "task",
        tuple(columns),
        tuple(rows),
        digits=section.digits(own.values()),
        notes=tuple(notes),
        steps=section.steps,
    )


def _comparable(found: tuple[Cell | None, ...], options: Options) -> bool:
    known = [cell for cell in found if cell is not None]
    return not known or options.may_compare(*known)


def _flat(cell: Cell) -> bool:
    return cell.interval and (math.isnan(cell.low) or cell.low == cell.high)


def _emphasised(found: list[Cell | None], options: Options) -> list[Cell | None]:
    """Returns the cells of a row with what is `top`, and which columns each would share that with."""
    known = [i for i, cell in enumerate(found) if cell is not None]
    if len(known) < 2:
        return found
    best = max(known, key=lambda i: found[i].value)
    marked = _comparable(tuple(found), options)
    ties = {i: tuple(k for k in known if k != i and _level(found[i], found[k])) for i in known}
    return [
        c if c is None else replace(c, ties=ties[i], top=marked and (i == best or best in ties[i]))
        for i, c in enumerate(found)
    ]


def _level(cell: Cell, best: Cell) -> bool:
    """Tells whether a mean shares the emphasis of the best (TOP_RULE)."""
    if cell.value == best.value:
        return True
    if cell.few or best.few or cell.value < best.low:
        return False
    low, high = stats.welch_interval(
        *(best.value, best.std, int(best.n)), *(cell.value, cell.std, int(cell.n))
    )
    return low <= 0.0 <= high


def _aggregate_row(section: Section, metric: str, names: list[str], equal: bool) -> Row:
    rows = section.aggregates[section.aggregates["metric"] == metric].set_index("algorithm")
    sign = -1 if metric == "optimality_gap" else 1
    top = (sign * rows["value"]).max()
    found = tuple(
        Cell(
            r["value"],
            low=r["low"],
            high=r["high"],
            n=seeds_text(r["seeds_min"], r["seeds_max"]),
            interval=True,
            top=equal and len(names) > 1 and sign * r["value"] == top,
        )
        for r in (rows.loc[name] for name in names)
    )
    return Row(f"{NAMES[metric]} [95% CI]", found, aggregate=True, metric=metric)


def seeds_text(fewest: int, most: int) -> str:
    """Returns `3`, or `3-5` where tasks have different numbers of seeds."""
    return str(most) if fewest == most else f"{fewest}-{most}"


# ---------------------------------------------------------------------------------- improvements


def improvement(section: Section, options: Options) -> pd.DataFrame | None:
    """Returns P(x > y) of every algorithm over the baseline, or of the first over every other.

    Columns: x, y, value, low, high, n. Pairs of unequal numbers of steps are left out, unless asked for.
    """
    names = section.algorithms
    if len(names) < 2 or (options.baseline and options.baseline not in names):
        return None
    base, runs = options.baseline, section.pooled
    own = section.cells
    pairs = [(x, base) for x in names if x != base] if base else [(names[0], y) for y in names[1:]]
    rows = []
    for x, y in pairs:
        if not all(options.may_compare(own[x, t], own[y, t]) for t in section.shared):
            continue
        both = runs[runs["algorithm"].isin([x, y])]
        e = stats.probability_of_improvement(both, x, y, replicates=options.replicates)
        rows.append((x, y, e.value, e.low, e.high, e.n))
    return pd.DataFrame(rows, columns=["x", "y", "value", "low", "high", "n"])


def _improvement_table(section: Section, options: Options) -> Table:
    found, tasks = section.improvement, len(section.shared)
    rows = tuple(
        Row(
            f"P({r.x} > {r.y})",
            (Cell(r.value, low=r.low, high=r.high, n=r.n, interval=True),),
            algorithms=(r.x, r.y),
        )
        for r in found.itertuples()
    )
    notes = [
        f"Over {plural(tasks, 'task')}, P(X > Y) is how often a random run of X scores higher than a "
        "random run of Y on the same task. Ties count one half."
    ]
    if len(found) < len(section.algorithms) - 1:
        left = [a for a in section.algorithms if a not in {*found["x"], *found["y"]}]
        notes.append(
            f"The table leaves out {', '.join(left)}, because the numbers of steps differ."
        )
    notes += few_rule(row.cells[0] for row in rows)
    notes += flat_rule(row.cells[0] for row in rows)
    columns = (Column("probability [95% CI]"),)
    title = "Probability of improvement" + (f", {options.protocol}" if options.best else "")
    return Table("improvement", title, "", columns, rows, digits=2, notes=tuple(notes))
