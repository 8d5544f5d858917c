"""Groups of seeds in processes of their own, which end when this one is told to stop."""

import multiprocessing
import os
import signal
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from corerl.config import Config
from corerl.errors import CorerlError
from corerl.experiments import worker
from corerl.experiments.process import lasting_output, numerics
from corerl.runs.directory import cell_directory, group_name, read_status
from corerl.runs.progress import Display
from corerl.training.run import Interrupted


def train(
    cfg: Config, groups: list[list[int]], processes: int, display: Display
) -> list[tuple[int, list[int]]]:
    """Trains one process per group, `processes` at a time, each with its share of the cores.

    Returns every group and the exit status of its process.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    waiting, running, ended = list(groups), [], []
    with _forwarded_signals(running) as stopped:
        while running or (waiting and not stopped):
            while waiting and len(running) < processes and not stopped:
                seeds = waiting.pop(0)
                running.append((_started(cfg, seeds, threads), seeds))
            time.sleep(0.2)
            for child, seeds in list(running):
                _show_status(display, cfg, cell_directory(cfg) / group_name(seeds))
                if child.exitcode is not None:
                    running.remove((child, seeds))
                    ended.append((child.exitcode, seeds))
                    if child.exitcode < 0 and not stopped:
                        _tell_killed(seeds, -child.exitcode)
    if stopped:
        raise Interrupted
    return ended


def _started(cfg: Config, seeds: list[int], threads: int) -> BaseProcess:
    """Starts a child that trains these seeds.

    Ctrl-C reaches the whole process group. Until a child trains it leaves that to its parent, who passes it
    on: an interpreter that has not begun would end in a traceback.
    """
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_child, args=(cfg, seeds, threads, os.getpid()))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _without_script():
        child.start()
    signal.signal(signal.SIGINT, handler)
    return child


def _tell_killed(seeds: list[int], number: int) -> None:
    print(
        f"corerl: {group_name(seeds)} was killed by signal {number} (9 is also how a full memory ends a "
        "process)",
        file=sys.stderr,
    )


@contextmanager
def _without_script() -> Iterator[None]:
    """Hides the calling script from children: imported again, it would train again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _show_status(display: Display, cfg: Config, directory: Path) -> None:
    with suppress(CorerlError):
        status = read_status(directory)
        if "steps" not in status:
            return
        label = cfg.label or cfg.algo.label
        display.show(f"{label} {cfg.task} {directory.name}", status)


def _child(cfg: Config, seeds: list[int], threads: int, parent: int) -> None:
    """Trains one group in a child process, quietly; the parent reads `status.json`."""
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


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Lets SIGTERM stop this process's children too, and itself as Ctrl-C does.

    Otherwise it would end this process alone, and the workers of a launcher would train on. Children with a
    process group of their own are left alone, as a terminal's Ctrl-C leaves them. They are sent SIGTERM:
    what a script starts in the background ignores SIGINT, and so do its children.
    """

    def stop(number, frame) -> None:
        for child in _children():
            with suppress(ProcessLookupError):
                if os.getpgid(child) == os.getpgrp():
                    os.kill(child, signal.SIGTERM)
        raise KeyboardInterrupt

    try:
        old = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _children() -> list[int]:
    """Returns the ids of this process's children; none where no /proc tells."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


@contextmanager
def _forwarded_signals(running: list) -> Iterator[list[int]]:
    """Forwards stop signals of this process to its children, which save and end."""
    stopped: list[int] = []

    def forward(number, frame) -> None:
        stopped.append(number)
        for child, _ in running:
            if child.is_alive():
                os.kill(child.pid, signal.SIGTERM)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
