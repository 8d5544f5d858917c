"""Checks of a file of your own, and of the arrays of a Dataset: shapes, dtypes, ends, finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corerl.config import LARGEST, require
from corerl.data.action_scaling import AS_NUMBERED, counted
from corerl.data.files.arrays import cuts, missing, without_actions
from corerl.data.files.fields import NAMES, NEEDED, FileFields, is_number
from corerl.data.files.io import first_column, such
from corerl.errors import RowError

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
        _check_finite(dataset, field)
    _check_finite(dataset, "next_observations", dataset.has_next)
    _check_finite(dataset, "behaviour_log_prob")


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
    _require(n > 0, dataset, "rewards", "it has no rows")
    real, flag = (np.float32,), (np.bool_,)
    wanted = {
        "observations": ((np.float32, np.uint8), None),
        "actions": ((np.float32, np.int64), None),
        "rewards": (real, (n,)),
        "next_observations": ((np.float32, np.uint8), dataset.observations.shape),
        **dict.fromkeys(("terminated", "truncated", "has_next", "unlabelled"), (flag, (n,))),
        "behaviour_log_prob": (real, (n,)),
        "durations": ((np.int64,), (n,)),
    }
    for field, (dtypes, shape) in wanted.items():
        array = getattr(dataset, field)
        if array is None:
            continue
        faults = {
            f"it has {len(array)} rows, but rewards has {n}": len(array) != n,
            f"its shape is {array.shape}, so its rows are empty": 0 in array.shape[1:],
            f"its shape is {array.shape}, but must be {shape}": shape not in (None, array.shape),
            f"its dtype is {array.dtype}. Use Dataset.from_steps, which converts it": (
                array.dtype.type not in dtypes
            ),
        }
        for problem, found in faults.items():
            _require(not found, dataset, field, problem)
    shape = dataset.actions.shape
    if dataset.discrete and dataset.actions.min() < 0:
        row = int(np.argmax(dataset.actions < 0))
        problem = f"is {dataset.actions[row]}, but discrete actions are whole numbers from 0"
        raise RowError("actions", row, None, problem, dataset.id)
    _require(
        len(shape) == (1 if dataset.discrete else 2),
        *(dataset, "actions"),
        f"its shape is {shape}, but must be (N, A) for continuous or (N,) for discrete actions",
    )


def _check_episodes(dataset: Dataset) -> None:
    ends, n, field = dataset.episode_ends, len(dataset), "episode_ends"
    last = len(ends) > 0 and ends[-1] == n
    _require(last, dataset, field, f"its last entry must be {n}, the number of rows")
    increase = ends[0] > 0 and (np.diff(ends) > 0).all()
    _require(increase, dataset, field, "its entries must increase, because no episode is empty")
    is_end = np.zeros(n, bool)
    is_end[ends - 1] = True
    wrong = is_end != dataset.terminated | dataset.truncated
    row = int(np.argmax(wrong))
    how = "ends an episode but has neither terminated nor truncated set"
    if not is_end[row]:
        how = "is inside an episode but has terminated or truncated set"
    _require(not wrong.any(), dataset, field, f"row {row} {how}")


def _check_finite(dataset: Dataset, field: str, where: np.ndarray | None = None) -> None:
    array = getattr(dataset, field)
    if array is None or array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
        return
    bad = ~finite.reshape(len(array), -1).all(axis=1)
    bad &= True if where is None else where
    if bad.any():
        row = int(np.argmax(bad))
        value = array[row][~finite[row]].flat[0]
        problem = f"holds {value}{such(bad)}. Repair or drop such rows"
        raise RowError(field, row, first_column(~finite[row]), problem, dataset.id)


def _require(holds: bool, dataset: Dataset, field: str, problem: str) -> None:
    require(holds, f"Dataset {dataset.id}, field {field}: {problem}")


LARGE = 50.0
"""Mean size of a feature from which a fresh policy is saturated (corerl/training/preprocessing.py)."""
SHOWN = 10
"""Numbers of actions that a remark lists."""


class Finding(NamedTuple):
    """`fault` is whether the file cannot be trained on. `where` names the field or column and the row."""

    fault: bool
    where: str
    text: str


def of_columns(contents: FileFields) -> Iterator[Finding]:
    """Finds fields that are missing, of another length, or hold what is no number. Each is a fault."""
    arrays = contents.arrays
    for field in (field for field in NEEDED if field not in arrays):
        text = f"no column found. Name one with {contents.how_to_name(field)}."
        yield Finding(True, field, text)
    if not {"terminated", "truncated", "episode"} & arrays.keys():
        text = "nothing marks where episodes end. Name a column with data.columns.terminated, "
        text += "data.columns.truncated or data.columns.episode."
        yield Finding(True, "episodes", text)
    for field, array in arrays.items():
        count, steps = len(array), len(arrays.get("rewards", array))
        if count != steps:
            text = f"it has {count:,} rows, but rewards has {steps:,}."
            yield Finding(True, field, text)
    for field, array in arrays.items():
        blank = without_actions(array) if field == "actions" else np.zeros(len(array), bool)
        for column, values in enumerate(array.reshape(len(array), -1).T):
            what, bad = _bad(field, values)
            bad &= ~blank
            if bad.any():
                row = int(np.argmax(bad))
                where = contents.place(field, row, column)
                yield Finding(True, where, f"{values[row]!s} {what}{such(bad)}.")


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


def of_dataset(data: Dataset, contents: FileFields, task: Task) -> Iterator[Finding]:
    """Finds what looks unintended in a dataset."""
    yield from _of_names(contents, task)
    yield from _of_ends(data, contents, task)
    yield from _of_order(data, contents)
    yield from _of_states(data, contents)
    yield from _of_actions(data, contents, task)
    if data.rewards.min() == data.rewards.max():
        yield Finding(False, "rewards", f"every reward is {data.rewards[0]:g}.")


def _of_names(contents: FileFields, task: Task) -> Iterator[Finding]:
    """Names what is in the file by another name of a field that is read, and that nobody named."""
    for field, labels in contents.labels.items():
        also = [name for name in contents.others if name.lower() in NAMES[field]]
        if also and getattr(task.data.columns, field) is None:
            text = f"corerl reads column {labels[0]} and ignores {', '.join(also)}. To choose another, set "
            yield Finding(False, field, f"{text}data.columns.{field}=NAME.")


def _of_ends(data: Dataset, contents: FileFields, task: Task) -> Iterator[Finding]:
    done, arrays = contents.done, contents.arrays
    if done and not {"truncated", "episode"} & arrays.keys():
        text = (
            f"corerl reads {done} as true ends (terminated). If {done} also marks time limits, put "
        )
        yield Finding(False, "terminated", f"{text}them in a column of their own (truncated).")
    if contents.done_may_be_cut(task.data.columns):
        both = int(arrays["terminated"].astype(np.float64).sum()) - int(data.terminated.sum())
        if both:
            text = f"{both:,} rows of {done} are also truncated, so corerl reads them as truncated. If "
            text += f"these rows are true ends, set data.columns.terminated={done}."
            yield Finding(False, "terminated", text)
    if not data.has_next.any():
        text = (
            "no step has a recorded next state or ends in a terminal state, so corerl cannot learn "
        )
        text += "from the file. Check the columns that mark ends."
        yield Finding(True, "episodes", text)
    if "episode" in arrays:
        yield from _of_returning(contents)
    if single := int((data.episode_lengths() == 1).sum()):
        text = f"{single:,} episodes have a single step. Check where episodes end."
        yield Finding(False, "episodes", text)
    cut = arrays.get("truncated", np.zeros(1)).any() or "episode" in arrays
    if not (cut or data.terminated.any()):
        text = "no row ends an episode, so corerl reads the file as one episode, truncated at its last row."
        yield Finding(False, "episodes", text)


def _of_returning(contents: FileFields) -> Iterator[Finding]:
    """Finds episodes whose number or name comes back after another one's."""
    names = contents.arrays["episode"].reshape(len(contents.arrays["episode"]), -1)
    begins = np.append(0, np.flatnonzero(cuts(names, len(names))[:-1]) + 1)
    first: dict[tuple, int] = {}
    back = np.zeros(len(names), bool)
    back[[row for row in begins if first.setdefault(tuple(names[row]), row) != row]] = True
    if back.any():
        text = f"the number of an earlier episode returns{such(back)} and starts a new episode. Either rows "
        text += "are out of order, or the numbering of episodes starts over."
        yield Finding(False, contents.place("episode", int(np.argmax(back))), text)


def _of_order(data: Dataset, contents: FileFields) -> Iterator[Finding]:
    jumps = leaps(data) if "next_observations" in contents.arrays else np.empty(0)
    if jumps.size:
        text = f"in {jumps.size:,} rows inside an episode, it differs from the next row's observation. "
        text += "Either rows are out of order, or ends of episodes are missing. Sequence models, "
        text += "ReBRAC and history above 1 need rows in order."
        yield Finding(False, f"{contents.row(int(jumps[0]))}, next_observations", text)


def _of_states(data: Dataset, contents: FileFields) -> Iterator[Finding]:
    shape = data.observations.shape[1:]
    if len(shape) != 1:
        image = len(shape) == 3
        text = f"they have shape {'x'.join(map(str, shape))} and are not vectors. " + (
            "corerl's own algorithms cannot learn from images in a file. A custom algorithm can, with "
            "`images = True` in its Config."
            if image
            else f"Give each as one row of {math.prod(shape)} numbers."
        )
        yield Finding(not image, "observations", text)
        return
    mean = data.observations.mean(0, dtype=np.float64)
    constant = (data.observations == data.observations[0]).all(0)
    labels = contents.labels["observations"]
    large = np.flatnonzero(np.abs(mean) > LARGE)
    lost = {i: text for i in large if (text := _of_precision(contents, i, mean[i]))}
    of_constant = "in every row. Consider leaving it out."
    of_large = "on average, which is large. Train with algo.data.normalize_states=true."
    texts = [(i, f"it is {mean[i]:g} {of_constant}") for i in np.flatnonzero(constant)]
    texts += [(i, f"it is {mean[i]:g} {of_large}") for i in large]
    for i, text in [*((i, text) for i, text in texts if i not in lost), *lost.items()]:
        yield Finding(False, labels[min(i, len(labels) - 1)], text)


def _of_precision(contents: FileFields, column: int, mean: float) -> str:
    """Says that float32 does not tell a feature's values apart, or empty where it does."""
    states = contents.arrays["observations"]
    spread = np.ptp(states.reshape(len(states), -1)[:, column].astype(np.float64))
    step = np.spacing(np.float32(abs(mean)))
    if not 0 < spread < 100 * step:
        return ""
    text = f"its values differ by at most {spread:g}, but float32, which corerl learns from, rounds them to "
    return text + f"multiples of {step:g}. Subtract the smallest value from all of them."


def _of_actions(data: Dataset, contents: FileFields, task: Task) -> Iterator[Finding]:
    if data.unlabelled is not None:
        count = int(data.unlabelled[data.episode_starts].sum())
        text = f"{count:,} of {data.n_episodes:,} episodes have no actions. Set algo.data.actions=inverse."
        yield Finding(False, "actions", text)
        return
    if data.discrete:
        if text := too_many_actions(data):
            yield Finding(True, "actions", f"{text}.")
        taken = set(data.actions.tolist())
        numbers = range(max(taken) + 1)
        absent = list(islice((number for number in numbers if number not in taken), SHOWN))
        if absent:
            count = len(numbers) - len(taken)
            more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
            yield Finding(False, "actions", f"never taken: {', '.join(map(str, absent))}{more}.")
        return
    if data.as_given and not contents.scaled and counted(data.actions):
        values = " and ".join(f"{value:g}" for value in np.unique(data.actions))
        text = f"they are floats that hold only {values}, so corerl reads them as continuous. {AS_NUMBERED}."
        yield Finding(False, "actions", text)
    largest = float(np.abs(data.actions).max())
    if largest < 0.6:
        text = f"they fill only {100 * largest:.0f} % of the range between their bounds"
        if task.env and task.data.action_low is None and not contents.scaled:
            text += f" ({task.env}'s). If the actions are scaled to [-1, 1] already, set data.action_low=-1 "
            text += "data.action_high=1"
        yield Finding(False, "actions", f"{text}.")
