"""`corerl/goal-maze...`: a point in a maze that is to reach any place of it.

    corerl/goal-maze            long recordings, from one random goal to the next
    corerl/goal-maze-stitch     short ones, of four cells each

The five tasks ask for ways of 10 to 17 cells, so that no short recording has one. The maze is a small
stand-in for OGBench's PointMaze, without a simulator: a dataset is made in a second.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from corerl.envs.goal_tasks import GoalTasks
from corerl.envs.restorable import Restorable

MAZE = np.array([list(row) for row in (".....#.", ".##.##.", "...#...", "##.#.#.", ".....#.")])
TASKS = (((0, 0), (4, 6)), ((0, 6), (0, 3)), ((4, 0), (0, 4)), ((0, 4), (2, 6)), ((4, 6), (4, 0)))
"""Start and goal of each task, (row, column)."""
SPEED = 0.75  # cells a step, along each axis
REACHED = 0.5  # cells from the goal
TIME_LIMIT = 100
NOISE = 0.5  # of the recorded actions
JITTER = 0.3  # cells, of starts and goals
NEARBY = 4  # cells from the start of a short recording to its goal
RECORDINGS = {"goal-maze": (1_000, 100), "goal-maze-stitch": (5_000, 20)}
"""How many episodes a dataset has, and how many steps each."""
MIDDLE = (np.array(MAZE.shape) - 1) / 2
FREE = np.pad(MAZE != "#", 1)
CELLS = np.argwhere(MAZE != "#")
"""The free cells (row, column); the number of a cell is its place here."""


def _distances() -> np.ndarray:
    """Returns the steps between all pairs of free cells."""
    apart = np.abs(CELLS[:, None] - CELLS).sum(-1)
    distances = np.where(apart <= 1, apart, len(CELLS)).astype(float)
    for between in range(len(CELLS)):  # Floyd and Warshall
        through = distances[:, between, None] + distances[between]
        distances = np.minimum(distances, through)
    return distances


DISTANCES = _distances()


class GoalMaze(Restorable):
    """An observation is the position in cells, counted from the middle. A step pays -1, the last one 0."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Box(-4, 4, (2,), np.float32)
    kept = ("position", "goal")

    def __init__(self):
        self.position = self.goal = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        start, goal = TASKS[(options or {}).get("task_id", 1) - 1]
        self.position, self.goal = np.add(
            [start, goal], self.np_random.uniform(-JITTER, JITTER, (2, 2))
        )
        return observe(self.position), {"goal": observe(self.goal)}

    def step(self, action: np.ndarray):
        self.position = move(self.position[None], np.asarray(action)[None])[0]
        over = bool(np.linalg.norm(self.position - self.goal) < REACHED)
        return observe(self.position), float(over) - 1, over, False, {"success": float(over)}


def make_env() -> gymnasium.Env:
    """Makes the maze with the goal behind the position."""
    return GoalTasks(GoalMaze(), len(TASKS))


gymnasium.register("corerl/GoalMaze", entry_point=make_env, max_episode_steps=TIME_LIMIT)


def observe(positions: np.ndarray) -> np.ndarray:
    """Returns (n, 2) float32: rows and columns from the middle."""
    return (positions - MIDDLE).astype(np.float32)


def move(positions: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Moves the points (n, 2) along rows, then along columns, as far as the next wall."""
    positions = positions.copy()
    for axis in (0, 1):
        moved = positions.copy()
        moved[:, axis] += SPEED * np.clip(actions[:, axis], -1, 1)
        row, column = np.rint(moved).astype(int).T + 1
        at_wall = np.rint(positions[:, axis]) + 0.49 * np.sign(actions[:, axis])
        positions[:, axis] = np.where(FREE[row, column], moved[:, axis], at_wall)
    return positions


def cell_of(positions: np.ndarray) -> np.ndarray:
    """Returns the numbers (n,) of the cells nearest to the positions (n, 2)."""
    return np.linalg.norm(positions[:, None] - CELLS, axis=-1).argmin(1)


def drive(positions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the actions (n, 2) that lead to the cells with the numbers `targets`."""
    here = cell_of(positions)
    reachable = np.where(DISTANCES[here] <= 1, DISTANCES[targets], np.inf)
    following = CELLS[reachable.argmin(1)]
    return np.clip((following - positions) / SPEED, -1, 1)


def make(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns the recorded steps of N rows, the same for the same seed and numpy.

    observations, next_observations and actions (N, 2), rewards and truncated (N,). Episodes go on at a goal:
    to another one, or in short recordings there.
    """
    episodes, steps = RECORDINGS[name]
    rng = np.random.default_rng([seed, 0x60, episodes])
    here = rng.integers(len(CELLS), size=episodes)
    positions = CELLS[here] + rng.uniform(-JITTER, JITTER, (episodes, 2))
    short = name.endswith("-stitch")
    goals = _near(here, rng) if short else rng.integers(len(CELLS), size=episodes)
    columns = []
    for _ in range(steps):
        reached = np.linalg.norm(positions - CELLS[goals], axis=-1) < REACHED
        if not short:
            goals = np.where(reached, rng.integers(len(CELLS), size=episodes), goals)
        noisy = drive(positions, goals) + NOISE * rng.standard_normal((episodes, 2))
        actions = np.clip(noisy, -1, 1).astype(np.float32)
        after = move(positions, actions)
        columns.append((observe(positions), actions, observe(after)))
        positions = after
    arrays = [np.stack(column, 1).reshape(-1, 2) for column in zip(*columns, strict=True)]
    observations, actions, following = arrays
    return {
        "observations": observations,
        "actions": actions,
        "next_observations": following,
        "rewards": np.zeros(len(actions), np.float32),
        "truncated": np.arange(1, len(actions) + 1) % steps == 0,
    }


def _near(here: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws for each cell one that is `NEARBY` steps away, or the cell itself where there is none."""
    goals = here.copy()
    for i, cell in enumerate(here):
        choices = np.flatnonzero(DISTANCES[cell] == NEARBY)
        if len(choices):
            goals[i] = rng.choice(choices)
    return goals
