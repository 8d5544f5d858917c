"""Copies of a run's metrics to Weights & Biases and TensorBoard. Its own files are the record."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from corerl.config import Config
from corerl.runs.tensorboard_logging import TensorBoardLogger
from corerl.runs.wandb_logging import WandbLogger

LINE = ("step", "seed")
"""Fields of a line of metrics beside the metrics."""
SHOWN = ("return", "score")
"""Columns of scores.csv that mirrors show."""

Lines = list[dict[str, Any]]
"""Numbers by name, one line per seed; None where one is not known."""


class Mirrors:
    """Sends every line of metrics and scores to the mirrors that the settings ask for.

    A number of one seed is `score`, also of the next run with another seed, so that their curves lie in
    one panel. Of S seeds that train as one program `score` is the mean, and `score/seed3` a seed's own.
    """

    def __init__(self, cfg: Config, seeds: Sequence[int], directory: Path):
        self._several, self._directory = len(seeds) > 1, directory
        self._all: list[Any] = []
        if cfg.wandb.mode != "disabled":
            self._all.append(WandbLogger(cfg, seeds, directory))
        if cfg.tensorboard:
            self._all.append(TensorBoardLogger(directory))

    def send(self, step: int, lines: Lines) -> None:
        """Sends the numbers of one step."""
        named = self._named(lines)
        for mirror in self._all:
            mirror.send(step, named)

    def catch_up(self) -> None:
        """Sends what the logs hold and a mirror lacks, where a run resumes."""
        lacking = [(mirror, mirror.lacks_from()) for mirror in self._all]
        if all(first is None for _, first in lacking):
            return
        for step, lines in logged(self._directory):
            for mirror, first in lacking:
                if first is not None and step >= first:
                    mirror.send(step, self._named(lines))

    def close(self) -> None:
        """Ends the mirrors."""
        for mirror in self._all:
            mirror.close()

    def _named(self, lines: Lines) -> dict[str, float]:
        found: dict[str, dict[int, float]] = {}
        for line in lines:
            for name, value in line.items():
                if name not in LINE and value is not None:
                    found.setdefault(name, {})[line["seed"]] = value
        named = {name: _mean(list(values.values())) for name, values in found.items()}
        if self._several:
            for name, values in found.items():
                named |= {f"{name}/seed{seed}": value for seed, value in values.items()}
        return named


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def logged(directory: Path) -> Iterator[tuple[int, Lines]]:
    """Yields the steps of a run's logs, in order, and the lines of each."""
    lines: Lines = []
    if (metrics := directory / "metrics.jsonl").exists():
        lines += map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    if (scores := directory / "scores.csv").exists():
        with scores.open(newline="", encoding="utf-8") as file:
            lines += map(_of_score, csv.DictReader(file))
    by_step: dict[int, Lines] = {}
    for line in lines:
        by_step.setdefault(line["step"], []).append(line)
    yield from sorted(by_step.items())


def _of_score(row: dict[str, str]) -> dict[str, Any]:
    shown = {name: float(row[name]) if row[name] else None for name in SHOWN}
    return {"step": int(row["step"]), "seed": int(row["seed"])} | shown
