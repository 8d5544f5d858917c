"""Lists which runs of a sweep, or below a folder, are done, running, stopped, failed or missing."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from corerl.config import Config, seed_list
from corerl.errors import CorerlError, nearest
from corerl.runs import config_labels, pending, terminal
from corerl.runs.directory import (
    cell_directory,
    counted,
    group_name,
    read_settings,
    read_status,
    settings,
    strays,
)
from corerl.runs.files import below, is_held


class Group(NamedTuple):
    """One group of seeds. `state` is done, running, stopped (resumable), failed, damaged or missing."""

    cell: Path
    label: str
    task: str
    seeds: list[int]
    state: str
    step: int
    steps: int
    score: float | None
    message: str
    unit: str = ""  # "return" if the task has no reference scores


def groups(root: Path) -> Iterator[Group]:
    """Yields every group of seeds below `root`, and per cell the seeds that were requested but not begun.

    Raises:
        CorerlError: there is no run below `root`.
    """
    cells, skipped = _cells(root)
    if not cells:
        raise CorerlError(
            " ".join(
                [
                    f"There are no runs below {root}. Give the folder of runs (`root` in corerl train).",
                    *skipped,
                ]
            )
        )
    known = [
        (c["label"] or c["algo"]["label"], c["task"], config_labels.flatten(c)) for _, c in cells
    ]
    for (cell, config), label in zip(cells, config_labels.names(known), strict=True):
        yield from _of(cell, label, config["task"], seed_list(config["seeds"]), config["steps"])


def _cells(root: Path) -> tuple[list[tuple[Path, dict]], list[str]]:
    """Returns the cells below a folder with their settings, and what is skipped there and why."""
    cells, skipped = [], []
    for path in below(root, "config.yaml"):
        cell = path.parent
        try:
            cells.append((cell, read_settings(cell)))
        except CorerlError as error:
            skipped.append(f"Skipped: {error}")
        skipped += [
            f"corerl skipped {stray}, because a folder of seeds has a name such as seeds-0-4."
            for stray in strays(cell)
        ]
    return cells, skipped


def distinct(cells: list[Config]) -> list[Config]:
    """Returns cells with every run in one of them: two tables may have the same values for a task."""
    found: dict[Path, Config] = {}
    for cfg in cells:
        known = found.setdefault(cell_directory(cfg), cfg)
        seeds = dict.fromkeys(seed_list(known.seeds) + seed_list(cfg.seeds))
        found[cell_directory(cfg)] = replace(known, seeds=list(seeds))
    return list(found.values())


def names(cells: list[Config]) -> list[str]:
    """Returns the label of each cell and, where a task has it with several settings, those settings."""
    known = [(c.label or c.algo.label, c.task, config_labels.flatten(settings(c))) for c in cells]
    return config_labels.names(known)


def of_cell(cfg: Config, name: str = "") -> Iterator[Group]:
    """Yields the groups with seeds of this cell, and the seeds not begun, with or without a directory."""
    wanted = seed_list(cfg.seeds)
    label = name or cfg.label or cfg.algo.label
    for group in _of(cell_directory(cfg), label, cfg.task, wanted, cfg.steps):
        if set(group.seeds) & set(wanted):
            yield group


def _of(cell: Path, label: str, task: str, wanted: list[int], steps: int) -> Iterator[Group]:
    seen: set[int] = set()
    for directory, seeds in counted(cell):
        seen |= set(seeds)
        yield _group(cell, label, task, seeds, directory, steps)
    missing = [seed for seed in wanted if seed not in seen]
    if missing:
        reason = _last_line(cell / "error.txt")
        state = "failed" if reason else "missing"
        yield Group(cell, label, task, missing, state, 0, steps, None, reason)


def _last_line(path: Path) -> str:
    """Returns the last line of a traceback, or empty. The name of our own exception is left out."""
    if not path.exists():
        return ""
    line = path.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    return re.sub(r"^corerl\.\S+: ", "", line)


def _group(
    cell: Path, label: str, task: str, seeds: list[int], directory: Path, steps: int
) -> Group:
    reason = _last_line(directory / "error.txt")
    try:
        # A process that died before it wrote a status leaves its reason alone.
        status = {"state": "failed" if reason else "running", "step": 0} | read_status(directory)
    except CorerlError as error:
        status = {"state": "damaged", "step": 0, "message": str(error)}
    state = status["state"]
    if state == "interrupted" or (state == "running" and not is_held(directory / ".lock")):
        state = "stopped"
    message = status.get("message") or reason
    if state == "done" and pending.steps(directory):
        message = f"{message} {pending.described(cell)}".strip()
    if status.get("diverged"):
        message = f"diverged: {status['diverged']} {message}".strip()
    unit = "return" if status.get("score") is None else ""
    score = status.get("return") if unit else status.get("score")
    return Group(cell, label, task, seeds, state, status["step"], steps, score, message, unit)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        default="runs",
        help="a sweep's name or file, or a folder (default: runs)",
    )
    add(
        "settings",
        nargs="*",
        help="for a sweep: the other settings that you gave to corerl train, as in seeds=3",
    )


def run(args: argparse.Namespace) -> int:
    """Prints one row per group of seeds, and a count of each state."""
    found = list(_asked_for(args.what, args.settings))
    words = ("task", "algorithm", "seeds", "state")
    table = terminal.table((*words, "step", "score"), left=words)
    counts: dict[str, int] = {}
    reported: dict[str, None] = {}  # below, where there is room for a sentence
    for group in found:
        counts[group.state] = counts.get(group.state, 0) + len(group.seeds)
        row = _row(group)
        table.add_row(*map(terminal.plain, row))
        if group.message:
            reported[f"{row[1]} on {group.task} {group.state}: {group.message}"] = None
    terminal.console().print(table)
    for line in reported:
        print(terminal.plain(line))
    states = ", ".join(f"{count} seeds {state}" for state, count in sorted(counts.items()))
    print(terminal.plain(states))
    if Path(args.what).is_dir() and not args.settings:
        for line in _cells(Path(args.what))[1]:
            print(terminal.plain(line))
    return 0


def _row(group: Group) -> tuple[str, ...]:
    score = "" if group.score is None else f"{group.unit} {group.score:.1f}".strip()
    seeds = group_name(group.seeds).removeprefix("seeds-")
    step = f"{group.step:,}/{group.steps:,}"
    return group.task, group.label, seeds, group.state, step, score


def _asked_for(what: str, given: list[str]) -> Iterator[Group]:
    """Yields the groups of a folder, or of all cells of a sweep, so that those never begun are listed."""
    if Path(what).is_dir() and not given:
        yield from groups(Path(what))
        return
    from corerl.launch.arguments import sweeps
    from corerl.launch.composition import cells  # loads every algorithm

    if Path(what).is_dir() and what not in sweeps():
        raise CorerlError(
            f"{what} is a folder, but {' '.join(given)} is for a sweep. Give only the folder to "
            "list all its runs, or a sweep's name with these settings."
        )
    if what not in sweeps() and not what.endswith(".yaml"):
        raise CorerlError(
            f"There is no folder and no sweep {what!r}.{nearest(what, sweeps())} "
            f"The sweeps are {', '.join(sweeps())}."
        )
    found = distinct(cells([f"sweep={what}", *given]))
    for cfg, name in zip(found, names(found), strict=True):
        yield from of_cell(cfg, name)
