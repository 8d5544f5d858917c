"""Updates per second of algorithms on this machine, each in its own training loop on synthetic data.

One update is one critic update of one seed (a policy update if there is no critic). The column
`updates/s of all` adds up all seeds and processes. The data are Gaussian transitions of HalfCheetah's
size (17 observations, 6 actions). Every row shows the median over windows of about a second, after a
warm-up. Nothing is evaluated or saved in a window. An online algorithm acts in HalfCheetah-v4, or in
a maze or a task of risk/ if it needs one. Its update is an environment step with all the learning that
follows. If an algorithm trains in two phases, only the first is timed.
"""

import argparse
import importlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl import algos
from corerl.bench.stopwatch import Case, Measured, measure, measure_processes
from corerl.config import KERNELS, MOST_SEEDS, require
from corerl.errors import CorerlError, nearest
from corerl.launch import matmul_library
from corerl.launch.hydra_errors import sentence
from corerl.nn import compile
from corerl.runs import provenance, terminal
from corerl.training.devices import pick_device

WORDS = ("algorithm", "compile", "kernel")
COLUMNS = (
    *(*WORDS, "seeds", "pro-\ncesses", "updates/s\nof all", "min", "max", "start\ns", "GPU\nMB"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--algo",
        nargs="+",
        default=["bc", "td3_bc", "iql", "rebrac", "sac"],
        help="algorithms to time (default: bc td3_bc iql rebrac sac)",
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings for all algorithms of --algo, where KEY=VALUE sets algo.KEY",
    )
    parser.add_argument(
        "--compile",
        nargs="+",
        default=["off", "compile"],
        metavar="MODE",
        help="ways to run an update: off, compile, graph, auto (default: off compile)",
    )
    parser.add_argument(
        "--kernel",
        nargs="+",
        default=["auto"],
        help=f"CPU libraries for matmul (default: auto): {', '.join(KERNELS)}",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1], help="seeds trained in one process"
    )
    parser.add_argument(
        "--processes",
        nargs="+",
        type=int,
        default=[1],
        help="processes that train at the same time",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each process")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--windows", type=int, default=5, help="number of windows (default: 5)")
    parser.add_argument(
        "--size",
        type=int,
        default=1_000_000,
        help="transitions in the replay buffer or dataset (default: 1000000)",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="measure one window per line of standard input, so that two programs can take turns",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table, or serves windows."""
    for name in args.algo:
        if name not in algos.names():
            raise CorerlError(
                f"There is no algorithm {name!r}.{nearest(name, algos.names())} "
                "The command `corerl train --help` lists all algorithms."
            )
    for name in ("seeds", "processes"):
        for count in getattr(args, name):
            require(0 < count <= MOST_SEEDS, f"--{name} {count} must be from 1 to {MOST_SEEDS:,}")
    require(args.threads > 0, f"--threads {args.threads} must be positive")
    require(args.windows > 0, f"--windows {args.windows} must be positive")
    require(
        args.size >= 1000, f"--size {args.size} must be at least 1000, the length of an episode"
    )
    on_gpu = pick_device(args.device).type == "cuda"
    for mode in args.compile:
        compile.resolve(mode, pick_device(args.device), 1)
    products = [None] if on_gpu else [matmul_library.choose(name) for name in args.kernel]
    settings = {name: _settings(name, args.set) for name in args.algo}
    cases = [
        Case(
            name,
            settings[name],
            args.device,
            mode,
            seeds,
            args.threads,
            args.size,
            product or "auto",
        )
        for name, mode, product, seeds in itertools.product(
            args.algo, args.compile, products, args.seeds
        )
    ]
    if args.serve:
        measure(cases[0], _lines(), lambda rate: print(f"{rate:.1f}", flush=True))
        return 0
    print(machine(pick_device(args.device), args.threads, args.windows))
    table = terminal.table(COLUMNS, left=WORDS)
    problems: dict[str, None] = {}
    for case in cases:
        for processes in args.processes:
            found = measure_processes(processes, case, args.windows)
            table.add_row(*row(case, processes, found))
            if found.problem:
                problems[f"{case.algo}, {case.compile}: {found.problem}"] = None
    terminal.console().print(table)
    for problem in problems:
        print(problem)
    return 0


def row(case: Case, processes: int, found: Measured) -> list[str]:
    """Returns the cells of `COLUMNS`. `compile` says how updates ran, if otherwise than asked for."""
    ran = case.compile if case.compile == found.ran else f"{case.compile}: {found.ran}"
    numbers = (found.rate, min(found.rates), max(found.rates))
    memory = f"{found.memory / 2**20:,.0f}" if found.memory else "-"
    product = "-" if found.memory else case.kernel
    counts = (str(case.seeds), str(processes))
    rates = [f"{number:,.0f}" for number in numbers]
    return [case.algo, ran, product, *counts, *rates, f"{found.start:.0f}", memory]


def _lines() -> Iterator[None]:
    print("ready", flush=True)
    for _ in sys.stdin:
        yield


def _settings(name: str, given: list[str]) -> dict[str, Any]:
    """Returns the values of `KEY=VALUE`, each of its setting's type.

    Raises:
        CorerlError: the algorithm has no such setting, or it takes no such value.
    """
    config = importlib.import_module(f"corerl.algos.{name}").Config
    known = {field.name for field in fields(config)}
    keys = [text.partition("=")[0] for text in given]
    for key in set(keys) - known:
        raise CorerlError(
            f"There is no setting {key!r} with algo={name}.{nearest(key, known)} "
            f"The command `corerl train algo={name} --help` lists all settings."
        )
    if not given:
        return {}
    try:
        values = OmegaConf.from_dotlist([f"algo.{text}" for text in given])
        made = OmegaConf.to_object(OmegaConf.merge({"algo": config}, values).algo)
    except OmegaConfBaseException as error:
        raise CorerlError(sentence(error)) from error
    return {key: getattr(made, key) for key in keys}


def machine(device: torch.device, threads: int, windows: int) -> str:
    """Describes the machine and the measurement in a line."""
    facts = provenance.environment(device)
    where = facts["gpu"] or f"{facts['cpu']}, {facts['cores']} cores"
    return f"{where}, torch {facts['torch']}, {threads} thread(s) per process, {windows} windows of 1 s"
