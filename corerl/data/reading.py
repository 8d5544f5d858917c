"""What the file readers share: one kind of error, and actions in the unit box."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from corerl.errors import CorerlError


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one CorerlError that names the file and how to mend it."""
    if not Path(path).exists():
        raise CorerlError(f"There is no file {path}.")
    try:
        yield
    except CorerlError as e:
        raise CorerlError(f"{path}: {e}") from e
    except Exception as e:  # h5py, zipfile and numpy raise nearly every kind on damaged bytes
        raise CorerlError(
            f"{path} is cut off or not {kind} ({one_line(e)}): delete it and fetch it again."
        ) from e


def one_line(error: Exception) -> str:
    """Kind and message of some library's error, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def unit_actions(actions: np.ndarray, low, high) -> np.ndarray:
    """Float32 actions (N, A) of a box [low, high] in [-1, 1], as every corerl policy acts.

    Actions beyond the box are clipped, as the simulators do. Raises CorerlError where the box is
    unbounded, because then no scale is right, and where an action is no finite number, because
    clipping would make it one.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise CorerlError("the action space has no bounds, so actions have no place in [-1, 1].")
    if np.asarray(actions).dtype.kind not in "biuf":
        raise CorerlError(f"actions are {np.asarray(actions).dtype} and no real numbers.")
    with np.errstate(over="ignore"):
        actions = np.asarray(actions, np.float32)
    for row, *column in np.argwhere(~np.isfinite(actions))[:1]:
        at = ", ".join(str(c) for c in column)
        value = actions[(row, *column)]
        raise CorerlError(
            f"field actions: row {row}, column {at}, holds {value}; repair or drop it."
        )
    if (low != -1).any() or (high != 1).any():
        actions = 2 * (actions - low) / (high - low) - 1
    if actions.size and (actions.min() < -1 or actions.max() > 1):
        actions = np.clip(actions, -1, 1)
    return actions
