"""CORL's runs beside ours on the same data: returns, and the share of episodes that run.

    python results/reproduced/same_data/compare.py collect runs --add corl.csv --out returns.csv
    python results/reproduced/same_data/compare.py table returns.csv --algorithm td3_bc --from 3000 --to 10000
    python results/reproduced/same_data/compare.py shares returns.csv

`collect` writes our runs as rows like those of `run_corl.py`, with that file's rows. `table` takes the
evaluations that both codes made of the same algorithm, task and step, and of each seed the mean over them:
evaluations of one run are not independent, seeds are. Intervals are Welch's, of ours - CORL's; runs of ours
with CORL's draws (`corl_draws.py`) count as CORL's.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from run_corl import COLUMNS, texts

from corerl.report.stats import welch_interval

OURS = "corerl"
DRAWS = {"corl_draws": ("CORL's draws", "td3_bc")}
"""The file whose runs are ours with another's chances: how they are called, and the algorithm they are of."""
RUNNER, MOVES = "halfcheetah", 1000.0
"""Whose episodes either run or stand still, and the return from which one runs: about 0 is standing still."""


def read(*paths: Path) -> pd.DataFrame:
    """Reads files of `run_corl.py` or `collect`, and adds mean return and share of episodes that run."""
    rows = pd.concat([pd.read_csv(path, dtype={"returns": str}) for path in paths])
    returns = rows["returns"].map(lambda text: np.array(text.split(), float))
    shares = returns.map(lambda r: np.mean(r > MOVES))
    return rows.assign(mean=returns.map(np.mean), share=shares)


def of_run(directory: Path) -> list[tuple]:
    """Returns the rows of one folder `seeds-*` of a run."""
    cfg = yaml.safe_load((directory.parent / "config.yaml").read_text(encoding="utf-8"))
    lines = (directory / "returns.jsonl").read_text(encoding="utf-8").splitlines()
    name = cfg["algo"]["name"]
    start = (*DRAWS.get(name, (OURS, name)), cfg["task"])
    return [(*start, x["seed"], x["step"], texts(x["returns"])) for x in map(json.loads, lines)]


def collect(root: Path, others: list[Path]) -> pd.DataFrame:
    """Returns the rows of all runs below `root` and of `others`, each seed and step once."""
    runs = sorted(path.parent for path in root.rglob("returns.jsonl"))
    rows = [pd.DataFrame([r for run in runs for r in of_run(run)], columns=COLUMNS)]
    rows += [read(path)[list(COLUMNS)] for path in others]
    key = list(COLUMNS[:-1])
    return pd.concat(rows).drop_duplicates(key, keep="last").sort_values(key, ignore_index=True)


def per_seed(rows: pd.DataFrame, begin: float, end: float) -> pd.DataFrame:
    """Returns mean return and share of episodes that run, of each seed over the steps that both codes have.

    Steps outside [begin, end] do not count, and seeds that lack one of those that do are left out.
    """
    cell = ["algorithm", "task"]
    rows = rows[rows["step"].between(begin, end)]
    both = rows.assign(mine=rows["code"] == OURS).groupby([*cell, "step"])["mine"]
    rows = rows[both.transform("nunique") == 2]
    found = rows.groupby([*cell, "code", "seed"]).agg(
        mean=("mean", "mean"),
        share=("share", "mean"),
        last=("step", "max"),
        evaluations=("step", "size"),
    )
    most = found.groupby(cell)["evaluations"].transform("max")
    return found[found["evaluations"] == most].reset_index()


def table(rows: pd.DataFrame, begin: float = 0, end: float = np.inf) -> str:
    """Returns the comparison as a markdown table."""
    lines = [
        "| algorithm, task | updates | evaluations | measure | CORL | ours | difference [95%] |"
    ]
    lines += ["| --- | ---: | ---: | --- | ---: | ---: | ---: |"]
    for (algorithm, task), cell in per_seed(rows, begin, end).groupby(["algorithm", "task"]):
        ours, theirs = (cell[(cell["code"] == OURS) == mine] for mine in (True, False))
        start = f"| {algorithm}, {task} | {cell['last'].max():,} | {cell['evaluations'].max()} |"
        measures = [("mean return", "mean", 0)]
        measures += [("share that runs", "share", 2)] if RUNNER in task else []
        for name, measure, digits in measures:
            x, y = ours[measure], theirs[measure]
            low, high = welch_interval(x.mean(), x.std(), len(x), y.mean(), y.std(), len(y))
            interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]" if low < high else "[n/a]"
            difference = f"{x.mean() - y.mean():+.{digits}f} {interval}"
            lines.append(
                f"{start} {name} | {_cell(y, digits)} | {_cell(x, digits)} | {difference} |"
            )
    return "\n".join(lines)


def shares(rows: pd.DataFrame) -> str:
    """Returns the share of episodes that run at every evaluation, a line per seed."""
    lines = rows.pivot_table("share", ["algorithm", "task", "code", "seed"], "step")
    return lines.to_string(float_format="{:.1f}".format, na_rep="")


def _cell(x: pd.Series, digits: int) -> str:
    return f"{x.mean():.{digits}f} ± {x.std():.{digits}f} ({len(x)})"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="command", required=True)
    part = parts.add_parser("collect", help="our runs and CORL's in one file")
    part.add_argument("root", type=Path)
    part.add_argument("--add", type=Path, nargs="*", default=[], help="files of run_corl.py")
    part.add_argument("--out", type=Path, required=True)
    part = parts.add_parser("table", help="both codes and their difference")
    part.add_argument("file", type=Path, nargs="+")
    part.add_argument("--from", dest="begin", type=int, default=0, help="first step that counts")
    part.add_argument("--to", dest="end", type=float, default=np.inf, help="and the last")
    part.add_argument("--algorithm", help="one alone, as iql")
    part = parts.add_parser("shares", help="of episodes that run, at every evaluation")
    part.add_argument("file", type=Path, nargs="+")
    args = parser.parse_args(argv)
    if args.command == "collect":
        collect(args.root, args.add).to_csv(args.out, index=False)
    elif args.command == "shares":
        print(shares(read(*args.file)))
    else:
        rows = read(*args.file)
        if args.algorithm:
            rows = rows[rows["algorithm"] == args.algorithm]
        print(table(rows, args.begin, args.end))


if __name__ == "__main__":
    main()
