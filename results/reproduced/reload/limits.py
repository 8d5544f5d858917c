"""ReLOAD on SAC: return and cost of each seed, and a picture of the cost over training.

    corerl train -m algo=reload_sac algo.gradient=optimistic,plain task=risk/HalfCheetah-velocity-v4 \\
        algo.hidden_width=64 algo.random_steps=5000 steps=100000 seeds=3 eval.every=10000 eval.episodes=5 \\
        log_every=1000 root=runs/reload_sac
    python results/reproduced/reload/limits.py runs/reload_sac

Writes limits.csv, with every period, and limits.png beside this file. Prints a table of the last 30 periods.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.report.rows import cells, logged, mean_std, write_rows

HERE, LAST = Path(__file__).parent, 30
FIELDS = ("gradient", "seed", "step", "cost", "multiplier", "return")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per period: cost, multiplier and the return of the last training episode."""
    rows = []
    for settings, seed, lines in logged(root):
        for line in lines:
            found = (line["cost"], round(line["multiplier"], 4), round(line["episode_return"], 1))
            found = (settings["algo"]["gradient"], seed, line["step"], *found)
            rows.append(dict(zip(FIELDS, found, strict=True)))
    return sorted(rows, key=lambda row: [*row.values()])


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "limits.csv", FIELDS, rows)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for gradient, colour in (("plain", "#d55e00"), ("optimistic", "#0072b2")):
        own = [row for row in rows if row["gradient"] == gradient]
        for (seed,), group in cells(own, ("seed",)):
            step, cost, multiplier, back = np.array([[*row.values()][2:] for row in group]).T
            label = gradient if seed == own[0]["seed"] else None
            axes[0].plot(step, cost, color=colour, lw=0.9, alpha=0.8, label=label)
            axes[1].plot(step, multiplier, color=colour, lw=0.9, alpha=0.8, label=label)
            last = [mean_std(x[-LAST:], 1) for x in (back, cost)]
            print(f"| {gradient} | {seed} | {' | '.join(last)} | {multiplier[-1]:.2f} |")
    axes[0].axhline(25, color="black", lw=0.8, ls=":")
    for ax, name in zip(axes, ("cost of a period", "multiplier"), strict=True):
        ax.set(xlabel="environment steps", ylabel=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "limits.png", dpi=150)


if __name__ == "__main__":
    main()
