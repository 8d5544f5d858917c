"""ORPO: gains in proxy and truth over the strength of each regulariser.

    corerl train sweep=orpo_strength
    python results/reproduced/orpo/strength.py runs/orpo

Writes scores.csv and strength.png beside this file, and prints a table.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import yaml

from corerl.report.rows import write_rows

HERE = Path(__file__).parent
FIELDS = ("penalty", "coefficient", "proxy", "true", "chi2", "bound", "gap")
NAMES = {
    "chi2": "chi-square of occupancies",
    "sqrt_chi2": "its root",
    "kl": "KL of occupancies",
    "action_kl": "KL of actions",
}


def rows_of(root: Path) -> list[dict]:
    """Reads a row per cell."""
    rows = []
    for path in sorted(root.rglob("solution.json")):
        algo = yaml.safe_load((path.parents[1] / "config.yaml").read_text())["algo"]
        found = json.loads(path.read_text())
        rows.append({name: algo.get(name, found.get(name)) for name in FIELDS})
    return sorted(rows, key=lambda row: (list(NAMES).index(row["penalty"]), row["coefficient"]))


def draw(rows: list[dict]) -> None:
    """Draws the true gain over the coefficient, a line per penalty."""
    figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    colours = ("#0072b2", "#56b4e9", "#009e73", "#d55e00")
    for (penalty, name), colour in zip(NAMES.items(), colours, strict=True):
        own = [row for row in rows if row["penalty"] == penalty]
        x, y = ([row[key] for row in own] for key in ("coefficient", "true"))
        ax.plot(x, y, marker="o", ms=3, color=colour, label=name)
    ax.axhline(0, color="black", lw=0.8, ls=":")
    ax.annotate("reference", (0.011, 0.06), fontsize=8)
    ax.set(xscale="log", xlabel="coefficient", ylabel="true gain (standard deviations)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(HERE / "strength.png", dpi=150)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "scores.csv", FIELDS, rows, ".6g")
    for penalty, name in NAMES.items():
        own = [row for row in rows if row["penalty"] == penalty]
        best = max(own, key=lambda row: row["true"])
        worst = min(own, key=lambda row: row["true"])
        print(
            f"| {name} | {best['true']:+.3f} | {best['coefficient']:g} | {best['proxy']:+.3f} | "
            f"{best['bound']:+.3f} | {worst['true']:+.3f} |"
        )
    draw(rows)


if __name__ == "__main__":
    main()
