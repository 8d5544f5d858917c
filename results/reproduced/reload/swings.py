"""ReLOAD beside plain descent-ascent: the last 400 iterations of each seed, and a picture of all.

    corerl train sweep=reload_swings
    python results/reproduced/reload/swings.py runs/reload

Writes scores.csv and swings.png beside this file, and prints a table.
"""

import csv
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import yaml

from corerl.data.tasks import resolve
from corerl.risk.occupancy import best_occupancy

LAST = 400
FIELDS = ("task", "gradient", "seed", "value", "cost", "value_range", "cost_range")
HERE = Path(__file__).parent


def curves(root: Path) -> dict[tuple[str, str, int], np.ndarray]:
    """Reads value and cost of every iteration, `(steps, 2)`, by task, gradient and seed."""
    found = {}
    for path in sorted(root.rglob("metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        settings = yaml.safe_load((path.parents[1] / "config.yaml").read_text())
        for seed in sorted({line["seed"] for line in lines}):
            own = [(x["value"], x["cost_0"]) for x in lines if x["seed"] == seed]
            found[settings["task"], settings["algo"]["gradient"], seed] = np.array(own)
    return found


def main() -> None:
    found = curves(Path(sys.argv[1]))
    (task,) = {task for task, _, _ in found}
    env = resolve(task).make_env().unwrapped
    best = best_occupancy(env.mdp, costs=env.costs, budgets=env.budgets)
    rows = [
        (*cell, *curve[-1], *np.ptp(curve[-LAST:], axis=0)) for cell, curve in sorted(found.items())
    ]
    with (HERE / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows([*row[:3], *(f"{x:.6g}" for x in row[3:])] for row in rows)
    print(f"optimum {best.value:.4f}, cost {best.costs[0]:.4f}, price {best.multipliers[0]:.4f}")
    for gradient in ("optimistic", "plain"):
        own = np.array([row[3:] for row in rows if row[1] == gradient])
        print(
            gradient,
            *(f"{m:.4f} ± {s:.4f}" for m, s in zip(own.mean(0), own.std(0, ddof=1), strict=True)),
        )
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
