"""The two atoms beside the exact distribution and what the policies played, from the runs of a sweep.

    corerl train sweep=two_atom_ties
    python results/reproduced/two_atom/atoms.py runs/two_atom

Writes scores.csv beside this file and prints the table.
"""

import json
import sys
from pathlib import Path

import numpy as np

from corerl.report.rows import mean_std, write_rows
from corerl.risk.measures import cvar

EXACT = ("mean", "exact_low", "low", "high", "exact_high")
FIELDS = ("task", "tau", "objective", "seed", *EXACT, "played_cvar")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed, sorted by task, level and policy."""
    rows = []
    for path in root.rglob("solution.json"):
        solution = json.loads(path.read_text())
        task = "/".join(path.relative_to(root).parts[:2])
        for line in (path.parent / "returns.jsonl").read_text().splitlines():
            played = json.loads(line)
            own = {"task": task, "seed": played["seed"], "mean": solution["value"]}
            own["played_cvar"] = cvar(np.array(played["returns"]), solution["tau"])
            rows.append({name: (solution | own)[name] for name in FIELDS})
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per task, level and policy. Policies that are one share a row."""
    lines = [
        "| task | tau | policy | mean | static CVaR | low atom | high atom | exact high | played CVaR |",
        "| --- |" + " ---: |" * 8,
    ]
    cells: dict[tuple, dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("task", "tau", *EXACT))
        cells.setdefault(key, {}).setdefault(row["objective"], []).append(row["played_cvar"])
    for (task, tau, *exact), played in cells.items():
        found = next(iter(played.values()))  # policies of one distribution play the same episodes
        shown = " | ".join(f"{value:.4f}" for value in exact)
        lines.append(f"| {task} | {tau:g} | {', '.join(played)} | {shown} | {mean_std(found, 3)} |")
    return "\n".join(lines)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(Path(__file__).parent / "scores.csv", FIELDS, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
