"""The sections of a report, one per collection of tasks: the numbers behind tables and figures."""

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report import beside, headline, stats
from corerl.report.files import free_name
from corerl.report.load import Results
from corerl.report.section import GAMMA, Options, Section

TAKEN = {"data", "dialog", "how", "left-out", "runs", "switches", "tip"}
"""What the page names by itself; a section's folder is its anchor there."""


def sections(results: Results, published: pd.DataFrame, options: Options) -> list[Section]:
    """Returns one section for each collection and unit, in the order in which they were read.

    Raises:
        CorerlError: the baseline is no algorithm that was read.
    """
    scores = results.scores
    if options.baseline is not None and options.baseline not in set(scores["algorithm"]):
        known = dict.fromkeys(scores["algorithm"])  # quoted, as names may have commas of their own
        raise CorerlError(
            f"The baseline {options.baseline!r} is not among {', '.join(map(repr, known))}."
            + nearest(options.baseline, known)
        )
    collection = scores["task"].str.rpartition("/")[0].str.partition("/")[0]
    keys = list(dict.fromkeys(zip(collection, scores["unit"], strict=True)))
    found = []
    for name, unit in keys:
        rows = scores[(collection == name) & (scores["unit"] == unit)]
        found.append(_section(name, unit, rows, results.labels, published, options))
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
    published: pd.DataFrame,
    options: Options,
) -> Section:
    runs = stats.best(scores) if options.best else stats.final(scores)
    last = scores.groupby(["algorithm", "task", "seed"])["step"].max().rename("last_step")
    runs = runs.join(last, on=["algorithm", "task", "seed"])
    tasks = runs.groupby("algorithm")["task"].agg(set)
    shared = sorted(set.intersection(*tasks))
    section = Section(name or "scores", unit, runs, scores, shared, labels=labels)
    if section.scored and shared:
        common = {"gamma": GAMMA, "replicates": options.replicates}
        section.aggregates = stats.aggregate(section.pooled, **common)
        section.runs = _ordered(runs, section.aggregates, options.metric)
        section.history = _ordered(scores, section.aggregates, options.metric)
        section.improvement = headline.improvement(section, options)
    section.notes += _notes(section, tasks)
    section.tables += headline.tables(section, options)
    section.tables += beside.comparisons(section, published, options)
    section.others += beside.others(section, published, options)
    return section


def _ordered(runs: pd.DataFrame, aggregates: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Runs with the algorithms in descending order of the metric."""
    values = aggregates[aggregates["metric"] == metric].set_index("algorithm")["value"]
    key = runs["algorithm"].map(values)
    return runs.iloc[np.argsort(-key.to_numpy(), kind="stable")]


def _notes(section: Section, tasks: pd.Series) -> list[str]:
    if not section.scored:
        return [
            "These tasks have no reference scores: the numbers are raw returns, and there is no "
            "aggregate across tasks."
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
            f"{int((single == 1).sum())} of {len(single)} cells have a single seed: their spread "
            "is unknown, so their std and every interval that rests on them are n/a."
        )
    return notes
