"""The files of a judgement beside the run, and the run's own returns of its policies."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corerl.errors import CorerlError
from corerl.ope.estimators import NEEDS_MODEL, NEEDS_WEIGHTS
from corerl.ope.judgement import Judgement, Row
from corerl.ope.selection import Selection
from corerl.policies.loaded_policy import Loaded
from corerl.runs.directory import groups
from corerl.runs.files import write_atomically

FILE = "ope.csv"
KEYS = ("data", "discount", "facts")
"""Columns that, with seed, method and statistic, say what an estimate is of."""


def write(agent: Loaded, data: str, judgement: Judgement) -> Path:
    """Adds the rows to `ope.csv` in the run's folder. Those of the same question are replaced."""
    path = agent.path / FILE
    mine = [
        {k: str(v) for k, v in row._asdict().items()}
        | {
            "data": data,
            "discount": str(judgement.discount),
            "facts": _facts(row.method, judgement),
        }
        for row in judgement.rows
    ]
    kept = {_key(row): row for row in [*read(path), *mine]}
    _write_table(path, [*Row._fields, *KEYS], kept.values())
    return path


def read(path: Path) -> list[dict[str, str]]:
    """Reads the rows of an `ope.csv`. None where there is no file.

    Raises:
        CorerlError: it is none of ours, or was damaged.
    """
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorerlError(f"{path} is damaged ({error}). Repair or remove it.") from error
    columns = [*Row._fields, *KEYS]
    if rows and (rows[0] != columns or any(len(row) != len(columns) for row in rows)):
        raise CorerlError(
            f"{path} is damaged, because not every row has the columns {', '.join(columns)}. Repair or "
            "remove the file."
        )
    return [dict(zip(columns, row, strict=True)) for row in rows[1:]]


def _facts(method: str, judgement: Judgement) -> str:
    """Lists the facts that an estimate by this method rests on."""
    unused = set() if method in NEEDS_WEIGHTS else {"propensities", "density", "clipping"}
    unused |= set() if method in NEEDS_MODEL else {"fqe"}
    unused |= set() if method == "cdf" else {"upper"}
    facts = judgement.facts.items()
    return "; ".join(f"{name}: {text}" for name, text in facts if name not in unused)


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("seed", "method", "statistic", *KEYS))


def simulated(agent: Loaded) -> dict[int, float]:
    """Reads mean undiscounted returns of seeds' last evaluations, where they were of the saved policy."""
    found = {}
    for group, _ in groups(agent.path):
        if not (group / "scores.csv").exists():
            continue
        with open(group / "scores.csv", encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                seed, step = int(row["seed"]), int(row["step"])
                if seed in agent.seeds and step == agent.steps[agent.seeds.index(seed)]:
                    found[seed] = float(row["return"])
    return found


class Judged(NamedTuple):
    """One policy that was judged and played: what it is, and its mean return in the simulator.

    `distance` is of its actions from the recorded ones, as `policies.distance` measures it.
    """

    algorithm: str
    run: str  # name of the run's folder
    seed: int
    updates: int
    distance: float
    truth: float


def write_selection(
    folder: Path,
    rows: Sequence[Selection],
    estimates: dict[str, np.ndarray],
    policies: Sequence[Judged],
    ranks: dict[str, dict[str, tuple[int, float, float]]],
    distances: dict[str, float],
) -> None:
    """Writes `selection.csv`, a row per method, `policies.csv` and `algorithms.csv`.

    `ranks` has for every method what `selection.overrated` returns, `distances` the algorithms' means.
    """
    _write_table(folder / "selection.csv", Selection._fields, [r._asdict() for r in rows])
    facts = [*Judged._fields[:-1], "return"]
    lines = [
        dict(zip(facts, policy, strict=True)) | {name: x[i] for name, x in estimates.items()}
        for i, policy in enumerate(policies)
    ]
    _write_table(folder / "policies.csv", [*facts, *estimates], lines)
    ranked = ("rank_by_estimate", "rank_by_return")
    columns = ("method", "algorithm", "policies", *ranked, "distance")
    groups = [
        dict(zip(columns, (method, label, *group, distances[label]), strict=True))
        for method, of_labels in ranks.items()
        for label, group in of_labels.items()
    ]
    _write_table(folder / "algorithms.csv", columns, groups)


def _write_table(path: Path, columns: Sequence[str], rows) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())
