"""Trains ReBRAC or IQL on OGBench where there is a GPU and no simulator, and plays it where there is one.

    python on_gpu.py pack ogbench/cube-single-play-singletask-v0 cube.npz
    python on_gpu.py train rebrac ogbench/cube-single-play-singletask-v0 cube.npz policies --seeds 4
    python on_gpu.py play rebrac ogbench/cube-single-play-singletask-v0 policies scores.csv --seeds 0 1 2 3

`pack` needs OGBench's package, which computes the rewards, and `play` its simulator; `train` needs neither.
It writes the policies of all seeds every 100,000 updates.
"""

import argparse
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from corerl.config import Config
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.launch.composition import cells as composed
from corerl.launch.process_setup import numerics
from corerl.nn.learner import Spec
from corerl.seeding import generators
from corerl.training.evaluation import Evaluator
from corerl.training.run import Run

AGENTS = {"rebrac": ("ReBRAC", "actor"), "iql": ("IQL", "policy")}
EVERY = 100_000


class Trained(Run):
    """A run without a directory or a simulator, whose policies go to a folder."""

    def __init__(self, cfg: Config, seeds: list[int], data: Path, out: Path):
        super().__init__(cfg, seeds, lambda *_: None)
        self._data, self._out = data, out
        self.mode.tell = lambda text: None  # there is no status to tell it in

    def dataset(self) -> Dataset:
        with np.load(self._data) as arrays:
            return unpacked(self.task.id, dict(arrays))

    def steps(self, *, stride: int = 1, agent: Any, **_) -> Iterator[int]:
        name, began = self.cfg.algo.name, time.monotonic()
        for step in range(stride, self.cfg.steps + 1, stride):
            yield step
            if step % EVERY == 0 or step == self.cfg.steps:
                policy = getattr(agent, AGENTS[name][1]).state_dict()
                saved = {"step": step, "seeds": self.seeds}
                saved["policy"] = {part: value.cpu() for part, value in policy.items()}
                torch.save(saved, self._out / f"{name}-{step}.pt")
                rate = step / (time.monotonic() - began)
                print(f"{step:,} updates, {rate:,.0f}/s, {self.mode.reported()}", flush=True)

    def log(self, *_) -> None:
        """Does nothing; nor do the two others."""

    evaluate = save = log


def settings(name: str, task: str, *more: str) -> Config:
    (cfg,) = composed([f"algo={name}_ogbench", f"task={task}", *more])
    return cfg


def pack(task: str, out: Path) -> None:
    """Writes the task's data without its next observations, which are those of the next row or of `last`."""
    data = tasks.resolve(task).load()
    columns = {name: getattr(data, name) for name in ("observations", "actions", "rewards")}
    ends = {name: getattr(data, name) for name in ("terminated", "truncated")}
    np.savez_compressed(out, **columns, **ends, last=data.next_observations[data.episode_ends - 1])


def unpacked(task: str, arrays: dict[str, np.ndarray]) -> Dataset:
    """Returns the dataset that `pack` wrote."""
    last = arrays.pop("last")
    following = np.roll(arrays["observations"], -1, axis=0)
    following[arrays["terminated"] | arrays["truncated"]] = last
    return Dataset.from_steps(task, next_observations=following, **arrays)


def train(
    name: str, task: str, data: Path, out: Path, seeds: int, device: str, updates: int
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    cfg = settings(name, task, f"device={device}", f"steps={updates}", "precision=high")
    algorithm = importlib.import_module(f"corerl.algos.{name}")
    with numerics(cfg):
        algorithm.train(cfg.algo, Trained(cfg, list(range(seeds)), data, out))


def play(name: str, task: str, folder: Path, out: Path, episodes: int, seeds: list[int]) -> None:
    """Writes a row for each seed of each file of policies."""
    found, cfg = tasks.resolve(task), settings(name, task, "device=cpu", "compile=off")
    env = found.make_env()
    spec = Spec(
        env.observation_space.shape[0], env.action_space.shape[0], generators(seeds, "init")
    )
    env.close()
    kind, policy = AGENTS[name]
    agent = getattr(importlib.import_module(f"corerl.algos.{name}"), kind)(cfg.algo, spec)
    evaluator, rows = Evaluator(found.make_env, seeds, episodes), []
    for file in folder.glob(f"{name}-*.pt"):
        saved = torch.load(file, weights_only=True)
        lanes = [saved["seeds"].index(seed) for seed in seeds]
        weights = {part: value[lanes] for part, value in saved["policy"].items()}
        getattr(agent, policy).load_state_dict(weights)
        played = evaluator(agent.act)
        for seed, solved, returns in zip(seeds, played.successes, played.returns, strict=True):
            row = [task, cfg.algo.label, seed, saved["step"], 100 * solved.mean(), returns.mean()]
            rows.append([*row, episodes])
    columns = ["task", "algorithm", "seed", "step", "score", "return", "episodes"]
    table = pd.DataFrame(rows, columns=columns).sort_values(["seed", "step"])
    table.round(2).to_csv(out, index=False, lineterminator="\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="what", required=True)
    packing, training, playing = (commands.add_parser(name) for name in ("pack", "train", "play"))
    for command in (training, playing):
        command.add_argument("name", choices=sorted(AGENTS))
    for command in (packing, training, playing):
        command.add_argument("task")
    packing.add_argument("out", type=Path)
    training.add_argument("data", type=Path)
    training.add_argument("out", type=Path)
    training.add_argument("--seeds", type=int, default=4)
    training.add_argument("--device", default="cuda")
    training.add_argument("--updates", type=int, default=1_000_000)
    playing.add_argument("folder", type=Path)
    playing.add_argument("out", type=Path)
    playing.add_argument("--episodes", type=int, default=50)
    playing.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    args = vars(parser.parse_args())
    {"pack": pack, "train": train, "play": play}[args.pop("what")](**args)


if __name__ == "__main__":
    main()
