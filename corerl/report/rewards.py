"""Learned rewards in a report: the distance of each to the true one, beside its policy's score."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from corerl.errors import CorerlError
from corerl.report.options import Options
from corerl.report.sections import Section
from corerl.report.tables import Cell, Column, Row, Table

FILE = "reward_distances.csv"  # of `corerl evaluate RUN --rewards` (corerl/preferences)


def add(section: Section, options: Options) -> None:
    """Gives a section the table of its runs' distances, where they have been computed."""
    found = read(section.runs)
    if len(found):
        section.tables.append(_table(section, found, options))


def read(runs: pd.DataFrame) -> pd.DataFrame:
    """Reads a row per run and data: algorithm, task, seed, score, data, starc, rank, linear.

    Raises:
        CorerlError: a file of distances is damaged.
    """
    rows = []
    for file, group in runs.groupby("file", sort=False):
        path = Path(file).parent.parent / FILE
        if path.exists():
            known = _distances(path)
            rows.append(group[["algorithm", "task", "seed", "score"]].merge(known, on="seed"))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def _distances(path: Path) -> pd.DataFrame:
    numbers = dict.fromkeys(("starc", "rank", "linear"), float)
    try:
        return pd.read_csv(path)[["seed", "data", *numbers]].astype({"seed": int} | numbers)
    except (OSError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise CorerlError(f"{path} is damaged ({reason:.200}). Repair or remove it.") from error


def _table(section: Section, found: pd.DataFrame, options: Options) -> Table:
    rows = [
        Row(
            f"{task.partition('/')[2]}: {algorithm}{'' if data == task else f', over {data}'}",
            tuple(_cell(group[name]) for name in ("score", "starc", "rank", "linear")),
            task=task,
            algorithms=(algorithm,),
        )
        for (task, algorithm, data), group in found.groupby(["task", "algorithm", "data"])
    ]
    score = "best score" if options.best else "score"
    names = (score, "STARC distance", "rank correlation", "correlation")
    return Table(
        "rewards",
        f"{section.name}: learned rewards compared with the true reward",
        "task: algorithm",
        tuple(map(Column, names)),
        tuple(rows),
        digits=2,
        notes=(
            "Mean and standard deviation over seeds. The STARC distance (arXiv:2309.15257) is 0 for a reward "
            "that orders all policies as the true reward does. It is about 0.71 for an unrelated reward, and "
            "1 for the negative of the true reward. Its potentials are fitted on at most 20,000 rows of the "
            "data. The correlations compare unshaped rewards, but comparisons determine a reward only up to "
            "shaping.",
        ),
    )


def _cell(values: pd.Series) -> Cell:
    """Returns mean and spread of the seeds that have a value: a constant reward correlates with nothing."""
    known = values.dropna()
    return Cell(float(known.mean()), std=float(known.std(ddof=1)), n=str(len(known)))
