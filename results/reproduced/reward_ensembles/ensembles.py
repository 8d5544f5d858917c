"""IQL's score by members of the reward and by what it gets of them.

    corerl train sweep=reward_ensembles
    python results/reproduced/reward_ensembles/ensembles.py runs/reward_ensembles

Writes curves.csv, with every evaluation, beside this file. Prints a table of the last and the best one.
"""

import sys
from pathlib import Path

import numpy as np

from corerl.report.rows import cells, evaluated, mean_std, write_rows

HERE = Path(__file__).parent
FIELDS = ("members", "ensemble", "seed", "step", "score")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per evaluation."""
    rows = []
    for settings, _, scores in evaluated(root):
        cell = [settings["algo"]["reward"][name] for name in FIELDS[:2]]
        for row in scores:
            found = (int(row["seed"]), int(row["step"]), round(float(row["score"]), 1))
            rows.append(dict(zip(FIELDS, (*cell, *found), strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS])


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "curves.csv", FIELDS, rows)
    for cell, own in cells(rows, FIELDS[:2]):
        seeds = sorted({row["seed"] for row in own})
        curves = np.array([[row["score"] for row in own if row["seed"] == seed] for seed in seeds])
        last, best = curves[:, -1], curves.max(1)
        listed = " ".join(f"{score:.1f}" for score in last)
        parts = [mean_std(x, 1) for x in (last, best)]
        print(f"| {cell[0]} | `{cell[1]}` | {listed} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
