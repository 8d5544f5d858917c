"""Reads the last evaluation of every seed of a cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from corerl.config import Config, seed_list
from corerl.runs.directory import cell_directory, counted

NAMES = ("task", "algorithm", "config")
"""Columns of text."""


def last(cell: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the last row of `scores.csv` of each of these seeds that has one, numbers as numbers."""
    found: dict[int, dict[str, Any]] = {}
    for directory, _ in counted(cell):
        with (
            suppress(FileNotFoundError),
            (directory / "scores.csv").open(newline="", encoding="utf-8") as lines,
        ):
            for row in csv.DictReader(lines):
                if int(row["seed"]) in seeds:
                    found[int(row["seed"])] = _parsed(row)
    return [found[seed] for seed in sorted(found)]


def objective(cfg: Config) -> float:
    """Returns the value that a searching sweeper maximises: the mean over seeds of the last score or return.

    A seed that diverged has none and a search must not prefer it, so that one makes the mean NaN.
    """
    seeds = seed_list(cfg.seeds)
    rows = [row for row in last(cell_directory(cfg), seeds) if row["step"] == cfg.steps]
    if len(rows) < len(seeds):
        return math.nan
    name = "score" if all(row["score"] is not None for row in rows) else "return"
    return sum(row[name] for row in rows) / len(rows)


def _parsed(row: dict[str, str]) -> dict[str, Any]:
    """Parses a row. Names stay text, since a run's hash may look like a number, 1234e567."""
    return {key: text if key in NAMES else _number(text) for key, text in row.items()}


def _number(text: str) -> Any:
    """Parses a cell of the table: a number where it is one, None where it is empty."""
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text or None
