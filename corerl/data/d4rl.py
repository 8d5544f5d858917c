"""`d4rl/...`: D4RL's HDF5 files (Fu et al. 2020, arXiv:2004.07219), CC BY 4.0, read directly.

Rows are the raw ones; `has_next` is where D4RL's `qlearning_dataset` keeps a transition: s' is the
next row's observation, rows with `timeouts` and the last row have none. A terminal row keeps the
next row's observation as D4RL does (the first of the next episode); nothing may bootstrap from it.

The oldest files have no `timeouts`; there the time limit of the task is counted from the start of
each episode. D4RL's own loop starts at 1 instead of 0 after a terminal, and so cuts one row early.

Known faults of the data, left as they are:
- antmaze v0: `timeouts` are out of step with the resets, so episodes jump (D4RL issues 77, 146);
  v2 mends this. In umaze-diverse, v0 and v2, rewards disagree with terminals (issue 199).
- maze2d: one endless episode; `timeouts` mark new waypoints, not resets (issue 85), and rewards
  are late by one step (issue 194). Scores above 100 are ordinary (issue 159).
- pen, hammer, door, relocate v0: actions beyond [-1, 1], which the simulator clips; so do we.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from corerl.data import download, tables
from corerl.data.action_scaling import unit_actions
from corerl.data.dataset import Dataset
from corerl.data.files.arrays import flags
from corerl.data.files.io import check_keys, hdf5, is_file
from corerl.errors import CorerlError, nearest

# max_episode_steps of D4RL's registrations, longest matching prefix first.
TIME_LIMITS = {
    "antmaze-umaze": 700,
    "antmaze": 1000,
    "ant": 1000,
    "bullet-maze2d-open": 150,
    "bullet-maze2d-umaze": 300,
    "bullet-maze2d-medium": 600,
    "bullet-maze2d-large": 800,
    "bullet": 1000,
    "door": 200,
    "halfcheetah": 1000,
    "hammer": 200,
    "hopper": 1000,
    "kitchen": 280,
    "maze2d-open": 150,
    "maze2d-eval-umaze": 300,
    "maze2d-eval-medium": 600,
    "maze2d-eval-large": 800,
    "maze2d-umaze": 300,
    "maze2d-medium": 600,
    "maze2d-large": 800,
    "pen": 100,
    "relocate": 200,
    "walker2d": 1000,
}


def names() -> list[str]:
    return list(tables.d4rl_urls())


def load(name: str) -> Dataset:
    """Loads the dataset of this name, from the data folder, `~/.d4rl/datasets`, or its address."""
    path = find(name) or fetch(name)
    return read(path, f"d4rl/{name}", time_limit(name))


def reference(name: str) -> tuple[float, float] | None:
    """Returns that score 0 and 100, where D4RL has them."""
    return tables.d4rl_references().get(name)


def time_limit(name: str) -> int | None:
    """Steps after which D4RL ends an episode of this task."""
    return next((n for prefix, n in TIME_LIMITS.items() if name.startswith(prefix)), None)


def find(name: str) -> Path | None:
    """Finds the file on this machine, named `<name>.hdf5` or under the name that D4RL gives it."""
    file_names = (f"{name}.hdf5", _url(name).rpartition("/")[2])
    own = Path.home() / ".d4rl" / "datasets" / file_names[1]
    return download.find("d4rl", file_names) or (own if is_file(own) else None)


def fetch(name: str) -> Path:
    """Downloads its file to the data folder."""
    url = _url(name)
    return download.fetch(url, download.data_dir("d4rl") / url.rpartition("/")[2])


def read(path: Path | str, id: str | None = None, time_limit: int | None = None) -> Dataset:
    """Reads one file in D4RL's layout. `time_limit` is needed only where it has no `timeouts`.

    Raises CorerlError for a file that is cut off, lacks a key, or holds arrays that do not agree.
    """
    path = Path(path)
    with hdf5(path) as file:
        n = _check(file)
        states = _padded(file["observations"], n)
        actions = file["actions"][:]
        if actions.dtype.kind == "f":
            actions = unit_actions(actions, -1, 1)
        rewards = file["rewards"][:].reshape(n)
        terminals = flags(file["terminals"][:].reshape(n), "terminals")
        if "timeouts" in file:
            timeouts = flags(file["timeouts"][:].reshape(n), "timeouts")
        elif time_limit:
            timeouts = count_timeouts(terminals, time_limit)
        else:
            raise CorerlError(
                "it has no array `timeouts`. Pass time_limit=, the longest episode of its task."
            )
        has_next = ~timeouts
        has_next[-1] = False
        return Dataset.from_steps(
            id or f"d4rl/{path.stem}",
            states[:-1],
            actions,
            rewards,
            states[1:],
            terminals,
            timeouts,
            has_next,
        )


def count_timeouts(terminals: np.ndarray, time_limit: int) -> np.ndarray:
    """Returns (N,) bool: every `time_limit`-th row since the last terminal."""
    row = np.arange(len(terminals))
    after_terminal = np.zeros(len(terminals), np.int64)
    after_terminal[1:] = np.where(terminals[:-1], row[1:], 0)
    start = np.maximum.accumulate(after_terminal)
    return (row - start) % time_limit == time_limit - 1


def _url(name: str) -> str:
    urls = tables.d4rl_urls()
    if name not in urls:
        raise CorerlError(
            f"D4RL has no dataset {name}.{nearest(name, urls)} corerl data list d4rl shows all."
        )
    return urls[name]


def _check(file: h5py.File) -> int:
    keys = ("observations", "actions", "rewards", "terminals")
    check_keys(file, keys, "D4RL's")
    n = file["rewards"].size
    for key in (*keys, *(["timeouts"] if "timeouts" in file else [])):
        flat = key in ("rewards", "terminals", "timeouts")
        if len(file[key]) != n or (flat and file[key].size != n) or n == 0:
            raise CorerlError(f"{key} has shape {file[key].shape}, but rewards has {n} rows.")
        if not file[key].id.get_storage_size():  # HDF5 would give zeros
            raise CorerlError(f"{key} has a shape but no contents. Write the file again.")
    return n


def _padded(dataset: h5py.Dataset, n: int) -> np.ndarray:
    """Returns observations with the last row repeated, so that s and s' are views of one array."""
    dtype = np.uint8 if dataset.dtype == np.uint8 else np.float32
    states = np.empty((n + 1, *dataset.shape[1:]), dtype)
    dataset.read_direct(states, dest_sel=np.s_[:n])
    states[n] = states[n - 1]
    return states
