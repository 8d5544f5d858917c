"""Signals that stop a run at a step boundary, or the processes of a launcher."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run was saved and can be resumed."""


@contextmanager
def handled(handler: Callable | signal.Handlers, *numbers: int) -> Iterator[dict]:
    """Handles these signals so, and afterwards as before. Outside the main thread the caller handles them.

    Yields what handled them before.
    """
    old = {}
    with suppress(ValueError):
        for number in numbers:
            old[number] = signal.signal(number, handler)
    try:
        yield old
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextmanager
def stop_signals(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """Lets the first SIGINT or SIGTERM call `ask_to_stop`, and a second one kill."""

    def stop(number, frame) -> None:
        ask_to_stop()
        signal.signal(number, old[number])

    with handled(stop, signal.SIGINT, signal.SIGTERM) as old:
        yield


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

    with handled(stop, signal.SIGTERM):
        yield


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM interrupt a launcher's worker also where no update runs: submitit has it ignored there."""
    with handled(signal.default_int_handler, signal.SIGTERM):
        yield


def _children() -> list[int]:
    """Returns the ids of this process's children. None where no /proc tells."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text(encoding="utf-8").split()]
