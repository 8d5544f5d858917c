"""Rates of updates: from the runs on this machine, else from a small shipped table.

`rates.csv` holds measurements, one per algorithm and size; no other device's figure stands in for one that
nobody has measured. A size without one is estimated from the operations of its update beside IQL's, and is
marked as that. corerl/bench/measure_rates.py makes the table.
"""

import csv
import functools
import importlib
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from corerl.config import Config
from corerl.errors import CorerlError
from corerl.runs import provenance
from corerl.runs.directory import read_settings, read_status
from corerl.runs.files import below, read_json

SHIPPED = "corerl/launch/rates.csv"
REFERENCE = "iql"
ENOUGH = 5_000
"""Updates after which the seconds that went into compiling no longer weigh."""


LEAST_SECONDS = 5e-4
"""Of an update without arithmetic: with 8 units and batches of 8, BC takes 0.3 ms, TD3+BC 0.55 and IQL 0.8
(a Zen 3 core, compiled)."""


class Rate(NamedTuple):
    """Updates per second, the seeds of a program added up. `source` says who measured."""

    updates_per_s: float
    device: str
    on_gpu: bool
    source: str
    estimated: bool = False


def known(cfg: Config, gpu: str | None) -> Rate | None:
    """Returns the rate of a cell's updates on the GPU of that name, or this CPU. None if nothing is known.

    Where a GPU has no figure, the answer is that of one CPU core, and says so.
    """
    size = size_of(cfg.algo.name, vars(cfg.algo), cfg.task)
    device = gpu or provenance.cpu_name()
    measured = _of_runs(Path(cfg.root))
    own_rates = [rate for found, where, rate in measured if (found, where) == (size, device)]
    if own_rates:
        source = f"{len(own_rates)} run{'s' if len(own_rates) > 1 else ''} below {cfg.root}"
        return Rate(statistics.median(own_rates), device, gpu is not None, source)
    of_size = [rate for found, rate in _shipped() if found == size]
    on_gpu = [rate for rate in of_size if rate.on_gpu and rate.device == gpu]
    return next(iter(on_gpu + [rate for rate in of_size if not rate.on_gpu]), None) or _estimated(
        cfg
    )


def _estimated(cfg: Config) -> Rate | None:
    """Returns the rate at which IQL's measured operations per second would make this cell's updates."""
    from corerl.launch.memory_estimate import operations

    reference = importlib.import_module(f"corerl.algos.{REFERENCE}").Config()
    known = next(
        rate for size, rate in _shipped() if size == size_of(REFERENCE, vars(reference), "")
    )
    theirs, own = operations(replace(cfg, algo=reference)), operations(cfg)
    if not theirs or not own:
        return None
    seconds = LEAST_SECONDS + own / theirs / known.updates_per_s
    return Rate(
        1 / seconds,
        known.device,
        False,
        f"{SHIPPED}, scaled by matmul operations relative to IQL",
        True,
    )


def size_of(name: str, settings: dict[str, Any], task: str) -> tuple:
    """Returns the settings that decide the cost of an update: integers and switches not at their defaults.

    Left out: counts of steps, which say when something happens. Images are a size of their own.
    """
    images = task.startswith("atari/") or (task.startswith("maze/") and "vector" not in task)
    default = importlib.import_module(f"corerl.algos.{name}").Config()
    whole = {f.name for f in fields(default) if type(getattr(default, f.name)) in (int, bool)}
    return (
        name,
        images,
        *sorted(
            (key, settings[key])
            for key in whole
            if not key.endswith("_steps") and settings.get(key) != getattr(default, key)
        ),
    )


@functools.cache
def _shipped() -> list[tuple[tuple, Rate]]:
    rows = []
    with (files("corerl.launch") / "rates.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            settings = yaml.safe_load(row["settings"] or "{}")
            default = vars(importlib.import_module(f"corerl.algos.{row['algo']}").Config())
            rate = Rate(float(row["updates_per_s"]), row["device"], row["kind"] == "gpu", SHIPPED)
            rows.append((size_of(row["algo"], default | settings, ""), rate))
    return rows


@functools.cache
def _of_runs(root: Path) -> list[tuple[tuple, str, float]]:
    """Returns `(size, device, updates per second)` of every long enough run below `root`."""
    return list(_measured(root))


def _measured(root: Path) -> Iterator[tuple[tuple, str, float]]:
    for path in below(root, "status.json"):
        # Of a neighbour that is damaged, or none of ours, corerl status tells.
        with suppress(CorerlError, LookupError, TypeError, AttributeError, ImportError):
            status = read_status(path.parent)
            facts = read_json(path.with_name("env.json"))
            if not facts or status["step"] - status.get("began_at", 0) < ENOUGH:
                continue
            if rate := status["updates_per_s"] * len(status["seeds"]):
                settings = read_settings(path.parents[1])
                algo = settings["algo"]
                size = size_of(algo["name"], algo, settings["task"])
                yield size, facts["gpu"] or facts["cpu"], rate
