"""Output of `corerl train ... --dry-run`: the cells, their progress, and how long the rest takes."""

import math
import os
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from gymnasium import Space

from corerl.config import Config
from corerl.data import download, tasks
from corerl.data.tasks import READERS, Task
from corerl.errors import CorerlError
from corerl.launch import checks, continuation, memory_estimate, rates, status
from corerl.launch.rates import Rate
from corerl.runs import checkpoint, provenance, terminal
from corerl.runs.directory import group_name
from corerl.training import spaces
from corerl.training.devices import pick_device

WORDS = ("task", "algorithm", "note")
COLUMNS = ("task", "algorithm", "seeds\ndone", "steps\nleft", "hours", "memory", "disk", "note")


class Row(NamedTuple):
    """One cell. `hours` are of one device, or of one CPU core, or None where no rate is known."""

    cfg: Config
    seeds: int
    done: int
    updates: int
    episodes: int
    rate: Rate | None
    hours: float | None
    size_of_seed: memory_estimate.Size | None
    refused: str
    remark: str


def show(cells: list[Config]) -> int:
    """Prints the plan. The exit status."""
    cells = status.distinct(cells)
    gpu = _gpu(cells[0])
    rows = [row(cfg, gpu) for cfg in cells]
    notes: dict[str, int] = {}
    table = terminal.table(COLUMNS, left=WORDS)
    for each, name in zip(rows, status.names(cells), strict=True):
        table.add_row(
            terminal.plain(each.cfg.task),
            terminal.plain(name),
            f"{each.done}/{each.seeds}",
            _short(each.updates),
            _hours(each),
            *_room(each, gpu),
            _noted(each, notes),
        )
    console = terminal.console()
    console.print(table)
    reported = [f"note {number}: {text}" for text, number in notes.items()]
    for line in reported + _totals(rows, gpu):
        console.print(terminal.plain(line), soft_wrap=not console.is_terminal)
    return 0


def _noted(row: Row, notes: dict[str, int]) -> str:
    """Numbers what is to be said of a row among `notes`, which stand below the table."""
    text = row.refused or row.remark
    if not text:
        return ""
    return f"{'refused ' if row.refused else ''}{notes.setdefault(text, len(notes) + 1)}"


def _hours(row: Row) -> str:
    """Returns the hours. `~` where their rate is estimated."""
    if row.rate is None:
        return "?"
    return f"{'~' if row.rate.estimated else ''}{_number(row.hours)}"


def _number(hours: float) -> str:
    return f"{hours:,.{2 if hours < 1 else 1 if hours < 100 else 0}f}"


def _short(count: int) -> str:
    """Writes 12,345,678 as `12.3M`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _room(row: Row, gpu: str | None) -> tuple[str, str]:
    """Estimates memory of the seeds that train at a time, and disk of all: their last two checkpoints."""
    if row.size_of_seed is None:
        return "?", "?"
    processes = row.cfg.processes or len(os.sched_getaffinity(0))
    together = row.seeds if gpu else min(row.seeds, processes)
    return (
        memory_estimate.reported(together * row.size_of_seed.memory),
        memory_estimate.reported(row.seeds * row.size_of_seed.disk),
    )


def row(cfg: Config, gpu: str | None) -> Row:
    """Computes the row of one cell before it runs."""
    groups = list(status.of_cell(cfg))
    made: dict[int, int] = {}
    with suppress(CorerlError):  # this is not the machine that has the GPU
        made = continuation.made(cfg)
    unfinished = [group for group in groups if group.state != "done"]
    left = [made.get(seed, kept) for g in unfinished for kept in [_kept(g)] for seed in g.seeds]
    seeds = sum(len(group.seeds) for group in groups)
    updates = sum(cfg.steps - kept for kept in left)
    evaluations = sum(_evaluations(cfg, kept) for kept in left)
    rate = rates.known(cfg, gpu)
    refused, remark = _fitness(cfg)
    return Row(
        cfg,
        seeds,
        seeds - len(left),
        updates,
        evaluations * cfg.eval.episodes,
        rate,
        updates / rate.updates_per_s / 3600 if rate else None,
        None if refused else memory_estimate.of_seed(cfg),
        refused,
        remark,
    )


def _kept(group: status.Group) -> int:
    """Returns the step from which a group resumes. A kill has lost what came after its last save."""
    if group.state == "running":
        return group.step
    return checkpoint.saved_step(checkpoint.path_in(group.cell / group_name(group.seeds)))


def _evaluations(cfg: Config, step: int) -> int:
    """Counts the evaluations of one seed that come after `step`."""
    return math.ceil(cfg.steps / cfg.eval.every) - step // cfg.eval.every


def _fitness(cfg: Config) -> tuple[str, str]:
    """Tells why a cell cannot run here (or nothing), and what is to be done first (or nothing)."""
    try:
        task = tasks.of(cfg)
        checks.check_steps(cfg)
        spaces.check_goals(cfg.algo, "the task", task.goal_tasks > 0, cfg.history)
    except CorerlError as error:
        return str(error), ""
    evaluates = cfg.eval.episodes > 0 and checks.needs_simulator(cfg)
    refused, found = _simulator(task, evaluates, checks.for_evaluation(cfg.algo))
    if not refused and checks.lacks_data(cfg.algo, task):
        refused = f"the task has {checks.NO_DATA}"
    elif found:
        try:
            spaces.check(cfg.algo, "the task", *found)
        except CorerlError as error:
            refused = str(error)
    return refused, _data(task) if cfg.algo.learns_from_data else ""


@cache
def _simulator(task: Task, evaluates: bool, alone: bool) -> tuple[str, tuple[Space, Space] | None]:
    """Returns why the task cannot run, and what its simulator shows and takes.

    `alone`: the simulator, if any, is for evaluation alone.
    """
    try:
        made = task.make_env() if task.has_env else None
    except CorerlError as error:
        why = checks.missing(str(error).replace(task.id, "the task"), alone)
        return why if evaluates else "", None
    if made is None:
        return "", None
    made.close()
    return "", (made.observation_space, made.action_space)


def _data(task: Task) -> str:
    if not task.has_file or READERS[task.collection].find(task.name) is not None:
        return ""
    if task.collection == "corerl":
        return "corerl makes the dataset first"
    if task.collection == "file":
        return "its file is missing"
    return (
        "the dataset needs a download, but CORERL_OFFLINE is set"
        if download.offline()
        else "corerl downloads the dataset first"
    )


def _totals(rows: list[Row], gpu: str | None) -> list[str]:
    seeds, done, updates, episodes = (
        sum(getattr(each, name) for each in rows)
        for name in ("seeds", "done", "updates", "episodes")
    )
    lines = [
        f"{len(rows)} cell{'s' if len(rows) > 1 else ''}, {seeds} seed{'s' if seeds > 1 else ''} "
        f"({done} of them done). To do: {updates:,} updates and {episodes:,} evaluation episodes."
    ]
    for on_gpu, what in ((True, f"hours of one {gpu}"), (False, "CPU core-hours")):
        part = [each for each in rows if each.rate and each.rate.on_gpu == on_gpu]
        if not part:
            continue
        hours, refused = sum(e.hours for e in part), sum(e.hours for e in part if e.refused)
        lines.append(
            f"The updates take about {_number(hours)} {what}{_on_cores(hours, on_gpu, gpu)}"
            f"{f' ({_number(refused)} of them in cells that cannot run here)' if refused else ''}. "
            "Evaluation takes extra time."
        )
        sources = sorted({f"{each.rate.source} ({each.rate.device})" for each in part})
        lines.append(f"The updates per second are from {', '.join(sources)}.")
    if any(each.size_of_seed is not None for each in rows):
        lines.append(
            "Memory counts the networks, optimisers and full replay buffers of the seeds that train at "
            "the same time. The dataset and the intermediate values of an update need extra memory. Disk "
            "counts each seed's last two checkpoints, which share the files of the replay buffer."
        )
    unknown = sorted({each.cfg.label or each.cfg.algo.label for each in rows if not each.rate})
    if unknown:
        lines.append(
            f"The time does not include {', '.join(unknown)}, because corerl has not timed networks of "
            "this size."
        )
    if not any(each.rate and each.rate.on_gpu for each in rows):
        lines.append(
            f"There is no time estimate for {gpu or 'a GPU'}, because corerl has not been timed on "
            f"it. After a run of {rates.ENOUGH:,} updates there, the next dry run has an estimate."
        )
    return lines


def _on_cores(hours: float, on_gpu: bool, gpu: str | None) -> str:
    cores = len(os.sched_getaffinity(0))
    return "" if on_gpu or gpu else f", {_number(hours / cores)} hours on the {cores} cores here"


def _gpu(cfg: Config) -> str | None:
    """Returns the GPU that the cells would run on, by its name."""
    try:
        device = pick_device(cfg.device)
    except CorerlError:  # a GPU is asked for, and this is not the machine that has it
        return "the requested GPU"
    return provenance.environment(device)["gpu"]
