"""`corerl data preferences`: comparisons on a task in a few lines, and in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from corerl.config import require
from corerl.data.tasks import Task
from corerl.preferences import readers, sources
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.sources import Preferences
from corerl.runs import terminal

TEACHERS = {
    "oracle": {},
    "mistake": {"epsilon": 0.1},
    "noisy": {"beta": 1.0},
    "skip": {"skip": 0.1},
    "myopic": {"gamma": 0.9},
    "equal": {"equal": 0.1},
    "regret": {"judge": "regret"},
    "advantage": {"judge": "advantage"},
}
"""B-Pref's six (Lee et al. 2021, table 1), and two that judge by regret (`teachers`), as `Preferences`."""

HELP = """\
How the teacher judges. The first six are B-Pref's teachers, which judge by the return. With regret, it judges
by return + V(end) - V(start). With advantage, it judges by the sum of r + 0.99 V(s') - V(s). Both first
fit V, which takes a minute"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `corerl data preferences` takes."""
    plain = Preferences()
    parser.add_argument("task", help="a task, such as corerl/pendulum or file/PATH")
    parser.add_argument(
        "--source", default=plain.source, help=f"source of the labels: {', '.join(sources.SOURCES)}"
    )
    parser.add_argument("--path", help="file or folder of labels (not for --source teacher)")
    parser.add_argument(
        "--crossing",
        default=plain.crossing,
        help=f"what to do with segments across an episode's end: {', '.join(readers.CROSSINGS)}",
    )
    parser.add_argument(
        "--pairs", type=int, help="use only this many comparisons, from the first on"
    )
    parser.add_argument(
        "--ranked",
        type=int,
        default=plain.ranked,
        help="number of segments that a teacher ranks at a time",
    )
    parser.add_argument(
        "--length",
        type=int,
        default=plain.length,
        help="number of steps in each segment that a teacher compares",
    )
    parser.add_argument("--seed", type=int, default=plain.seed, help="seed of a teacher's pairs")
    parser.add_argument("--teacher", choices=TEACHERS, default="oracle", help=HELP)
    parser.add_argument(
        "--discount",
        type=float,
        default=plain.discount,
        help="discount of the rewards within a segment, by which a teacher judges (IPL: 0.99)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="also write the labels to this npz file, for algo.preferences.source=file",
    )


def show(console: Console, args: argparse.Namespace, task: Task) -> None:
    """Prints how many labels there are of each kind, and an example and writes `--out`.

    Raises:
        CorerlError: as `sources.load`, or `--out` is asked of segments that are no dataset's rows, or is
            there already.
    """
    names = ("source", "path", "crossing", "pairs", "ranked", "length", "seed", "discount")
    cfg = Preferences(**{name: getattr(args, name) for name in names}, **TEACHERS[args.teacher])
    by_rows = cfg.source != "ipl" and cfg.crossing != "keep"
    require(
        args.out is None or by_rows,
        f"--out stores segments as rows of the dataset, but with --source {cfg.source} and --crossing "
        f"{cfg.crossing}, segments are not such rows. Leave --out out",
    )
    require(
        args.out is None or not args.out.exists(),
        f"{args.out} exists already. Choose another --out, or delete the file",
    )
    compared = sources.find(task, task.load, cfg)
    table = Table(
        title=terminal.plain(task.id), box=box.SIMPLE, show_header=False, title_justify="left"
    )
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts(compared).items():
        table.add_row(name, terminal.plain(value))
    console.print(table)
    if args.out is not None:
        readers.write(args.out, compared, task.load())
        console.print(terminal.plain(f"{args.out}"), soft_wrap=True)


def facts(compared: Comparisons) -> dict[str, str]:
    """Describes the comparisons in words.

    Labels are compared with the true rewards for a teacher only: people do not rank by them.
    """
    if compared.size > 2:
        return _ranking_facts(compared)
    labels = compared.labels
    kinds = {"first preferred": 0.0, "second preferred": 1.0, "neither": 0.5}
    counts = ", ".join(f"{int((labels == value).sum()):,} {name}" for name, value in kinds.items())
    out = {
        "source": compared.source,
        "comparisons": f"{len(compared):,} of segments of {compared.length} steps: {counts}",
    }
    out |= _contradictory(compared)
    if compared.rewards is None:
        return out
    returns = compared.segments(compared.rewards).sum(-1, dtype=np.float64)
    if compared.source.startswith("teacher"):
        out["right"] = _right(labels, returns)
    low, middle, high = np.quantile(returns, [0, 0.5, 1])
    out["segments' returns"] = f"min {low:.4g}, median {middle:.4g}, max {high:.4g}"
    (first, second), (one, other) = compared.starts[0], returns[0]
    out["example"] = (
        f"the segment from row {first} returns {one:.4g}, the one from row {second} returns {other:.4g}, and "
        f"the label is {labels[0]:g}"
    )
    return out


def _contradictory(compared: Comparisons) -> dict[str, str]:
    circular = compared.in_circles()
    words = (
        f"{circular:,} answers are in a circle (a over b, b over c, c over a), which no reward fits. "
        "algo=spo_general can learn from such answers"
    )
    return {"contradictory": words} if circular else {}


def _ranking_facts(compared: Comparisons) -> dict[str, str]:
    """Describes rankings."""
    out = {
        "source": compared.source,
        "rankings": f"{len(compared):,} of {compared.size} segments of {compared.length} steps, "
        f"{len(compared.pairs()):,} pairs",
    } | _contradictory(compared)
    if compared.rewards is None:
        return out
    returns = compared.segments(compared.rewards).sum(-1, dtype=np.float64)
    if compared.source.startswith("teacher"):
        pairs = compared.pairs()
        of_pairs = pairs.segments(compared.rewards).sum(-1, dtype=np.float64)
        out["right"] = _right(pairs.labels, of_pairs)
    shown = ", ".join(f"{r:.4g}" for r in returns[0])
    out["example"] = (
        f"segments from rows {', '.join(map(str, compared.starts[0]))} (best first) return {shown}"
    )
    return out


def _right(labels: np.ndarray, returns: np.ndarray) -> str:
    """Says how often the preferred segment has the larger return, over pairs without any tie."""
    decided = (labels != 0.5) & (returns[:, 0] != returns[:, 1])
    if not decided.any():
        return "every pair has a tie, in its answer or its returns"
    right = (labels == 1)[decided] == (returns[:, 1] > returns[:, 0])[decided]
    return (
        f"{100 * right.mean():.1f} % of {decided.sum():,} answers prefer the larger undiscounted "
        "return"
    )
