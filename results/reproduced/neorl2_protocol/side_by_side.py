"""Trains cells of NeoRL-2's TD3+BC grid side by side in one process, for a GPU that one cell leaves idle.

    python side_by_side.py train neorl2/DMSD cells.pt --cells .05:.5 .05:2.5 .1:.5 --device cuda
    python side_by_side.py play neorl2/DMSD cells.pt rows.csv

A cell's seeds are an axis of every tensor already; here the cells are along it too, with `alpha` and
`policy_noise` as tensors. A seed draws the same numbers in every cell, as it does alone. `train` writes
the policies, every minute and at the end; `play` gives each its 1,000 episodes, on a CPU, and writes rows
as `grids.py collect` does.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from grids import cell_of

from corerl.algos import td3_bc
from corerl.config import Config
from corerl.launch.composition import cells as composed
from corerl.launch.process_setup import numerics
from corerl.training import preprocessing
from corerl.training.evaluation import Evaluator
from corerl.training.run import Run

SEEDS = [7, 42, 210]
EVERY = 1000
"""Updates between looks at the clock."""


class SideBySide(Run):
    """A run without a directory, whose policies go to one file.

    Attributes:
        cells: alpha and policy_noise of each cell; its seeds follow each other.
    """

    def __init__(self, cfg: Config, cells: list[tuple[float, float]], out: Path):
        super().__init__(cfg, SEEDS * len(cells), lambda *_: None)
        self.cells, self._out = cells, out
        self.mode.tell = lambda text: None  # there is no status to tell it in

    def steps(self, *, stride: int = 1, agent: td3_bc.TD3BC, **_) -> Iterator[int]:
        began = saved = time.monotonic()
        for step in range(stride, self.cfg.steps + 1, stride):
            yield step
            if step % EVERY:
                continue
            now = time.monotonic()
            if now - saved > 60 or step == self.cfg.steps:
                print(
                    f"{step:,} updates, {step / (now - began):,.0f}/s, {self.mode.reported()}",
                    flush=True,
                )
                self._write(step, agent)
                saved = now

    def _write(self, step: int, agent: td3_bc.TD3BC) -> None:
        policies = {name: value.cpu() for name, value in agent.actor.state_dict().items()}
        torch.save({"step": step, "cells": self.cells, "actor": policies}, self._out)

    def log(self, *_) -> None:
        """Does nothing; nor do the two others."""

    evaluate = save = log


def settings(task: str, *more: str) -> Config:
    (cfg,) = composed(["algo=td3_bc_neorl2", f"task={task}", *more])
    return cfg


def train(task: str, out: Path, pairs: list[tuple[float, float]], *more: str) -> None:
    cfg = settings(task, *more)
    device = cfg.device
    lanes = torch.tensor([pair for pair in pairs for _ in SEEDS], device=device)
    algo = replace(cfg.algo)
    algo.alpha, algo.policy_noise = lanes[:, 0], lanes[:, 1, None, None]
    with numerics(cfg):
        td3_bc.train(algo, SideBySide(cfg, pairs, out))


def play(task: str, file: Path, out: Path, episodes: int) -> None:
    saved = torch.load(file, weights_only=True)
    cfg = settings(task, "device=cpu", "compile=off")
    run = SideBySide(cfg, saved["cells"], file)
    buffer, normalizer = preprocessing.load(run, cfg.algo.data, cfg.algo.batch_size, raw=True)
    agent = td3_bc.TD3BC(cfg.algo, run.spec(buffer, normalizer))
    agent.actor.load_state_dict(saved["actor"])
    returns = Evaluator(run.task.make_env, run.seeds, episodes)(agent.act).returns
    lanes = [pair for pair in saved["cells"] for _ in SEEDS]
    with open(out, "w", encoding="utf-8", newline="") as rows:
        for (alpha, noise), seed, mine in zip(lanes, run.seeds, returns, strict=True):
            cell = cell_of({"name": "td3_bc", "alpha": alpha, "policy_noise": noise})
            mean, std = round(mine.mean(), 3), round(mine.std(), 2)
            row = ["TD3+BC", task, cell, seed, mean, std, episodes, saved["step"], "", ""]
            csv.writer(rows, lineterminator="\n").writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "play"))
    parser.add_argument("task")
    parser.add_argument("policies", type=Path)
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--cells", nargs="+", help="alpha:policy_noise of each")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="highest", help="high: matmuls in TF32")
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args()
    if args.what == "play":
        play(args.task, args.policies, args.rows, args.episodes)
    else:
        cells = [tuple(float(x) for x in cell.split(":")) for cell in args.cells]
        more = (f"device={args.device}", f"precision={args.precision}", f"steps={args.updates}")
        train(args.task, args.policies, cells, *more)


if __name__ == "__main__":
    main()
