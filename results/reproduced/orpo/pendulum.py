"""ORPO on SAC: true and proxy return over the strength of the penalty, on a pendulum.

    corerl train sweep=orpo_pendulum
    python results/reproduced/orpo/pendulum.py runs/orpo_pendulum

Writes pendulum.csv and pendulum.png beside this file, and prints a table. The true return is of evaluations,
and the proxy is of training episodes.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.data.tasks import resolve
from corerl.report.rows import cells, evaluated, mean_std, write_rows
from corerl.runs.files import read_lines

HERE = Path(__file__).parent
TASK = "risk/pendulum-proxy"
FIELDS = ("task", "penalty", "coefficient", "seed", "step", "true", "proxy", "chi2")


def rows_of(root: Path) -> list[dict]:
    """Reads a row per evaluation after the reference's steps."""
    rows = []
    for settings, folder, scores in evaluated(root):
        lines = read_lines(folder / "metrics.jsonl")
        known = {(line["seed"], line["step"]): line for line in lines}
        for row in scores:
            line = known.get((int(row["seed"]), int(row["step"])))
            if line is None:
                continue  # the reference still plays
            found = [TASK, *(settings["algo"][name] for name in FIELDS[1:3])]
            found += [line["seed"], line["step"], float(row["return"])]
            found += [line["proxy_return"], line["chi2"]]
            rows.append(dict(zip(FIELDS, found, strict=True)))
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:5]])


def reference(episodes: int = 100) -> tuple[float, float]:
    """Returns the mean true and proxy return of the reference."""
    env, rng, paid = resolve(TASK).make_env(), np.random.default_rng(0), []
    for episode in range(episodes):
        seen, over = env.reset(seed=episode)[0], False
        while not over:
            action = env.unwrapped.reference(seen, rng.standard_normal(1))
            seen, reward, _, over, _ = env.step(action)
            paid.append((reward, seen[-1]))
    return tuple(np.sum(paid, 0) / episodes)


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per cell, with mean and standard deviation over seeds."""
    head = "| penalty | coefficient | true return | proxy return | estimated chi-square |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: |"]
    last = [row for row in rows if row["step"] == max(other["step"] for other in rows)]
    for cell, own in cells(last, ("penalty", "coefficient")):
        shown = [
            mean_std([row[name] for row in own], digits)
            for name, digits in (("true", 0), ("proxy", 0), ("chi2", 2))
        ]
        lines.append(f"| {cell[0]} | {cell[1]:g} | {' | '.join(shown)} |")
    true, proxy = reference()
    return "\n".join([*lines, f"| the reference | | {true:.0f} | {proxy:.0f} | 0 |"])


def draw(rows: list[dict]) -> None:
    """Draws both returns over the steps, a colour per coefficient, mean and range over seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    coefficients = sorted({row["coefficient"] for row in rows})
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(coefficients)))
    for ax, name, level in zip(axes, ("true", "proxy"), reference(), strict=True):
        for coefficient, colour in zip(coefficients, colours, strict=True):
            own = [row for row in rows if row["coefficient"] == coefficient]
            steps = sorted({row["step"] for row in own})
            values = np.array([[row[name] for row in own if row["step"] == t] for t in steps])
            ax.plot(steps, values.mean(1), color=colour, marker="o", ms=3, label=f"{coefficient:g}")
            ax.fill_between(steps, values.min(1), values.max(1), color=colour, alpha=0.15, lw=0)
        ax.axhline(level, color="black", lw=0.8, ls=":")
        ax.set(xlabel="steps", ylabel=f"{name} return")
        ax.spines[["top", "right"]].set_visible(False)
    options = {"frameon": False, "fontsize": 8, "title_fontsize": 8}
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, title="coefficient", loc="outside right center", **options)
    figure.savefig(HERE / "pendulum.png", dpi=150)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "pendulum.csv", FIELDS, rows, ".6g")
    print(table(rows))
    draw(rows)


if __name__ == "__main__":
    main()
