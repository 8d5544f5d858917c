"""`ogbench/...`: the datasets of OGBench (Park et al. 2025, arXiv:2410.20092), state-based.

    ogbench/antmaze-large-navigate-v0                     five goals, for algorithms that know goals
    ogbench/antmaze-large-navigate-singletask-v0          the default task of that maze
    ogbench/cube-double-play-singletask-task4-v0          one of the five

A file holds observations, actions and terminals of trajectories whose last row has no successor. The
reward of a task (0 where solved, down to minus the number of its parts elsewhere) depends on goals that
only its environment knows, so OGBench's own package computes it: rewards and ends belong to the state
that is left, not to the one that is reached. A row where the task is solved is terminal although the
recording goes on, and an episode here ends there too.

OGBench reports the share of solved episodes; the score here is that share x 100.

With goals three things differ: a goal is jittered by up to 1.0 along x and y, success is judged after the
step, and the dataset has neither rewards nor ends.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from corerl.data import download, simulators
from corerl.data.dataset import Dataset
from corerl.data.files.arrays import flags
from corerl.data.files.io import check_keys, npz, reading
from corerl.envs.goal_tasks import GoalTasks
from corerl.envs.numpy_draws import NumpyDraws
from corerl.errors import CorerlError

URL = "https://rail.eecs.berkeley.edu/datasets/ogbench"
INSTALL = 'pip install "corerl[ogbench]"'
KEYS = ("observations", "actions", "terminals")
EXTRAS = ("qpos", "button_states")  # what the rewards are computed from
TASKS = 5

_KINDS = {
    ("pointmaze", ("medium", "large", "giant", "teleport")): ("navigate", "stitch"),
    ("antmaze", ("medium", "large", "giant", "teleport")): ("navigate", "stitch"),
    ("antmaze", ("medium", "large", "teleport")): ("explore",),
    ("humanoidmaze", ("medium", "large", "giant")): ("navigate", "stitch"),
    ("antsoccer", ("arena", "medium")): ("navigate", "stitch"),
    ("cube", ("single", "double", "triple", "quadruple")): ("play", "noisy"),
    ("scene", ("",)): ("play", "noisy"),
    ("puzzle", ("3x3", "4x4", "4x5", "4x6")): ("play", "noisy"),
}
DATASETS = tuple(
    "-".join(filter(None, (family, size, kind)))
    for (family, sizes), kinds in _KINDS.items()
    for size in sizes
    for kind in kinds
)


def names() -> list[str]:
    tasks = ["", "-singletask", *(f"-singletask-task{i + 1}" for i in range(TASKS))]
    return [f"{dataset}{task}-v0" for dataset in DATASETS for task in tasks]


def is_single(name: str) -> bool:
    """Tells whether a name is of one task, rather than of all goals."""
    return "-singletask" in name


def load(name: str) -> Dataset:
    """Loads the dataset of a task, downloaded if it is not in the data folder.

    Raises:
        CorerlError: the ogbench package, which computes a task's rewards, is not installed.
    """
    if is_single(name):
        _package()
    return read(find(name) or fetch(name), name)


def reference(name: str) -> None:
    """Returns None: OGBench does not scale returns."""


def find(name: str) -> Path | None:
    """Finds the file of the task's dataset. All tasks of a dataset share it."""
    return download.find("ogbench", [_file_name(name)])


def fetch(name: str) -> Path:
    """Downloads the dataset. OGBench publishes no checksums."""
    file = _file_name(name)
    return download.fetch(f"{URL}/{file}", download.data_dir("ogbench") / file)


def read(path: Path, name: str) -> Dataset:
    """Reads one npz file in OGBench's layout, with the rewards of task `name`, or 0 with goals."""
    needed = (*KEYS, "qpos") if is_single(name) else KEYS
    with npz(path, "an npz file") as file:
        check_keys(file, needed, "OGBench's")
        arrays = {key: file[key] for key in (*KEYS, *EXTRAS) if key in file.files}
    with reading(path, "an OGBench file"):
        for key, array in arrays.items():
            if len(array) != len(arrays["terminals"]):
                raise CorerlError(
                    f"{key} has {len(array)} rows, but terminals has {len(arrays['terminals'])}."
                )
        last = flags(arrays["terminals"], "terminals")
        if not last.size or not last[-1]:
            raise CorerlError(
                "its last trajectory has no end, so the file was cut short. Delete it and get it again."
            )
        rows = np.flatnonzero(~last)
        states = {key: arrays[key][rows] for key in EXTRAS if key in arrays}
        rewards, solved = np.zeros(len(rows), np.float32), np.zeros(len(rows), bool)
        if is_single(name):
            rewards, solved = _rewards(name, states)
        return Dataset.from_steps(
            f"ogbench/{name}",
            arrays["observations"][rows],
            arrays["actions"][rows],
            rewards,
            arrays["observations"][rows + 1],
            solved,
            last[rows + 1] & ~solved,
        )


def make_env(name: str) -> gymnasium.Env:
    """Makes the environment of a task: a `v0` of the ogbench package, without the dataset's kind."""
    _package()
    # Its robot makes a space of its actions at each reset, and a window where there is no screen.
    warnings.filterwarnings("ignore", ".*precision lowered.*", module=r"gymnasium\.spaces")
    warnings.filterwarnings("ignore", ".*DISPLAY environment variable is missing", module="glfw")
    if is_single(name):
        dataset, single, task = name.partition("-singletask")
        return Seeded(simulators.make(f"{dataset.rpartition('-')[0]}{single}{task}"))
    env = simulators.make(f"{_dataset(name).rpartition('-')[0]}-v0")
    return GoalTasks(Seeded(env), TASKS)


class Seeded(gymnasium.Wrapper):
    """Draws that follow from the seed, in the first episode and in those after it.

    Mazes draw starts, goals and teleports from numpy's global generator. A robot's goal is where some
    actions of a space lead, which the package seeds by chance, or makes anew each time.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._draws = NumpyDraws()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self._draws.seed(seed)
        space = self.unwrapped.action_space
        kind = type(self.unwrapped)
        with self._draws, mock.patch.object(kind, "action_space", space, create=True):
            space.seed(int(np.random.randint(2**31)))  # noqa: NPY002
            return self.env.reset(seed=seed, options=options)

    def step(self, action):
        with self._draws:
            return self.env.step(action)


def _dataset(name: str) -> str:
    """Returns the dataset of a task, without its version: `scene-play`."""
    return name.removesuffix("-v0").partition("-singletask")[0]


def _file_name(name: str) -> str:
    return f"{_dataset(name)}-v0.npz"


def _rewards(name: str, states: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns rewards `(N,)` and whether the task is solved `(N,)`, in these simulator states."""
    env = make_env(name)
    labelled: dict[str, Any] = dict(states)
    _package().relabel_dataset(env.spec.id, env, labelled)
    env.close()
    return labelled["rewards"], labelled["masks"] == 0


def _package():
    try:
        import ogbench  # noqa: F401  registers the environments
        from ogbench import relabel_utils
    except ImportError as error:
        raise CorerlError(f"OGBench's tasks need its package ({error}): {INSTALL}") from error
    return relabel_utils
