"""P2R: what each seed loses against the exact optimum, and how many questions it asks.

    corerl train sweep=p2r_regret
    corerl train sweep=p2r_regret algo.feedback=rewards algo.comparisons=1000
    python results/reproduced/p2r/regret.py runs/p2r

Writes scores.csv and questions.png beside this file, and prints a table. `first` and `last` are means over
the first and the last 200 episodes.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.report.rows import cells, logged, mean_std, write_rows

HERE = Path(__file__).parent
CELL = ("task", "segment", "feedback", "comparisons")
FIELDS = (*CELL, "seed", "first", "last", "regret", "questions")
PART = 20  # lines, of ten episodes each


def rows_of(root: Path) -> list[dict]:
    """Reads a row per run and seed, with the curves of regret and questions."""
    rows = []
    for settings, seed, lines in logged(root):
        algo = settings["algo"]
        if algo["feedback"] == "rewards":
            algo["comparisons"] = 0
        known = [settings["task"], *(algo[name] for name in CELL[1:])]
        curves = {
            name: np.array([line[name] for line in lines])
            for name in ("step", "suboptimality", "regret", "questions")
        }
        lost = curves["suboptimality"]
        found = (lost[:PART].mean(), lost[-PART:].mean(), lines[-1]["regret"])
        row = dict(zip(FIELDS, [*known, seed, *found, lines[-1]["questions"]], strict=True))
        rows.append(row | {"curves": curves})
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:5]])


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per cell, with mean and standard deviation over seeds."""
    head = "| compared | told | answers a question | lost, last 200 | regret | questions |"
    lines = [head, "| --- | --- | ---: | ---: | ---: | ---: |"]
    for cell, own in cells(rows, CELL):
        shown = [
            mean_std([row[name] for row in own], digits)
            for name, digits in (("last", 4), ("regret", 0), ("questions", 1))
        ]
        _, segment, feedback, count = cell
        asked = (f"{count:,}", *shown) if count else ("-", *shown[:2], "-")
        lines.append(f"| {segment} | {feedback} | {' | '.join(asked)} |")
    return "\n".join(lines)


def draw(rows: list[dict]) -> None:
    """Draws regret and questions over the episodes, mean over seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    colours = {"step": "#0072b2", "episode": "#d55e00"}
    drawn = (row for row in rows if row["comparisons"] in (0, 10_000))
    for (segment, feedback), group in cells(drawn, ("segment", "feedback")):
        own = [row["curves"] for row in group]
        style = {"color": colours[segment], "ls": "-" if feedback == "preferences" else ":"}
        for ax, name in zip(axes, ("regret", "questions"), strict=True):
            if name == "regret" or feedback == "preferences":
                mean = np.mean([curves[name] for curves in own], 0)
                ax.plot(own[0]["step"], mean, label=f"{segment}s, {feedback}", **style)
    for ax, name in zip(axes, ("regret", "questions asked"), strict=True):
        ax.set(xlabel="episodes", ylabel=name, ylim=(0, None))
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "questions.png", dpi=150)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "scores.csv", FIELDS, rows, ".6g")
    print(table(rows))
    draw(rows)


if __name__ == "__main__":
    main()
