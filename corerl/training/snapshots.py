"""Episodes that begin where a teacher was: snapshots of its simulator as resets (S3RL; Zhao et al. 2024,
arXiv:2403.00673).

A learner that starts in states of a good policy sees early what is worth reaching. In the first `until` steps
an episode begins in a snapshot, lasts `length` steps and is then truncated, so that its last value counts.
Afterwards episodes are the task's. The algorithm does not change. Snapshots are drawn evenly over classes,
which are clusters of the teacher's values (`classes`), so that rare states are not rare starts.

    corerl data snapshots runs/gym/Hopper-v4/sac-1234abcd --out starts.safetensors
    corerl train algo=td3 task=gym/Hopper-v4 algo.start.snapshots=starts.safetensors

Differences from the authors' code (sdpkjc/snapshotrl at 0f0d192):
 1. A started episode keeps the generator of its own environment. There a snapshot brings the teacher's, so
    that the same start meets the same noise each time.
 2. The episode that runs at step `until` is finished. There it is dropped.
 3. Clusters begin at quantiles, so that they do not depend on a seed.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers

from corerl.config import Settings, positive, require
from corerl.data.observations import wrapper
from corerl.data.tasks import Task
from corerl.runs import checkpoint
from corerl.training.environments import Environments
from corerl.training.run import Run
from corerl.training.simulator_state import load_simulator, opaque, save_simulator


@dataclass
class Starts(Settings):
    """Settings of where training episodes begin. Part of an online algorithm's `Config`."""

    prefix: ClassVar[str] = "algo.start."

    snapshots: str | None = None  # file made by `corerl data snapshots` (null: the task's starts)
    until: int = positive(100_000)  # steps per seed, after which episodes start as usual
    length: int = positive(100)  # steps of an episode that starts from a snapshot
    classes: int = positive(4)  # number of clusters of the teacher's values, drawn equally often


class Snapshots(NamedTuple):
    """States of a simulator, N of them."""

    task: str
    observations: torch.Tensor  # (N, O)
    values: torch.Tensor  # (N,), the teacher's values
    simulators: list[dict[str, Any]]

    def save(self, path: Path) -> None:
        """Writes them as one file."""
        checkpoint.save_checkpoint(path, self._asdict())

    @classmethod
    def load(cls, path: str, task: Task) -> "Snapshots":
        """Reads the file of a task.

        Raises:
            CorerlError: there is no such file, or it is of another task.
        """
        require(
            Path(path).is_file(),
            f"algo.start.snapshots={path} must be a file that exists. Make one: corerl data "
            f"snapshots RUN --out {path}",
        )
        saved = checkpoint.load_checkpoint(Path(path))
        require(
            set(saved) == set(cls._fields) and saved["task"] == task.id,
            f"algo.start.snapshots={path} has snapshots of {saved.get('task')}, not of {task.id}. "
            "Make a file for this task: corerl data snapshots RUN",
        )
        return cls(**saved)


class Snapper(gymnasium.Wrapper):
    """A wrapper that keeps the simulator's state at every reset and every `every`-th step inside an episode.

    Attributes:
        kept: pairs of an observation and a state.
    """

    def __init__(self, env: gymnasium.Env, every: int):
        super().__init__(env)
        self._every, self._count = every, 0
        self.kept: list[tuple[np.ndarray, dict[str, Any]]] = []

    def reset(self, **kwargs: Any):
        observation, info = self.env.reset(**kwargs)
        self._count = 0
        self._keep(observation)
        return observation, info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._count += 1
        if self._count % self._every == 0 and not (terminated or truncated):
            self._keep(observation)
        return observation, reward, terminated, truncated, info

    def _keep(self, observation: np.ndarray) -> None:
        self.kept.append((np.array(observation), save_simulator(self.env)))


class FromSnapshots(gymnasium.Wrapper):
    """A wrapper whose episodes begin in snapshots, until it has made enough steps.

    Args:
        members: the numbers of each class's snapshots.
    """

    def __init__(
        self, env: gymnasium.Env, snapshots: Snapshots, members: list[np.ndarray], starts: Starts
    ):
        super().__init__(env)
        self._snapshots, self._members, self._starts = snapshots, members, starts
        self._generator = np.random.default_rng()
        self._steps = 0
        self._left = -1  # steps of an episode from a snapshot (-1: an episode of the task's own)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._generator = np.random.default_rng((seed, 1))
        self._left = -1
        if self._steps >= self._starts.until:
            return observation, info
        members = self._members[self._generator.integers(len(self._members))]
        chosen = int(members[self._generator.integers(len(members))])
        bits = self.unwrapped.np_random.bit_generator
        own = bits.state
        load_simulator(self.env, deepcopy(self._snapshots.simulators[chosen]))
        bits.state = own
        limit = wrapper(self.env, wrappers.TimeLimit)
        if limit is not None:
            limit._elapsed_steps = 0
        self._left = self._starts.length
        return self._snapshots.observations[chosen].numpy().astype(observation.dtype), info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._left > 0:
            self._left -= 1
            truncated = truncated or self._left == 0
        return observation, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """The state of the starts, without the simulator."""
        generator = self._generator.bit_generator.state
        return {"steps": self._steps, "left": self._left, "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._left = state["steps"], state["left"]
        self._generator.bit_generator.state = state["generator"]


def classes(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns the numbers of the values in each of up to `count` clusters: k-means, from quantiles."""
    middles = np.quantile(np.unique(values), (np.arange(count) + 0.5) / count)
    nearest = np.zeros(len(values), int)
    for _ in range(100):
        nearest = np.abs(values[:, None] - middles).argmin(1)
        moved = [
            values[nearest == k].mean() if (nearest == k).any() else m
            for k, m in enumerate(middles)
        ]
        if np.array_equal(moved, middles):
            break
        middles = np.array(moved)
    return [rows for k in range(count) if len(rows := np.flatnonzero(nearest == k))]


def environments(run: Run, starts: Starts) -> Environments:
    """Makes the run's training environments, which begin in snapshots where the settings name some.

    Raises:
        CorerlError: the file cannot be read or is of another task, or the simulator cannot be restored.
    """
    return Environments(starting(run.task, starts), run.seeds, run.device)


def starting(task: Task, starts: Starts) -> Callable[[], gymnasium.Env]:
    """Returns what makes one of these environments."""
    if starts.snapshots is None:
        return task.make_env
    snapshots = Snapshots.load(starts.snapshots, task)
    members = classes(snapshots.values.double().numpy(), starts.classes)

    def make() -> gymnasium.Env:
        env = task.make_env()
        check_restorable(env)
        return FromSnapshots(env, snapshots, members, starts)

    return make


def check_restorable(env: gymnasium.Env) -> None:
    """Raises CorerlError where a part of the environment cannot be saved and restored."""
    layer = opaque(env)
    require(
        layer is None,
        f"{layer} cannot be restored in the middle of an episode, so no episode can start from "
        f"its snapshots. Give {layer} the methods state_dict and load_state_dict",
    )
