"""How near a run's policy comes to the goals of the embedded maze: `closest.py RUN SEED` prints steps.

For each of the five tasks: the way at the start, the shortest that was left later, and the one at the end.
All are means over 10 episodes of 100 steps. An episode goes on after its goal.
"""

import sys

import numpy as np

import corerl
from corerl.envs import goal_maze as maze

EPISODES = 10


def main(run: str, seed: int) -> None:
    policy, rng = corerl.load(run, seed), np.random.default_rng(0)
    ends = np.repeat(np.array(maze.TASKS, float), EPISODES, 0)
    ends += rng.uniform(-maze.JITTER, maze.JITTER, ends.shape)
    positions, goals = ends[:, 0], ends[:, 1]
    policy.reset(len(ends))
    left = [distances(positions, goals)]
    for _ in range(maze.TIME_LIMIT):
        shown = np.concatenate([maze.observe(positions), maze.observe(goals)], 1)
        before, positions = positions, maze.move(positions, policy.act(shown))
        left.append(distances(positions, goals))
    resting = np.abs(positions - before).max(-1) < 1e-3
    print(f"{resting.sum()} of {len(ends)} episodes have come to rest")
    steps = np.array(left).reshape(len(left), len(maze.TASKS), EPISODES).mean(-1)
    lowest = np.array(left).min(0).reshape(-1, EPISODES).mean(-1)
    for task, row in enumerate(zip(steps[0], lowest, steps[-1], strict=True), start=1):
        print(
            f"task {task}: {row[0]:.1f} steps at the start, {row[1]:.1f} at best, {row[2]:.1f} at the end"
        )


def distances(positions: np.ndarray, goals: np.ndarray) -> np.ndarray:
    return maze.DISTANCES[maze.cell_of(positions), maze.cell_of(goals)]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
