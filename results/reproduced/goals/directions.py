"""How well policies point the way on the embedded maze, by the steps that are left to the goal.

    python directions.py RUN SEED [RUN SEED ...]

Prints the mean cosine between a policy's action and the controller's that made the data, over all pairs of
free cells. 1 is the shortest way, 0 tells nothing.
"""

import sys

import numpy as np

import corerl
from corerl.envs.goal_maze import CELLS, DISTANCES, drive, observe

GROUPS = ((1, 1), (2, 3), (4, 6), (7, 10), (11, 20))


def main(run: str, seed: int) -> str:
    starts, goals = np.argwhere(DISTANCES > 0).T
    steps, way = DISTANCES[starts, goals], drive(CELLS[starts].astype(float), goals)
    shown = np.concatenate([observe(CELLS[starts]), observe(CELLS[goals])], 1)
    actions = np.asarray(corerl.load(run, seed).act(shown))
    cosine = (actions * way).sum(1) / np.linalg.norm(actions, axis=1) / np.linalg.norm(way, axis=1)
    means = (cosine[(steps >= low) & (steps <= high)].mean() for low, high in GROUPS)
    return "  ".join(
        f"{low}-{high}: {mean:.2f}" for (low, high), mean in zip(GROUPS, means, strict=True)
    )


for name, number in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    print(name, number, main(name, int(number)))
