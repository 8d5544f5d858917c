"""Which runs below a folder are done, running, stopped, failed or missing."""

import argparse
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from corerl import runs
from corerl.config import seed_list
from corerl.errors import CorerlError


class Group(NamedTuple):
    """One group of seeds. `state` is done, running, stopped (resumable), failed or missing."""

    cell: Path
    label: str
    task: str
    seeds: list[int]
    state: str
    step: int
    steps: int
    score: float | None
    message: str


def groups(root: Path) -> Iterator[Group]:
    """Every group of seeds below `root`, and for each cell the seeds that were asked for but not begun.

    Raises:
        CorerlError: there is no run below `root`.
    """
    cells = sorted(path.parent for path in root.rglob("config.yaml"))
    if not cells:
        raise CorerlError(f"There are no runs below {root}.")
    for cell in cells:
        config = yaml.safe_load((cell / "config.yaml").read_text())
        label, task = config["label"] or config["algo"]["label"], config["task"]
        seen: set[int] = set()
        for directory in sorted(cell.glob("seeds-*"), key=lambda d: runs.seeds_of_group(d.name)):
            seeds = runs.seeds_of_group(directory.name)
            seen |= set(seeds)
            yield _group(cell, label, task, seeds, directory, config["steps"])
        missing = [seed for seed in seed_list(config["seeds"]) if seed not in seen]
        if missing:
            yield Group(cell, label, task, missing, "missing", 0, config["steps"], None, "")


def _group(
    cell: Path, label: str, task: str, seeds: list[int], directory: Path, steps: int
) -> Group:
    status = runs.read_json(directory / "status.json") or {"state": "running", "step": 0}
    state = status["state"]
    if state == "interrupted" or (state == "running" and not _is_locked(directory)):
        state = "stopped"
    message = status.get("message", "")
    if status.get("diverged"):
        message = f"diverged: {status['diverged']} {message}".strip()
    score = status.get("score") if status.get("score") is not None else status.get("return")
    return Group(cell, label, task, seeds, state, status["step"], steps, score, message)


def _is_locked(directory: Path) -> bool:
    """Whether a living process is training there: the lock goes with it, however it ends."""
    try:
        with open(directory / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, nargs="?", default=Path("runs"), help="default: runs")


def run(args: argparse.Namespace) -> int:
    """Prints one row per group of seeds, and a count of each state."""
    table = Table()
    for column in ("task", "algorithm", "seeds", "state", "step", "score", "message"):
        numeric = column in ("step", "score")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
    counts: dict[str, int] = {}
    for group in groups(args.root):
        counts[group.state] = counts.get(group.state, 0) + len(group.seeds)
        score = "" if group.score is None else f"{group.score:.1f}"
        seeds = runs.group_name(group.seeds).removeprefix("seeds-")
        step = f"{group.step:,}/{group.steps:,}"
        table.add_row(group.task, group.label, seeds, group.state, step, score, group.message)
    console = Console()
    console.print(table)
    console.print(", ".join(f"{count} seeds {state}" for state, count in sorted(counts.items())))
    return 0
