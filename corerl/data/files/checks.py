"""Checks of a file of your own, and of the arrays of a Dataset: shapes, dtypes, ends, finite numbers."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corerl.config import LARGEST
from corerl.data.action_scaling import AS_NUMBERED, counted
from corerl.data.files.arrays import cuts, missing, without_actions
from corerl.data.files.fields import NAMES, NEEDED, FileFields, is_number
from corerl.data.files.io import first_column, such
from corerl.errors import CorerlError, RowError

if TYPE_CHECKING:
    from corerl.data.dataset import Dataset
    from corerl.data.tasks import Task


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


LARGE = 50.0
"""Mean size of a feature from which a fresh policy is saturated (corerl/training/preprocessing.py)."""

SHOWN = 10
"""Numbers of actions that a remark lists."""


class Finding(NamedTuple):
    """`fault` is whether the file cannot be trained on. `where` names the field or column and the row."""

    fault: bool
    where: str
    text: str


def of_columns(contents: FileFields) -> list[Finding]:
    """Returns the fields that are missing, of another length, or hold what is no number."""
    found = []
    for field in (field for field in NEEDED if field not in contents.arrays):
        text = f"no column found. Name one with {contents.how_to_name(field)}."
        found.append(Finding(True, field, text))
    if not {"terminated", "truncated", "episode"} & contents.arrays.keys():
        text = "nothing marks where episodes end. Name a column with data.columns.terminated, "
        found.append(
            Finding(True, "episodes", text + "data.columns.truncated or data.columns.episode.")
        )
    rows = {field: len(array) for field, array in contents.arrays.items()}
    for field, count in rows.items():
        if count != rows.get("rewards", count):
            text = f"it has {count:,} rows, but rewards has {rows['rewards']:,}."
            found.append(Finding(True, field, text))
    for field, array in contents.arrays.items():
        blank = without_actions(array) if field == "actions" else np.zeros(len(array), bool)
        found += _of_cells(contents, field, array.reshape(len(array), -1), blank)
    return found


def _of_cells(
    contents: FileFields, field: str, array: np.ndarray, blank: np.ndarray
) -> list[Finding]:
    """Finds the first bad cell of each column, and counts them. Rows that are `blank` are left out."""
    found = []
    for column, values in enumerate(array.T):
        what, bad = _bad(field, values)
        bad &= ~blank
        if bad.any():
            row = int(np.argmax(bad))
            where = contents.place(field, row, column)
            found.append(Finding(True, where, f"{values[row]!s} {what}{such(bad)}."))
    return found


def _bad(field: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns what is wrong with entries of a column `(N,)`, and where."""
    if field == "episode":
        return "is no number or name of an episode", missing(values)
    if values.dtype.kind not in "biufc":
        texts = np.array([not is_number(value) for value in values])
        if texts.any():
            return "is not a number", texts
        values = values.astype(np.float64)
    unknown = field == "next_observations"  # where none follows
    return "is not finite", ~np.isfinite(values) & (not unknown)


def of_dataset(data: Dataset, contents: FileFields, task: Task) -> list[Finding]:
    """Lists what looks unintended in a dataset, and what does not fit the environment."""
    found = [
        *_of_names(contents, task),
        *_of_ends(data, contents, task),
        *_of_states(data, contents),
        *_of_actions(data, contents, task),
    ]
    if data.rewards.min() == data.rewards.max():
        found.append(Finding(False, "rewards", f"every reward is {data.rewards[0]:g}."))
    return found


def _of_names(contents: FileFields, task: Task) -> list[Finding]:
    """Names what is in the file by another name of a field that is read, and that nobody named."""
    found = []
    for field, labels in contents.labels.items():
        also = [name for name in contents.others if name.lower() in NAMES[field]]
        if also and getattr(task.data.columns, field) is None:
            text = (
                f"corerl reads column {labels[0]} and ignores {', '.join(also)}. To choose another, set "
                f"data.columns.{field}=NAME."
            )
            found.append(Finding(False, field, text))
    return found


def _of_ends(data: Dataset, contents: FileFields, task: Task) -> list[Finding]:
    found = []
    done, arrays = contents.done, contents.arrays
    if done and not {"truncated", "episode"} & arrays.keys():
        text = f"corerl reads {done} as true ends (terminated). If {done} also marks "
        found.append(
            Finding(
                False,
                "terminated",
                text + "time limits, put them in a column of their own (truncated).",
            )
        )
    if contents.done_may_be_cut(task.data.columns):
        both = int(arrays["terminated"].astype(np.float64).sum()) - int(data.terminated.sum())
        if both:
            text = (
                f"{both:,} rows of {done} are also truncated, so corerl reads them as truncated. "
            )
            text += f"If these rows are true ends, set data.columns.terminated={done}."
            found.append(Finding(False, "terminated", text))
    if not data.has_next.any():
        text = (
            "no step has a recorded next state or ends in a terminal state, so corerl cannot learn "
            "from the file. Check the columns that mark ends."
        )
        found.append(Finding(True, "episodes", text))
    if "episode" in arrays:
        found += _of_returning(contents)
    single = int((data.episode_lengths() == 1).sum())
    if single:
        found.append(
            Finding(
                False,
                "episodes",
                f"{single:,} episodes have a single step. Check where episodes end.",
            )
        )
    if not (contents.arrays.get("truncated", np.zeros(1)).any() or data.terminated.any()) and (
        "episode" not in contents.arrays
    ):
        text = "no row ends an episode, so corerl reads the file as one episode, truncated at its last row."
        found.append(Finding(False, "episodes", text))
    return found


def _of_returning(contents: FileFields) -> list[Finding]:
    """Finds episodes whose number or name comes back after another one's."""
    names = contents.arrays["episode"].reshape(len(contents.arrays["episode"]), -1)
    begins = np.append(0, np.flatnonzero(cuts(names, len(names))[:-1]) + 1)
    first: dict[tuple, int] = {}
    back = np.zeros(len(names), bool)
    back[[row for row in begins if first.setdefault(tuple(names[row]), row) != row]] = True
    if not back.any():
        return []
    text = f"the number of an earlier episode returns{such(back)} and starts a new episode. Either rows are "
    text += "out of order, or the numbering of episodes starts over."
    return [Finding(False, contents.place("episode", int(np.argmax(back))), text)]


def _of_states(data: Dataset, contents: FileFields) -> list[Finding]:
    found = []
    if "next_observations" in contents.arrays:
        jumps = leaps(data)
        if jumps.size:
            where = f"{contents.row(int(jumps[0]))}, next_observations"
            text = f"in {jumps.size:,} rows inside an episode, it differs from the next row's observation. "
            text += "Either rows are out of order, or ends of episodes are missing. Sequence models and "
            text += "ReBRAC need rows in order."
            found.append(Finding(False, where, text))
    if data.observations.ndim != 2:
        shape = "x".join(map(str, data.observations.shape[1:]))
        image = data.observations.ndim == 4
        text = f"they have shape {shape} and are not vectors. " + (
            "corerl's own algorithms cannot learn from images in a file. A custom algorithm can, with "
            "`images = True` in its Config."
            if image
            else f"Give each as one row of {math.prod(data.observations.shape[1:])} numbers."
        )
        found.append(Finding(not image, "observations", text))
    if data.observations.ndim == 2:
        mean = data.observations.mean(0, dtype=np.float64)
        constant = (data.observations == data.observations[0]).all(0)
        labels = contents.labels["observations"]
        large = np.flatnonzero(np.abs(mean) > LARGE)
        lost = {i: text for i in large if (text := _of_precision(contents, i, mean[i]))}
        advice = "on average, which is large. Train with algo.data.normalize_states=true."
        texts = [
            (i, f"it is {mean[i]:g} in every row. Consider leaving it out.")
            for i in np.flatnonzero(constant)
        ]
        texts += [(i, f"it is {mean[i]:g} {advice}") for i in large]
        for i, text in [*((i, text) for i, text in texts if i not in lost), *lost.items()]:
            found.append(Finding(False, labels[min(i, len(labels) - 1)], text))
    return found


def _of_precision(contents: FileFields, column: int, mean: float) -> str:
    """Says that float32 does not tell a feature's values apart, or empty where it does."""
    states = contents.arrays["observations"]
    spread = np.ptp(states.reshape(len(states), -1)[:, column].astype(np.float64))
    step = np.spacing(np.float32(abs(mean)))
    if not 0 < spread < 100 * step:
        return ""
    text = f"its values differ by at most {spread:g}, but float32, which corerl learns from, rounds them to "
    return text + f"multiples of {step:g}. Subtract the smallest value from all of them."


def _of_actions(data: Dataset, contents: FileFields, task: Task) -> list[Finding]:
    if data.unlabelled is not None:
        count = int(data.unlabelled[data.episode_starts].sum())
        text = f"{count:,} of {data.n_episodes:,} episodes have no actions. Set algo.data.actions=inverse"
        return [Finding(False, "actions", f"{text}.")]
    if data.discrete:
        found = [Finding(True, "actions", f"{text}.")] if (text := too_many_actions(data)) else []
        taken = set(data.actions.tolist())
        numbers = range(max(taken) + 1)
        absent = list(islice((number for number in numbers if number not in taken), SHOWN))
        if absent:
            count = len(numbers) - len(taken)
            more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
            text = f"never taken: {', '.join(map(str, absent))}{more}."
            found.append(Finding(False, "actions", text))
        return found
    found = []
    if data.as_given and not contents.scaled and counted(data.actions):
        values = " and ".join(f"{value:g}" for value in np.unique(data.actions))
        text = f"they are floats that hold only {values}, so corerl reads them as continuous. {AS_NUMBERED}."
        found.append(Finding(False, "actions", text))
    largest = float(np.abs(data.actions).max())
    if largest < 0.6:
        text = f"they fill only {100 * largest:.0f} % of the range between their bounds"
        if task.env and task.data.action_low is None and not contents.scaled:
            text += f" ({task.env}'s). If the actions are scaled to [-1, 1] already, set data.action_low=-1 "
            text += "data.action_high=1"
        found.append(Finding(False, "actions", f"{text}."))
    return found
