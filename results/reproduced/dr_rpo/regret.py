"""DR-RPO: what each seed loses against the exact optimum, from the runs of a sweep.

    corerl train sweep=dr_rpo_regret
    python results/reproduced/dr_rpo/regret.py runs/dr_rpo

Writes scores.csv beside this file and prints a table. `first` and `last` are means over the first and the
last 100 episodes.
"""

import sys
from pathlib import Path

import numpy as np

from corerl.data.tasks import resolve
from corerl.report.rows import cells, logged, mean_std, write_rows
from corerl.risk.robust import best_policy
from corerl.training.tabular import linear_model

CELL = ("task", "kind", "reference")
FIELDS = (*CELL, "seed", "optimum", "first", "last", "regret")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed."""
    rows = []
    for settings, seed, lines in logged(root):
        algo, task = settings["algo"], settings["task"]
        price = algo["eta"] if algo["reference"] == "uniform" else 0.0
        _, model = linear_model(resolve(task))
        optimum = model.start @ best_policy(model, algo["kind"], algo["scale"], price)[0][0]
        lost = np.array([line["suboptimality"] for line in lines])
        part = len(lost) // 10
        known = (task, algo["kind"], algo["reference"], seed, float(optimum))
        found = (*known, lost[:part].mean(), lost[-part:].mean(), lines[-1]["regret"])
        rows.append(dict(zip(FIELDS, found, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per cell, with mean and standard deviation over seeds."""
    head = "| task | nature | reference | optimum | lost, first 100 | lost, last 100 | regret of 1,000 |"
    lines = [head, "| --- | --- | --- |" + " ---: |" * 4]
    for cell, own in cells(rows, CELL):
        shown = [
            mean_std([row[name] for row in own], digits)
            for name, digits in (("first", 4), ("last", 4), ("regret", 1))
        ]
        lines.append(f"| {' | '.join([*cell, format(own[0]['optimum'], '.4f'), *shown])} |")
    return "\n".join(lines)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(Path(__file__).parent / "scores.csv", FIELDS, rows, ".6g")
    print(table(rows))


if __name__ == "__main__":
    main()
