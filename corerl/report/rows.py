"""Rows of results: what runs logged, rows of one cell, means over seeds as text, and a CSV."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from corerl.runs.files import read_lines, read_yaml


def logged(root: Path) -> Iterator[tuple[dict[str, Any], int, list[dict[str, Any]]]]:
    """Yields every run's settings, one of its seeds and the lines that this seed logged."""
    for path in sorted(root.rglob("metrics.jsonl")):
        settings, lines = read_yaml(path.parents[1] / "config.yaml"), list(read_lines(path))
        for seed in sorted({line["seed"] for line in lines}):
            yield settings, seed, [line for line in lines if line["seed"] == seed]


def evaluated(root: Path) -> Iterator[tuple[dict[str, Any], Path, list[dict[str, str]]]]:
    """Yields every run's settings, its folder and the rows of its scores, as text."""
    for path in sorted(root.rglob("scores.csv")):
        settings = read_yaml(path.parents[1] / "config.yaml")
        with path.open(newline="") as file:
            yield settings, path.parent, list(csv.DictReader(file))


def cells(rows: Iterable[dict], names: Sequence[str]) -> Iterator[tuple[tuple, list[dict]]]:
    """Yields what neighbouring rows have in common under these names, and the rows."""
    for cell, group in groupby(rows, key=lambda row: tuple(row[name] for name in names)):
        yield cell, list(group)


def mean_std(values: Iterable[float], digits: int) -> str:
    """Writes `mean ± standard deviation` (ddof 1) over seeds."""
    values = np.asarray(values)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def write_rows(path: Path, fields: Sequence[str], rows: Iterable[dict], form: str = "") -> None:
    """Writes these fields of rows as a CSV, floats by a format such as `.6g`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fields)
        for row in rows:
            values = (row[name] for name in fields)
            writer.writerow([format(v, form) if isinstance(v, float) else v for v in values])
