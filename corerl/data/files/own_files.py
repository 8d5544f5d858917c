"""`file/PATH`: your own file, npz, HDF5, CSV or Parquet, with the names that it came with.

    file/logs/robot.npz      read from there; ~ and absolute paths (file//data/robot.npz) too

corerl/data/files/fields.py says which names and layouts are recognised. Name others with `data.columns`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corerl.config import Columns, Data
from corerl.data import download, simulators
from corerl.data.dataset import ROWS, Dataset
from corerl.data.files.arrays import flags, without_actions
from corerl.data.files.checks import Finding, of_columns, of_dataset
from corerl.data.files.fields import NEEDED, FileFields, first_text, observation_names, part, read
from corerl.data.files.io import is_file, replacing
from corerl.errors import CorerlError, FileMissing, RowError

if TYPE_CHECKING:
    from corerl.data.tasks import Task

WRITTEN = (*ROWS, "behaviour_log_prob", "durations")


def names() -> list[str]:
    """Returns no names: users' own files are in no list."""
    return []


def reference(name: str) -> None:
    """Returns None: nobody has published returns that score 0 and 100 here."""
    return None


def find(name: str) -> Path | None:
    """Finds the file, or None where it does not exist."""
    path = Path(name).expanduser()
    return path if is_file(path) else None


def fetch(name: str) -> Path:
    """Finds the file, or raises FileMissing: it comes from nowhere."""
    if path := find(name):
        return path
    raise FileMissing(
        f"There is no file {name}, which task=file/{name} names. Give its full path, or one from "
        f"{Path.cwd()}."
    )


def checksum(name: str) -> str:
    """Computes the SHA-256 of the file's bytes."""
    return download.digest(fetch(name))


def load(name: str, data: Data | None = None, box: tuple | None = None) -> Dataset:
    """Loads the dataset in this file.

    Args:
        data: what its columns are called, and the bounds of its actions.
        box: the lowest and the highest action of the environment, where `data` gives no bounds.

    Raises:
        CorerlError: the file is missing, broken, other than `data.sha256`, lacks a field, or its numbers
            make no dataset; it says which file, field and row.
    """
    data = data or Data()
    path = fetch(name)
    if data.sha256 and checksum(name) != data.sha256:
        raise CorerlError(
            f"{path} has changed since this run started (its SHA-256 was {data.sha256[:12]}...). Restore the "
            "old file, or start a new run on the present one."
        )
    contents = read(path, data.columns)
    try:
        return assemble(f"file/{name}", contents, data, box)
    except RowError as error:
        place = contents.place(error.field, error.row, error.column)
        raise CorerlError(f"file/{name}, {place}: it {error.problem}.") from error
    except CorerlError as error:
        reported = str(error)
        raise error if name in reported else CorerlError(f"{path}, {reported}") from error


def assemble(id: str, contents: FileFields, data: Data, box: tuple | None) -> Dataset:
    """Returns a file's arrays as a Dataset and raises CorerlError as `load` does.

    Actions that the file says are scaled already are left, unless `data` has bounds of them.
    """
    arrays = contents.arrays.copy()
    missing = [field for field in NEEDED if field not in arrays]
    if missing:
        raise CorerlError(
            f"{id} has no {' and no '.join(missing)}: name a column with "
            f"{contents.how_to_name(missing[0])}."
        )
    for field in [field for field in arrays if field != "episode"]:
        if arrays[field].dtype.kind in "OSU":
            arrays[field] = _numbers(id, contents, field)
    if contents.done_may_be_cut(data.columns):
        arrays["terminated"] = _true_ends(arrays["terminated"], arrays["truncated"])
    low, high = bounds(data, None if contents.scaled else box)
    blank = without_actions(arrays["actions"])
    if blank.any():
        middle = 0 if low is None else (np.asarray(low) + np.asarray(high)) / 2
        arrays["actions"] = np.where(_beside(blank, arrays["actions"]), middle, arrays["actions"])
    dataset = Dataset.from_arrays(**arrays, low=low, high=high, id=id)
    dataset = _unlabelled(dataset, blank) if blank.any() else dataset
    return replace(dataset, parts=contents.parts) if contents.parts else dataset


def _numbers(id: str, contents: FileFields, field: str) -> np.ndarray:
    try:
        return contents.arrays[field].astype(np.float64)
    except (TypeError, ValueError):
        place, value = first_text(contents, field)
        problem = f"{value!r} is not a number. Repair or drop the row."
        raise CorerlError(f"{id}, {place}: {problem}") from None


def _beside(rows: np.ndarray, array: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, *[1] * (array.ndim - 1))


def _unlabelled(dataset: Dataset, blank: np.ndarray) -> Dataset:
    """Marks the episodes without actions. Raises RowError where only some steps of an episode have none."""
    all_of = np.logical_and.reduceat(blank, dataset.episode_starts)
    partly = blank & ~np.repeat(all_of, dataset.episode_lengths())
    if partly.any():
        problem = (
            "has no action, but other rows of its episode have actions. Repair or drop the episode"
        )
        raise RowError("actions", int(np.argmax(partly)), 0, problem, dataset.id)
    return replace(dataset, unlabelled=blank)


def _true_ends(done: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Returns where `done` is more than a time limit: `dones * (1 - timeouts)`, as in SB3."""
    done, truncated = flags(done, "terminated"), flags(truncated, "truncated")
    return done & ~truncated if done.shape == truncated.shape else done


def bounds(data: Data, box: tuple | None) -> tuple[Any, Any]:
    """Returns the actions that become -1 and 1: by `data`, else by the environment, else None."""
    if (data.action_low is None) != (data.action_high is None):
        raise CorerlError("give both data.action_low and data.action_high, or neither.")
    if data.action_low is not None:
        return data.action_low, data.action_high
    return box or (None, None)


def fields_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """Returns a dataset's arrays by field, without those that it does not have."""
    fields = {field: getattr(dataset, field) for field in WRITTEN}
    fields = {field: array for field, array in fields.items() if array is not None}
    if dataset.unlabelled is not None:
        blank = _beside(dataset.unlabelled, dataset.actions)
        fields["actions"] = np.where(blank, np.float32(np.nan), dataset.actions)
    ends = np.cumsum([width for _, width in dataset.parts])[:-1]
    for field in ("observations", "next_observations") if dataset.parts else ():
        pieces = zip(dataset.parts, np.split(fields.pop(field), ends, 1), strict=True)
        fields |= {f"{field}/{name}": piece for (name, _), piece in pieces}
    return fields


def write(path: Path, dataset: Dataset) -> None:
    """Writes all of a dataset as npz. `load` reads the same back (continuous actions with bounds -1, 1)."""
    with replacing(path) as part, open(part, "wb") as file:
        np.savez(file, **fields_of(dataset))


def check(task: Task) -> tuple[list[Finding], FileFields | None, Dataset | None]:
    """Checks the file of a `file/PATH` task and returns the findings, contents and dataset if any."""
    try:
        path = fetch(task.name)
        contents = read(path, task.data.columns)
    except CorerlError as error:
        return [Finding(True, "file", str(error))], None, None
    findings = [*of_columns(contents)]
    if any(finding.fault for finding in findings):
        return findings, contents, None
    try:
        own = replace(task.data, sha256=None)
        box = task.box if task.env else None
        dataset = assemble(task.id, contents, own, box)
    except RowError as error:
        place = contents.place(error.field, error.row, error.column)
        return [*findings, Finding(True, place, f"it {error.problem}.")], contents, None
    except CorerlError as error:
        return [*findings, Finding(True, "file", str(error))], contents, None
    findings += [*of_dataset(dataset, contents, task), *_of_environment(dataset, task)]
    return findings, contents, dataset


def _of_environment(data: Dataset, task: Task) -> list[Finding]:
    """Lists what does not fit the environment."""
    if task.env is None:
        text = (
            "no env=gym/module:Id is given. You can train on the file, but judge the policy only "
            "by off-policy evaluation."
        )
        return [Finding(False, "environment", text)]
    env = task.make_env()
    misfit = simulators.misfit(env, data)
    env.close()
    return [Finding(True, "environment", f"{misfit}.")] if misfit else []


# Observations that are dictionaries: `observations/position`, `observations/velocity`, ...


def parts(data: Data | None) -> list[str]:
    """Returns the names of the observation's parts, in the order of `data.columns.observations`."""
    return [part(name) for name in listed(data)]


def listed(data: Data | None) -> list[str]:
    """Returns the names of the arrays of observations, where `data.columns.observations` lists some."""
    named = None if data is None else data.columns.observations
    return [str(name) for name in named] if isinstance(named, list) else []


def with_parts(name: str, columns: Columns) -> Columns:
    """Returns the columns with the order of the observation's parts, where the file gives none."""
    if columns.observations is not None:
        return columns
    found = observation_names(fetch(name))
    return replace(columns, observations=found) if "/" in "".join(found) else columns
