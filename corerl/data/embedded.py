"""`corerl/...`: datasets that the package makes itself, from a seed, in seconds.

The first load makes the file in the cache folder; delete it and it is made again.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from corerl.data import download
from corerl.data.dataset import Dataset
from corerl.data.reading import reading
from corerl.envs import pendulum
from corerl.errors import CorerlError

# Mean returns over 10,000 episodes of uniform random actions and of the recipe's noise-free
# controller: python -m corerl.envs.pendulum
REFERENCE = {"pendulum": (-1224.9, -150.1)}
RECIPES = {"pendulum": pendulum.make}
ENVIRONMENTS = {"pendulum": "Pendulum-v1"}
VERSION = 1  # raised when a recipe changes, so that an old file is not read for a new one


def names() -> list[str]:
    return list(RECIPES)


def load(name: str, seed: int = 0) -> Dataset:
    """The dataset `corerl/<name>` of this seed, from its file or freshly made."""
    path = download.find("corerl", [_file(name, seed)])
    return read(path, f"corerl/{name}") if path else make(name, seed)


def make(name: str, seed: int = 0) -> Dataset:
    """Make the dataset and write its file to the cache folder; only warns where it cannot write."""
    if name not in RECIPES:
        raise CorerlError(f"No recipe makes corerl/{name}; there are: {', '.join(RECIPES)}.")
    arrays = RECIPES[name](seed)
    path = download.data_dir("corerl") / _file(name, seed)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as f:
            np.savez_compressed(f, **arrays)
        os.replace(part, path)
    except OSError as e:
        warnings.warn(
            f"{path} could not be kept ({e.strerror}); made afresh each time", stacklevel=2
        )
    return _dataset(f"corerl/{name}", arrays)


def read(path: Path, id: str) -> Dataset:
    """A file that `make` wrote."""
    with reading(path, "an npz file"), np.load(path, allow_pickle=False) as file:
        return _dataset(id, {key: file[key] for key in file.files})


def find(name: str) -> Path | None:
    """Its file of seed 0, where it has been made."""
    return download.find("corerl", [_file(name, 0)])


def reference(name: str) -> tuple[float, float]:
    """Returns that score 0 and 100."""
    return REFERENCE[name]


def _file(name: str, seed: int) -> str:
    return f"{name}-v{VERSION}-seed{seed}.npz"


def _dataset(id: str, arrays: dict[str, np.ndarray]) -> Dataset:
    return Dataset.from_steps(
        id,
        arrays["observations"],
        arrays["actions"],
        arrays["rewards"],
        arrays["next_observations"],
        terminated=np.zeros(len(arrays["rewards"]), bool),
        truncated=arrays["truncated"],
    )
