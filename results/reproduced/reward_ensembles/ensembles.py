"""IQL's score by members of the reward and by what it gets of them.

    corerl train sweep=reward_ensembles
    python results/reproduced/reward_ensembles/ensembles.py runs/reward_ensembles

Writes curves.csv, with every evaluation, beside this file. Prints a table of the last and the best one.
"""

import csv
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

HERE = Path(__file__).parent
FIELDS = ("members", "ensemble", "seed", "step", "score")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per evaluation."""
    rows = []
    for path in root.rglob("scores.csv"):
        reward = yaml.safe_load((path.parents[1] / "config.yaml").read_text())["algo"]["reward"]
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found = (int(row["seed"]), int(row["step"]), round(float(row["score"]), 1))
                rows.append(
                    dict(zip(FIELDS, (reward["members"], reward["ensemble"], *found), strict=True))
                )
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS])


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    with (HERE / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for cell, group in groupby(rows, key=lambda row: (row["members"], row["ensemble"])):
        own = list(group)
        seeds = sorted({row["seed"] for row in own})
        curves = np.array([[row["score"] for row in own if row["seed"] == seed] for seed in seeds])
        last, best = curves[:, -1], curves.max(1)
        listed = " ".join(f"{score:.1f}" for score in last)
        parts = [f"{x.mean():.1f} ± {x.std(ddof=1):.1f}" for x in (last, best)]
        print(f"| {cell[0]} | `{cell[1]}` | {listed} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
