"""Trains groups of seeds in processes of their own, and stops them when this one stops."""

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TextIO

from corerl.config import Config
from corerl.errors import CorerlError
from corerl.launch import worker
from corerl.launch.process_setup import lasting_output, numerics
from corerl.runs import files
from corerl.runs.directory import cell_directory, group_name, read_status
from corerl.runs.progress import Display
from corerl.training.stopping import Interrupted, handled

SHOWN = {"seeds", "state", "step", "steps", "updates_per_s", "learning"}
"""What a status must have to be shown."""


class Job(NamedTuple):
    """A group of seeds to train in one process."""

    cfg: Config
    seeds: list[int]


class Child(NamedTuple):
    """A process that does a job, when it began, and what it writes to stderr."""

    process: BaseProcess
    job: Job
    since: float
    stderr: TextIO


def train(
    cfg: Config, groups: list[list[int]], processes: int, display: Display
) -> list[tuple[int, list[int]]]:
    """Trains one process per group, `processes` at a time, each with its share of the cores.

    Returns every group and the exit status of its process.
    """

    def show(job: Job, status: int | None, since: float) -> None:
        # What another process finished since the plan was done before the child began.
        _show_status(display, job, 0.0 if status == worker.DONE else since)

    ended = run([Job(cfg, seeds) for seeds in groups], processes, show)
    return [(status, job.seeds) for status, job in ended]


def run(
    jobs: list[Job],
    processes: int,
    show: Callable[[Job, int | None, float], None],
    choose: Callable[[list[Job]], Job | None] = lambda waiting: waiting[0],
    end: float = math.inf,
) -> list[tuple[int, Job]]:
    """Runs one process per job, `processes` at a time and returns those that ended, with their exit status.

    Args:
        show: called again and again with a running job, its exit status or None, and when it began.
        choose: returns the waiting job to start next; None: not one of them may start.
        end: the time of `time.monotonic()` at which running jobs save and stop.

    Raises:
        Interrupted: stopped by a signal, after saving; KeyboardInterrupt: by a second one.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    waiting, ended, over = list(jobs), [], False
    running: list[Child] = []
    with _forwarded_signals(running) as stopped:
        while running or (waiting and not stopped and not over):
            while waiting and len(running) < processes and not stopped and not over:
                job = choose(waiting)
                if job is None:
                    break
                waiting.remove(job)
                running.append(_started(job, threads))
                if stopped:  # while it started, so that no signal reached it
                    running[-1].process.terminate()
            if not running:
                break
            time.sleep(0.2)
            if not over and time.monotonic() >= end:
                over = True
                _stop(running)
            for child in list(running):
                status = child.process.exitcode
                _pass_on(child)
                show(child.job, status, child.since)
                if status is not None:
                    running.remove(child)
                    ended.append((status, child.job))
                    if status not in (worker.DONE, worker.BUSY) and not stopped and not over:
                        _keep_reason(child, status)
                    child.stderr.close()
    if len(stopped) > 1:  # which ended the children at once
        raise KeyboardInterrupt
    if stopped:
        raise Interrupted
    return ended


def _started(job: Job, threads: int) -> Child:
    """Starts a child that does a job.

    Ctrl-C reaches the whole process group. Until a child trains it leaves that to its parent, who passes it
    on: an interpreter that has not begun would end in a traceback.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_child, args=(*job, threads, os.getpid()))
    resource_tracker.ensure_running()  # else it would start now, with this child's stderr
    since = time.time()
    with (
        handled(signal.SIG_IGN, signal.SIGINT),
        _without_script(),
        _spawning(),
        _stderr_to_file() as stderr,
    ):
        process.start()
    return Child(process, job, since, stderr)


@contextmanager
def _spawning() -> Iterator[None]:
    """Makes `spawn` the start method that children inherit. Joblib's own one is unknown to them."""
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(method, force=True)


@contextmanager
def _stderr_to_file() -> Iterator[TextIO]:
    """Points this process's stderr at a file without a name, for a child to inherit. Yields its reader."""
    with tempfile.NamedTemporaryFile("ab") as file:
        reader = open(file.name, encoding="utf-8", errors="replace")  # noqa: SIM115  read while it runs
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield reader
        finally:
            os.dup2(before, 2)
            os.close(before)


def _pass_on(child: Child) -> None:
    """Prints what the child has written to stderr since the last call."""
    if text := child.stderr.read():
        print(text, end="", file=sys.stderr, flush=True)


def _keep_reason(child: Child, status: int) -> None:
    """Writes why a child died to error.txt of its seeds, unless it did so itself."""
    directory = cell_directory(child.job.cfg) / group_name(child.job.seeds)
    if status < 0:
        reason = f"killed by signal {-status} (signal 9 often means that memory was full)"
        print(f"corerl: {directory.name} was {reason}", file=sys.stderr)
    else:
        child.stderr.seek(0)
        reason = child.stderr.read().strip() or f"ended with exit status {status} and no message"
    with suppress(CorerlError, OSError):  # the disk may be what failed
        kept = directory / "error.txt"
        if not kept.exists() or kept.stat().st_mtime < child.since:  # that of an earlier attempt
            files.make_directory(directory)
            files.write_atomically(kept, reason.encode())


@contextmanager
def _without_script() -> Iterator[None]:
    """Hides the calling script from children: imported again, it would train again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _show_status(display: Display, job: Job, since: float) -> None:
    """Shows how far a group is. An older status than `since` tells of an attempt that has ended."""
    cfg, name = job.cfg, group_name(job.seeds)
    with suppress(CorerlError):
        status = read_status(cell_directory(cfg) / name)
        if status.keys() >= SHOWN and status.get("updated", 0.0) >= since:
            display.show(f"{cfg.label or cfg.algo.label} {cfg.task} {name}", status)


def _child(cfg: Config, seeds: list[int], threads: int, parent: int) -> None:
    """Trains one group in a child process, quietly. The parent reads `status.json`."""
    with numerics(cfg, threads), lasting_output():
        _work(cfg, seeds, parent)


def _work(cfg: Config, seeds: list[int], parent: int) -> None:
    # Otherwise a stop before the first update would leave a status of "running".
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def show(name: str, status: dict) -> None:
        # The parent was killed: save and stop rather than run on unseen.
        if os.getppid() != parent and status["state"] == "running":
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        sys.exit(worker.train(cfg, seeds, show))
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        sys.exit(worker.FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Nothing is left to save, and the parent passes on a Ctrl-C that this process may have had already.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _forwarded_signals(running: Iterable[Child]) -> Iterator[list[int]]:
    """Forwards stop signals of this process to its children, which save and end."""
    stopped: list[int] = []

    def forward(number, frame) -> None:
        stopped.append(number)
        _stop(running)

    with handled(forward, signal.SIGINT, signal.SIGTERM):
        yield stopped


def _stop(running: Iterable[Child]) -> None:
    """Tells children to save and end."""
    for child in list(running):
        if child.process.is_alive():
            os.kill(child.process.pid, signal.SIGTERM)
