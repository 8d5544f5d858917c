"""Runs a user's own, unmodified checkout of CORL on a task of this library, and keeps every episode's return.

    corerl data export corerl/halfcheetah-replay-regenerated replay.hdf5
    python results/reproduced/same_data/run_corl.py CORL/algorithms/offline/td3_bc.py \\
        corerl/halfcheetah-replay-regenerated replay.hdf5 corl.csv --seeds 0 1 2 --set max_timesteps=40000

CORL's file is run as it is. What it imports and is not needed here, `gym`, `d4rl`, `wandb` and `pyrallis`,
is replaced by stand-ins of a few lines: the environment is the task's own, as `corerl train` evaluates in
it, with the initial states that it gives the same seed, and the data is the exported file, less the rows
at a time limit, which `d4rl.qlearning_dataset` leaves out (`--keep-time-limits`: with them).

Appended after each evaluation is a row `code,algorithm,task,seed,step,returns`, one return per episode.
"""

import argparse
import ast
import csv
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import h5py
import numpy as np
import torch

from corerl import seeding
from corerl.data.tasks import Task, resolve

COLUMNS = ("code", "algorithm", "task", "seed", "step", "returns")


class Env:
    """The task's environment with the interface of gym 0.23; it notes the return of each episode."""

    def __init__(self, task: Task, seed: int, episodes: int, returns: list[float]):
        self._env, self._seed, self._returns = task.make_env(), seed, returns
        self._total, self._episodes = 0.0, episodes
        self.observation_space, self.action_space = (
            self._env.observation_space,
            self._env.action_space,
        )
        self.seed()

    def seed(self, _seed: int | None = None) -> None:
        """Begins an evaluation anew: episode i starts from the state that corerl's episode i starts from."""
        rng = seeding.generator(self._seed, "eval")
        self._starts = iter(torch.randint(2**31 - 1, (self._episodes,), generator=rng).tolist())

    def reset(self) -> np.ndarray:
        self._total = 0.0
        return self._env.reset(seed=next(self._starts))[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._total += float(reward)
        if terminated or truncated:
            self._returns.append(self._total)
        return observation, reward, terminated or truncated, info

    def get_normalized_score(self, mean_return: float) -> float:
        """Leaves returns as they are: CORL multiplies what this gives by 100."""
        return mean_return / 100


class Transformed:
    """An environment whose observations or rewards pass through a function."""

    def __init__(self, env: Any, observation=lambda x: x, reward=lambda x: x):
        self._env, self._observation, self._reward = env, observation, reward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> np.ndarray:
        return self._observation(self._env.reset())

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict]:
        observation, reward, done, info = self._env.step(action)
        return self._observation(observation), self._reward(reward), done, info


def rows(path: Path, keep_time_limits: bool) -> dict[str, np.ndarray]:
    """Returns the rows that `d4rl.qlearning_dataset` makes of the file; its last one has no successor."""
    with h5py.File(path) as file:
        timeouts = file["timeouts"][:].astype(bool)
        names = ("observations", "actions", "next_observations", "rewards", "terminals")
        data = {name: _flat(file[name]) for name in names}
    keep = np.full(len(timeouts), True)
    if not keep_time_limits:
        keep = ~timeouts
        keep[-1] = False
    return {name: values[keep] for name, values in data.items()}


def _flat(values: h5py.Dataset | h5py.Group) -> np.ndarray:
    """Returns an array as it is, and a dictionary's parts by name, as the simulator lays them."""
    if isinstance(values, h5py.Dataset):
        return values[:]
    return np.concatenate([values[name][:] for name in sorted(values)], 1)


def stand_ins(env: Any, data: dict[str, np.ndarray], settings: dict, log: Any) -> dict:
    """Returns the modules that CORL imports, by name."""
    gym, d4rl, wandb, pyrallis = (ModuleType(n) for n in ("gym", "d4rl", "wandb", "pyrallis"))
    gym.Env = object
    gym.make = lambda name: env
    gym.wrappers = SimpleNamespace(
        TransformObservation=lambda env, f: Transformed(env, observation=f),
        TransformReward=lambda env, f: Transformed(env, reward=f),
    )
    d4rl.qlearning_dataset = lambda env: data
    wandb.init = lambda **_: None
    wandb.run = SimpleNamespace(save=lambda: None)
    wandb.log = log

    def wrap():
        def decorate(train):
            (config,) = (t for name, t in train.__annotations__.items() if name != "return")
            return lambda: train(config(**settings))

        return decorate

    pyrallis.wrap, pyrallis.dump = wrap, lambda config, file: None
    return {m.__name__: m for m in (gym, d4rl, wandb, pyrallis)}


def run(args: argparse.Namespace, seed: int) -> None:
    """Trains one seed and appends its returns to the file."""
    task, returns = resolve(args.task), []
    env = Env(task, seed, args.episodes, returns)
    settings = {
        "device": "cpu",
        "env": args.task,
        "seed": seed,
        "n_episodes": args.episodes,
        "eval_freq": args.every,
    } | dict(args.set)

    def log(values: dict, step: int) -> None:
        if step % args.every or len(returns) < args.episodes:
            return
        row = (args.code, args.script.stem, args.task, seed, step, texts(returns))
        with args.out.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        returns.clear()

    sys.modules.update(stand_ins(env, rows(args.data, args.keep_time_limits), settings, log))
    runpy.run_path(str(args.script), run_name="__main__")


def texts(returns: Iterable[float]) -> str:
    """Joins returns as `3468.9 -14.8`."""
    return " ".join(f"{r:.1f}" for r in returns)


def setting(text: str) -> tuple[str, Any]:
    """Parses `name=value`; what is no Python literal is a text, but for `true`, `false` and `null`."""
    name, _, value = text.partition("=")
    words = {"true": True, "false": False, "null": None}
    if value in words:
        return name, words[value]
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "script", type=Path, help="td3_bc.py, iql.py or cql.py of a checkout of CORL"
    )
    parser.add_argument("task", help="as in corerl train task=...")
    parser.add_argument("data", type=Path, help="its data, from corerl data export")
    parser.add_argument("out", type=Path, help="the CSV file that rows are added to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--every", type=int, default=5000, help="updates between evaluations")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--set", type=setting, nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep-time-limits", action="store_true")
    parser.add_argument("--code", default="CORL", help="what the rows are called")
    args = parser.parse_args(argv)
    if not args.out.exists():
        args.out.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    for seed in args.seeds:
        run(args, seed)


if __name__ == "__main__":
    torch.set_num_threads(1)  # what corerl gives a process of one seed on a CPU
    main()
