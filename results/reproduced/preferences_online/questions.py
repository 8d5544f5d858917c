"""PEBBLE's return by budget and chooser, beside Hindsight PRIOR, SPO, and SAC on the true reward.

    corerl train sweep=pebble_pendulum
    corerl train sweep=hindsight_prior_pendulum
    corerl train algo=sac task=gym/Pendulum-v1 algo.hidden_width=64 steps=12000 seeds=5 eval.every=1000 \\
        eval.episodes=10 root=runs/pebble_pendulum
    corerl train algo=spo task=gym/Pendulum-v1 steps=12000 seeds=5 eval.every=1000 eval.episodes=10 \\
        root=runs/pebble_pendulum
    python results/reproduced/preferences_online/questions.py runs/pebble_pendulum

Writes curves.csv, with every evaluation, and questions.png beside this file. Prints a table of the last one.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.report.rows import cells, evaluated, mean_std, write_rows

HERE = Path(__file__).parent
CELL = ("algorithm", "questions", "chooser", "prior")
FIELDS = (*CELL, "seed", "step", "return")
COLOURS = {50: "#56b4e9", 200: "#0072b2", 500: "#004466"}


def rows_of(root: Path) -> list[dict]:
    """Reads a row per evaluation."""
    rows = []
    for cfg, _, scores in evaluated(root):
        algo = cfg["algo"]
        asked, prior = algo.get("queries", {}), algo.get("reward", {}).get("prior", 0)
        label = cfg.get("label") or algo["label"]
        cell = (label, asked.get("budget", 0), asked.get("chooser", ""), prior)
        for row in scores:
            found = (*cell, int(row["seed"]), int(row["step"]), round(float(row["return"]), 1))
            rows.append(dict(zip(FIELDS, found, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS])


def curves_of(rows: list[dict]):
    """Yields each cell with its curves `(seeds, evaluations)` and their steps."""
    for cell, own in cells(rows, CELL):
        seeds, steps = (sorted({row[name] for row in own}) for name in ("seed", "step"))
        curve = {(row["seed"], row["step"]): row["return"] for row in own}
        yield cell, steps, np.array([[curve[seed, step] for step in steps] for seed in seeds])


def draw(rows: list[dict]) -> None:
    """Draws the mean of each cell's seeds and their range."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for (name, budget, chooser, prior), steps, curves in curves_of(rows):
        if prior:
            continue  # in the table alone
        for ax, shown in zip(axes, ("uniform", "disagreement"), strict=True):
            if chooser not in ("", shown):
                continue
            colour = COLOURS.get(budget, "#999999" if name == "SAC" else "#d55e00")
            label = f"{name}, {budget} questions" if budget else name
            ax.plot(steps, curves.mean(0), color=colour, label=label)
            ax.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.12, lw=0)
            ax.set(title=f"questions by {shown}", xlabel="environment steps")
            ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("true return")
    axes[1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(HERE / "questions.png", dpi=150)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "curves.csv", FIELDS, rows)
    for cell, steps, curves in curves_of(rows):
        shown = " | ".join(str(x) if x else "-" for x in cell)
        middle, last = curves[:, len(steps) // 2 - 1], curves[:, -1]
        parts = [mean_std(x, 0) for x in (middle, last)]
        print(f"| {shown} | {' | '.join(parts)} | {len(curves)} |")
    draw(rows)


if __name__ == "__main__":
    main()
