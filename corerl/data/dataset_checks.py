"""Checks of a Dataset's arrays: shapes, dtypes, ends of episodes, finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corerl.config import LARGEST
from corerl.data.file_reading import first_column, such
from corerl.errors import CorerlError, RowError

if TYPE_CHECKING:
    from corerl.data.dataset import Dataset


BLOCK = 4096
"""Rows that are compared at a time: images take eight times their memory as float64."""


def check(dataset: Dataset) -> None:
    """Raises CorerlError with dataset id, field and row for the first thing that is wrong."""
    _check_shapes(dataset)
    _check_episodes(dataset)
    for field in ("observations", "actions", "rewards"):
        _check_finite(dataset, field, getattr(dataset, field))
    _check_finite(dataset, "next_observations", dataset.next_observations, dataset.has_next)
    if dataset.behaviour_log_prob is not None:
        _check_finite(dataset, "behaviour_log_prob", dataset.behaviour_log_prob)


def leaps(dataset: Dataset) -> np.ndarray:
    """Returns the rows inside an episode whose next state is another than the next row's.

    A feature differs by more than a thousandth of its own largest size: another one may be a time in seconds.
    """
    inside = dataset.has_next.copy()
    inside[dataset.episode_ends - 1] = False
    rows = np.flatnonzero(inside)
    close = 1e-3 * np.abs(dataset.observations).max(0)
    found = []
    for some in np.array_split(rows, len(rows) // BLOCK + 1):
        recorded = dataset.next_observations[some]
        apart = np.abs(dataset.observations[some + 1].astype(np.float64) - recorded) > close
        found.append(some[apart.any(tuple(range(1, apart.ndim)))])
    return np.concatenate(found)


def too_many_actions(dataset: Dataset) -> str:
    """Says that an action's number is larger than networks take, or empty where none is."""
    largest, most = int(dataset.actions.max()) if dataset.discrete else 0, LARGEST["width"]
    if largest < most:
        return ""
    return (
        f"{dataset.id} has action {largest:,}. Networks have one output per action, of {most:,} at most. "
        "Renumber the actions from 0, without gaps"
    )


def _check_shapes(dataset: Dataset) -> None:
    n = len(dataset.rewards)
    if n == 0:
        raise _error(dataset, "rewards", "it has no rows")
    floats, flags = (np.float32,), (np.bool_,)
    wanted = {
        "observations": ((np.float32, np.uint8), None),
        "actions": ((np.float32, np.int64), None),
        "rewards": (floats, (n,)),
        "next_observations": ((np.float32, np.uint8), dataset.observations.shape),
        "terminated": (flags, (n,)),
        "truncated": (flags, (n,)),
        "has_next": (flags, (n,)),
    }
    if dataset.behaviour_log_prob is not None:
        wanted["behaviour_log_prob"] = (floats, (n,))
    if dataset.durations is not None:
        wanted["durations"] = ((np.int64,), (n,))
    if dataset.unlabelled is not None:
        wanted["unlabelled"] = (flags, (n,))
    for field, (dtypes, shape) in wanted.items():
        array = getattr(dataset, field)
        if len(array) != n:
            raise _error(dataset, field, f"it has {len(array)} rows, but rewards has {n}")
        if 0 in array.shape[1:]:
            raise _error(dataset, field, f"its shape is {array.shape}, so its rows are empty")
        if shape is not None and array.shape != shape:
            raise _error(dataset, field, f"its shape is {array.shape}, but must be {shape}")
        if array.dtype.type not in dtypes:
            raise _error(
                dataset,
                field,
                f"its dtype is {array.dtype}. Use Dataset.from_steps, which converts it",
            )
    if dataset.discrete and dataset.actions.min() < 0:
        row = int(np.argmax(dataset.actions < 0))
        problem = f"is {dataset.actions[row]}, but discrete actions are whole numbers from 0"
        raise RowError("actions", row, None, problem, dataset.id)
    if dataset.actions.ndim != (1 if dataset.discrete else 2):
        raise _error(
            dataset,
            "actions",
            f"its shape is {dataset.actions.shape}, but must be (N, A) for continuous or (N,) for discrete "
            "actions",
        )


def _check_episodes(dataset: Dataset) -> None:
    ends, n = dataset.episode_ends, len(dataset)
    if len(ends) == 0 or ends[-1] != n:
        raise _error(dataset, "episode_ends", f"its last entry must be {n}, the number of rows")
    if ends[0] <= 0 or (np.diff(ends) <= 0).any():
        raise _error(
            dataset, "episode_ends", "its entries must increase, because no episode is empty"
        )
    is_end = np.zeros(n, bool)
    is_end[ends - 1] = True
    over = dataset.terminated | dataset.truncated
    if (is_end != over).any():
        row = int(np.argmax(is_end != over))
        what = "ends an episode but has neither" if is_end[row] else "is inside an episode but has"
        raise _error(
            dataset,
            "episode_ends",
            f"row {row} {what} terminated {'nor' if is_end[row] else 'or'} truncated set",
        )


def _check_finite(
    dataset: Dataset, field: str, array: np.ndarray, where: np.ndarray | None = None
) -> None:
    if array.dtype.kind != "f":
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    bad = ~finite.reshape(len(array), -1).all(axis=1)
    if where is not None:
        bad &= where
    if bad.any():
        row = int(np.argmax(bad))
        value = array[row][~finite[row]].flat[0]
        problem = f"holds {value}{such(bad)}. Repair or drop such rows"
        raise RowError(field, row, first_column(~finite[row]), problem, dataset.id)


def _error(dataset: Dataset, field: str, problem: str) -> CorerlError:
    return CorerlError(f"Dataset {dataset.id}, field {field}: {problem}.")
