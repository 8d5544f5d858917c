"""Runs a user's own, unmodified copy of offlinerl's BC trainer, with which NeoRL-2's runs were made.

    pip download --no-deps offlinerl==0.0.2 && unzip -d offlinerl offlinerl-0.0.2-*.whl
    python results/reproduced/neorl2_protocol/run_offlinerl.py offlinerl DMSD offlinerl.csv \\
        --seeds 1 2 3 --layers 3 --lr 1e-3 --epochs 40

Its files are run as they are. What they import and is not needed here, `aim`, `loguru` and `sklearn`, is
replaced by stand-ins, and its packages are entered past `__init__` files that import every algorithm. The
policy that it chose plays 1,000 episodes in the benchmark's simulator, unseeded as in its own evaluation.

A row is appended for each seed, with the columns that `python grids.py compare` reads.
"""

import argparse
import csv
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._dynamo  # noqa: F401  which looks for sklearn, before a stand-in has its name

from corerl.data import neorl2, simulators

COLUMNS = (
    *("algorithm", "task", "cell", "seed", "return", "return_std", "episodes"),
    *("updates", "chosen", "validation_error"),
)
EPOCH, BATCH = 1000, 256


def enter(folder: Path) -> Any:
    """Returns offlinerl's module `bc`."""
    aim, loguru, sklearn = (ModuleType(name) for name in ("aim", "loguru", "sklearn.preprocessing"))
    aim.Run, loguru.logger, sklearn.MinMaxScaler = None, SimpleNamespace(info=print), None
    sys.modules |= {m.__name__: m for m in (aim, loguru, sklearn, ModuleType("sklearn"))}
    for name in ("offlinerl", "offlinerl.algo", "offlinerl.algo.modelfree"):
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    bc = importlib.import_module("offlinerl.algo.modelfree.bc")
    bc.BaseAlgo.__init__ = lambda trainer, args: None  # which opens its logs
    return bc


def buffer(task: str, split: str) -> Any:
    """Returns a file of the task as the trainer's own kind of batch."""
    data = neorl2.load(task, split)
    made = sys.modules["offlinerl.utils.data"].SampleBatch
    return made(obs=data.observations, act=data.actions)


def trained(bc: Any, args: argparse.Namespace, seed: int) -> tuple[Any, list[float]]:
    """Trains one seed; returns the policy that was chosen and the validation error of every epoch."""
    train, validation, errors = buffer(args.task, "train"), buffer(args.task, "val"), []
    settings = {
        "seed": seed,
        "obs_shape": train["obs"].shape[1],
        "action_shape": train["act"].shape[1],
        "max_action": 1.0,
        "actor_features": 256,
        "actor_layers": args.layers,
        "actor_lr": args.lr,
        "batch_size": BATCH,
        "steps_per_epoch": EPOCH,
        "max_epoch": args.epochs,
        "device": "cpu",
    }
    trainer = bc.AlgoTrainer(bc.algo_init(settings), settings)
    batches = -(-len(validation) // BATCH)
    trainer.log_res = lambda epoch, found: errors.append(found["loss"] / batches)
    trainer.report_result = None
    trainer.train(train, validation, callback_fn=lambda policy: {})
    return trainer.get_policy(), errors


@torch.no_grad()
def played(policy: Any, task: str, episodes: int) -> np.ndarray:
    """Returns the return of every episode."""
    env, returns = simulators.make_neorl2(task), np.zeros(episodes)
    for i in range(episodes):
        (state, _), over = env.reset(), False
        while not over:
            action = policy.get_action(state[None]).reshape(-1)
            state, reward, terminated, truncated, _ = env.step(action)
            returns[i] += reward
            over = terminated or truncated
    return returns


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the unpacked wheel of offlinerl 0.0.2")
    parser.add_argument("task", help="DMSD or Simglucose")
    parser.add_argument("out", type=Path, help="the CSV file that rows are added to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 42, 210])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1000, help="of 1,000 updates")
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args(argv)
    bc = enter(args.folder)
    if not args.out.exists():
        args.out.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    cell = f"actor_layers={args.layers} actor_lr={args.lr:g}"
    for seed in args.seeds:
        policy, errors = trained(bc, args, seed)
        returns = played(policy, args.task, args.episodes)
        run = ("BC", f"neorl2/{args.task}", cell, seed)
        score = (f"{returns.mean():.3f}", f"{returns.std():.2f}", args.episodes)
        chosen = (args.epochs * EPOCH, (int(np.argmin(errors)) + 1) * EPOCH, f"{min(errors):.4f}")
        with args.out.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow((*run, *score, *chosen))


if __name__ == "__main__":
    torch.set_num_threads(1)  # what corerl gives a process of one seed on a CPU
    main()
