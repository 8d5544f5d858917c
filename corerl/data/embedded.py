"""`corerl/...`: datasets of our own.

Some are made from a seed in seconds: the first load makes the file in the cache folder; delete it and it
is made again. One, of locomotion, comes with the package. The rest are suites that `corerl data make`
makes in minutes to hours (corerl/data/suites.py), and mixtures of their sets (corerl/data/mixtures.py).
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np

from corerl.data import download, mixtures, suites
from corerl.data.dataset import Dataset
from corerl.data.files.arrays import flags
from corerl.data.files.io import hdf5, npz, replacing
from corerl.envs import cartpole, courier, goal_maze, pendulum, stitch_maze
from corerl.errors import CorerlError

# Mean returns of uniform random actions and of the recipe's noise-free controller over 10,000 episodes
# (cartpole: 200, maze-stitch: 1,000, courier: 20,000): python -m corerl.envs.pendulum, .cartpole,
# .stitch_maze or .courier
REFERENCE = {
    "pendulum": (-1224.9, -150.1),
    "pendulum-logged": (-1224.9, -150.1),
    "pendulum-random-good-05": (-1224.9, -150.1),
    "cartpole": (22.3, 500.0),
    "maze-stitch": (-50.0, -13.5),
    "courier": (10.3, 24.0),
}
RECIPES = {
    "pendulum": pendulum.make,
    "pendulum-logged": pendulum.make_logged,
    "pendulum-random-good-05": pendulum.make_mixture,
    "cartpole": cartpole.make,
    "maze-stitch": stitch_maze.make,
    "courier": courier.make,
    **{name: partial(goal_maze.make, name) for name in goal_maze.RECORDINGS},
}
GOAL_TASKS = dict.fromkeys(goal_maze.RECORDINGS, len(goal_maze.TASKS))
"""Datasets without a reward, and how many goals each is evaluated with."""
PACKAGED = {"halfcheetah-replay-regenerated": "mujoco/halfcheetah-medium-replay-regenerated"}
"""Sets that come with the package, and the suite's set whose environment and scale they share."""
ENVIRONMENTS = {
    "pendulum": "Pendulum-v1",
    "pendulum-logged": "Pendulum-v1",
    "pendulum-random-good-05": "Pendulum-v1",
    "cartpole": "CartPole-v1",
    "maze-stitch": "corerl.envs.stitch_maze:corerl/StitchMaze",
    "courier": "corerl.envs.courier:corerl/Courier",
    **dict.fromkeys(GOAL_TASKS, "corerl.envs.goal_maze:corerl/GoalMaze"),
    **{name: suites.ENVIRONMENTS[like] for name, like in PACKAGED.items()},
    **suites.ENVIRONMENTS,
    **mixtures.ENVIRONMENTS,
}
VERSIONS = {"cartpole": 2}  # 1, raised when a recipe changes: an old file is not read for a new one


def names() -> list[str]:
    return list(ENVIRONMENTS)


def load(name: str, seed: int = 0) -> Dataset:
    """Loads the dataset `corerl/<name>` from its file. Those made in seconds also freshly, of this seed."""
    if name in mixtures.ENVIRONMENTS:
        return mixtures.load(name)
    if name in suites.ENVIRONMENTS:
        return suites.load(name)
    path = find(name) if name in PACKAGED else download.find("corerl", [_file(name, seed)])
    return read(path, f"corerl/{name}") if path else make(name, seed)


def make(name: str, seed: int = 0) -> Dataset:
    """Makes the dataset and writes its file to the cache folder. Only warns where it cannot write."""
    if name in PACKAGED:
        raise CorerlError(
            f"corerl/{name} comes with the package, so there is nothing to make. "
            + (
                f"Train with task=corerl/{name}."
                if find(name)
                else "Its file is missing: reinstall corerl."
            )
        )
    if name not in RECIPES:
        known = [*RECIPES, *dict.fromkeys(suite.partition("/")[0] for suite in suites.names())]
        raise CorerlError(f"corerl cannot make corerl/{name}. It can make {', '.join(known)}.")
    arrays = RECIPES[name](seed)
    path = download.data_dir("corerl") / _file(name, seed)
    try:
        with replacing(path) as part:
            np.savez_compressed(part, **arrays)
    except CorerlError as e:
        warnings.warn(
            f"{e} Until this is mended, corerl makes the dataset again in every run.", stacklevel=2
        )
    return _dataset(f"corerl/{name}", arrays)


def read(path: Path, id: str) -> Dataset:
    """Reads a file that `make` wrote, or one of the package."""
    if path.suffix == ".hdf5":
        return _read_packaged(path, id)
    with npz(path, "an npz file") as file:
        return _dataset(id, {key: file[key] for key in file.files})


def _read_packaged(path: Path, id: str) -> Dataset:
    """Reads D4RL's fields, and last states of episodes instead of a second copy of all states."""
    with hdf5(path) as file:
        rows = {key: file[key][()] for key in file}
        following = np.roll(rows["observations"], -1, 0)
        over = flags(rows["terminals"], "terminals") | flags(rows["timeouts"], "timeouts")
        following[over] = rows["last_observations"]
        return Dataset.from_steps(
            id,
            *(rows[key] for key in ("observations", "actions", "rewards")),
            following,
            rows["terminals"],
            rows["timeouts"],
        )


def find(name: str) -> Path | None:
    """Finds the task's file on this machine. The one of seed 0 for those made in seconds."""
    if name in mixtures.ENVIRONMENTS:
        return mixtures.find(name)
    if name in suites.ENVIRONMENTS:
        return suites.find(name)
    if name in PACKAGED:
        path = Path(__file__).parent / "packaged" / f"{name}.hdf5"
        return path if path.is_file() else None
    return download.find("corerl", [_file(name, 0)])


def reference(name: str) -> tuple[float, float] | None:
    """Returns that score 0 and 100: our own for pendulum, else the suite's, or None where success counts."""
    if name in GOAL_TASKS:
        return None
    return REFERENCE[name] if name in REFERENCE else suites.reference(PACKAGED.get(name, name))


def _file(name: str, seed: int) -> str:
    return f"{name}-v{VERSIONS.get(name, 1)}-seed{seed}.npz"


def _dataset(id: str, arrays: dict[str, np.ndarray]) -> Dataset:
    return Dataset.from_steps(
        id,
        arrays["observations"],
        arrays["actions"],
        arrays["rewards"],
        arrays["next_observations"],
        terminated=arrays.get("terminated", np.zeros(len(arrays["rewards"]), bool)),
        truncated=arrays["truncated"],
        behaviour_log_prob=arrays.get("behaviour_log_prob"),
        durations=arrays.get("durations"),
    )
