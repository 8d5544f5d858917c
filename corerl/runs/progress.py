"""What a person sees while runs go on: one line per group of seeds."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Display:
    """Shows the statuses of runs: live bars in a terminal, a plain line per evaluation elsewhere."""

    def __init__(self):
        self._console = Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._printed: dict[str, Any] = {}

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:>9,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[rate]:>6.0f}/s"),
                TextColumn("ETA {task.fields[eta]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[score]}"),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, status: dict[str, Any]) -> None:
        """`status` is the content of a `status.json`."""
        if self._bars is not None:
            self._show_bar(name, status)
        elif status.get("evaluated") != self._printed.get(name) or status["state"] != "running":
            self._print_line(name, status)

    def _show_bar(self, name: str, status: dict[str, Any]) -> None:
        fields = {"rate": status["updates_per_s"], "eta": _eta(status), "score": _score(status)}
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=status["steps"], **fields)
        self._bars.update(self._tasks[name], completed=status["step"], **fields)

    def _print_line(self, name: str, status: dict[str, Any]) -> None:
        if self._printed.get(name) == status["state"]:
            return
        running = status["state"] == "running"
        if running and status["step"] == status["steps"]:
            return
        self._printed[name] = status.get("evaluated") if running else status["state"]
        state = f"ETA {_eta(status)}" if running else status["state"]
        print(
            f"{time.strftime('%H:%M:%S')}  {name}  step {status['step']:,}/{status['steps']:,}  "
            f"{status['updates_per_s']:.0f}/s  {state}  {_score(status)}",
            file=sys.stderr,
            flush=True,
        )


def _eta(status: dict[str, Any]) -> str:
    if not status["updates_per_s"]:
        return "-"
    seconds = int((status["steps"] - status["step"]) / status["updates_per_s"])
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _score(status: dict[str, Any]) -> str:
    if status.get("score") is not None:
        return f"score {status['score']:.1f}"
    if status.get("return") is not None:
        return f"return {status['return']:.1f}"
    return ""
