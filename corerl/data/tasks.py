"""A task is an id that names a dataset, the environment to evaluate in, and the score's scale.

d4rl/hopper-medium-v2        D4RL's files
minari/D4RL/door/human-v2    Minari datasets; ids of different collections are different data
adroit/door-binary           D4RL's demonstrations with rewards of -1 and 0
neorl2/DMSD                  NeoRL-2
ogbench/scene-play-singletask-v0   OGBench's single tasks
ogbench/scene-play-v0        and its goals: five tasks in one, for algorithms that know goals
corerl/pendulum              made by this package from a seed
risk/A, risk/pointmass       tasks with spread returns, some with data (corerl/data/risk.py)
gym/Hopper-v5                online: an environment without data
file/logs/robot.npz          a file of one's own (corerl/data/files/own_files.py)
maze/v0                      online: MD3QN's mazes, with rewards by source
atari/MsPacman               online: a game of the Arcade Learning Environment
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import gymnasium
from gymnasium import spaces

from corerl.config import Config, Data, require
from corerl.data import (
    adroit,
    d4rl,
    embedded,
    minari,
    neorl2,
    observations,
    ogbench,
    packed,
    risk,
    simulators,
)
from corerl.data.action_range import Narrow, Range, narrowed, parse
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.files.io import one_line
from corerl.envs import atari, mazes
from corerl.errors import CorerlError, nearest

COLLECTIONS = (
    *("d4rl", "minari", "adroit", "neorl2", "ogbench"),
    *("corerl", "risk", "gym", "maze", "atari", "file"),
)
READERS = {
    "d4rl": d4rl,
    "minari": minari,
    "adroit": adroit,
    "neorl2": neorl2,
    "ogbench": ogbench,
    "corerl": embedded,
    "risk": risk,
    "file": own_files,
}


@dataclass(frozen=True)
class Task:
    """A task as `resolve` finds it for an id. Loads nothing by itself.

    For a user's own file, `env` names the evaluation environment and `data` says how the file is read.
    """

    id: str
    collection: str
    name: str
    trust: bool = False  # runs the code of the environment that a dataset names
    env: str | None = None
    data: Data | None = field(default=None, hash=False)
    history: int = 1  # latest observations of an episode that are shown as one
    action_range: Range | None = None  # where a policy's [-1, 1] lies in the environment's

    def load(self, split: str = "train") -> Dataset:
        """Loads the dataset, downloaded or made where it is not on this machine yet.

        `split="val"` is the validation file, which only NeoRL-2 publishes.
        Raises CorerlError for an online task, and for a file that is missing or broken.
        """
        if self.collection not in READERS:
            raise CorerlError(
                f"{self.id} is an online task without a dataset. Choose an algorithm that learns "
                "online, such as sac or dqn."
            )
        dataset = self._read(split)
        if self.action_range is not None:
            dataset = narrowed(dataset, self.action_range)
        return observations.with_history(dataset, self.history) if self.history > 1 else dataset

    def _read(self, split: str) -> Dataset:
        if file := packed.find(self.id, split):
            return packed.read(file, self.id)
        if split == "train":
            return (
                self._load_own()
                if self.collection == "file"
                else READERS[self.collection].load(self.name)
            )
        if self.collection != "neorl2":
            raise CorerlError(f"{self.id} has no validation file. Only NeoRL-2's tasks have one.")
        return neorl2.load(self.name, split)

    def _load_own(self) -> Dataset:
        if self.env is None:
            return own_files.load(self.name, self.data)
        dataset = own_files.load(self.name, self.data, self.box)
        env = replace(self, history=1).make_env()
        fits = simulators.misfit(env, dataset)
        env.close()
        require(not fits, f"{self.id} does not fit env={self.env}: {fits}")
        return dataset

    @cached_property
    def box(self) -> tuple | None:
        """Returns the lowest and the highest action of the environment, as it is without this package."""
        env = self.make_env()
        space = (simulators.unscaled(env) or env).action_space
        env.close()
        return (space.low, space.high) if isinstance(space, spaces.Box) else None

    @property
    def has_data(self) -> bool:
        """Tells whether there is a dataset, on this machine or to be downloaded."""
        online = self.collection == "risk" and self.name not in risk.with_data()
        return self.collection in READERS and not online

    @property
    def is_here(self) -> bool:
        """Tells whether the dataset is on this machine."""
        if packed.find(self.id):
            return True
        return self.has_data and READERS[self.collection].find(self.name) is not None

    @property
    def has_file(self) -> bool:
        """Tells whether the dataset is read from files, rather than made each time."""
        return self.has_data and not (self.collection == "risk" and self.name in risk.RECIPES)

    def make_env(
        self, wrap: Callable[[gymnasium.Env], gymnasium.Env] | None = None
    ) -> gymnasium.Env:
        """Makes a new evaluation environment that takes the dataset's actions, in [-1, 1].

        `wrap` gets the environment before the task's range of actions and history are put around it.

        Raises CorerlError with the command to install a simulator that is missing, or the reason
        why there is none.
        """
        with _making(self.id):
            env = wrap(self._make()) if wrap else self._make()
            if self.action_range is not None:
                env = Narrow(env, self.action_range)
            return observations.History(env, self.history) if self.history > 1 else env

    def _make(self) -> gymnasium.Env:
        if self.collection == "corerl":
            return simulators.make_gym(embedded.ENVIRONMENTS[self.name])
        if self.collection == "minari":
            return simulators.make_minari(self.name, self.trust)
        if self.collection == "file":
            if self.env is None:
                raise CorerlError(f"{self.id} has no environment. Name one with env=gym/module:Id.")
            return simulators.make_gym(self.env.removeprefix("gym/"), own_files.listed(self.data))
        make = {
            "d4rl": simulators.make_d4rl,
            "adroit": adroit.make_env,
            "neorl2": simulators.make_neorl2,
            "ogbench": ogbench.make_env,
            "risk": risk.make_env,
            "gym": partial(simulators.make_gym, columns=own_files.listed(self.data)),
            "maze": mazes.make,
            "atari": atari.make,
        }[self.collection]
        return make(self.name)

    @property
    def has_env(self) -> bool:
        """Tells whether there is an environment to evaluate in. A user's own file may have none."""
        return self.collection != "file" or self.env is not None

    def make_training_env(self) -> gymnasium.Env:
        """Makes the environment for training: in an Atari game, an episode ends with a life."""
        if self.collection == "atari":
            with _making(self.id):
                return atari.make(self.name, life_loss=True)
        return self.make_env()

    @property
    def reference(self) -> tuple[float, float] | None:
        """Returns that score 0 and 100, or None where nobody has published them."""
        if self.collection not in READERS:
            return None
        return READERS[self.collection].reference(self.name)

    @property
    def goal_tasks(self) -> int:
        """Counts the goals of the environment, whose observations end with one. 0 without goals."""
        if self.collection == "ogbench":
            return 0 if ogbench.is_single(self.name) else ogbench.TASKS
        return embedded.GOAL_TASKS.get(self.name, 0) if self.collection == "corerl" else 0

    @property
    def scored_by_success(self) -> bool:
        """Tells whether a score is the share of solved episodes x 100, not a return on a scale."""
        solved = self.collection in ("ogbench", "adroit") or self.id.startswith("corerl/metaworld/")
        return solved or self.goal_tasks > 0

    def normalize(self, returns):
        """Scores a return, or an array of them: 100 (R - min) / (max - min), or None."""
        if self.reference is None:
            return None
        low, high = self.reference
        return 100 * (returns - low) / (high - low)


@contextmanager
def _making(task_id: str) -> Iterator[None]:
    """Turns errors of making an environment, also an exit of the program, into one sentence."""
    try:
        yield
    except CorerlError:
        raise
    except (Exception, SystemExit) as e:
        frames = traceback.extract_tb(e.__traceback__)
        # wandb, once it has been imported, stands in for sys.exit.
        frame = next((f for f in reversed(frames) if f.name != "exit"), frames[-1])
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise CorerlError(
            f"The environment of {task_id} cannot be made here ({one_line(e)}, {where})."
        ) from e


def resolve(task_id: str, trust: bool = False) -> Task:
    """Returns the task of an id such as `d4rl/hopper-medium-v2`. `trust` as in `Task`.

    Raises CorerlError with the nearest names for one that does not exist. A Minari id that is not
    in our list is taken on trust, since new datasets appear there; so is a `gym/module:id`.
    """
    collection, _, name = task_id.partition("/")
    shown = task_id if len(task_id) < 200 else f"{task_id[:40]}... ({len(task_id)} characters)"
    if collection not in COLLECTIONS or not name:
        raise CorerlError(
            f"Unknown task {shown}.{_suggest(shown)} Write a task as <collection>/<name>. Collections: "
            f"{', '.join(COLLECTIONS)}."
        )
    long = len(task_id) >= 200 and collection != "file"
    if long or not _exists(collection, name):
        raise CorerlError(f"Unknown task {shown}.{_suggest(shown)} corerl data list shows all.")
    return Task(task_id, collection, name, trust)


def of(cfg: Config) -> Task:
    """Returns the task of a run's settings: of your own file, with the environment that `env` names.

    Raises:
        CorerlError: as `resolve`; `env` or `data` is given for a task that has its own.
    """
    shown = {"history": cfg.history, "action_range": parse(cfg.action_range)}
    task = replace(resolve(cfg.task, cfg.trust), **shown)
    if task.collection == "file":
        return replace(task, env=cfg.env, data=cfg.data)
    require(
        cfg.env is None and cfg.data == Data(),
        f"The settings env and data are for task=file/PATH only. Leave them out with task={cfg.task}",
    )
    return task


def another(task: Task, task_id: str | None) -> Task:
    """Returns the task of `task_id` with observations and actions as `task` has its own. None is `task`.

    Another file of one's own is read as the run's was, and belongs to the same environment. An environment
    for a file's run lays the parts of observations as the file does.
    """
    if task_id is None or task_id == task.id:
        return task
    shown = {"history": task.history, "action_range": task.action_range}
    other = replace(resolve(task_id, task.trust), **shown)
    if task.collection == "file" and other.collection in ("file", "gym"):
        data = task.data and replace(task.data, sha256=None)
        return replace(other, env=task.env if other.collection == "file" else None, data=data)
    return other


def known_tasks() -> list[str]:
    """Lists the tasks that this version knows by name: those with a dataset, and others."""
    return [
        *(f"corerl/{name}" for name in embedded.names()),
        *(f"d4rl/{name}" for name in d4rl.names()),
        *(f"minari/{name}" for name in minari.names()),
        *(f"adroit/{name}" for name in adroit.names()),
        *(f"neorl2/{name}" for name in neorl2.names()),
        *(f"ogbench/{name}" for name in ogbench.names()),
        *(f"risk/{name}" for name in risk.names()),
        *(f"maze/{name}" for name in mazes.names()),
        *(f"atari/{name}" for name in atari.SOURCES),
    ]


def is_atari(env: gymnasium.Env) -> bool:
    """Tells whether this is a game of `atari/...`, with stacked frames and lives that may end episodes.

    A custom environment may call other things `stack` or `game_over`.
    """
    return isinstance(env.unwrapped, atari.Atari)


def _exists(collection: str, name: str) -> bool:
    if collection == "gym":
        return simulators.is_gym(name)
    if collection == "file":
        return True  # it may stand on another machine
    if collection == "minari":
        return minari.is_id(name)
    if collection == "maze":
        return name in mazes.names()
    if collection == "atari":
        return atari.is_game(name)
    return name in READERS[collection].names()


def _suggest(task_id: str) -> str:
    return nearest(task_id, [*known_tasks(), *(f"gym/{id}" for id in gymnasium.registry)])
