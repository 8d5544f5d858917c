"""The max-min policy beside the mean reward: the worst group's value by groups and answers.

    corerl train sweep=pref_groups
    python results/reproduced/pref_mixture/worst.py runs/pref_groups

Writes scores.csv beside this file, a row per seed, and prints a table.
"""

import csv
import json
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

CELL = ("policy", "groups", "comparisons")
FIELDS = (*CELL, "seed", "worst", "assigned")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed, means over its datasets."""
    rows = []
    for path in sorted(root.rglob("metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        algo = yaml.safe_load((path.parents[1] / "config.yaml").read_text())["algo"]
        for seed in sorted({line["seed"] for line in lines}):
            own = [line for line in lines if line["seed"] == seed]
            means = {name: np.mean([x[name] for x in own]) for name in ("worst", "assigned")}
            rows.append({name: algo[name] for name in CELL} | {"seed": seed} | means)
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    with (Path(__file__).parent / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    for cell, group in groupby(rows, key=lambda row: tuple(row[name] for name in CELL)):
        own = list(group)
        worst, right = (np.array([row[name] for row in own]) for name in ("worst", "assigned"))
        shown = f"{worst.mean():.2f} ± {worst.std(ddof=1):.2f} | {100 * right.mean():.0f} %"
        print(f"| {' | '.join(map(str, cell))} | {shown} |")


if __name__ == "__main__":
    main()
