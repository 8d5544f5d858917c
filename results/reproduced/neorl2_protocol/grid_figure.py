"""A grid of settings as a figure: every seed of ours beside every published one, and both means."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from corerl.report.colours import looks
from corerl.report.drawing import GREY, INK, grid, render

CELL = ["algorithm", "task", "cell"]
APART, TALL = 0.17, 0.13  # of a row: from its middle to each side's seeds, and half a mean's height


def png(rows: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> bytes:
    """Returns the figure as PNG: a panel for each algorithm and task, a row per cell.

    Args:
        rows: the cells, as `grids.compare(ours, theirs)` returns them. ours, theirs: a row per seed.
    """
    return render(partial(_draw, rows, ours, theirs), "grid")[0]


def _draw(rows: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    panels = [(name, part.iloc[::-1].to_dict("records")) for name, part in rows.groupby(CELL[:2])]
    tallest = max(len(cells) for _, cells in panels)
    figure, axes = grid(1, len(panels), 3.6 * len(panels) + 0.6, 0.5 * tallest + 1.2)
    most = rows["most"].max() if "most" in rows else None
    for axis, ((algorithm, task), cells) in zip(axes, panels, strict=True):
        color = looks([algorithm])[algorithm]["color"]
        for y, cell in enumerate(cells):
            fill = "white" if _begun(cell, most) else color
            _seeds(axis, _returns(ours, cell), y + APART, color, fill)
            _seeds(axis, _returns(theirs, cell), y - APART, GREY, GREY)
        axis.set_yticks(range(len(cells)), [_named(cell, most) for cell in cells])
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.08)
        axis.set(
            title=f"{algorithm} on {task}",
            xlabel="mean return of a seed",
            ylim=(len(cells) - tallest - 0.6, len(cells) - 0.4),
        )
    _legend(figure, list(dict.fromkeys(rows["algorithm"])))
    return figure


def _legend(figure: Figure, algorithms: list[str]) -> None:
    ours = "ours" if len(algorithms) == 1 else "{}, ours"
    sides = [(looks([name])[name]["color"], ours.format(name)) for name in algorithms]
    sides.append((GREY, "published"))
    dots = [
        Line2D([], [], color=color, label=label, marker="o", linestyle="", markersize=4.5)
        for color, label in sides
    ]
    figure.legend(handles=dots, loc="outside upper center", ncols=len(dots))


def _seeds(axis: Any, returns: Iterable[float], y: float, color: str, fill: str) -> None:
    """Draws a dot for every seed and a line at their mean."""
    returns = list(returns)
    mean = sum(returns) / len(returns)
    style = {"markersize": 4.5, "color": color, "markerfacecolor": fill}
    axis.plot(returns, [y] * len(returns), "o", **style)
    axis.plot([mean, mean], [y - TALL, y + TALL], color=INK, linewidth=1.6)


def _returns(side: pd.DataFrame, cell: dict[str, Any]) -> pd.Series:
    here = (side[CELL] == [cell[name] for name in CELL]).all(axis=1)
    return side.loc[here, "return"]


def _begun(cell: dict[str, Any], most: float | None) -> bool:
    """Tells whether a cell had fewer updates than others: its dots are hollow."""
    return most is not None and cell["fewest"] < most


def _named(cell: dict[str, Any], most: float | None) -> str:
    name = cell["cell"].replace(" ", "\n")
    return f"{name}\n({cell['fewest']:,} updates)" if _begun(cell, most) else name
