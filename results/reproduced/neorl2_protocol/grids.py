"""A grid of settings, ours beside somebody's: every cell with the interval of the difference.

    python grids.py collect runs --out scores.csv     one row per finished seed
    python grids.py compare scores.csv                the table, beside NeoRL-2's runs
    python grids.py compare scores.csv --figure grid.png      and every seed as a dot

A cell is an algorithm with settings on a task. Both sides are CSV with the columns `algorithm`, `task`,
`cell`, `seed` and `return`; a cell is named as the published file names it. `collect` takes runs of
`bc_neorl2`, `td3_bc_neorl2`, `cql_neorl2` and `edac_neorl2`; `results/published/neorl2_runs.csv` holds every
run of that benchmark (the mean return of 1,000 episodes; from `benchmark/results/*/log.csv` of
polixir/NeoRL2 at b50d91d).
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import grid_figure
import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from corerl.errors import CorerlError
from corerl.report.files import write
from corerl.report.formats import escaped
from corerl.report.stats import welch_interval
from corerl.runs.directory import groups, read_settings, read_status
from corerl.runs.files import below

COLUMNS = ["algorithm", "task", "cell", "seed", "return"]


class Grid(NamedTuple):
    """A published grid of one of our algorithms."""

    table: str  # what `algo=` takes
    names: dict[str, Callable[[dict[str, Any]], float]]  # its settings, each read from ours
    mark: tuple[str, Any] | None = None  # one of ours that only the benchmark's table has


GRIDS = {
    "bc_neorl2": Grid(
        "bc_neorl2", {"actor_layers": itemgetter("hidden_layers"), "actor_lr": itemgetter("lr")}
    ),
    "td3_bc_neorl2": Grid(
        "td3_bc_neorl2", {"alpha": itemgetter("alpha"), "policy_noise": itemgetter("policy_noise")}
    ),
    "cql_official": Grid(
        "cql_neorl2",
        {
            "lagrange_thresh": itemgetter("threshold"),
            "min_q_version": lambda algo: 2 + algo["importance_sampling"],
            "min_q_weight": itemgetter("weight"),
        },
        ("order", "in_turn"),
    ),
    "edac": Grid(
        "edac_neorl2",
        {"eta": itemgetter("eta"), "num_critics": itemgetter("critics")},
        ("order", "critic_last"),
    ),
}


def read(path: Path) -> pd.DataFrame:
    """Reads a CSV of runs, one row per cell and seed.

    Raises:
        CorerlError: a column is missing, a return is no number, or a seed stands twice.
    """
    try:
        rows = pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CorerlError(f"{path} is not a readable CSV ({reason}).") from error
    for column in COLUMNS:
        if column not in rows.columns:
            raise CorerlError(f"{path} has no column {column!r}. It needs {', '.join(COLUMNS)}.")
    returns = pd.to_numeric(rows["return"], errors="coerce")
    if not np.isfinite(returns).all():
        row = int(np.argmax(~np.isfinite(returns)))
        raise CorerlError(
            f"{path}, row {row + 2}: return is {rows['return'][row]!r}, not a number."
        )
    if (twice := rows.duplicated(COLUMNS[:4])).any():
        raise CorerlError(f"{path}, row {int(np.argmax(twice)) + 2}: this seed stands twice.")
    return rows.assign(**{"return": returns})


def published() -> pd.DataFrame:
    """Reads NeoRL-2's own runs."""
    with resources.as_file(resources.files("corerl.published") / "neorl2_runs.csv") as path:
        return read(path)


# From runs to rows.


def collect(root: Path) -> pd.DataFrame:
    """Collects last evaluations of finished seeds below `root` whose algorithm has a published grid."""
    rows = [row for config in below(root, "config.yaml") for row in _finished(config)]
    if not rows:
        tables = ", ".join(grid.table for grid in GRIDS.values())
        raise CorerlError(f"{root} holds no finished run of {tables}.")
    order = ["task", "algorithm", "cell", "seed"]
    return pd.DataFrame(rows).sort_values(order).reset_index(drop=True)


def _finished(config: Path) -> Iterator[dict[str, Any]]:
    try:
        settings = read_settings(config.parent)
    except CorerlError as error:
        _tell(f"skipped: {error}")
        return
    algo = settings["algo"]
    grid = GRIDS.get(algo["name"])
    if grid is None:
        return
    if grid.mark and algo.get(grid.mark[0]) != grid.mark[1]:
        _tell(f"skipped: {config.parent} has not the settings of {grid.table}")
        return
    cell = cell_of(algo)
    for directory, seeds in groups(config.parent):
        if read_status(directory).get("state") != "done":
            continue
        for row in _last_rows(directory / "scores.csv", seeds, settings["steps"]):
            yield {
                "algorithm": row["algorithm"],
                "task": row["task"],
                "cell": cell,
                "seed": row["seed"],
                "return": round(row["return"], 3),
                "return_std": round(row["return_std"], 2),
                "episodes": row["episodes"],
                "updates": row["step"],
                "config": row["config"],
            }


def cell_of(algo: dict[str, Any]) -> str:
    """Names the published cell of an algorithm's settings."""
    return " ".join(f"{name}={of(algo):g}" for name, of in GRIDS[algo["name"]].names.items())


def _last_rows(file: Path, seeds: list[int], step: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of one step whose seed has a return, and says which of the seeds have none."""
    names = {"algorithm": str, "task": str, "config": str}  # a label may be NA, a hash a number
    try:
        scores = pd.read_csv(file, converters=names)
    except (OSError, ValueError) as error:
        _tell(f"skipped: {file} is not readable ({' '.join(str(error).split())})")
        return
    last = scores[scores["step"] == step]
    for seed in sorted({*seeds} - {*last["seed"]}):  # one that diverged gets no more rows
        _tell(f"skipped: seed {seed} of {file} has no return after {step} steps")
    for row in last.to_dict("records"):
        if np.isfinite(row["return"]):
            yield row
        else:
            _tell(f"skipped: seed {row['seed']} of {file} has no return (diverged)")


def _tell(message: str) -> None:
    print(f"corerl: {message}", file=sys.stderr)


# From rows to the comparison.


def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per cell of ours: mean, std (ddof 1) and n of both sides, the difference, its interval.

    `low` and `high` bound ours - theirs by Welch's 95% interval; NaN where a side has one seed. Where
    ours has a column `updates`, the fewest and the most of a cell's seeds are told too.

    Raises:
        CorerlError: a cell of ours that they did not run, or whose seeds have unlike settings.
    """
    keys = COLUMNS[:3]
    _refuse_unlike_settings(ours)
    sides = [
        rows.groupby(keys)["return"].agg(["mean", "std", "size"]).add_prefix(f"{name}_")
        for name, rows in (("our", ours), ("their", theirs))
    ]
    both = sides[0].join(sides[1])
    if (alone := both["their_mean"].isna()).any():
        algorithm, task, cell = both.index[alone][0]
        raise CorerlError(f"There is no published run of {algorithm} with {cell} on {task}.")
    intervals = [welch_interval(*map(float, row)) for row in both.fillna(0.0).to_numpy()]
    both["difference"] = both["our_mean"] - both["their_mean"]
    both[["low", "high"]] = intervals
    if "updates" in ours.columns:
        both[["fewest", "most"]] = ours.groupby(keys)["updates"].agg(["min", "max"])
    return both.reset_index()


def _refuse_unlike_settings(rows: pd.DataFrame) -> None:
    if "config" not in rows.columns:
        return
    for (algorithm, task, cell), found in rows.groupby(COLUMNS[:3])["config"]:
        if found.nunique() > 1:
            raise CorerlError(
                f"The seeds of {algorithm} with {cell} on {task} have unlike settings (config "
                f"{', '.join(sorted(map(str, found.unique())))}): keep the rows of one, or remove the column "
                "config where they may be one cell."
            )


def rank_correlation(rows: pd.DataFrame) -> float:
    """Returns Spearman's correlation of cell means, ours and theirs; NaN of fewer than three cells."""
    if len(rows) < 3:
        return float("nan")
    return float(spearmanr(rows["our_mean"], rows["their_mean"]).statistic)


def markdown(rows: pd.DataFrame) -> str:
    """Returns a table for each task and algorithm; a difference whose interval excludes 0 is emphasised."""
    blocks = []
    for (task, algorithm), part in rows.groupby(["task", "algorithm"], sort=True):
        lines = [
            f"**{escaped(algorithm)} on {escaped(task)}: mean return ± standard deviation over seeds (n)**",
            "",
            "| cell | ours | theirs | difference [95%] |",
            "| --- | ---: | ---: | ---: |",
            *(_line(row) for row in part.to_dict("records")),
            "",
            _summary(part),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _line(row: dict[str, Any]) -> str:
    def side(name: str) -> str:
        mean, std, n = (row[f"{name}_{of}"] for of in ("mean", "std", "size"))
        return f"{mean:.1f} ± {std:.1f} ({n:.0f})" if n > 1 else f"{mean:.1f} (1)"

    reported = f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]"
    if np.isnan(row["low"]):
        reported = f"{row['difference']:+.1f}"
    elif row["low"] > 0 or row["high"] < 0:
        reported = f"**{reported}**"
    return f"| {escaped(row['cell'])} | {side('our')} | {side('their')} | {reported} |"


def _summary(part: pd.DataFrame) -> str:
    known = part.dropna(subset="low")
    apart = int(((known["low"] > 0) | (known["high"] < 0)).sum())
    text = f"Intervals that exclude 0: {apart} of {len(known)}. "
    if "fewest" in part:
        fewest, most = (f"{count:,.0f}" for count in (part["fewest"].min(), part["most"].max()))
        text = f"Ours after {fewest if fewest == most else f'{fewest} to {most}'} updates. {text}"
    rank = rank_correlation(part)
    if np.isnan(rank):
        return text + "A rank correlation needs three cells."
    return text + f"Rank correlation (Spearman) of {len(part)} cells: {rank:.2f}."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python grids.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    gather = commands.add_parser("collect", help="finished runs -> one CSV")
    gather.add_argument("root", type=Path)
    gather.add_argument("--out", type=Path, required=True)
    beside = commands.add_parser("compare", help="that CSV beside the published grid")
    beside.add_argument("scores", type=Path)
    beside.add_argument("--published", type=Path, help="another grid than NeoRL-2's")
    beside.add_argument("--figure", type=Path, metavar="PNG", help="draw every seed of both")
    args = parser.parse_args(arguments)
    try:
        if args.command == "collect":
            write(args.out, collect(args.root).to_csv(index=False, lineterminator="\n"))
        else:
            theirs = read(args.published) if args.published else published()
            ours = read(args.scores)
            rows = compare(ours, theirs)
            sys.stdout.write(markdown(rows))
            if args.figure:
                write(args.figure, grid_figure.png(rows, ours, theirs))
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
