"""Signals that stop a run at a step boundary."""

import signal
from collections.abc import Callable


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run was saved and can be resumed."""


class StopSignals:
    """A block in which the first SIGINT or SIGTERM calls `ask_to_stop`, and a second one kills."""

    def __init__(self, ask_to_stop: Callable[[], None]):
        self._ask_to_stop = ask_to_stop

    def __enter__(self) -> None:
        self._old = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._stop)
            except ValueError:  # not the main thread: the caller handles signals
                return

    def _stop(self, number, frame) -> None:
        self._ask_to_stop()
        signal.signal(number, self._old[number])

    def __exit__(self, *_) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
