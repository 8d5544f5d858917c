"""DR-RPO: what each seed loses against the exact optimum, from the runs of a sweep.

    corerl train sweep=dr_rpo_regret
    python results/reproduced/dr_rpo/regret.py runs/dr_rpo

Writes scores.csv beside this file and prints a table. `first` and `last` are means over the first and the
last 100 episodes.
"""

import csv
import json
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

from corerl.data.tasks import resolve
from corerl.risk.robust import best_policy
from corerl.training.tabular import linear_model

CELL = ("task", "kind", "reference")
FIELDS = (*CELL, "seed", "optimum", "first", "last", "regret")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed."""
    rows = []
    for path in sorted(root.rglob("metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        settings = yaml.safe_load((path.parents[1] / "config.yaml").read_text())
        algo, task = settings["algo"], settings["task"]
        price = algo["eta"] if algo["reference"] == "uniform" else 0.0
        _, model = linear_model(resolve(task))
        optimum = model.start @ best_policy(model, algo["kind"], algo["scale"], price)[0][0]
        for seed in sorted({line["seed"] for line in lines}):
            own = [line for line in lines if line["seed"] == seed]
            lost = np.array([line["suboptimality"] for line in own])
            part = len(lost) // 10
            known = (task, algo["kind"], algo["reference"], seed, float(optimum))
            found = (*known, lost[:part].mean(), lost[-part:].mean(), own[-1]["regret"])
            rows.append(dict(zip(FIELDS, found, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per cell, with mean and standard deviation over seeds."""
    head = "| task | nature | reference | optimum | lost, first 100 | lost, last 100 | regret of 1,000 |"
    lines = [head, "| --- | --- | --- |" + " ---: |" * 4]
    for cell, group in groupby(rows, key=lambda row: tuple(row[name] for name in CELL)):
        own = list(group)
        shown = [
            f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
            for name, digits in (("first", 4), ("last", 4), ("regret", 1))
            for values in [[row[name] for row in own]]
        ]
        lines.append(f"| {' | '.join([*cell, format(own[0]['optimum'], '.4f'), *shown])} |")
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
