"""Draws the learned distances to one goal of `corerl/goal-maze`, and the exact ones.

    python distances.py runs/goal_maze distances.png

Distances in steps: of a value V, log(1 + (1 - discount) V) / log(discount); QRL's are its network's. Exact
ones are cells by the shortest way, of 0.75 cells a step.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from corerl.envs import goal_maze as maze
from corerl.policies.load import restored, settings

GOAL = (4, 6)
NAMES = ("gcivl", "hiql", "gciql", "qrl")


def steps_of(agent, name: str, states: torch.Tensor, goals: torch.Tensor) -> np.ndarray:
    """The distances `(n,)` of the first seed."""
    with torch.no_grad():
        if name == "qrl":
            return agent.distance(*(agent.distance.embed(x) for x in (states, goals)))[0].numpy()
        if name == "gciql":
            value = agent.value(torch.cat([states, goals], -1))[0]
        else:
            value = (agent.values if name == "hiql" else agent.value)(states, goals).mean(1)[0]
    left = (1 + (1 - agent.cfg.discount) * value).clamp(min=1e-3)
    return (left.log() / np.log(agent.cfg.discount)).numpy()


def main(runs: Path, out: Path) -> None:
    exact = maze.DISTANCES[:, maze.cell_of(np.array([GOAL]))[0]] / maze.SPEED
    pictures = {"exact": exact}
    for name in NAMES:
        for folder in sorted((runs / "corerl" / "goal-maze").glob(f"{name}-*")):
            cfg = settings(folder)
            agent = restored(cfg, folder / "seeds-0").state["agent"]
            states = torch.from_numpy(maze.observe(maze.CELLS.astype(float)))[None]
            goals = torch.from_numpy(maze.observe(np.array(GOAL, float))).expand_as(states)
            pictures[cfg.algo.label] = steps_of(agent, name, states, goals)
    figure, axes = plt.subplots(1, len(pictures), figsize=(2.6 * len(pictures), 2.4))
    for axis, (name, steps) in zip(np.atleast_1d(axes), pictures.items(), strict=True):
        picture = np.full(maze.MAZE.shape, np.nan)
        picture[tuple(maze.CELLS.T)] = steps
        shown = axis.imshow(picture, cmap="viridis_r", vmin=0, vmax=exact.max())
        axis.plot(GOAL[1], GOAL[0], "*", color="white", markersize=12)
        agreement = "" if name == "exact" else f" (r = {np.corrcoef(steps, exact)[0, 1]:.2f})"
        axis.set_title(f"{name}{agreement}", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(shown, ax=axes, label="steps to the star", shrink=0.8)
    figure.savefig(out, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
