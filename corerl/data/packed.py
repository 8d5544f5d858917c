"""Compact datasets in one folder, for a machine without a network or the packages that read the originals.

`$CORERL_PACKED/<task>.npz` is read in place of the task's own data where it is there.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from corerl.data.dataset import Dataset
from corerl.data.files.io import npz, replacing

VARIABLE = "CORERL_PACKED"
ARRAYS = (
    *("observations", "actions", "rewards", "terminated", "truncated", "episode_ends"),
    *("has_next", "behaviour_log_prob", "durations"),
)


def path_in(folder: Path, task_id: str, split: str = "train") -> Path:
    """Returns the file of a task's packed data in a folder."""
    return folder / f"{task_id}{'' if split == 'train' else f'-{split}'}.npz"


def find(task_id: str, split: str = "train") -> Path | None:
    """Finds the packed data of a task in `$CORERL_PACKED`, or None where there is none."""
    folder = os.environ.get(VARIABLE)
    path = path_in(Path(folder), task_id, split) if folder else None
    return path if path is not None and path.is_file() else None


def write(dataset: Dataset, path: Path) -> None:
    """Writes a dataset. Next observations are those of the next row, where they can be, or of each end."""
    arrays = {name: getattr(dataset, name) for name in ARRAYS}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    last = dataset.next_observations[dataset.episode_ends - 1]
    if np.array_equal(_following(arrays, last), dataset.next_observations):
        arrays["last"] = last
    else:
        arrays["next_observations"] = dataset.next_observations
    names = np.array([name for name, _ in dataset.parts], dtype=str)
    widths = np.array([width for _, width in dataset.parts], dtype=np.int64)
    with replacing(path) as part:
        np.savez_compressed(part, **arrays, names=names, widths=widths, as_given=dataset.as_given)


def read(path: Path, task_id: str) -> Dataset:
    """Reads what `write` wrote, as the dataset of a task.

    Raises:
        CorerlError: the file is damaged.
    """
    with npz(path) as file:
        arrays = dict(file)
    parts = tuple(zip(arrays.pop("names").tolist(), arrays.pop("widths").tolist(), strict=True))
    as_given = bool(arrays.pop("as_given"))
    if "last" in arrays:
        arrays["next_observations"] = _following(arrays, arrays.pop("last"))
    return replace(Dataset(id=task_id, **arrays), parts=parts, as_given=as_given)


def _following(arrays: dict[str, np.ndarray], last: np.ndarray) -> np.ndarray:
    following = np.roll(arrays["observations"], -1, axis=0)
    following[arrays["episode_ends"] - 1] = last
    return following
