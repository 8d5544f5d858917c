"""Shows what tuning costs in episodes of the environment: `corerl tuning RUNS`, after a sweep.

Published settings of offline methods were often chosen by playing. For each algorithm on each task, this
draws two curves. One is the return of the best of k settings that are all tried out (expected online
performance). The other is the return of the policy that a bandit would deploy after so many episodes.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from corerl.config import require
from corerl.errors import CorerlError
from corerl.report import drawing
from corerl.report.files import free_name, make_folder, write
from corerl.report.risk import numbers
from corerl.report.stats.tuning import bandit, expected_best
from corerl.report.tables import Cell, digits_of, short
from corerl.runs.directory import groups, read_settings, read_status
from corerl.runs.files import below, read_lines

EPISODES = (1, 10, 50, 100, 200)
"""Numbers of episodes that the printed table shows."""


class Policy(NamedTuple):
    """One seed of one setting, and the step and returns of its last evaluation."""

    setting: str
    seed: int
    step: int
    returns: np.ndarray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `corerl tuning`."""
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="folders of runs with several settings each",
    )
    add("--out", type=Path, default=Path("tuning"), help="folder to write (default: tuning)")
    add("--arms", type=int, default=8, help="policies that the bandit chooses among (default: 8)")
    add("--episodes", type=int, default=200, help="episodes that the bandit plays (default: 200)")


def run(args: argparse.Namespace) -> int:
    """Prints a table of every algorithm and task with several settings, and writes it with a figure."""
    require(
        args.arms > 1 and args.episodes > 0,
        f"--arms {args.arms} must be at least 2, and --episodes {args.episodes} must be positive",
    )
    found = {
        at: policies for at, policies in collect(args.paths).items() if _settings(policies) > 1
    }
    if not found:
        where = ", ".join(map(str, args.paths))
        raise CorerlError(
            f"No algorithm below {where} has finished seeds of two settings on one task. Train some, as in "
            "corerl train -m algo=iql task=corerl/pendulum algo.expectile=0.6,0.7,0.8,0.9"
        )
    make_folder(args.out)
    written: set[str] = set()
    for (task, algorithm), policies in sorted(found.items()):
        table = curves(policies, args.arms, args.episodes)
        name = free_name(f"{algorithm}-{task}", written)
        written.add(name)
        title = f"{algorithm} on {task}: {_settings(policies)} settings, {len(policies)} policies"
        title += f" of {_steps(policies)} steps"
        write(args.out / f"{name}.csv", table.to_csv(index=False))
        png, svg, _ = drawing.render(lambda t=table, n=title: draw(t, n), name)
        write(args.out / f"{name}.png", png)
        write(args.out / f"{name}.svg", svg)
        print("\n".join([title, *_reported(table), ""]))
    print(f"Wrote {args.out}")
    return 0


def _settings(policies: list[Policy]) -> int:
    return len({policy.setting for policy in policies})


def _steps(policies: list[Policy]) -> str:
    """Names the steps of all, or their ends: `2k`, `1k to 2k`."""
    steps = {policy.step for policy in policies}
    return " to ".join(dict.fromkeys(map(short, (min(steps), max(steps)))))


def collect(paths: Iterable[Path]) -> dict[tuple[str, str], list[Policy]]:
    """Reads the last evaluation of every finished seed, by task and label.

    Raises:
        CorerlError: the returns of a finished seed are damaged.
    """
    found: dict[tuple[str, str], list[Policy]] = defaultdict(list)
    files = (file for path in paths for file in below(path, "config.yaml"))
    for cell in sorted({file.parent.resolve() for file in files}):
        for key, directory, seeds in _finished(cell):
            last = _last(directory)
            for seed in sorted(seeds - last.keys()):
                file = directory / "returns.jsonl"
                print(
                    f"corerl: left out seed {seed} of {file}, because its last evaluation is missing",
                    file=sys.stderr,
                )
            found[key] += [Policy(cell.name, seed, *last[seed]) for seed in seeds if seed in last]
    return found


def _finished(cell: Path) -> list[tuple[tuple[str, str], Path, set[int]]]:
    """Lists (task and label, folder, seeds that did not diverge) of every finished group of seeds."""
    found = []
    with suppress(CorerlError):  # of what is none of ours, corerl status tells
        settings = read_settings(cell)
        key = settings["task"], settings.get("label") or settings["algo"]["label"]
        for directory, seeds in groups(cell):
            status = read_status(directory)
            if status.get("state") == "done":
                found.append((key, directory, {*seeds} - {*map(int, status.get("diverged", {}))}))
    return found


def _last(directory: Path) -> dict[int, tuple[int, np.ndarray]]:
    """Reads step and episodes of the group's last evaluation, of every seed whose line was not lost."""
    lines = read_lines(directory / "returns.jsonl", seed=int, step=int, returns=list)
    last = {line["seed"]: (line["step"], numbers(directory, line["returns"])) for line in lines}
    evaluated = read_status(directory).get("evaluated") or 0
    end = max([evaluated, *(step for step, _ in last.values())])
    return {seed: found for seed, found in last.items() if found[0] == end}


def curves(policies: list[Policy], arms: int, episodes: int) -> pd.DataFrame:
    """Returns rows of `kind` (`settings`, `episodes`), `count`, and the return's `mean`, `low`, `high`."""
    of_setting = defaultdict(list)
    for policy in policies:
        of_setting[policy.setting].append(policy.returns.mean())
    scores = np.array([np.mean(means) for means in of_setting.values()])
    rows = []
    for tried in range(1, len(scores) + 1):
        mean, spread = expected_best(scores, tried)
        rows.append(("settings", tried, mean, mean - spread, mean + spread))
    deployed = bandit([policy.returns for policy in policies], arms=arms, pulls=episodes)
    rows += [("episodes", i + 1, *values) for i, values in enumerate(zip(*deployed, strict=True))]
    return pd.DataFrame(rows, columns=["kind", "count", "mean", "low", "high"])


def draw(table: pd.DataFrame, title: str) -> Figure:
    """Draws the two curves side by side."""
    figure, axes = drawing.grid(1, 2, 7.2, 2.9)
    labels = {"settings": "settings tried", "episodes": "episodes played by a bandit"}
    for axis, (kind, label) in zip(axes, labels.items(), strict=True):
        rows = table[table["kind"] == kind]
        axis.fill_between(rows["count"], rows["low"], rows["high"], alpha=0.2, linewidth=0)
        axis.plot(rows["count"], rows["mean"])
        axis.set_xlabel(label)
    axes[0].set_ylabel("return of the policy chosen")
    figure.suptitle(title, fontsize=9)
    return figure


def _reported(table: pd.DataFrame) -> list[str]:
    """Returns the lines that a terminal shows."""
    lines, settings = [], table[table["kind"] == "settings"]
    digits = digits_of(Cell(row.mean, row.high - row.mean) for row in settings.itertuples())
    for kind, words in (("settings", "best of"), ("episodes", "after")):
        rows = table[table["kind"] == kind]
        for row in rows[rows["count"].isin((*EPISODES, len(rows)))].itertuples():
            spread = (
                f"± {row.high - row.mean:.{digits}f}"
                if kind == "settings"
                else (f"[{row.low:.{digits}f}, {row.high:.{digits}f}]")
            )
            lines.append(f"  {words} {row.count:>4} {kind:<9} {row.mean:10.{digits}f}  {spread}")
    return lines
