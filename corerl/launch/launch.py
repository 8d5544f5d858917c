"""The runs of one configuration: which seeds are missing, and in which processes they run.

On a GPU all seeds are one program. On a CPU stacking gains nothing, so each seed is a process of its
own with one thread, one per core at a time; a seed is an identity, so the numbers are the same.
"""

import os
import sys
import traceback
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch
import yaml

from corerl.config import Config, require, seed_list
from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch import seed_processes, worker
from corerl.launch.checks import (
    NO_DATA,
    check_simulator,
    check_steps,
    lacks_data,
    needs_simulator,
)
from corerl.launch.continuation import continue_shorter
from corerl.launch.process_setup import numerics
from corerl.launch.worker import BUSY, DONE, Busy
from corerl.nn import compile
from corerl.runs import checkpoint, code, files, pending
from corerl.runs.directory import (
    LONGEST,
    cell_directory,
    counted,
    group_name,
    read_status,
    settings,
    strays,
)
from corerl.runs.directory import groups as groups_of
from corerl.runs.progress import Display
from corerl.training import spaces
from corerl.training.devices import pick_device


class SeedsFailed(CorerlError):
    """Some seeds of a cell failed. Their directories say why."""


class Diverged(SeedsFailed):
    """Every seed of a cell diverged."""


def launch(cfg: Config, place: str = "") -> None:
    """Trains every seed of `cfg` that is missing or unfinished and returns when all are done.

    `place` is which cell of a sweep it is, for people.

    Raises:
        CorerlError: a setting, the data or the machine does not allow it.
        SeedsFailed: some seeds failed.
        KeyboardInterrupt: stopped by a signal; Interrupted: after saving.
    """
    device = pick_device(cfg.device)
    compile.resolve(cfg.compile, device, cfg.steps)
    with numerics(cfg):
        _launch(cfg, device, place)


def _launch(cfg: Config, device: torch.device, place: str) -> None:
    groups = prepare(cfg, device)
    if not groups:
        _tell_pending(cfg)
        print(
            f"corerl: nothing to do, because all seeds are done in {cell_directory(cfg)}",
            file=sys.stderr,
        )
        refuse_diverged(cfg)
        return
    title, processes = f"{cfg.label or cfg.algo.label} {cfg.task}", _processes(cfg, device)
    with Display(title, groups, processes, cfg.steps, place) as display:
        if min(processes, len(groups)) == 1:
            ended = [(worker.train(cfg, seeds, display.show), seeds) for seeds in groups]
        else:
            ended = seed_processes.train(cfg, groups, processes, display)
    _refuse_unfinished(cfg, ended)
    _tell_pending(cfg)
    refuse_diverged(cfg)


def _processes(cfg: Config, device: torch.device) -> int:
    """Returns how many groups of seeds train at a time."""
    return cfg.processes or (1 if device.type == "cuda" else len(os.sched_getaffinity(0)))


def prepare(cfg: Config, device: torch.device) -> list[list[int]]:
    """Checks a cell, writes its settings and returns the groups of its seeds to train. None if all are done.

    Raises:
        CorerlError: a setting, the data or the machine does not allow it.
    """
    task = tasks.of(cfg)
    check_steps(cfg)
    require(not lacks_data(cfg.algo, task), f"{task.id} has {NO_DATA}")
    if task.has_env and needs_simulator(cfg):
        check_simulator(cfg, task)
    spaces.check_goals(cfg.algo, task.id, task.goal_tasks > 0, cfg.history)
    cell = cell_directory(cfg)
    continue_shorter(cfg)
    for stray in strays(cell):
        print(
            f"corerl: skipped {stray}, because a folder of seeds has a name such as seeds-0-4",
            file=sys.stderr,
        )
    together, processes = device.type == "cuda", _processes(cfg, device)
    groups = plan(cell, seed_list(cfg.seeds), together=together, processes=processes)
    _tell_other_code(cfg, groups)
    _refuse_pending(cfg, groups)
    if not groups:
        return []
    if task.collection == "file" and cfg.algo.learns_from_data:
        spaces.check_data(cfg.algo, task.load())  # reported once, rather than by every seed
    write_settings(cfg)
    (cell / "error.txt").unlink(missing_ok=True)
    _tell_idle(cfg)
    if task.collection == "file" and not cfg.algo.learns_from_data:
        print(
            f"corerl: {cfg.label or cfg.algo.label} learns only in the environment {task.env}. It does not "
            f"use the data of {task.id}.",
            file=sys.stderr,
        )
    return groups


def _tell_other_code(cfg: Config, planned: list[list[int]]) -> None:
    """Warns of seeds from before the algorithm's code changed: settings name a run, and they are the same.

    Those that are trained now say so themselves (`Record.go_on`), or begin anew.
    """
    cell, trained = cell_directory(cfg), {seed for seeds in planned for seed in seeds}
    left = [(folder, seeds) for folder, seeds in groups_of(cell) if trained.isdisjoint(seeds)]
    old = code.of_another(left, cfg.algo.name)
    if old:
        print(
            f"corerl: {_listed([old])} in {cell} started with different code of "
            f"{cfg.algo.name}.py and {'stay as they are' if len(old) > 1 else 'stays as it is'}. "
            "To train again with today's code, add label=NAME, a name for the new run.",
            file=sys.stderr,
        )


def _refuse_pending(cfg: Config, planned: list[list[int]]) -> None:
    """Raises where a run would resume and write rows of scores before those of pending evaluations."""
    folders = [cell_directory(cfg) / group_name(seeds) for seeds in planned]
    for folder in [] if cfg.eval.later else folders:
        begun = checkpoint.exists(checkpoint.path_in(folder))
        require(
            not (begun and pending.steps(folder)),
            f"{folder} has pending evaluations, so it cannot resume with eval.later=false. Play them first "
            f"(corerl evaluate {folder} --pending), or resume with eval.later=true",
        )


def _tell_pending(cfg: Config) -> None:
    """Prints that evaluations of a cell are pending, where some are, and the command that plays them."""
    cell = cell_directory(cfg)
    if any(pending.steps(folder) for folder, _ in groups_of(cell)):
        print(f"corerl: {pending.described(cell)}", file=sys.stderr)


def _tell_idle(cfg: Config) -> None:
    """Warns of a run that ends before its random beginning does: its scores are of initial weights."""
    steps, setting = cfg.algo.first_update()
    if steps >= cfg.steps:
        print(
            f"corerl: {cfg.label or cfg.algo.label} on {cfg.task} makes no update: its first "
            f"{steps:,} steps only fill the replay ({setting}), but training ends at "
            f"steps={cfg.steps:,}. Raise steps, or lower {setting}.",
            file=sys.stderr,
        )
    if cfg.algo.phase == "both":
        before = cfg.algo.online.pretrain_steps + cfg.algo.online.warmup_steps
        if before >= cfg.steps:
            print(
                f"corerl: {cfg.label or cfg.algo.label} on {cfg.task} makes no update online: "
                f"pre-training and warm-up take {before:,} steps, but training ends at "
                f"steps={cfg.steps:,}. Raise steps, or lower algo.online.pretrain_steps and "
                "algo.online.warmup_steps.",
                file=sys.stderr,
            )


def _refuse_unfinished(cfg: Config, ended: list[tuple[int, list[int]]]) -> None:
    """Raises where a group failed, or is another process's: those that are not are done all the same."""
    cell, name = cell_directory(cfg), f"{cfg.label or cfg.algo.label} on {cfg.task}"
    busy = [
        seeds
        for status, seeds in ended
        if status == BUSY and _status(cell / group_name(seeds)).get("state") != "done"
    ]
    failed = [seeds for status, seeds in ended if status not in (DONE, BUSY)]
    where = cell / group_name(busy[0]) if len(busy) == 1 else f"{cell} ({_listed(busy)})"
    reported = f"Another process is training in {where}. Wait for it or stop it."
    if failed:
        written = any((cell / group_name(seeds) / "error.txt").exists() for seeds in failed)
        raise SeedsFailed(
            f"{name}: {_listed(failed)} failed{f', and error.txt in {cell}/seeds-* says why' * written}. The "
            f"same command runs only what is missing.{f' {reported}' if busy else ''}"
        )
    if busy:
        raise Busy(reported)


def _listed(groups: list[list[int]]) -> str:
    seeds = sorted(seed for seeds in groups for seed in seeds)
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def refuse_diverged(cfg: Config) -> None:
    """Raises where no seed of a cell has a result: no success, though nothing is left to run."""
    wanted, reported = set(seed_list(cfg.seeds)), {}
    for directory, seeds in counted(cell_directory(cfg)):
        diverged = _status(directory).get("diverged", {})
        reported |= {seed: diverged[str(seed)] for seed in seeds if str(seed) in diverged}
    if wanted <= reported.keys():
        steps = ", ".join(f"seed {seed} by step {reported[seed]}" for seed in sorted(wanted)[:10])
        raise Diverged(
            f"{cfg.label or cfg.algo.label} on {cfg.task}: every seed diverged, so there is no result. "
            f"There was a NaN, an overflow or a crash of the environment: {steps}. "
            "Try smaller learning rates."
        )


def _status(directory: Path) -> dict:
    """Reads a status. Empty also where it is damaged: the checkpoint then tells what is unfinished."""
    try:
        return read_status(directory)
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        return {}


def plan(cell: Path, seeds: list[int], together: bool, processes: int) -> list[list[int]]:
    """Plans the groups of seeds to train: unfinished ones as they were begun, then those not yet begun.

    A group that another process trains is one of the first also before it has saved: on a GPU its seeds
    would be trained again in a group of their own.
    """
    covered: set[int] = set()
    groups = []
    for directory, begun in groups_of(cell):
        if not set(begun) & set(seeds):
            continue
        if _status(directory).get("state") == "done":
            covered |= set(begun)
        elif checkpoint.exists(checkpoint.path_in(directory)) or files.is_held(directory / ".lock"):
            covered |= set(begun)
            groups.append(begun)
    fresh = [seed for seed in seeds if seed not in covered]
    if together and fresh:
        return groups + _chunks(sorted(fresh), min(processes, len(fresh)))
    return groups + [[seed] for seed in fresh]


def _chunks(seeds: list[int], count: int) -> list[list[int]]:
    """Cuts sorted seeds into as many pieces, each of neighbours: `seeds-0-99` is a short name for a folder.

    Raises:
        CorerlError: there are so many gaps that a name is too long.
    """
    cuts = [i * len(seeds) // count for i in range(count + 1)]
    chunks = [seeds[first:last] for first, last in pairwise(cuts)]
    longest = max(len(group_name(chunk)) for chunk in chunks)
    require(
        longest <= LONGEST,
        f"{len(seeds)} seeds with gaps between them need a folder name of {longest} characters, "
        f"but at most {LONGEST} are allowed: give consecutive seeds, or processes= above {count}",
    )
    return chunks


def keep_failure(cfg: Config, error: Exception) -> None:
    """Leaves in the cell's directory why it did not even begin, where `corerl status` finds it.

    Seeds that failed have said so in directories of their own.
    """
    if isinstance(error, SeedsFailed | Busy):
        return
    text = "".join(traceback.format_exception(error))
    with suppress(CorerlError):  # the disk may be what failed
        write_settings(cfg)
        files.write_atomically(cell_directory(cfg) / "error.txt", text.encode())


def write_settings(cfg: Config) -> None:
    content = yaml.safe_dump(settings(cfg) | {"seeds": cfg.seeds}, sort_keys=False)
    files.make_directory(cell_directory(cfg))
    files.write_atomically(cell_directory(cfg) / "config.yaml", content.encode())
