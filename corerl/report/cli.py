"""Shows scores of runs or score files as tables, figures and one HTML page. See docs/reports.md."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `corerl report`."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="run folders or score files")
    add("--out", type=Path, default=Path("report"), help="folder to write (default: report)")
    add(
        "--published",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help=(
            "published numbers to show next to yours: a table of corerl (d4rl_offline, neorl2, ...) "
            "or your own CSV"
        ),
    )
    add(
        "--metric",
        choices=("iqm", "median", "mean"),
        default="iqm",
        help="aggregate that sorts the algorithms and is drawn against steps (default: iqm)",
    )
    add("--baseline", metavar="ALGO", help="compare every algorithm with this one")
    add("--replicates", type=int, default=10_000, help="bootstrap replicates (default: 10000)")
    add("--title", default="Results", help="the page's title")
    add(
        "--note",
        default="",
        metavar="TEXT",
        help='text below every figure and at the top of the page, such as "1/100 of the paper\'s updates"',
    )
    add(
        "--best",
        action="store_true",
        help="count the best evaluation of every run instead of the last",
    )
    add(
        "--unequal",
        action="store_true",
        help="also mark differences between runs with different numbers of steps",
    )
    add(
        "--risk",
        action="store_true",
        help="show the CVaR and the distribution of returns for all tasks, not only risk/...",
    )
    add(
        "--rliable",
        action="store_true",
        help=(
            "also show the bootstrap intervals of the package rliable (takes a second for each task "
            "and pair of algorithms)"
        ),
    )
    add(
        "--unfinished",
        action="store_true",
        help="also count the latest evaluation of runs that have not finished",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the report and prints its table. 0, or 1 if a figure could not be drawn."""
    from corerl.report.build import build  # pandas and matplotlib only when asked for

    return build(args)
