"""Checks that a replay fits into memory before it is allocated."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from corerl.config import require

WORTH_SAYING = 2**30
"""Bytes from which corerl prints what a replay takes."""
GB = 1e9
_checks = True


def take(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, setting: str
) -> torch.Tensor:
    """Returns an uninitialised tensor `(S, capacity, ...)` and prints its size where it is large.

    Args:
        setting: what to lower where there is not enough, as in `algo.capacity`.

    Raises:
        CorerlError: the device has less memory free.
    """
    device = torch.device(device)
    seeds, capacity = shape[:2]
    size = math.prod(shape) * dtype.itemsize
    if not _checks:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    free = available(device)
    needs = (
        f"The replay of {capacity:,} steps for {seeds} seed{'s' if seeds > 1 else ''} takes "
        f"{size / GB:,.1f} GB on {device} ({size / seeds / GB:,.2f} a seed)"
    )
    require(
        free is None or size <= free,
        f"{needs}, but only {(free or 0) / GB:,.1f} GB are free. Choose a smaller {setting} "
        "or fewer seeds, or on a CPU fewer processes",
    )
    if size >= WORTH_SAYING:
        print(f"corerl: {needs}.", file=sys.stderr)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


@contextmanager
def on_trial() -> Iterator[None]:
    """Lets replays of any size be made silently: memory that is not written is not taken."""
    global _checks
    _checks = False
    try:
        yield
    finally:
        _checks = True


def available(device: torch.device) -> int | None:
    """Bytes that can still be had on the device, or None where nobody tells."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return None
    return int(kilobytes) * 1024
