"""Success rates on OGBench's single tasks beside those of FQL's paper.

    python compare.py scores.csv

A seed's rate is the mean of its evaluations after 800,000, 900,000 and 1,000,000 updates, as there; or of
its last three, where it made fewer. Intervals are Welch's, of ours - theirs.
"""

import argparse
from pathlib import Path

import pandas as pd

from corerl.report.published import read_published
from corerl.report.stats import welch_interval

LAST = 3
"""Evaluations that a seed's rate is the mean of."""


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per seed: `score`, and `step`, its updates."""
    seeds = rows.sort_values("step").groupby(["task", "algorithm", "seed"])
    return (
        seeds.tail(LAST)
        .groupby(["task", "algorithm", "seed"])
        .agg({"score": "mean", "step": "max"})
    )


def table(rows: pd.DataFrame) -> str:
    theirs = read_published("ogbench").set_index(["task", "algorithm"])
    lines = [
        "| task | algorithm | updates | seeds of ours | ours | theirs | difference [95%] |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for (task, name), mine in rates(rows).reset_index().groupby(["task", "algorithm"]):
        x, y = mine["score"], theirs.loc[task, name]
        n = int(y["seeds"])
        low, high = welch_interval(x.mean(), x.std(), len(x), y["mean"], y["std"], n)
        each = " ".join(f"{score:.1f}" for score in x)
        reported = f"{x.mean() - y['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"
        both = f"{x.mean():.1f} ± {x.std():.1f} ({len(x)}) | {y['mean']:.0f} ± {y['std']:.0f} ({n})"
        lines.append(f"| {task} | {name} | {mine['step'].min():,} | {each} | {both} | {reported} |")
    return "\n".join(lines)


def course(rows: pd.DataFrame) -> str:
    """Returns the mean over seeds at each evaluation, and the standard deviation."""
    lines = []
    for (task, name), part in rows.groupby(["task", "algorithm"]):
        found = part.groupby("step")["score"].agg(["mean", "std"])
        reported = ", ".join(
            f"{step:,}: {x['mean']:.0f} ± {x['std']:.0f}" for step, x in found.iterrows()
        )
        lines.append(f"{task}, {name}: {reported}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scores", type=Path)
    rows = pd.read_csv(parser.parse_args().scores)
    print(table(rows), course(rows), sep="\n\n")


if __name__ == "__main__":
    main()
