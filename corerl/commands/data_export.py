"""`corerl data export`: a task's data, or what a trained policy does, for other people's code."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np

import corerl
from corerl.config import Data, require
from corerl.data import export
from corerl.data.dataset import Dataset
from corerl.data.files.own_files import with_parts
from corerl.data.observations import Flat, widths, wrapper
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.launch import task_arguments
from corerl.policies.load import load
from corerl.policies.loaded_policy import Loaded
from corerl.policies.simulation import simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `corerl data export` takes."""
    parser.add_argument("what", metavar="TASK|RUN", help="a dataset's task, or the folder of a run")
    parser.add_argument(
        "out", help="output, either FILE.hdf5 (in D4RL's layout) or minari/NAMESPACE/NAME-v0"
    )
    parser.add_argument(
        "settings", nargs="*", help=f"settings for your own file, {task_arguments.SETTINGS}"
    )
    parser.add_argument("--seed", type=int, help="for a run: one of its seeds (default: all)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=100,
        help="for a run: episodes to play with each seed (default: 100)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the data and says what it is."""
    minari = args.out.startswith("minari/")
    require(
        minari or args.out.endswith((".hdf5", ".h5")),
        f"The output {args.out} must be FILE.hdf5 or minari/NAMESPACE/NAME-v0",
    )
    if Path(args.what).is_dir():
        require(
            not args.settings,
            f"{args.what} is a run, which has its own settings. Leave out {' '.join(args.settings)}, because "
            "such settings are only for file/PATH",
        )
        require(args.episodes > 0, f"--episodes {args.episodes} must be positive")
        agent = load(args.what, args.seed)
        task, (dataset, seeds) = agent.task, rollouts(agent, args.episodes)
        made = f"{agent.label} on {task.id}, seed{'s' if len(seeds) > 1 else ''} "
        made += f"{', '.join(map(str, seeds))}, {args.episodes} episodes each"
        by = agent.label
    else:
        task = _ordered(task_arguments.task_of(args.what, args.settings))
        dataset, made, by = task.load(), f"{task.id}", task.id
    env = _environment(task)
    dataset = _with_parts(dataset, env)
    if minari:
        left_out = export.to_minari(
            dataset,
            args.out.removeprefix("minari/"),
            env,
            {
                "algorithm_name": by,
                "author": "corerl",
                "description": f"{made}, by corerl data export.",
            },
        )
        print(f"{args.out}: {made}")
        if left_out:
            print(
                f"  left out: the last step of {left_out:,} episodes, because it has no next observation"
            )
    else:
        facts = {"source": made, "corerl": corerl.__version__}
        export.to_hdf5(dataset, Path(args.out), facts)
        print(f"{args.out}: {made}")
    if env is not None:
        env.close()
    print(f"  {dataset}")
    return 0


def rollouts(agent: Loaded, episodes: int) -> tuple[Dataset, list[int]]:
    """Plays `episodes` whole episodes of every seed and returns them, one after the other, and the seeds.

    A seed whose environment crashes is left out: its last episodes have no end, and short ones no others.
    """
    played: list[list] = []  # by environment, seed by seed

    def recorder() -> gymnasium.Env:
        played.append([])
        return agent.task.make_env(lambda env: Recorder(env, played[-1]))

    returns = simulate(agent, agent.task, episodes, make_env=recorder).returns
    whole = ~np.isnan(returns).any(1)
    each = len(played) // len(whole)
    steps = [step for i, of_env in enumerate(played) if whole[i // each] for step in of_env]
    observations, actions, rewards, following, terminated, truncated = zip(*steps, strict=True)
    dataset = Dataset.from_arrays(
        np.asarray(observations),
        np.asarray(actions),
        np.asarray(rewards),
        np.asarray(terminated),
        np.asarray(truncated) & ~np.asarray(terminated),
        np.asarray(following),
        id=f"{agent.task.id} by {agent.label}",
    )
    require(
        len(dataset) > 0,
        "No seed played a whole episode, so there is nothing to export. Choose another run or --seed",
    )
    return dataset, [seed for seed, kept in zip(agent.seeds, whole, strict=True) if kept]


class Recorder(gymnasium.Wrapper):
    """A wrapper that appends every step to `steps`, as copies of what an environment may write into."""

    def __init__(self, env: gymnasium.Env, steps: list):
        super().__init__(env)
        self._steps, self._now = steps, None

    def reset(self, **kwargs):
        result = self.env.reset(**kwargs)
        self._now = np.array(result[0])
        return result

    def step(self, action):
        taken = np.array(action)
        result = self.env.step(action)
        following, reward, terminated, truncated, _ = result
        row = (self._now, taken, float(reward), following := np.array(following))
        self._steps.append((*row, bool(terminated), bool(truncated)))
        self._now = following
        return result


def _ordered(task: Task) -> Task:
    """Returns the task with the order of its file's parts of observations, as a run has it."""
    if task.collection != "file":
        return task
    data = task.data or Data()
    return replace(task, data=replace(data, columns=with_parts(task.name, data.columns)))


def _with_parts(dataset: Dataset, env: gymnasium.Env | None) -> Dataset:
    """Returns the dataset with the names and widths of the parts of the environment's observations."""
    if env is None:
        return dataset
    parts = widths(getattr(wrapper(env, Flat), "parts", {}))
    return dataset if parts == dataset.parts else replace(dataset, parts=parts)


def _environment(task: Task) -> gymnasium.Env | None:
    """Makes the task's environment. None without a simulator: the data's shapes are its spaces then."""
    try:
        return replace(task, history=1).make_env() if task.has_env else None
    except CorerlError:
        return None
