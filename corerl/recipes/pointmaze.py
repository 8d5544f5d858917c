"""`corerl/pointmaze`: a ball through three mazes, by D4RL's waypoint controller (Fu et al. 2020, Maze2D).

The controller plans the shortest way through the cells to the goal and drives from waypoint to waypoint
by a PD law with D4RL's gains; at the goal a new one is drawn, so that the data never tells how to reach
a given goal in one piece from everywhere, and a method has to stitch. Needs gymnasium-robotics.

    corerl data make corerl/pointmaze --size 300000
    python -m corerl.recipes.pointmaze   measures the reference returns in corerl.data.suites

Differences from D4RL's maze2d: gymnasium-robotics' mazes have other dynamics, coordinates and reward
radius, and goals vary from episode to episode and are observed. Actions carry the noise of D4RL's
`--noisy` (standard deviation 0.5), without which one state has one action.
"""

from __future__ import annotations

from collections import deque

import gymnasium
import numpy as np

from corerl.data import simulators, suites
from corerl.recipes import collecting
from corerl.recipes.collecting import Chunk

SIZE = 200_000
AT_ONCE = 10
NOISE = 0.5
P_GAIN, D_GAIN = 10.0, 1.0
REACHED = 0.1  # how near a waypoint counts, and how slow: metres, metres a step
SCATTER = 0.2  # side of the square in which waypoints are moved, so that ways through a cell differ
VERSION = 1


def make(wanted: list[str], seed: int, size: int | None, steps: int | None) -> dict[str, bool]:
    """Makes these sets. `{name: False}` for one that was there already. `steps` is not used.

    Raises:
        CorerlError: gymnasium-robotics is missing, or a set exists with other contents.
    """
    return {name: make_one(name, seed, size or SIZE) for name in wanted}


def make_one(name: str, seed: int, size: int) -> bool:
    environment = suites.ENVIRONMENTS[name]
    recipe = {"version": VERSION, "seed": seed, "environment": environment, "size": size}
    if collecting.is_made(name, recipe):
        return False
    chunk = _rollouts(environment, seed, name)
    collecting.collect(name, recipe, chunk, size, policy="waypoint controller", facts={})
    return True


def _rollouts(environment: str, seed: int, name: str) -> Chunk:
    envs = []

    def chunk(number: int) -> list[collecting.Episode]:
        if not envs:
            envs.extend(_make(environment, reset_target=True) for _ in range(AT_ONCE))
        return collecting.play(envs, Controller(envs), seed, f"{name}/{number}")

    return chunk


def _make(environment: str, reset_target: bool) -> gymnasium.Env:
    simulators.make_gym(environment)  # registers gymnasium-robotics, or says what to install
    env = gymnasium.make(environment, reset_target=reset_target, disable_env_checker=True)
    return gymnasium.wrappers.FlattenObservation(env)


class Controller:
    """A controller of n balls. Observations are achieved goal, desired goal, position and velocity."""

    def __init__(self, envs: list[gymnasium.Env], noise: float = NOISE):
        self._maze = envs[0].unwrapped.maze
        self._noise = noise
        self._goals = [np.full(2, np.nan) for _ in envs]
        self._ways: list[deque[np.ndarray]] = [deque() for _ in envs]

    def __call__(
        self, observations: np.ndarray, rng: np.random.Generator, actions: int
    ) -> np.ndarray:
        wanted = [self._drive(i, row, rng) for i, row in enumerate(observations)]
        noise = self._noise * rng.standard_normal((len(observations), actions))
        return np.clip(np.clip(wanted, -1, 1) + noise, -1, 1).astype(np.float32)

    def _drive(self, i: int, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        goal, position, velocity = row[2:4], row[4:6], row[6:8]
        if (goal != self._goals[i]).any():
            self._goals[i] = goal
            self._ways[i] = self._plan(position, goal, rng)
        way = self._ways[i]
        if len(way) > 1 and np.linalg.norm(position - way[0]) < REACHED:
            way.popleft()
        return P_GAIN * (way[0] - position) - D_GAIN * velocity

    def _plan(self, position: np.ndarray, goal: np.ndarray, rng) -> deque[np.ndarray]:
        """Plans scattered centres of the cells on a shortest way, and the goal itself."""
        start, end = (tuple(self._maze.cell_xy_to_rowcol(x)) for x in (position, goal))
        cells = shortest_way(np.array(self._maze.maze_map) == 1, start, end)
        centres = [self._maze.cell_rowcol_to_xy(np.array(cell)) for cell in cells[1:-1]]
        return deque([c + rng.uniform(-SCATTER, SCATTER, 2) / 2 for c in centres] + [goal])


def shortest_way(
    walls: np.ndarray, start: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Cells from `start` to `end`, both included, by breadth-first search. `walls` is True in a wall."""
    came_from = {end: end}
    frontier = deque([end])
    while frontier and start not in came_from:
        row, column = frontier.popleft()
        for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if near not in came_from and not walls[near]:
                came_from[near] = (row, column)
                frontier.append(near)
    way = [start]
    while way[-1] != end:
        way.append(came_from[way[-1]])
    return way


def reference_returns(environment: str, episodes: int = 1000) -> tuple[float, float]:
    """Measures mean returns of random actions and of the noise-free controller, in the evaluation task."""
    envs = [_make(environment, reset_target=False) for _ in range(AT_ONCE)]
    uniform = lambda obs, rng, n: rng.uniform(-1, 1, (len(obs), n)).astype(np.float32)  # noqa: E731
    means = []
    for purpose in ("random", "controller"):
        returns = []
        for number in range(episodes // AT_ONCE):
            act = uniform if purpose == "random" else Controller(envs, noise=0.0)
            played = collecting.play(envs, act, number, f"reference/{purpose}")
            returns += [float(e.rewards.sum()) for e in played]
        means.append(float(np.mean(returns)))
    return means[0], means[1]


if __name__ == "__main__":
    for name, environment in suites.ENVIRONMENTS.items():
        if name.startswith("pointmaze/"):
            low, high = reference_returns(environment)
            print(f"{name}: random {low:.1f}, controller {high:.1f}")
