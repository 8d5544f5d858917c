"""`corerl data check`: a file of one's own, told as a person would look for its faults."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import replace

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich import box
from rich.console import Console
from rich.table import Table

from corerl.config import Config, require
from corerl.data import tasks
from corerl.data.check import check
from corerl.errors import CorerlError
from corerl.experiments.messages import sentence

SETTINGS = (
    "as corerl train takes them: env=gym/module:Id, data.columns.rewards=r, data.action_low=-2"
)
SHOWN = 40
"""Findings of one kind that are printed; a broken table can have one per column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `corerl data check` takes."""
    parser.add_argument("path", help="an npz, HDF5, CSV or Parquet file")
    parser.add_argument("settings", nargs="*", help=SETTINGS)


def run(console: Console, args: argparse.Namespace) -> int:
    """Prints what the file holds, its faults and remarks; 2 where it cannot be trained on, else 0."""
    task = task_of(f"file/{args.path}", args.settings)
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
        console.print(f"{args.path} cannot be trained on yet.", soft_wrap=True, markup=False)
        return 2
    console.print(
        f"It can be trained on: corerl train algo=iql {in_shell(task, args.settings)}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    return 0


def in_shell(task: tasks.Task, settings: list[str]) -> str:
    """Returns what names the task for training, quoted where a shell or Hydra would read more in it."""
    return " ".join([override("task", task.id), *map(shlex.quote, settings)])


def override(key: str, value: str) -> str:
    """Returns `key=value`, quoted where a shell or Hydra would read more in it."""
    plain = re.fullmatch(r"[\w/.+-]*", value, re.ASCII)
    return shlex.quote(f"{key}={value if plain else quoted(value)}")


def quoted(text: str) -> str:
    """Returns a text in quotes, as Hydra reads it: a backslash is one unless a quote comes after it."""
    return QuotedString(text, Quote.double).with_quotes()


def task_of(id: str, settings: list[str]) -> tasks.Task:
    """Returns a task by its id; of a file of one's own, with settings as on training's command line.

    Raises:
        CorerlError: as `tasks.resolve`; a setting is none, or is given for a task that has its own.
    """
    task = tasks.resolve(id)
    if task.collection != "file":
        require(
            not settings, f"settings are of file/PATH; {id} has an environment and data of its own"
        )
        return task
    try:
        given = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.from_dotlist(settings))
        data, env = OmegaConf.to_object(given.data), given.env
    except OmegaConfBaseException as error:
        raise CorerlError(sentence(error)) from error
    return replace(task, env=env, data=data)
