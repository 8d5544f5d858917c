"""ReLOAD on SAC: return and cost of each seed, and a picture of the cost over training.

    corerl train -m algo=reload_sac algo.gradient=optimistic,plain task=risk/HalfCheetah-velocity-v4 \\
        algo.hidden_width=64 algo.random_steps=5000 steps=100000 seeds=2 eval.every=10000 eval.episodes=5 \\
        log_every=1000 root=runs/reload_sac
    python results/reproduced/reload/limits.py runs/reload_sac

Writes limits.csv, with every period, and limits.png beside this file. Prints a table of the last 30 periods.
"""

import csv
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import yaml

HERE, LAST = Path(__file__).parent, 30
FIELDS = ("gradient", "seed", "step", "cost", "multiplier", "return")


def rows_of(root: Path) -> list[tuple]:
    """Reads a row per period: cost, multiplier and the return of the last training episode."""
    rows = []
    for path in sorted(root.rglob("metrics.jsonl")):
        gradient = yaml.safe_load((path.parents[1] / "config.yaml").read_text())["algo"]["gradient"]
        for line in map(json.loads, path.read_text().splitlines()):
            found = (line["cost"], round(line["multiplier"], 4), round(line["episode_return"], 1))
            rows.append((gradient, line["seed"], line["step"], *found))
    return sorted(rows)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    with (HERE / "limits.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([FIELDS, *rows])
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for gradient, colour in (("plain", "#d55e00"), ("optimistic", "#0072b2")):
        for seed in sorted({row[1] for row in rows if row[0] == gradient}):
            own = np.array([row[2:] for row in rows if row[:2] == (gradient, seed)])
            step, cost, multiplier, back = own.T
            label = gradient if seed == min(row[1] for row in rows) else None
            axes[0].plot(step, cost, color=colour, lw=0.9, alpha=0.8, label=label)
            axes[1].plot(step, multiplier, color=colour, lw=0.9, alpha=0.8, label=label)
            last = [f"{x.mean():.1f} ± {x.std(ddof=1):.1f}" for x in (back[-LAST:], cost[-LAST:])]
            print(f"| {gradient} | {seed} | {' | '.join(last)} | {multiplier[-1]:.2f} |")
    axes[0].axhline(25, color="black", lw=0.8, ls=":")
    for ax, name in zip(axes, ("cost of a period", "multiplier"), strict=True):
        ax.set(xlabel="environment steps", ylabel=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "limits.png", dpi=150)


if __name__ == "__main__":
    main()
