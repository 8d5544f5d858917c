"""CORL's runs beside ours on the same data: returns, and the share of episodes that run.

    python results/reproduced/same_data/compare.py collect runs --add corl.csv --out returns.csv
    python results/reproduced/same_data/compare.py table returns.csv

`collect` writes our runs as rows like those of `run_corl.py`, with that file's rows. `table` takes the
evaluations that both codes made of the same algorithm, task and step, and of each seed the mean over them:
evaluations of one run are not independent, seeds are. Intervals are Welch's, of ours - CORL's.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from run_corl import COLUMNS, texts

from corerl.report.stats import welch_interval

OURS = "corerl"
MOVES = 1000.0
"""The return from which an episode counts as one that runs: HalfCheetah's is about 0 standing still."""


def read(path: Path) -> pd.DataFrame:
    """Reads a file of `run_corl.py`, or of `collect`."""
    return pd.read_csv(path, dtype={"returns": str})


def of_run(directory: Path) -> list[tuple]:
    """Returns the rows of one run directory of `corerl train`."""
    cfg = yaml.safe_load((directory / "config.yaml").read_text())
    lines = (directory / "returns.jsonl").read_text().splitlines()
    start = (OURS, cfg["algo"]["name"], cfg["task"])
    return [(*start, x["seed"], x["step"], texts(x["returns"])) for x in map(json.loads, lines)]


def collect(root: Path, others: list[Path]) -> pd.DataFrame:
    """Returns the rows of all runs below `root` and of `others`, each seed and step once."""
    runs = sorted(path.parent for path in root.rglob("returns.jsonl"))
    rows = [pd.DataFrame([r for run in runs for r in of_run(run)], columns=COLUMNS)]
    rows += map(read, others)
    key = list(COLUMNS[:-1])
    return pd.concat(rows).drop_duplicates(key, keep="last").sort_values(key, ignore_index=True)


def per_seed(rows: pd.DataFrame, begin: int = 0) -> pd.DataFrame:
    """Returns mean return and share of episodes that run, of each seed over the steps that both codes have.

    Steps before `begin` do not count, and seeds that have not come to the last one are left out.
    """
    cell = ["algorithm", "task"]
    rows = rows[rows["step"] >= begin]
    rows = rows[rows.groupby([*cell, "step"])["code"].transform("nunique") == 2]
    returns = rows["returns"].map(lambda text: np.array(text.split(), float))
    rows = rows.assign(mean=returns.map(np.mean), share=returns.map(lambda r: np.mean(r > MOVES)))
    found = rows.groupby([*cell, "code", "seed"]).agg(
        mean=("mean", "mean"),
        share=("share", "mean"),
        last=("step", "max"),
        evaluations=("step", "size"),
    )
    most = found.groupby(cell)["evaluations"].transform("max")
    return found[found["evaluations"] == most].reset_index()


def table(rows: pd.DataFrame, begin: int = 0) -> str:
    """Returns the comparison as a markdown table."""
    lines = [
        "| algorithm, task | updates | evaluations | measure | CORL | ours | difference [95%] |"
    ]
    lines += ["| --- | ---: | ---: | --- | ---: | ---: | ---: |"]
    for (algorithm, task), cell in per_seed(rows, begin).groupby(["algorithm", "task"]):
        ours, theirs = (cell[(cell["code"] == OURS) == mine] for mine in (True, False))
        start = f"| {algorithm}, {task} | {cell['last'].max():,} | {cell['evaluations'].max()} |"
        for name, measure, digits in (("mean return", "mean", 0), ("share that runs", "share", 2)):
            x, y = ours[measure], theirs[measure]
            low, high = welch_interval(x.mean(), x.std(), len(x), y.mean(), y.std(), len(y))
            difference = (
                f"{x.mean() - y.mean():+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
            )
            lines.append(
                f"{start} {name} | {_cell(y, digits)} | {_cell(x, digits)} | {difference} |"
            )
    return "\n".join(lines)


def _cell(x: pd.Series, digits: int) -> str:
    return f"{x.mean():.{digits}f} ± {x.std():.{digits}f} ({len(x)})"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="command", required=True)
    part = parts.add_parser("collect", help="our runs and CORL's in one file")
    part.add_argument("root", type=Path)
    part.add_argument("--add", type=Path, nargs="*", default=[], help="files of run_corl.py")
    part.add_argument("--out", type=Path, required=True)
    part = parts.add_parser("table", help="the table")
    part.add_argument("file", type=Path)
    part.add_argument(
        "--from", dest="begin", type=int, default=0, help="the first step that counts"
    )
    args = parser.parse_args(argv)
    if args.command == "collect":
        collect(args.root, args.add).to_csv(args.out, index=False)
    else:
        sys.stdout.write(table(read(args.file), args.begin) + "\n")


if __name__ == "__main__":
    main()
