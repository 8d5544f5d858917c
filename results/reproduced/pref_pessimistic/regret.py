"""Regret on three arms against the number of comparisons, from the runs of a sweep.

    corerl train sweep=pref_regret
    corerl train sweep=pref_regret algo.policy=pessimistic algo.width=1
    python results/reproduced/pref_pessimistic/regret.py runs/pref_pessimistic

Writes scores.csv beside this file and prints the table. `regret` is a seed's mean over its datasets.
"""

import sys
from pathlib import Path

import numpy as np

from corerl.report.rows import cells, logged, mean_std, write_rows

FIELDS = ("task", "policy", "width", "comparisons", "seed", "datasets", "regret")
CELL = ("policy", "width")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed. Each logged line is the mean of the same number of datasets."""
    rows = []
    for settings, seed, lines in logged(root):
        algo, last = settings["algo"], lines[-1]
        known = (settings["task"], algo["policy"], last["width"], algo["comparisons"])
        regret = float(np.mean([line["suboptimality"] for line in lines]))
        rows.append(dict(zip(FIELDS, (*known, seed, last["step"], regret), strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per policy, with mean and standard deviation over seeds."""
    counts = sorted({row["comparisons"] for row in rows})
    lines = ["| policy | width |" + "".join(f" n = {n:,} |" for n in counts)]
    lines.append("| --- | ---: |" + " ---: |" * len(counts))
    for cell, own in cells(rows, CELL):
        shown = []
        for n in counts:
            lost = [row["regret"] for row in own if row["comparisons"] == n]
            shown.append(mean_std(lost, 3))
        lines.append(f"| {cell[0]} | {cell[1]:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(Path(__file__).parent / "scores.csv", FIELDS, rows, ".6g")
    print(table(rows))


if __name__ == "__main__":
    main()
