"""`corerl/maze-stitch`: a point in a U-shaped maze, and recordings that are too short to copy to the goal.

Every recorded episode lasts at most 8 steps and drives to random places nearby, in either direction. The
way from the start to the goal takes about 13 steps, so that no episode sees both ends. A policy that clones
the data averages the two directions. A policy that learns values stitches the pieces together. Each step
pays -1, the one that reaches the goal 0.

`python -m corerl.envs.stitch_maze` prints the reference returns stored in `corerl.data.embedded`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from corerl.envs.restorable import Restorable

MAZE = np.array([list(row) for row in ("S....", "####.", "G....")])
SPEED = 0.75  # cells a step, along each axis
REACHED = 0.5  # cells from the goal's centre
TIME_LIMIT = 50
EPISODES, STEPS = 6_000, 8
NEARBY = 3  # cells along the way, to a recorded episode's next target
NOISE = 0.5


def _way() -> np.ndarray:
    """Returns the free cells (row, column) in their order from the start to the goal."""
    free = {tuple(cell) for cell in np.argwhere(MAZE != "#").tolist()}
    way = [tuple(np.argwhere(MAZE == "S")[0].tolist())]
    while len(way) < len(free):
        row, column = way[-1]
        near = ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1))
        way.append(next(cell for cell in near if cell in free and cell not in way))
    return np.array(way, float)


WAY = _way()
START, GOAL = WAY[0], WAY[-1]
MIDDLE = (np.array(MAZE.shape) - 1) / 2
FREE = np.pad(MAZE != "#", 1)


class StitchMaze(Restorable):
    """An observation is the position in cells, counted from the middle of the maze."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Box(-2.5, 2.5, (2,), np.float32)
    kept = ("position",)

    def __init__(self):
        self.position = START.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.position = START + self.np_random.uniform(-0.3, 0.3, 2)
        return observe(self.position), {}

    def step(self, action: np.ndarray):
        self.position = move(self.position[None], np.asarray(action)[None])[0]
        over = bool(at_goal(self.position))
        return observe(self.position), float(over) - 1, over, False, {}


gymnasium.register("corerl/StitchMaze", entry_point=StitchMaze, max_episode_steps=TIME_LIMIT)


def move(positions: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Moves the points (n, 2) along rows, then along columns. A move into a wall has no effect."""
    positions = positions.copy()
    for axis in (0, 1):
        moved = positions.copy()
        moved[:, axis] += SPEED * np.clip(actions[:, axis], -1, 1)
        positions = np.where(_is_free(moved)[:, None], moved, positions)
    return positions


def at_goal(positions: np.ndarray) -> np.ndarray:
    """Returns for points (n, 2) or one (2,) whether they have reached the goal."""
    return np.linalg.norm(positions - GOAL, axis=-1) < REACHED


def _is_free(positions: np.ndarray) -> np.ndarray:
    row, column = np.rint(positions).astype(int).T + 1
    return FREE[row, column]


def observe(positions: np.ndarray) -> np.ndarray:
    """Returns (n, 2) float32: rows and columns from the middle."""
    return (positions - MIDDLE).astype(np.float32)


def drive(positions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the actions (n, 2) that lead along the way to the cells with the indices `targets`."""
    here = np.linalg.norm(positions[:, None] - WAY, axis=-1).argmin(1)
    following = WAY[here + np.sign(targets - here)]
    return np.clip((following - positions) / SPEED, -1, 1)


def make(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns the recorded steps of N rows, the same for the same seed and numpy.

    observations, next_observations and actions (N, 2), rewards, terminated and truncated (N,).
    """
    rng = np.random.default_rng([seed, 0x57])
    here = rng.integers(len(WAY) - 1, size=EPISODES)
    positions = WAY[here] + rng.uniform(-0.4, 0.4, (EPISODES, 2))
    alive = ~at_goal(positions)
    targets, columns = here, []
    for step in range(STEPS):
        here = np.linalg.norm(positions[:, None] - WAY, axis=-1).argmin(1)
        drawn = np.clip(here + rng.integers(-NEARBY, NEARBY + 1, EPISODES), 0, len(WAY) - 1)
        targets = np.where(here == targets, drawn, targets)
        noisy = drive(positions, targets) + NOISE * rng.standard_normal((EPISODES, 2))
        actions = np.clip(noisy, -1, 1).astype(np.float32)
        after = move(positions, actions)
        over = at_goal(after)
        columns.append(
            {
                "observations": observe(positions),
                "actions": actions,
                "rewards": over.astype(np.float32) - 1,
                "next_observations": observe(after),
                "terminated": over,
                "truncated": ~over & (step == STEPS - 1),
                "alive": alive,
            }
        )
        positions, alive = after, alive & ~over
    stacked = {key: np.stack([column[key] for column in columns], 1) for key in columns[0]}
    alive = stacked.pop("alive")
    return {key: x[alive] for key, x in stacked.items()}


def reference_returns(episodes: int = 1000) -> tuple[float, float]:
    """Measures mean returns of uniform random actions and of the noise-free controller."""
    env = gymnasium.make("corerl/StitchMaze")
    env.action_space.seed(0)
    goal = np.array([len(WAY) - 1])
    means = []
    for is_random in (True, False):
        total = 0.0
        for episode in range(episodes):
            env.reset(seed=episode)
            over = False
            while not over:
                position = env.unwrapped.position[None]
                action = env.action_space.sample() if is_random else drive(position, goal)[0]
                _, reward, terminated, truncated, _ = env.step(action)
                total, over = total + reward, terminated or truncated
        means.append(total / episodes)
    return means[0], means[1]


if __name__ == "__main__":
    low, high = reference_returns()
    print(f"maze-stitch over 1,000 episodes: random {low:.1f}, controller {high:.1f}")
