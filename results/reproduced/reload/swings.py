"""ReLOAD beside plain descent-ascent: the last 400 iterations of each seed, and a picture of all.

    corerl train sweep=reload_swings
    python results/reproduced/reload/swings.py runs/reload

Writes scores.csv and swings.png beside this file, and prints a table.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.data.tasks import resolve
from corerl.report.rows import logged, mean_std, write_rows
from corerl.risk.occupancy import best_occupancy

LAST = 400
FIELDS = ("task", "gradient", "seed", "value", "cost", "value_range", "cost_range")
HERE = Path(__file__).parent


def curves(root: Path) -> dict[tuple[str, str, int], np.ndarray]:
    """Reads value and cost of every iteration, `(steps, 2)`, by task, gradient and seed."""
    found = {}
    for settings, seed, lines in logged(root):
        curve = np.array([(line["value"], line["cost_0"]) for line in lines])
        found[settings["task"], settings["algo"]["gradient"], seed] = curve
    return found


def main() -> None:
    found = curves(Path(sys.argv[1]))
    (task,) = {task for task, _, _ in found}
    env = resolve(task).make_env().unwrapped
    best = best_occupancy(env.mdp, costs=env.costs, budgets=env.budgets)
    rows = [
        dict(zip(FIELDS, (*cell, *curve[-1], *np.ptp(curve[-LAST:], axis=0)), strict=True))
        for cell, curve in sorted(found.items())
    ]
    write_rows(HERE / "scores.csv", FIELDS, rows, ".6g")
    print(f"optimum {best.value:.4f}, cost {best.costs[0]:.4f}, price {best.multipliers[0]:.4f}")
    for gradient in ("optimistic", "plain"):
        own = [row for row in rows if row["gradient"] == gradient]
        print(gradient, *(mean_std([row[name] for row in own], 4) for name in FIELDS[3:]))
    draw(found, best)


def draw(found: dict, best) -> None:
    """Draws return and cost over the iterations, a line per seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    targets = zip(axes, ("return", "cost"), (best.value, best.costs[0]), strict=True)
    for column, (ax, name, target) in enumerate(targets):
        for gradient, colour in (("plain", "#d55e00"), ("optimistic", "#0072b2")):
            own = [curve for (_, g, _), curve in found.items() if g == gradient]
            for number, curve in enumerate(own):
                label = gradient if number == 0 else None
                ax.plot(curve[:, column], color=colour, lw=0.8, alpha=0.7, label=label)
        ax.axhline(target, color="black", lw=0.8, ls=":", label="linear program")
        ax.set(xlabel="iteration", ylabel=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(best.value - 1.5, best.value + 1.5)
    axes[1].set_ylim(best.costs[0] - 1.5, best.costs[0] + 1.5)
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(HERE / "swings.png", dpi=150)


if __name__ == "__main__":
    main()
