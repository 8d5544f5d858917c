"""The max-min policy beside the mean reward: the worst group's value by groups and answers.

    corerl train sweep=pref_groups
    python results/reproduced/pref_mixture/worst.py runs/pref_groups

Writes scores.csv beside this file, a row per seed, and prints a table.
"""

import sys
from pathlib import Path

import numpy as np

from corerl.report.rows import cells, logged, mean_std, write_rows

CELL = ("policy", "groups", "comparisons")
FIELDS = (*CELL, "seed", "worst", "assigned")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed, means over its datasets."""
    rows = []
    for settings, seed, lines in logged(root):
        means = {name: np.mean([x[name] for x in lines]) for name in ("worst", "assigned")}
        rows.append({name: settings["algo"][name] for name in CELL} | {"seed": seed} | means)
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(Path(__file__).parent / "scores.csv", FIELDS, rows, ".6g")
    for cell, own in cells(rows, CELL):
        worst, right = (np.array([row[name] for row in own]) for name in ("worst", "assigned"))
        shown = f"{mean_std(worst, 2)} | {100 * right.mean():.0f} %"
        print(f"| {' | '.join(map(str, cell))} | {shown} |")


if __name__ == "__main__":
    main()
