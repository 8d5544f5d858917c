"""Turns out-of-memory errors into the settings to lower."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from corerl.config import Config, seed_list
from corerl.errors import CorerlError

SIGNS = re.compile(
    "can.t allocate memory|out of memory|unable to allocate|bad_alloc|ALLOC_FAILED"
    "|Storage size calculation overflow|integer multiplication overflow",
    re.IGNORECASE,
)
"""What torch, numpy, CUDA and C++ say."""
SIZE = re.compile(r"allocate ([\d.]+ ?(?:bytes|[KMGTPE]i?B))")
NAMED = 4
"""Settings in a sentence."""
NOT_HELD = ("seed", "processes", "lr", "steps", "every", "learning_starts", "ema_start")
"""Of `config.LARGEST`, those that take no memory."""


def is_full(error: BaseException) -> bool:
    """Tells whether memory could not be had, on a CPU or a GPU."""
    if isinstance(error, CorerlError):
        return False
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and SIGNS.search(str(error)) is not None
    )


def reported(error: BaseException, cfg: Config | None = None) -> str:
    """Says how much was asked for, and which settings to lower: those furthest above their defaults."""
    found = SIZE.search(str(error))
    where = "the GPU" if "CUDA" in str(error) else "this machine"
    needs = f" for another {_readable(found[1])}" if found else ""
    lower = "the sizes of networks and batches, or train fewer seeds at a time"
    if cfg is not None:
        raised = sorted(_raised(cfg.algo), reverse=True)[:NAMED]
        names = [f"{name}={value}" for _, name, value in raised]
        many = [f"seeds={len(seed_list(cfg.seeds))}"] if len(seed_list(cfg.seeds)) > 1 else []
        names += many or ([] if names else ["algo.batch_size and the widths of the networks"])
        lower = ", ".join(names)
    return f"There is not enough memory on {where}{needs}. Lower {lower}."


def _readable(size: str) -> str:
    number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", size).groups()
    return f"{float(number) / 1e9:,.1f} GB" if unit == "bytes" else f"{number} {unit}"


def _raised(settings: Any) -> Iterator[tuple[float, str, int]]:
    """Yields how many times its default a setting is, its name and its value."""
    usual = type(settings)()
    for declared in fields(settings):
        value, default = getattr(settings, declared.name), getattr(usual, declared.name)
        if is_dataclass(value):
            yield from _raised(value)
        elif type(value) is int and not declared.name.endswith(NOT_HELD) and value > (default or 0):
            yield value / max(1, default or 0), f"{settings.prefix}{declared.name}", value
