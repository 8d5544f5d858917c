"""Progress of a cell's seeds: a few lines that fit 80 columns, or a line now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from corerl.runs.directory import group_name

EVERY = 30.0
"""Seconds between lines where there is no terminal."""
LONG = 600.0
"""Seconds from which a training says at once how long it takes."""
SURE = 100
"""Updates from which a rate is believed."""
ROWS = 12
"""Groups of seeds with a line of their own."""


class Display:
    """The progress of a cell's groups of seeds: live in a terminal, a line every 30 seconds elsewhere.

    Args:
        title: `IQL corerl/pendulum`. place: `cell 2 of 9`, or "".
        groups: the seeds that are to be trained, by program. at_once: how many programs run together.
        steps: updates of each seed.
        console, clock: where it is shown, and what tells the time.
    """

    def __init__(
        self,
        title: str,
        groups: Sequence[Sequence[int]],
        at_once: int,
        steps: int,
        place: str = "",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._title, self._place = title, place
        self._at_once, self._steps = at_once, steps
        self._status: dict[tuple[int, ...], dict[str, Any]] = {tuple(g): {} for g in groups}
        self._console = console or Console(stderr=True)
        self._clock, self._began = clock, clock()
        self._since = dict.fromkeys(self._status, self._began)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._ended = threading.Event()
        self._printed = self._began
        self._first: dict[tuple[int, ...], tuple[int, float]] = {}
        self._announced = False

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self.lines, console=self._console, refresh_per_second=2
            )
            self._live.start()
        else:
            threading.Thread(target=self._print_now_and_then, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        if self._live is not None:
            self._live.stop()

    def show(self, name: str, status: dict[str, Any]) -> None:
        """Shows a `status.json`'s content, of the group that `name` names."""
        key = tuple(status["seeds"])
        with self._lock:
            before = self._status.get(key, {})
            if before.get("waiting_for", "") != status.get("waiting_for", "") or not before:
                self._since[key] = self._clock()
            self._status[key] = dict(status)
            self._announce(status)
            ended = status["state"] != "running" and before.get("state") != status["state"]
            # Not `step`: the first status that is seen of a child may be of later updates.
            resumed = not before and not ended and status.get("began_at")
        if resumed and self._live is None:  # in a terminal the bar shows it
            self._print(f"{name}  resumes from step {resumed:,}")
        if ended and self._live is None:
            self._print(
                f"{name}  step {status['step']:,}/{status['steps']:,}  "
                f"{_rate(status['updates_per_s'])}  {status['state']}  {_score([status])}".rstrip()
            )

    def _announce(self, status: dict[str, Any]) -> None:
        """Prints once how long all of it takes, where that is long, from the rate of the first updates."""
        now, step = self._clock(), status["step"]
        if self._announced or status["state"] != "running" or not status["learning"]:
            return
        first, since = self._first.setdefault(tuple(status["seeds"]), (step, now))
        seconds = now - since
        if seconds < 1 or step < first + SURE:
            return
        self._announced = True
        groups = len(self._status)
        together = min(self._at_once, groups)
        rate = (step - first) / seconds
        left = sum(self._steps - s.get("step", 0) for s in self._status.values())
        expected = left / (rate * together)
        if expected < LONG:
            return
        seeds = sum(len(key) for key in self._status)
        place = f" ({self._place}, and the other cells take more time)" if self._place else ""
        self._print(
            f"{self._title}: {seeds} seed{'s' if seeds > 1 else ''} of {self._steps:,} updates, "
            f"{together} at a time, will take about {duration(expected)} at {_rate(rate)} each, "
            f"without evaluation{place}. Lower steps or seeds to train for less time. Ctrl-C saves, "
            "and the same command resumes."
        )

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)

    # Without a terminal.

    def _print_now_and_then(self) -> None:
        while not self._ended.wait(1.0):
            self.print_if_due()

    def print_if_due(self) -> None:
        """Prints one line for the whole cell where the last one is 30 seconds old."""
        if self._clock() - self._printed < EVERY:
            return
        self._printed = self._clock()
        with self._lock:
            running, done, queued = self._sorted()
            statuses = [self._status[key] for key in running]
        parts = [f"{_count(done)} of {_count(self._status)} seeds done"]
        if running:
            waiting = next((s["waiting_for"] for s in statuses if s.get("waiting_for")), "")
            share = sum(s.get("step", 0) for s in statuses) / (self._steps * len(running))
            reported = waiting or (
                "starting" if not any(statuses) else f"{_rate(self._mean_rate())} each"
            )
            parts.append(
                f"{_count(running)} running ({100 * share:.0f} %, {reported}, ETA {self._eta()})"
            )
        if queued:
            parts.append(f"{_count(queued)} queued")
        scores = _score([s for s in self._status.values() if s])
        place = f", {self._place}" if self._place else ""
        self._print(f"{self._title}{place}: {', '.join(parts)}{f'; {scores}' if scores else ''}")

    # In a terminal.

    def lines(self) -> Group:
        """Renders the current state, for a terminal of any width from 60 columns."""
        with self._lock:
            running, done, queued = self._sorted()
            head = Table.grid(
                Column(no_wrap=True, overflow="ellipsis", ratio=1), Column(no_wrap=True)
            )
            head.expand = True
            passed = _clock(self._clock() - self._began)
            place = f"{self._place}   " if self._place else ""
            head.add_row(Text(self._title, style="bold"), f"{place}{passed}, ETA {self._eta()}")
            rows = [head, self._rows(running[:ROWS])]
            if len(running) > ROWS:
                rest = running[ROWS:]
                rate = sum(self._status[key].get("updates_per_s", 0) for key in rest)
                rows.append(Text(f" {len(rest)} more running, {_rate(rate)} together"))
            rows += list(self._ended_lines(done))
            if queued:
                rows.append(_line(f" queued    {_names(queued)}"))
        return Group(*rows)

    def _rows(self, running: list[tuple[int, ...]]) -> Table:
        """Returns a line per program that runs: how far, how fast, how long, how good."""
        table = Table.grid(
            Column(no_wrap=True, width=11, overflow="ellipsis"),
            Column(ratio=1),
            Column(no_wrap=True, justify="right", width=6),
            Column(no_wrap=True, justify="right", width=10),
            Column(no_wrap=True, justify="right", width=14),
            Column(no_wrap=True, justify="right", width=17),
            expand=True,
        )
        for key in running:
            status, name = self._status[key], f" {_names([key])}"
            waiting = status.get("waiting_for") or ("" if status else "starting")
            if waiting:
                passed = _clock(self._clock() - self._since[key])
                step = status.get("step", 0)
                table.add_row(
                    name, _line(waiting), _percent(step, self._steps), "", passed, _score([status])
                )
                continue
            table.add_row(
                name,
                ProgressBar(total=status["steps"], completed=status["step"]),
                _percent(status["step"], status["steps"]),
                _rate(status["updates_per_s"]),
                f"ETA {_left(status)}",
                _score([status]),
            )
        return table

    def _ended_lines(self, ended: list[tuple[int, ...]]) -> Iterator[Text]:
        """Lists finished seeds in one line, and failed ones in another."""
        for state, style in (("done", "green"), ("interrupted", "yellow"), ("failed", "red")):
            keys = [key for key in ended if self._status[key]["state"] == state]
            if keys:
                scores = _score([self._status[key] for key in keys])
                reported = f"   {scores}" if scores else ""
                name = {"done": "done", "failed": "failed"}.get(state, "stopped")
                yield _line(f" {name:<9} {_names(keys)}{reported}", style)

    def _sorted(self) -> tuple[list, list, list]:
        """Groups that run or start, that have ended, and that wait for a process."""
        ended = [k for k, s in self._status.items() if s.get("state", "running") != "running"]
        begun = [k for k, s in self._status.items() if k not in ended and s]
        rest = [k for k in self._status if k not in ended and k not in begun]
        free = max(0, self._at_once - len(begun))
        return begun + rest[:free], ended, rest[free:]

    def _eta(self) -> str:
        """Estimates the time left for all seeds, those that wait included."""
        statuses = self._status.values()
        going = [s for s in statuses if s.get("state", "running") == "running"]
        left = sum(self._steps - s.get("step", 0) for s in going)
        rate = self._mean_rate() * min(self._at_once, len(going))
        return _clock(left / rate) if rate else "-"

    def _mean_rate(self) -> float:
        """Updates per second of a program that runs, 0 where none has begun."""
        going = [s for s in self._status.values() if s.get("state") == "running"]
        rates = [s["updates_per_s"] for s in going if s["updates_per_s"]]
        return sum(rates) / len(rates) if rates else 0.0


def duration(seconds: float) -> str:
    """Writes a duration: `12 minutes`, `3.4 hours`, `2.1 days`."""
    for unit, size in (("days", 86_400), ("hours", 3_600)):
        if seconds >= (1.5 if unit == "days" else 1) * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} minutes"


def _names(keys: Sequence[Sequence[int]]) -> str:
    """Names seeds: `seed 3`, `seeds 0-4`, `seeds 0, 2, 5`."""
    seeds = sorted(seed for key in keys for seed in key)
    name = group_name(seeds).removeprefix("seeds-").replace("_", ", ")
    return f"seed{'s' if len(seeds) > 1 else ''} {name}"


def _count(keys: Sequence[Sequence[int]] | dict) -> int:
    return sum(len(key) for key in keys)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _percent(step: int, steps: int) -> str:
    return f"{100 * step // steps} %"


def _rate(rate: float) -> str:
    if not rate:
        return "-"
    return f"{rate:,.0f}/s" if rate >= 9.5 else f"{rate:.2g}/s"


def _left(status: dict[str, Any]) -> str:
    rate = status["updates_per_s"]
    return _clock((status["steps"] - status["step"]) / rate) if rate else "-"


def _clock(seconds: float) -> str:
    seconds = int(seconds)
    days, seconds = divmod(seconds, 86_400)
    text = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} d {text[:-3]}" if days else text


def _score(statuses: Sequence[dict[str, Any]]) -> str:
    """Returns the mean over groups of their last scores, or of their returns where there is no scale."""
    for name in ("score", "return"):
        values = [s[name] for s in statuses if s.get(name) is not None]
        if values:
            return f"{name} {sum(values) / len(values):,.1f}"
    return ""
