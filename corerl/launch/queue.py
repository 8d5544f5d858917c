"""Trains a list of cells on this machine, several at a time, within a time limit.

A cell is one algorithm on one task with one choice of settings, for all its
seeds.

  corerl queue mine.yaml --minutes 50 --at-once 4
  corerl queue neorl2 seeds=2 --dry-run      try two updates of every cell
  corerl queue mine.yaml --pack DIR          pack list and datasets, to run the
                                             next line on a machine without a
                                             network
  corerl queue DIR/queue.yaml --minutes 50 --out results

FILE is a sweep's name or file, or a YAML list. Each entry of the list has the
settings of one cell. Put the most valuable cell first:

  - algo=iql task=corerl/pendulum seeds=4
  - algo=td3_bc task=corerl/pendulum steps=20000
"""

import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from corerl.config import Config, require
from corerl.data import packed
from corerl.errors import CorerlError
from corerl.launch import (
    launch,
    memory_estimate,
    queue_files,
    rates,
    seed_processes,
    status,
    tiny_cells,
    worker,
)
from corerl.launch.arguments import sweeps
from corerl.launch.composition import cells
from corerl.launch.process_setup import lasting_output, numerics
from corerl.launch.seed_processes import Job
from corerl.runs import checkpoint, files, provenance
from corerl.runs.directory import cell_directory, group_name, read_status
from corerl.training.devices import pick_device
from corerl.training.stopping import Interrupted

ENDED = {
    worker.DONE: "done",
    worker.BUSY: "running in another process",
    130: "stopped",
    -signal.SIGTERM: "stopped",  # before it began to train
}
"""How a job ended, by the exit status of its process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("file", metavar="FILE", help="a sweep's name or file, or a YAML list of cells")
    add(
        "settings",
        nargs="*",
        help="settings for every cell, right after FILE, such as seeds=3 eval.later=true",
    )
    add(
        "--minutes",
        type=float,
        default=math.inf,
        help="time limit in minutes, after which runs save and stop",
    )
    add(
        "--at-once",
        type=int,
        help="processes that train at the same time (default: 1 on a GPU, else one per CPU core)",
    )
    add("--dry-run", action="store_true", help="only try each cell with two updates, on the CPU")
    add(
        "--pack",
        type=Path,
        metavar="DIR",
        help="only pack the list and its datasets into DIR, for another machine",
    )
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="also write the results to DIR, in at most 8 files of 16 MiB",
    )


def run(args: argparse.Namespace) -> int:
    """Trains the cells, or packs them and returns 2 where one failed, 130 where a signal stopped it."""
    require(args.minutes > 0, f"--minutes {args.minutes:g} must be positive")
    require(args.at_once is None or args.at_once > 0, f"--at-once {args.at_once} must be positive")
    listed = status.distinct(read(args.file, args.settings))
    if args.pack:
        require(
            not args.dry_run,
            "--pack only packs files, so --dry-run has no effect. Leave out one of the two",
        )
        for line in queue_files.pack(listed, args.file, args.pack):
            print(line)
        command = shlex.join(["corerl", "queue", f"{args.pack}/queue.yaml", *args.settings])
        print(f"Run on the other machine: {command}")
        return 0
    with lasting_output(), _packed_data(args.file):
        if not args.dry_run:
            return _train(listed, args)
        with TemporaryDirectory() as root:
            print(f"Trying each cell with {tiny_cells.UPDATES} updates on the CPU:")
            return _train([tiny_cells.shrunk(cfg, root) for cfg in listed], args)


def read(file: str, settings: list[str]) -> list[Config]:
    """Returns the cells of a queue, each with `settings`.

    Raises:
        CorerlError: there is no such file or sweep, an entry is no list of settings, or it does not compose.
    """
    path = Path(file)
    if file in sweeps() or not path.is_file():
        return cells([f"sweep={file}", *settings])
    try:
        entries = files.plain_yaml(path)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorerlError(f"{file} is not readable YAML ({reason}). Repair the file.") from error
    if not isinstance(entries, list):
        return cells([f"sweep={file}", *settings])
    found: list[Config] = []
    for number, entry in enumerate(entries, 1):
        words = shlex.split(entry) if isinstance(entry, str) else entry
        right = isinstance(words, list) and all(isinstance(word, str) for word in words)
        require(
            right and bool(words),
            f"{file}, entry {number} is {entry!r:.60}, but must be the settings of a run, as in: "
            "- algo=iql task=corerl/pendulum",
        )
        found += cells([*words, *settings])
    require(
        bool(found),
        f"{file} lists no runs. Write a line for each run, as in: - algo=iql task=corerl/pendulum",
    )
    return found


@contextmanager
def _packed_data(file: str) -> Iterator[None]:
    """Lets tasks read the datasets that `--pack` wrote beside this file."""
    folder, before = queue_files.data_folder(file), os.environ.get(packed.VARIABLE)
    if Path(file).is_file() and folder.is_dir():
        os.environ[packed.VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(packed.VARIABLE, None)
        else:
            os.environ[packed.VARIABLE] = before


def _train(listed: list[Config], args: argparse.Namespace) -> int:
    end = time.monotonic() + 60 * args.minutes
    jobs, refused = _jobs(listed)
    on_gpu = pick_device(listed[0].device).type == "cuda"
    at_once = args.at_once or (1 if on_gpu else len(os.sched_getaffinity(0)))
    code = 0
    try:
        seed_processes.run(jobs, at_once, _Lines().show, _Choice(end, args.out is not None), end)
    except Interrupted:
        code = 130
    failed = _tell_end(listed, refused, args.dry_run)
    if args.out:
        left_out = queue_files.write_results(listed, args.out)
        print(f"Unpack the results with: cat {args.out}/results.tar.* | tar x")
        for path in left_out:
            print(
                f"Left out, because the results would be too large: {path} "
                f"({path.stat().st_size / queue_files.MIB:.1f} MiB)"
            )
    return code or (2 if failed else 0)


def _jobs(listed: list[Config]) -> tuple[list[Job], set[Path]]:
    """Returns the groups of seeds to train, and the folders of cells that cannot be trained here."""
    jobs: list[Job] = []
    refused: set[Path] = set()
    for cfg in listed:
        try:
            with numerics(cfg):
                groups = launch.prepare(cfg, pick_device(cfg.device))
            jobs += [Job(cfg, seeds) for seeds in groups]
        except CorerlError as error:
            print(f"corerl: {_named(cfg)}: {error}", file=sys.stderr)
            launch.keep_failure(cfg, error)
            refused.add(cell_directory(cfg))
    return jobs, refused


def _named(cfg: Config) -> str:
    return f"{cfg.label or cfg.algo.label} on {cfg.task}"


class _Choice:
    """The waiting job to start next: the first that fits into the time left, or whose start is no waste."""

    def __init__(self, end: float, archived: bool):
        self._end, self._archived = end, archived
        self._seconds: dict[int, float | None] = {}

    def __call__(self, waiting: list[Job]) -> Job | None:
        left = self._end - time.monotonic()
        fitting = (job for job in waiting if self._resumes(job) or self._fits(job, left))
        return next(fitting, None) if left > 0 else None

    def _resumes(self, job: Job) -> bool:
        """Tells whether what a job has trained when it is stopped will be there to resume from."""
        if not self._archived:
            return True
        size = memory_estimate.of_seed(job.cfg)
        room = queue_files.PIECES * queue_files.PIECE - queue_files.LEFT_FREE
        return size is not None and size.memory * len(job.seeds) < room

    def _fits(self, job: Job, seconds: float) -> bool:
        """Tells whether a job ends within so many seconds, by what is known. True where nothing is."""
        if id(job) not in self._seconds:  # asked again and again while others run
            self._seconds[id(job)] = seconds_of(job)
        estimate = self._seconds[id(job)]
        return estimate is None or estimate <= seconds


def seconds_of(job: Job) -> float | None:
    """Estimates how long the updates that a job lacks take, or None if this device has no rate."""
    cfg, seeds = job
    gpu = provenance.environment(pick_device(cfg.device))["gpu"]
    rate = rates.known(cfg, gpu)
    if rate is None or rate.on_gpu != (gpu is not None):
        return None
    path = checkpoint.path_in(cell_directory(cfg) / group_name(seeds))
    return (cfg.steps - checkpoint.saved_step(path)) * len(seeds) / rate.updates_per_s


class _Lines:
    """A line on stderr where a job starts and where it ends."""

    def __init__(self):
        self._seen: set[float] = set()

    def show(self, job: Job, code: int | None, since: float) -> None:
        name = f"{_named(job.cfg)}, {group_name(job.seeds)}"
        if since not in self._seen:
            self._seen.add(since)
            self._print(f"started: {name}")
        if code is not None:
            self._print(f"{ENDED.get(code, 'failed')}: {name}")

    def _print(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


def _tell_end(listed: list[Config], refused: set[Path], dry: bool) -> bool:
    """Prints which cells are complete and which can be resumed and tells whether one failed."""
    states = []
    for cfg, label in zip(listed, status.names(listed), strict=True):
        state, detail = _state(cfg, cell_directory(cfg) in refused)
        states.append(state)
        print(f"{state}: {label} on {cfg.task}{'' if dry and state == 'complete' else detail}")
    counted = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    again = (
        ""
        if dry or set(states) == {"complete"}
        else " Run the same command again to train the rest."
    )
    print(f"{len(states)} cells: {counted}.{again}")
    return "failed" in states


def _state(cfg: Config, refused: bool) -> tuple[str, str]:
    """Returns `complete`, `resumable`, `failed` or `not begun`, and what else is to be said of a cell."""
    groups = list(status.of_cell(cfg))
    reported = " ".join(dict.fromkeys(group.message for group in groups if group.message))
    if all(group.state == "done" for group in groups):
        return "complete", f". {reported}" if reported else ""
    if refused or any(group.state in ("failed", "damaged") for group in groups):
        return "failed", f": {reported}"
    saved = sum(_saved(group) * len(group.seeds) for group in groups)
    if not saved:
        return "not begun", ""
    total = sum(group.steps * len(group.seeds) for group in groups)
    return "resumable", f", {saved:,} of {total:,} updates"


def _saved(group: status.Group) -> int:
    """Returns the updates of each seed of a group that a later run finds."""
    directory = group.cell / group_name(group.seeds)
    if group.state == "done":
        return read_status(directory)["step"]
    return checkpoint.saved_step(checkpoint.path_in(directory))
