"""Lists, describes, checks, downloads, makes and exports datasets."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Column, Table

from corerl.commands import data_check, data_export
from corerl.config import require
from corerl.data import download, embedded, minari, suites, tasks
from corerl.data.dataset import Dataset
from corerl.launch import task_arguments
from corerl.policies import snapshots
from corerl.preferences import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands list, info, download, make, check, export, snapshots and preferences."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    listing = commands.add_parser(
        "list", help="list all tasks with a dataset, and which datasets are on this machine"
    )
    listing.add_argument(
        "filter", nargs="?", default="", help="list only tasks whose name contains this text"
    )
    info = commands.add_parser(
        "info", help="show size, episodes, returns and checksum of a dataset"
    )
    info.add_argument("task", help="a task, such as d4rl/hopper-medium-v2 or file/PATH")
    info.add_argument(
        "settings", nargs="*", help=f"settings for your own file, {task_arguments.SETTINGS}"
    )
    fetch = commands.add_parser("download", help="download datasets to this machine")
    fetch.add_argument("task", nargs="+", help="tasks, such as d4rl/hopper-medium-v2")
    make = commands.add_parser("make", help="make one of corerl's own datasets")
    make.add_argument(
        "suite",
        help="corerl/cartpole, corerl/pendulum (also with -logged or -random-good-05), corerl/goal-maze "
        "(also with -stitch), corerl/maze-stitch, corerl/courier, corerl/pointmaze, corerl/metaworld or "
        "corerl/mujoco. A part of a suite is made with corerl/mujoco/hopper or corerl/mujoco/hopper-medium.",
    )
    make.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    make.add_argument(
        "--size", type=int, help="for mujoco, pointmaze and metaworld: steps in each dataset"
    )
    make.add_argument(
        "--steps",
        type=int,
        help="for mujoco: environment steps of the SAC run that records the data",
    )
    data_check.add_arguments(commands.add_parser("check", help="check your own file for mistakes"))
    data_export.add_arguments(
        commands.add_parser(
            "export", help="write a dataset, or a run's episodes, in a format for other libraries"
        )
    )
    snapshots.add_arguments(
        commands.add_parser(
            "snapshots",
            help="save states that a run visits, so that other runs can start from them",
        )
    )
    preferences = commands.add_parser(
        "preferences", help="show the preference comparisons of a dataset"
    )
    show.add_arguments(preferences)
    preferences.add_argument(
        "settings", nargs="*", help=f"settings for your own file, {task_arguments.SETTINGS}"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the parsed subcommand and returns the exit status."""
    console = Console()
    if args.command == "list":
        _list(console, args.filter)
    elif args.command == "info":
        _info(console, task_arguments.task_of(args.task, args.settings))
    elif args.command == "download":
        for task in [tasks.resolve(id) for id in args.task]:
            console.print(f"{task.id}: {_bring(task)}", soft_wrap=True)
    elif args.command == "check":
        return data_check.run(console, args)
    elif args.command == "export":
        return data_export.run(args)
    elif args.command == "snapshots":
        return snapshots.run(args)
    elif args.command == "preferences":
        show.show(console, args, task_arguments.task_of(args.task, args.settings))
    else:
        return _make(console, args)
    return 0


def _make(console: Console, args: argparse.Namespace) -> int:
    name = args.suite.removeprefix("corerl/")
    suite, _, part = name.partition("/")
    wanted = [n for n in suites.names() if _is_part(n, suite, part)]
    if not wanted:
        console.print(f"{embedded.make(name, args.seed)}", soft_wrap=True)
        return 0
    for option in ("size", "steps"):
        value = getattr(args, option)
        require(value is None or value > 0, f"--{option} {value} must be positive")
    recipe = importlib.import_module(f"corerl.recipes.{suite}")
    try:
        made = recipe.make(wanted, args.seed, args.size, args.steps)
    except KeyboardInterrupt:
        console.print("Stopped and saved. Resume with the same command.")
        return 130
    for name, fresh in made.items():
        console.print(f"{'made' if fresh else 'was here already'}: corerl/{name}", soft_wrap=True)
    _facts(console, list(made))
    return 0


def _is_part(name: str, suite: str, part: str) -> bool:
    """Tells whether `part` names this set, the same without `-regenerated`, or all sets of its robot."""
    collection, _, rest = name.partition("/")
    return collection == suite and part in (
        "",
        rest,
        rest.removesuffix("-regenerated"),
        rest.removesuffix("-v3"),
        rest.partition("-")[0],
    )


def _facts(console: Console, names: list[str]) -> None:
    """Prints the table of what was made: by whom, how good, how long it took, how to check it."""
    columns = {
        "policy step": "policy_step",
        "policy return": "policy_return",
        "policy score": "policy_score",
        "steps": "steps",
        "episodes": "episodes",
        "mean return": "return_mean",
        "min, quartiles, max": "returns",
        "seconds": "seconds",
        "sha256": "sha256",
    }
    table = Table("dataset", *columns, box=box.MARKDOWN)
    for name in names:
        facts = {key: _cell(value) for key, value in suites.facts(name).items()}
        table.add_row(f"corerl/{name}", *[facts.get(key, "") for key in columns.values()])
    _print_whole(console, table)


def _print_whole(console: Console, table: Table) -> None:
    """Prints a table. Into a file or a pipe without folded names."""
    wide = console if console.is_terminal else Console(width=250)
    wide.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    text = str(value)
    return text[:8] if len(text) == 64 else text  # the start of a checksum is enough to compare


def _bring(task: tasks.Task):
    reader = tasks.READERS.get(task.collection)
    if reader is None or task.collection in ("corerl", "risk"):
        return task.load()
    if found := reader.find(task.name):
        return found
    with download.alone():
        return reader.find(task.name) or reader.fetch(task.name)


def _list(console: Console, wanted: str) -> None:
    task_column = Column("task", no_wrap=True, overflow="fold")  # whole, to be copied
    table = Table(
        task_column,
        "here",
        "score 0",
        "score 100",
        box=box.SIMPLE,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    for id in tasks.known_tasks():
        if wanted in id and (task := tasks.resolve(id)).has_data:
            ends = [_short(end) for end in task.reference or ()] or ["", ""]
            present = "made"
            if task.has_file:
                present = "yes" if tasks.READERS[task.collection].find(task.name) else ""
            table.add_row(id, present, *ends)
    _print_whole(console, table)
    console.print(
        f"The column `here` shows yes if the dataset is on this machine, in {download.data_dir()} "
        f"(CORERL_DATA changes that folder) or {minari.root()} (Minari). It shows made if corerl makes the "
        "dataset when a run first reads it.",
        soft_wrap=True,
    )


def _short(end: float) -> str:
    return f"{end:.0f}" if abs(end) >= 1000 else f"{end:.4g}"


def _info(console: Console, task: tasks.Task) -> None:
    dataset = task.load()
    table = Table(title=task.id, box=box.SIMPLE, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts(task, dataset).items():
        table.add_row(name, value)
    console.print(table)


def facts(task: tasks.Task, dataset: Dataset) -> dict[str, str]:
    """Describes a dataset as a paper's table would. Return quartiles over episodes."""
    lengths, returns = dataset.episode_lengths(), dataset.episode_returns()
    shape = "x".join(map(str, dataset.observations.shape[1:]))
    if dataset.discrete:
        actions = f"{int(dataset.actions.max()) + 1} discrete"
    else:
        low, high = dataset.actions.min(), dataset.actions.max()
        actions = f"{dataset.actions.shape[1]} in [{low:.3g}, {high:.3g}]"
    out = {
        "steps": f"{len(dataset):,} ({int(dataset.has_next.sum()):,} with a next observation)",
        "episodes": f"{dataset.n_episodes:,} ({int(dataset.terminated.sum()):,} end in a terminal state)",
        "episode length": _spread(lengths, ".0f"),
        "return": f"mean {returns.mean():.2f}, {_spread(returns, '.2f')}",
    }
    if task.reference:
        scores = task.normalize(returns)
        out["score"] = f"mean {scores.mean():.1f}, {_spread(scores, '.1f')}"
    out |= {
        "reward": f"{dataset.rewards.min():.4g} to {dataset.rewards.max():.4g}",
        "observation": f"{shape} {dataset.observations.dtype}",
        "action": actions,
    }
    file = tasks.READERS[task.collection].find(task.name)
    if file:
        file = file.with_name("main_data.hdf5") if file.name == "metadata.json" else file
        out["file"] = f"{file}, {file.stat().st_size / 1e6:.1f} MB"
        out["sha256"] = download.digest(file)
    return out


def _spread(x: np.ndarray, form: str) -> str:
    q = [format(value, form) for value in np.quantile(x, [0, 0.25, 0.5, 0.75, 1])]
    return f"min {q[0]}, quartiles {q[1]} {q[2]} {q[3]}, max {q[4]}"
