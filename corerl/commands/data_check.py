"""`corerl data check`: your own file, and the faults that a person would look for."""

from __future__ import annotations

import argparse

from rich import box
from rich.console import Console
from rich.table import Table

from corerl.config import require
from corerl.data import tasks
from corerl.data.files import own_files
from corerl.data.files.own_files import check
from corerl.launch.task_arguments import SETTINGS, in_shell, task_of

SHOWN = 40
"""Findings of one kind that are printed; a broken table can have one per column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `corerl data check` takes."""
    parser.add_argument("path", help="an npz, HDF5, CSV or Parquet file")
    parser.add_argument("settings", nargs="*", help=f"settings for the file, {SETTINGS}")


def run(console: Console, args: argparse.Namespace) -> int:
    """Prints what the file holds, its faults and remarks, or 2 where it cannot be trained on, else 0."""
    task = task_of(_id(args.path), args.settings)
    findings, contents, dataset = check(task)
    if contents is not None:
        table = Table("field", "in the file", "shape", box=box.SIMPLE, title_justify="left")
        for field, array in contents.arrays.items():
            labels = [label.removeprefix("column ") for label in contents.labels[field]]
            shown = labels if len(labels) < 5 else [*labels[:2], "...", labels[-1]]
            table.add_row(field, ", ".join(shown), "x".join(map(str, array.shape)))
        console.print(table)
    if dataset is not None:
        console.print(f"{dataset}", soft_wrap=True, markup=False, highlight=False)
    faults = [finding for finding in findings if finding.fault]
    for name, kind in (("fault", faults), ("remark", [f for f in findings if not f.fault])):
        for finding in kind[:SHOWN]:
            line = f"{name}: {finding.where}: {finding.text}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        if len(kind) > SHOWN:
            console.print(f"... and {len(kind) - SHOWN} more {name}s")
    if faults:
        console.print(
            f"corerl cannot train on {args.path} yet. Repair the faults above.",
            soft_wrap=True,
            markup=False,
        )
        return 2
    algo = "iql" if dataset.observations.ndim == 2 else "my_algo.py"
    console.print(
        f"Train on this file with: corerl train algo={algo} {in_shell(task, args.settings)}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    return 0


def _id(path: str) -> str:
    """Returns the task of a file, which may be named `file/PATH` as everywhere else.

    Raises:
        CorerlError: there is no such file, and a collection's task is called so.
    """
    if own_files.find(path) is None:
        if path.startswith("file/"):
            return path
        require(
            path not in tasks.known_tasks(),
            f"{path} is a task, not your own file. Show its data with: corerl data info {path}",
        )
    return f"file/{path}"
