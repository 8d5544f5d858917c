"""Updates per second of each algorithm on this machine: its own training loop on synthetic data.

One update is one critic (or policy, where there is no critic) update of one seed; `total` counts all
seeds. Data: Gaussian transitions of HalfCheetah's size (17 observations, 6 actions). Every row is the
median of windows of about a second, after warming up; no window evaluates or saves. An online algorithm
acts in HalfCheetah-v4, and its update is an environment step with all that belongs to it.
"""

import argparse
import importlib
import itertools
import multiprocessing
import queue
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from corerl import algos
from corerl.config import Config, require
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.errors import CorerlError, nearest
from corerl.experiments.process import set_up
from corerl.nn import compile
from corerl.runs import provenance
from corerl.runs.record import Record
from corerl.training.run import Run, pick_device

OBSERVATIONS, ACTIONS = 17, 6


class Stopwatch(Run):
    """Stands in for a run: the same training function, with windows of time instead of steps."""

    def __init__(self, cfg: Config, seeds: list[int], size: int, windows: Iterator[None], report):
        self.cfg, self.seeds = cfg, seeds
        self.device = pick_device(cfg.device)
        self.mode = compile.resolve(cfg.compile, self.device, cfg.steps)
        self.task = resolve("gym/HalfCheetah-v4")
        self._size, self._windows, self._report = size, windows, report
        self.record = Record(cfg, seeds, self.task, Path(), lambda *_: None)
        self._previous = 0

    def dataset(self) -> Dataset:
        return synthetic(self._size)

    def steps(self, *, stride: int = 1, seconds: float = 1.0, **state) -> Iterator[int]:
        numbers = itertools.count(stride, stride)
        # The first updates compile and capture the graph; online, random steps come before them.
        for _ in range(8 + getattr(self.cfg.algo, "random_steps", 0)):
            yield next(numbers)
        for _ in self._windows:
            self._wait()
            updates, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                yield next(numbers)
                updates += stride
            self._wait()
            self._report(updates * len(self.seeds) / (time.perf_counter() - start))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def evaluate(self, step, act, also=None) -> None:
        """Nothing: only updates are timed."""

    def save(self, step) -> None:
        """Nothing: only updates are timed."""


def synthetic(size: int) -> Dataset:
    """`size` Gaussian transitions in episodes of 1000."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    truncated = np.arange(1, size + 1) % 1000 == 0
    observations = normal(size, OBSERVATIONS)
    return Dataset.from_steps(
        id="bench/synthetic",
        observations=observations,
        actions=np.tanh(normal(size, ACTIONS)),
        rewards=normal(size),
        next_observations=np.roll(observations, -1, 0),
        terminated=np.zeros(size, bool),
        truncated=truncated,
    )


def measure(
    name: str, overrides: dict, device: str, mode: str, seeds: int, threads: int, windows, size: int
) -> list[float]:
    """Total updates per second of all seeds in each window, in this process."""
    set_up(threads)
    module = importlib.import_module(f"corerl.algos.{name}")
    cfg = module.Config(**overrides)
    job = Config(algo=cfg, task="bench", device=device, compile=mode, log_every=10**9)
    rates: list[float] = []
    module.train(cfg, Stopwatch(job, list(range(seeds)), size, windows, rates.append))
    return rates


def _child(barrier, results, arguments: tuple, windows: int) -> None:
    def together() -> Iterator[None]:
        for _ in range(windows):
            barrier.wait()
            yield

    name, overrides, device, mode, seeds, threads, size = arguments
    results.put(measure(name, overrides, device, mode, seeds, threads, together(), size))


def measure_processes(processes: int, arguments: tuple, windows: int) -> list[float]:
    """As `measure`, summed over processes that run their windows at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_child, args=(barrier, results, arguments, windows))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    rates = _collect(workers, results)
    for worker in workers:
        worker.join()
    return [sum(each) for each in zip(*rates, strict=True)]


def _collect(workers: list, results) -> list[list[float]]:
    """One list of rates per worker; where one of them fails, the others would wait for it for ever."""
    rates: list[list[float]] = []
    while len(rates) < len(workers):
        try:
            rates.append(results.get(timeout=0.5))
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.terminate()
                raise CorerlError("A measuring process failed; its error stands above.") from None
    return rates


def _lines() -> Iterator[None]:
    print("ready", flush=True)
    for _ in sys.stdin:
        yield


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algo", nargs="+", default=["bc", "td3_bc", "iql", "rebrac", "sac"])
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="as in algo.KEY=VALUE"
    )
    parser.add_argument("--compile", nargs="+", default=["off", "compile"], metavar="MODE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="seeds in one process")
    parser.add_argument("--processes", nargs="+", type=int, default=[1], help="processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--size", type=int, default=1_000_000, help="transitions in the buffer")
    parser.add_argument("--onednn", action="store_true", help="let oneDNN do the matrix products")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="one window per line of standard input, to alternate with another program",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table, or serves windows."""
    for name in args.algo:
        if name not in algos.names():
            raise CorerlError(f"There is no algorithm {name!r}.{nearest(name, algos.names())}")
    require(args.windows > 0, f"--windows {args.windows} must be positive")
    require(args.size >= 1000, f"--size {args.size} must be at least 1000, an episode")
    for mode in args.compile:
        compile.resolve(mode, pick_device(args.device), 1)
    if args.onednn:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    overrides = dict(_setting(text) for text in args.set)
    for name in args.algo:
        known = {
            field.name for field in fields(importlib.import_module(f"corerl.algos.{name}").Config)
        }
        for key in overrides.keys() - known:
            raise CorerlError(f"There is no setting {key!r} with algo={name}.{nearest(key, known)}")
    if args.serve:
        _serve(args, overrides)
        return 0
    print(_machine(args))
    table = Table()
    for column in ("algorithm", "compile", "seeds", "processes", "total updates/s", "min", "max"):
        table.add_column(column, justify="left" if column in ("algorithm", "compile") else "right")
    for name in args.algo:
        for mode in args.compile:
            for seeds in args.seeds:
                for processes in args.processes:
                    rates = _row(args, overrides, name, mode, seeds, processes)
                    numbers = (statistics.median(rates), min(rates), max(rates))
                    table.add_row(
                        name, mode, str(seeds), str(processes), *[f"{x:,.0f}" for x in numbers]
                    )
    Console(width=100).print(table)
    return 0


def _row(args, overrides: dict, name: str, mode: str, seeds: int, processes: int) -> list[float]:
    arguments = (name, overrides, args.device, mode, seeds, args.threads, args.size)
    return measure_processes(processes, arguments, args.windows)


def _serve(args, overrides: dict) -> None:
    set_up(args.threads)
    name = args.algo[0]
    module = importlib.import_module(f"corerl.algos.{name}")
    cfg = module.Config(**overrides)
    job = Config(
        algo=cfg, task="bench", device=args.device, compile=args.compile[0], log_every=10**9
    )
    report = lambda rate: print(f"{rate:.1f}", flush=True)  # noqa: E731
    module.train(cfg, Stopwatch(job, list(range(args.seeds[0])), args.size, _lines(), report))


def _setting(text: str) -> tuple[str, object]:
    import yaml

    key, _, value = text.partition("=")
    return key, yaml.safe_load(value)


def _machine(args) -> str:
    facts = provenance.environment()
    where = facts["gpu"] or f"{facts['cpu']}, {facts['cores']} cores"
    return (
        f"{where}; torch {facts['torch']}; {args.threads} thread(s) a process; "
        f"{args.windows} windows of 1 s"
    )
