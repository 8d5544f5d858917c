"""Facts about public datasets, as CSV tables. The first line of each says where they come from."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """Returns the rows of `<table>.csv` by column name, as text."""
    text = (resources.files(__name__) / f"{table}.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple(csv.DictReader(lines))


@cache
def d4rl_urls() -> dict[str, str]:
    """Reads the address of each dataset's HDF5 file, by names such as hopper-medium-v2."""
    return {row["dataset"]: row["url"] for row in rows("d4rl_urls")}


@cache
def d4rl_references() -> dict[str, tuple[float, float]]:
    """Reads the returns that score 0 and 100, by dataset. The same for all versions of a task."""
    table = rows("d4rl_reference_scores")
    return {row["env"]: (float(row["min"]), float(row["max"])) for row in table}


@cache
def neorl2() -> dict[str, dict[str, str]]:
    """Reads each task's row: min, max, train_md5, val_md5."""
    return {row["task"]: row for row in rows("neorl2")}


@cache
def minari_ids() -> list[str]:
    """Returns the datasets of Minari's remote that were known when this version was made."""
    return [row["id"] for row in rows("minari")]
