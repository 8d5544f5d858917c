"""Regret on three arms against the number of comparisons, from the runs of a sweep.

    corerl train sweep=pref_regret
    corerl train sweep=pref_regret algo.policy=pessimistic algo.width=1
    python results/reproduced/pref_pessimistic/regret.py runs/pref_pessimistic

Writes scores.csv beside this file and prints the table. `regret` is a seed's mean over its datasets.
"""

import csv
import json
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

FIELDS = ("task", "policy", "width", "comparisons", "seed", "datasets", "regret")
CELL = ("policy", "width")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed. Each logged line is the mean of the same number of datasets."""
    rows = []
    for path in sorted(root.rglob("metrics.jsonl")):
        settings = yaml.safe_load((path.parents[1] / "config.yaml").read_text())
        algo = settings["algo"]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for seed in sorted({line["seed"] for line in lines}):
            own = [line for line in lines if line["seed"] == seed]
            known = (settings["task"], algo["policy"], own[-1]["width"], algo["comparisons"])
            regret = float(np.mean([line["suboptimality"] for line in own]))
            rows.append(dict(zip(FIELDS, (*known, seed, own[-1]["step"], regret), strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per policy, with mean and standard deviation over seeds."""
    counts = sorted({row["comparisons"] for row in rows})
    lines = ["| policy | width |" + "".join(f" n = {n:,} |" for n in counts)]
    lines.append("| --- | ---: |" + " ---: |" * len(counts))
    for cell, group in groupby(rows, key=lambda row: tuple(row[name] for name in CELL)):
        own = list(group)
        shown = []
        for n in counts:
            lost = [row["regret"] for row in own if row["comparisons"] == n]
            shown.append(f"{np.mean(lost):.3f} ± {np.std(lost, ddof=1):.3f}")
        lines.append(f"| {cell[0]} | {cell[1]:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    with (Path(__file__).parent / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    print(table(rows))


if __name__ == "__main__":
    main()
