"""TD3's evaluations beside its authors' ten seeds, and those of a plain loop (`plain_loop.py`).

    python results/reproduced/td3/compare.py results/reproduced/td3/curves.csv --figure curves.png

It prints both means at five steps with Welch's 95 % intervals of ours - theirs, and draws every seed.
"""

import argparse
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from corerl.report.drawing import grid, render
from corerl.report.stats import welch_interval

STEPS = (40_000, 100_000, 200_000, 240_000, 300_000)
PAPER = "TD3 at the paper's rates"
AUTHORS = "TD3's authors"
THEIRS = Path(__file__).parents[2] / "published" / "td3_curves.csv"
COLOURS = {PAPER: "#2a6fdb", "Plain loop": "#d1495b", AUTHORS: "#8c8f94"}


def read(path: Path) -> pd.DataFrame:
    """Returns our evaluations and the authors', whose tasks are -v1."""
    theirs = pd.read_csv(THEIRS)
    return pd.concat(
        [pd.read_csv(path), theirs.assign(task=theirs["task"].str.replace("v1", "v4"))]
    )


def table(rows: pd.DataFrame) -> str:
    """Returns a Markdown table of means over seeds, with the interval of each difference to the authors'."""
    lines = ["| task | steps | program | seeds | here | authors' ten | difference |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    at = rows[rows["step"].isin(STEPS)].groupby(["task", "step", "algorithm"])["return"]
    values = {key: of.to_numpy() for key, of in at}
    for (task, step, program), ours in values.items():
        if program == AUTHORS:
            continue
        b = values[task, step, AUTHORS]
        found = f"{ours.mean() - b.mean():+,.0f}"
        if len(ours) > 1:
            of_ours, of_theirs = ((x.mean(), x.std(ddof=1), len(x)) for x in (ours, b))
            low, high = welch_interval(*of_ours, *of_theirs)
            found += f" [{low:+,.0f}, {high:+,.0f}]"
        here = f"{ours.mean():,.0f}" + (f" ± {ours.std(ddof=1):,.0f}" if len(ours) > 1 else "")
        there = f"{b.mean():,.0f} ± {b.std(ddof=1):,.0f}"
        cells = (task, f"{step:,}", program, len(ours), here, there, found)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draws every seed of ours, and the authors' mean and range."""
    tasks = sorted(rows["task"].unique())
    figure, panels = grid(1, len(tasks), 9.6, 3.1)
    for panel, task in zip(panels, tasks, strict=True):
        for program, colour in COLOURS.items():
            of = rows[(rows["task"] == task) & (rows["algorithm"] == program)]
            curves = of.pivot(index="step", columns="seed", values="return")
            if program == AUTHORS:
                panel.fill_between(
                    curves.index, curves.min(axis=1), curves.max(axis=1), color=colour, alpha=0.25
                )
                curves = curves.mean(axis=1).to_frame()
            for i, seed in enumerate(curves):
                panel.plot(
                    curves.index, curves[seed], color=colour, lw=1.2, label=None if i else program
                )
        panel.set(title=task, xlabel="steps of the environment", ylabel="return")
        panel.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:.0f}k")
    figure.legend(
        *max((p.get_legend_handles_labels() for p in panels), key=lambda x: len(x[0])),
        loc="outside lower center",
        ncols=3,
    )
    return figure


def main() -> None:
    """Prints the table, and writes the figure where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("curves", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    rows = read(args.curves)
    print(table(rows))
    if args.figure:
        args.figure.write_bytes(render(partial(draw, rows), "td3")[0])


if __name__ == "__main__":
    main()
