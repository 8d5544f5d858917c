"""What MD3QN has learned of a maze, drawn over the law that it was to learn.

    python joint.py runs/md3qn_mazes/maze/v1-vector/md3qn-0a1b2c3d/seeds-0 --out v1.png

A panel for each pair of sources: the particles of Z at the start, under the policy whose law the run
learned, over the discounted returns of episodes played with that policy. The numbers above a panel are the
correlations of both, and those beside the axes the means.
"""

import argparse
import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from corerl.algos import md3qn
from corerl.envs import mazes
from corerl.errors import CorerlError
from corerl.policies.load import restored, settings
from corerl.report import colours, drawing
from corerl.report.files import write
from corerl.runs import checkpoint
from corerl.runs.files import read_yaml


def load(run: Path) -> tuple[md3qn.MD3QN, mazes.MazeEnv]:
    """Loads the agent of a run's folder `seeds-<n>`, of its first seed alone, and its maze.

    Raises:
        CorerlError: it is not a run of MD3QN on a maze, or has no checkpoint that can be read.
    """
    try:
        saved = read_yaml(run.parent / "config.yaml")
        own, task = dict(saved["algo"]), saved["task"]
    except (CorerlError, KeyError, TypeError) as error:
        raise CorerlError(f"{run} is not a run: config.yaml beside it cannot be read.") from error
    if own["name"] != "md3qn" or not task.startswith("maze/"):
        raise CorerlError(f"{run} is {own['name']} on {task}. The figure needs md3qn on a maze.")
    cfg = replace(settings(run.parent), device="cpu")
    env = mazes.make(task.removeprefix("maze/"))
    if cfg.algo.sources == "total" or len(env.maze.sources) < 2:
        raise CorerlError(
            f"{run} learned the distribution of one return. The figure needs pairs of sources."
        )
    path = checkpoint.path_in(run)
    if not path.exists():
        raise CorerlError(f"{run} has no {path.name}, so there is no agent to draw.")
    return restored(cfg, run).state["agent"], env


def learned(agent: md3qn.MD3QN, env: mazes.MazeEnv) -> np.ndarray:
    """Particles `(N, K)` of the return from the start: of all actions alike, or of the best."""
    start, _ = env.reset(seed=0)
    with torch.no_grad():
        particles = agent.particles(_seen(agent, start))[0, 0]
    if agent.cfg.policy == "uniform":
        return particles.flatten(0, 1).numpy()
    return particles[particles.mean((1, 2)).argmax()].numpy()


def _seen(agent: md3qn.MD3QN, observation: np.ndarray) -> torch.Tensor:
    """Expands one observation `(...)` to all seeds of the agent, `(S, 1, ...)`."""
    seeds = agent.particles.head.weight.shape[0]
    return torch.from_numpy(observation).expand(seeds, 1, *observation.shape)


def played(agent: md3qn.MD3QN, env: mazes.MazeEnv, episodes: int) -> np.ndarray:
    """Returns the policy's discounted returns `(episodes, K)`; no time limit cuts them, as in learning."""
    rng = np.random.default_rng(0)
    returns = np.zeros((episodes, len(env.maze.sources)))
    for episode in range(episodes):
        x, _ = env.reset(seed=episode)
        over, weight = False, 1.0
        while not over:
            if agent.cfg.policy == "uniform":
                action = int(rng.integers(env.action_space.n))
            else:
                action = int(agent.act(_seen(agent, x))[0, 0])
            x, _, terminated, truncated, info = env.step(action)
            returns[episode] += weight * info["reward_vector"]
            weight *= agent.cfg.discount
            over = terminated or truncated
    return returns


def figure(particles: np.ndarray, returns: np.ndarray) -> Figure:
    """Draws both laws, `(N, K)`, pair by pair of sources."""
    pairs = list(itertools.combinations(range(returns.shape[1]), 2))
    across = min(3, len(pairs))
    down = math.ceil(len(pairs) / across)
    drawn, axes = drawing.grid(down, across, max(drawing.HALF[0], 3.1 * across), 2.9 * down + 0.4)
    for axis, (i, j) in zip(axes, pairs, strict=False):
        axis.plot(*returns[:, [i, j]].T, "o", color="#8c8f94", alpha=0.15, markersize=3, mew=0)
        axis.plot(*particles[:, [i, j]].T, "o", color=colours.PALETTE[1], markersize=3, mew=0)
        found = [np.corrcoef(x[:, i], x[:, j])[0, 1] for x in (particles, returns)]
        axis.set_title("correlation {:.2f} (played {:.2f})".format(*found))
        for k, name in ((i, axis.set_xlabel), (j, axis.set_ylabel)):
            means = particles[:, k].mean(), returns[:, k].mean()
            name("source {}: mean {:.3f} ({:.3f})".format(k + 1, *means))
    for axis in axes[len(pairs) :]:
        axis.set_visible(False)
    return drawn


def main(arguments: list[str] | None = None) -> int:
    """Draws a run's picture; 0, or 1 with a sentence on what is wrong."""
    parser = argparse.ArgumentParser(prog="python joint.py", description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder seeds-<n>")
    parser.add_argument("--out", type=Path, default=Path("joint.png"), help="the picture to write")
    parser.add_argument("--episodes", type=int, default=3000, help="episodes to play")
    args = parser.parse_args(arguments)
    try:
        agent, env = load(args.run)
        returns = played(agent, env, args.episodes)
        png, *_ = drawing.render(lambda: figure(learned(agent, env), returns), "joint")
        print(write(args.out, png))
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
