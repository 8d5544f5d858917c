"""The columns of a file under our names of fields: npz, HDF5, CSV and Parquet.

Recognised are the names of D4RL, Minari, d3rlpy, NeoRL-2 and gymnasium. Observations may be dictionaries:
`observations/position`, `observations/velocity`. In a table a vector is several columns, `obs_0, obs_1, ...`,
or one column of lists. HDF5 may be flat (D4RL; d3rlpy 1), hold a group per episode (Minari) or an array per
field and episode (d3rlpy 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from corerl.config import Columns
from corerl.data.files import io
from corerl.errors import CorerlError

NAMES = {
    "observations": ("observations", "observation", "obs", "states", "state", "s"),
    "actions": ("actions", "action", "act", "acts", "a"),
    "rewards": ("rewards", "reward", "rew", "r"),
    "next_observations": (
        *("next_observations", "next_observation", "next_obs", "observations_next", "obs_next"),
        *("next_states", "next_state"),
    ),
    "terminated": ("terminated", "terminals", "terminal", "terminations", "dones", "done"),
    "truncated": ("truncated", "timeouts", "timeout", "truncations", "truncation"),
    "has_next": ("has_next",),
    "behaviour_log_prob": (
        *("behaviour_log_prob", "behavior_log_prob", "action_log_prob"),
        "infos/action_log_probs",
    ),
    "durations": ("durations",),
    "episode": ("episode", "episode_id", "episodes", "trajectory", "trajectory_id", "traj_id"),
}
"""Our fields, and what others call them, the least ambiguous first."""
VECTORS = ("observations", "actions", "next_observations")
KINDS = {
    ".npz": "npz",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
}


NEEDED = ("observations", "actions", "rewards")
SCALED = "in [-1, 1]"
"""What the attribute `actions` of an HDF5 file says where they are scaled already, as in our own exports."""


@dataclass(frozen=True)
class FileFields:
    """A file's arrays by field, its names of each array's columns, and whether its actions are scaled.

    `others` are the names of what is in the file and was not read.
    """

    arrays: dict[str, np.ndarray]
    labels: dict[str, list[str]]
    others: list[str]
    path: Path
    scaled: bool = False

    def row(self, row: int) -> str:
        """Names a row of the file: its line in a CSV file, where that is known."""
        return f"row {row}" if self._lines is None else f"line {self._lines[row]}"

    def place(self, field: str, row: int, column: int | tuple[int, ...] | None = None) -> str:
        """Names an entry of a field by its row and its column in the file."""
        if isinstance(column, tuple):
            column = int(np.ravel_multi_index(column, self.arrays[field].shape[1:]))
        labels = self.labels[field]
        return f"{self.row(row)}, {labels[min(column or 0, len(labels) - 1)]}"

    def how_to_name(self, field: str) -> str:
        """Returns the setting that names a field's columns, and what there is to name."""
        choice = f", one of {', '.join(self.others[:30])}" if self.others else ""
        return f"data.columns.{field}=NAME{choice}"

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Names and widths of the arrays `observations/...` of a dictionary's parts, as they are laid."""
        names = [re.sub(r"\[\d+\]$", "", label) for label in self.labels["observations"]]
        if kind_of(self.path) not in ("npz", "hdf5") or not all("/" in name for name in names):
            return ()
        return tuple((part(name), len(list(columns))) for name, columns in groupby(names))

    @property
    def done(self) -> str:
        """The name of the ends where it is `done` or `dones`, which mark time limits too, else empty."""
        name = self.labels.get("terminated", [""])[0].removeprefix("column ")
        return name if name.lower() in ("done", "dones") else ""

    def done_may_be_cut(self, columns: Columns) -> bool:
        """Tells whether ends are called `done`, nobody said that they are true, and there are cuts too."""
        return bool(self.done) and columns.terminated is None and "truncated" in self.arrays

    @cached_property
    def _lines(self) -> list[int] | None:
        if kind_of(self.path) != "csv":
            return None
        found = io.lines(self.path)
        known = all(len(array) == len(found) for array in self.arrays.values())
        return found if known else None


def first_text(contents: FileFields, field: str) -> tuple[str, Any]:
    """Returns the place and the value of the first entry that is not a number."""
    array = contents.arrays[field].reshape(len(contents.arrays[field]), -1)
    for row, values in enumerate(array):
        for column, value in enumerate(values):
            if not is_number(value):
                return contents.place(field, row, column), value
    return contents.place(field, 0), array.flat[0]


def is_number(value: Any) -> bool:
    """Tells whether a cell holds a number. An empty one holds NaN, which counts."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def read(path: Path, columns: Columns | None = None) -> FileFields:
    """Reads the arrays of a file by field. Raises CorerlError if it is unreadable or lacks a named column."""
    columns = columns or Columns()
    kind = kind_of(path)
    if kind is None:
        raise CorerlError(
            f"{path} is not a known type of file. Its name must end in one of {', '.join(KINDS)}."
        )
    described = (path, *_described(kind))
    if kind == "npz":
        with io.npz(*described) as file:
            return FileFields(*_of_arrays(file, columns), path)
    if kind == "hdf5":
        with io.hdf5(*described) as file:
            scaled = str(file.attrs.get("actions")) == SCALED
            return FileFields(*_of_arrays(io.flattened(file), columns), path, scaled)
    with io.reading(*described):
        return FileFields(*_of_table(io.read_table(path, kind), columns), path)


def _described(kind: str) -> tuple[str, str]:
    """Returns what a file should be, and how to mend it."""
    return f"the {kind} file that its name says", "repair it"


def kind_of(path: Path) -> str | None:
    """Returns the kind of a file by the end of its name, None where it is none of `KINDS`."""
    return next((k for suffix, k in KINDS.items() if path.name.lower().endswith(suffix)), None)


def observation_names(path: Path) -> list[str]:
    """Returns the names of an npz or HDF5 file's arrays of observations: several where they are parts.

    Raises:
        CorerlError: the file is unreadable.
    """
    kind, available = kind_of(path), []
    if kind == "npz":
        with io.npz(path, *_described(kind)) as file:
            available = list(file)
    elif kind == "hdf5":
        with io.hdf5(path, *_described(kind)) as file:
            available = list(io.arrays(next(io.episodes(file), file)))
    return _match(available, Columns()).get("observations", [])


def part(name: str) -> str:
    """Returns the part of an observation that an array `observations/...` holds."""
    return name.partition("/")[2] or name


def _parts(available: list[str], known: tuple[str, ...]) -> list[str]:
    """Finds the names `observations/...` of the first known name, sorted, as gymnasium sorts a dictionary."""
    for name in known:
        found = sorted(n for n in available if n.lower().startswith(f"{name}/"))
        if found:
            return found
    return []


def _of_arrays(file: Mapping[str, Any], columns: Columns) -> tuple[dict, dict, list[str]]:
    """Finds the arrays of each field in an npz or HDF5 file."""
    return _laid(file, _match(file.keys(), columns), lambda name: _steps(name, file[name][()]))


def _of_table(table: Mapping[str, np.ndarray], columns: Columns) -> tuple[dict, dict, list[str]]:
    """Finds the columns of each field: one, several in `columns`, or those numbered after a name."""
    found = _match(table, columns)
    for field in NAMES:
        if getattr(columns, field) is None and (numbered := _numbered(table, field, found)):
            found[field] = numbered
    arrays, labels, others = _laid(table, found, lambda name: io.unpacked(table[name]))
    labels = {field: [f"column {name}" for name in names] for field, names in labels.items()}
    return arrays, labels, others


def _laid(
    available: Iterable[str], found: dict[str, list[str]], read: Callable[[str], np.ndarray]
) -> tuple[dict, dict, list[str]]:
    """Lays the arrays of each field side by side. Returns these, names of their columns, and what is left."""
    arrays, labels = {}, {}
    for field, names in found.items():
        parts = [read(name) for name in names]
        flat = [part.reshape(len(part), -1) for part in parts]
        arrays[field] = np.concatenate(flat, 1) if len(parts) > 1 else parts[0]
        labels[field] = [
            f"{name}[{i}]" if part.shape[1] > 1 else name
            for name, part in zip(names, flat, strict=True)
            for i in range(part.shape[1])
        ]
    read_names = set(chain.from_iterable(found.values()))
    return arrays, labels, [name for name in available if name not in read_names]


def _steps(name: str, array: Any) -> np.ndarray:
    array = np.asarray(array)
    if not array.ndim:
        raise CorerlError(f"{name} is a single value, but must be an array with one row per step.")
    if not len(array):
        raise CorerlError(f"{name} has no rows.")
    return array


def _match(available: Iterable[str], columns: Columns) -> dict[str, list[str]]:
    """Maps each field to names in the file: those in `columns`, else the first that is recognised."""
    available = list(available)
    by_lower = {name.lower(): name for name in reversed(available)}
    found: dict[str, list[str]] = {}
    for field, known in NAMES.items():
        wanted = getattr(columns, field)
        if wanted is not None:
            found[field] = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
            missing = [name for name in found[field] if name not in available]
            if missing:
                raise CorerlError(
                    f"it has no column {missing[0]}, which data.columns.{field} names. Its columns are "
                    f"{', '.join(available[:30])}."
                )
        else:
            names = [by_lower[name] for name in known if name in by_lower]
            if names := names[:1] or _parts(available, known):
                found[field] = names
    order = [part(name) for name in found.get("observations", [])]
    if len(following := found.get("next_observations", [])) == len(order) > 1:
        with suppress(ValueError):  # other names, in an order of their own
            following.sort(key=lambda name: order.index(part(name)))
    return found


def _numbered(table: Iterable[str], field: str, found: dict[str, list[str]]) -> list[str]:
    """Finds the numbered columns of a field, where it has no column or one of a more ambiguous name.

    Raises:
        CorerlError: they and the column may both be the field's vectors.
    """
    known = NAMES[field]
    numbered, (single, *_) = io.numbered(table, known), found.get(field, [""])
    if not (single and numbered):
        return numbered
    if field not in VECTORS:
        return []
    name = single.lower().partition("/")[0]
    if clear := io.numbered(table, known[: known.index(name)]):
        return clear
    raise CorerlError(
        f"its columns {single} and {numbered[0]} may both be {field}. Choose with "
        f"data.columns.{field}={single} or data.columns.{field}=[{','.join(numbered)}]."
    )
