"""The table of rliable's own bootstrap intervals beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from rliable import metrics

from corerl.report import stats
from corerl.report.options import GAMMA, NAMES, Options
from corerl.report.our_tables import few_rule, flat_rule, seeds_text
from corerl.report.stats.estimates import rliable_metrics
from corerl.report.tables import Cell, Row, Table, column

if TYPE_CHECKING:
    from corerl.report.sections import Section

PAIR_REPLICATES = 2000  # as in rliable's README; each takes half a millisecond a task
SEED = 0


def table(section: Section, options: Options) -> Table:
    """Returns every aggregate and probability of a section with our interval and rliable's."""
    scores = stats.to_rliable(section.pooled, cut=True)
    pairs = [] if section.improvement is None else list(section.improvement.itertuples())
    pair_replicates = min(options.replicates, PAIR_REPLICATES)
    aggregates = _aggregates(scores, options.replicates)
    names = [(pair.x, pair.y) for pair in pairs]
    probabilities = _probabilities(scores, names, pair_replicates)
    ours = {(r.metric, r.algorithm): r for r in section.aggregates.itertuples()}
    rows = []
    for metric, name in product(options.metrics, section.algorithms):
        own = ours[metric, name]
        cells = (_cell(own, seeds_text(own.seeds_min, own.seeds_max)), aggregates[metric, name])
        rows.append(Row(f"{NAMES[metric]}, {name}", cells, algorithms=(name,)))
    for pair in pairs:
        cells = (_cell(pair, pair.n), probabilities[pair.x, pair.y])
        rows.append(Row(f"P({pair.x} > {pair.y})", cells, algorithms=(pair.x, pair.y)))
    counts = f"{options.replicates:,} replicates"
    if pairs and pair_replicates != options.replicates:
        counts += f" ({pair_replicates:,} for probabilities)"
    every = [cell for row in rows for cell in row.cells]
    notes = [
        f"The second column comes from library.get_interval_estimates of rliable {version('rliable')} with "
        f"{counts}, after numpy.random.seed({SEED}).",
        *_cut_note(section),
        *few_rule(every),
        *flat_rule(every),
    ]
    heads = ("corerl [95% CI]", "rliable [95% CI]")
    columns = tuple(column(head, [row.cells[i] for row in rows]) for i, head in enumerate(heads))
    title = "rliable's own intervals next to ours"
    title += f", {options.protocol}" if options.best else ""
    return Table("rliable", title, "", columns, tuple(rows), digits=2, notes=tuple(notes))


def _cell(ours: Any, seeds: str) -> Cell:
    return Cell(ours.value, low=ours.low, high=ours.high, n=seeds, interval=True)


def _cut_note(section: Section) -> list[str]:
    """Returns the line on seeds that rliable cannot take, where there are any."""
    rows = section.aggregates.drop_duplicates("algorithm").set_index("algorithm")
    rows = rows.loc[section.algorithms].reset_index().itertuples()
    cut = [
        f"{row.algorithm} {row.seeds_min} of {row.seeds_min}-{row.seeds_max}"
        for row in rows
        if row.seeds_min < row.seeds_max
    ]
    reported = (
        "rliable needs the same number of seeds on every task, so it gets only the first seeds "
        "of each task"
    )
    return [f"{reported}: {', '.join(cut)}."] if cut else []


def _aggregates(scores: dict[str, np.ndarray], replicates: int) -> dict[tuple[str, str], Cell]:
    """Returns rliable's estimate of every metric and algorithm."""
    from rliable import library  # it imports arch, which takes a second

    functions = rliable_metrics(GAMMA)
    with _seeded():
        values, ends = library.get_interval_estimates(
            scores, lambda runs: np.array([f(runs) for f in functions.values()]), reps=replicates
        )
    return {
        (metric, algorithm): Cell(
            values[algorithm][i],
            low=ends[algorithm][0, i],
            high=ends[algorithm][1, i],
            n=str(len(runs)),
            interval=True,
        )
        for algorithm, runs in scores.items()
        for i, metric in enumerate(functions)
    }


def _probabilities(
    scores: dict[str, np.ndarray], pairs: list[tuple[str, str]], replicates: int
) -> dict[tuple[str, str], Cell]:
    """Returns rliable's probability of improvement of every pair."""
    from rliable import library

    with _seeded():
        values, ends = library.get_interval_estimates(
            {(x, y): (scores[x], scores[y]) for x, y in pairs},
            lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
            reps=replicates,
        )
    found = {}
    for x, y in pairs:
        sizes = len(scores[x]), len(scores[y])
        seeds = seeds_text(min(sizes), max(sizes))
        (value,), ((low,), (high,)) = values[x, y], ends[x, y]
        found[x, y] = Cell(value, low=low, high=high, n=seeds, interval=True)
    return found


@contextmanager
def _seeded() -> Iterator[None]:
    """Seeds numpy's global generator for a while: rliable draws from it and ignores its `random_state`."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(SEED)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
