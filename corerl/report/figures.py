"""Figures: aggregates with intervals, profiles, probability of improvement, learning curves."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from corerl.report import stats
from corerl.report.colours import looks
from corerl.report.drawing import GREY, HALF, INK, LEGEND, LETTER, STYLE, grid
from corerl.report.options import NAMES
from corerl.report.tables import ENOUGH_SEEDS
from corerl.risk import measures

Plot = tuple[str, Callable[[], Figure]]
"""A caption, and what draws the figure."""

LINE = 0.15  # inches, of text on an axis
TAIL = 0.1  # level of the tail that mean returns are drawn against
MOST_POINTS = 200  # of a task's curve: more only make the file large


def aggregates(
    table: pd.DataFrame, look: dict, algorithms: list[str], metrics: list[str]
) -> Figure:
    """Draws one panel per metric, one row per algorithm: estimate and interval."""
    names = algorithms[::-1]
    of_metric = {m: rows.set_index("algorithm").loc[names] for m, rows in table.groupby("metric")}
    seeds = of_metric[metrics[0]][["seeds_min", "seeds_max"]]
    shown = [_broken(_with_seeds(name, *found)) for name, found in seeds.iterrows()]
    height = (_pitch(shown) - 0.02) * len(names) + 1.1
    figure, axes = grid(1, len(metrics), 2.4 * len(metrics) + 1.2, height)
    for axis, metric in zip(axes, metrics, strict=True):
        rows = of_metric[metric]
        colors = [look[n]["color"] for n in names]
        _intervals(axis, rows, colors, rows["seeds_min"] < ENOUGH_SEEDS)
        axis.set_title(NAMES[metric] + (" (lower is better)" if metric == "optimality_gap" else ""))
        axis.set_yticks(range(len(names)), shown if axis is axes[0] else [""] * len(names))
        axis.tick_params(axis="y", length=0)
    return figure


def _with_seeds(name: str, fewest: float, most: float) -> str:
    """Names an algorithm with its seeds, `IQL (n=3)`, where they are few."""
    if fewest >= ENOUGH_SEEDS:
        return name
    return f"{name} (n={fewest:g})" if fewest == most else f"{name} (n={fewest:g}-{most:g})"


def _intervals(axis, rows: pd.DataFrame, colors: list[str], few: Sequence[bool]) -> None:
    """Draws a line at each estimate and a bar over its interval, grey where the seeds are few."""
    y = np.arange(len(rows))
    known = (rows["low"] < rows["high"]).to_numpy()  # without width it says nothing
    left, width = rows["low"].to_numpy(), (rows["high"] - rows["low"]).to_numpy()
    greyed = [GREY if f else c for c, f in zip(colors, few, strict=True)]
    fill = [c for c, k in zip(greyed, known, strict=True) if k]
    axis.barh(y[known], width[known], left=left[known], height=0.55, color=fill, alpha=0.4)
    for i, value in enumerate(rows["value"]):
        axis.plot([value, value], [i - 0.275, i + 0.275], color=colors[i], linewidth=2.4)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.grid(axis="y", visible=False)
    axis.use_sticky_edges = False  # bars would otherwise cling to the frame
    axis.margins(x=0.06)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def profile(table: pd.DataFrame, look: dict, unit: str) -> Figure:
    """Draws the fraction of runs above a score, with pointwise 95% bands."""
    figure, (axis,) = grid(1, 1, *HALF)
    _curves(axis, table.groupby("algorithm", sort=False), "tau", look)
    axis.set(xlabel=f"{unit} τ", ylabel="fraction of runs above τ", ylim=(-0.02, 1.02))
    axis.margins(x=0)
    _legend(figure, [axis])
    return figure


def profile_taus(scores: pd.Series) -> np.ndarray:
    """Returns the 401 thresholds of a profile: from the smallest to the largest score, within [-20, 200]."""
    low, high = max(scores.min(), -20.0), min(scores.max(), 200.0)
    return np.linspace(min(low, 0.0), max(high, low + 1.0), 401)


def improvement(table: pd.DataFrame, look: dict) -> Figure:
    """Draws P(x > y) with intervals, of all x over one y or of one x over all y. One half is none."""
    rows = table.iloc[::-1].reset_index(drop=True)
    if rows["x"].nunique() > 1:
        names, event = rows["x"], f"… > {rows['y'][0]}"
    else:
        names, event = rows["y"], f"{rows['x'][0]} > …"
    label, shown = textwrap.wrap(f"P({event})", 40), [_broken(name) for name in names]
    height = _pitch(shown) * len(rows) + LINE * len(label) + 0.95
    figure, (axis,) = grid(1, 1, HALF[0], height)
    few = [int(str(n).partition("-")[0]) < ENOUGH_SEEDS for n in rows["n"]]
    _intervals(axis, rows, [look[n]["color"] for n in names], few)
    axis.axvline(0.5, color=INK, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(rows)), shown)
    axis.tick_params(axis="y", length=0)
    axis.set_xticks(np.linspace(0, 1, 5))
    axis.set(xlim=(-0.01, 1.01), xlabel="\n".join(label))
    return figure


def _broken(name: str) -> str:
    """Breaks a name where it would take the axis' place."""
    return textwrap.fill(name, 26)


def _pitch(names: Iterable[str]) -> float:
    """Returns the inches from one row to the next that names of so many lines need."""
    return max(0.34, 0.06 + LINE * max(name.count("\n") + 1 for name in names))


def efficiency(table: pd.DataFrame, look: dict, metric: str, unit: str) -> Figure:
    """Draws the aggregate over tasks against steps, with 95% bands. One step is no curve."""
    table = table[table.groupby("algorithm")["step"].transform("size") > 1]
    figure, (axis,) = grid(1, 1, *HALF)
    _curves(axis, table.groupby("algorithm", sort=False), "step", look)
    axis.set(ylabel=f"{NAMES[metric]} of the {unit}")
    _count_steps(axis, table["step"].min())
    _legend(figure, [axis])
    return figure


def curved(history: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of steps that every seed of a cell evaluated, if several: one is no curve."""
    cell = ["task", "algorithm"]
    seeds, there = (
        history.groupby(by)["seed"].transform("nunique") for by in (cell, [*cell, "step"])
    )
    history = history[there == seeds]
    return history[history.groupby(cell)["step"].transform("nunique") > 1]


def tasks(history: pd.DataFrame, look: dict, unit: str) -> Figure:
    """Draws one panel per task of the `curved` rows: mean over seeds against steps, 95% t
    intervals from three seeds on."""
    history = curved(history)
    figure, axes = _panels(sorted(set(history["task"])), 2.1, unit)
    for task, of_task in history.groupby("task"):
        cells = of_task.groupby("algorithm", sort=False)
        _curves(axes[task], ((name, _mean_curve(rows)) for name, rows in cells), "step", look)
        _count_steps(axes[task], history["step"].min())
    _legend(figure, axes.values())
    return figure


def _mean_curve(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    _, steps, scores = seeds_by_steps(rows)
    drawn = np.isin(steps, thinned(steps))
    steps, scores = steps[drawn], scores[:, drawn]
    low, high = stats.mean_band(scores)
    return {"step": steps, "value": scores.mean(0), "low": low, "high": high}


def distributions(returns: pd.DataFrame, look: dict) -> Figure:
    """Draws one panel per task: the cumulative share of episodes, seeds pooled, and dots at (CVaR, tau)."""
    figure, axes = _panels(sorted(set(returns["task"])), 2.3, "fraction of episodes")
    for task, axis in axes.items():
        for name, rows in returns[returns["task"] == task].groupby("algorithm", sort=False):
            pooled = np.sort(np.concatenate(list(rows["returns"])))
            share = np.arange(1, len(pooled) + 1) / len(pooled)
            axis.step(pooled, share, where="post", label=in_legend(name), **look[name])
            tails = [
                np.mean([measures.cvar(r, tau) for r in rows["returns"]]) for tau in measures.TAUS
            ]
            axis.plot(tails, measures.TAUS, "o", markersize=4, color=look[name]["color"])
        axis.set(ylim=(-0.02, 1.02), xlabel="return")
    _legend(figure, axes.values())
    return figure


def tradeoff(points: pd.DataFrame) -> Figure:
    """Draws one panel per task: mean return against its lower tail, a line through an algorithm's levels.

    Args:
        points: rows of task, algorithm, tau and mean, mean_low, mean_high, tail, tail_low, tail_high.
    """
    unit = f"CVaR {TAIL:g} of the return"
    figure, axes = _panels(sorted(set(points["task"])), 2.6, unit)
    look = looks(points["algorithm"])
    for task, axis in axes.items():
        for name, rows in points[points["task"] == task].groupby("algorithm", sort=False):
            rows = rows.sort_values("tau")
            reach = [abs(rows[[f"{k}_low", f"{k}_high"]].T - rows[k]) for k in ("mean", "tail")]
            style = {"marker": "o", "markersize": 4, "elinewidth": 1, "linewidth": 1.2}
            style |= {"label": in_legend(name), **look[name]}
            axis.errorbar(rows["mean"], rows["tail"], reach[1], reach[0], **style)
        _name_levels(axis, points[(points["task"] == task) & points["tau"].notna()], look)
        axis.set_xlabel("mean return")
    _legend(figure, axes.values())
    return figure


def _name_levels(axis, points: pd.DataFrame, look: dict) -> None:
    """Writes the tau beside every point. Points of an algorithm in one place share a label."""
    spans = np.ptp([axis.get_xlim(), axis.get_ylim()], axis=1)
    for name, rows in points.sort_values("tau").groupby("algorithm"):
        labels: list[tuple[np.ndarray, list[str]]] = []
        for row in rows.itertuples():
            place = np.array([row.mean, row.tail])
            near = [taus for at, taus in labels if (abs(place - at) < 0.03 * spans).all()]
            if near:
                near[0].append(f"{row.tau:g}")
            else:
                labels.append((place, [f"{row.tau:g}"]))
        for place, taus in labels:
            style = {"fontsize": 7, "color": look[name]["color"]}
            spot = {"xytext": (4, 4), "textcoords": "offset points"}
            axis.annotate(", ".join(taus), place, **spot, **style)


def _panels(tasks: list[str], height: float, unit: str) -> tuple[Figure, dict]:
    """Makes a figure of a panel per task, three in a row, each `height` inches high, by task."""
    across = min(3, len(tasks))
    down = math.ceil(len(tasks) / across)
    width = max(HALF[0], 3.1 * across)
    titles = _titles(tasks, 0.9 * (width / across - 0.5))
    lines = max(title.count("\n") for title in titles.values())
    figure, axes = grid(down, across, width, (height + LINE * lines) * down + 0.5)
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    for axis in axes[::across]:
        axis.set_ylabel(unit)
    panels = dict(zip(tasks, axes, strict=False))
    for task, axis in panels.items():
        axis.set_title(titles[task])
    return figure, panels


def seeds_by_steps(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a cell's seeds (n,), the steps that all of them evaluated (k,), and its scores (n, k).

    No step of a seed stands twice.
    """
    seeds, row = np.unique(rows["seed"].to_numpy(), return_inverse=True)
    steps, column = np.unique(rows["step"].to_numpy(), return_inverse=True)
    scores = np.full((len(seeds), len(steps)), np.nan)
    scores[row, column] = rows["score"].to_numpy()  # in a tenth of the time of a pivot table
    whole = ~np.isnan(scores).any(0)
    return seeds, steps[whole], scores[:, whole]


def thinned(steps: Iterable[int]) -> list[int]:
    """Returns at most `MOST_POINTS` of these steps, evenly, in ascending order. The last one always stays."""
    steps = sorted(set(steps))
    return steps[:: -max(1, math.ceil(len(steps) / MOST_POINTS))][::-1]


def _titles(tasks: list[str], width: float) -> dict[str, str]:
    """Returns the last parts of the ids, where they tell the tasks apart, in lines of so many inches."""
    names = {task: task.rpartition("/")[2] for task in tasks}
    if len(set(names.values())) < len(tasks):
        names = {task: task.partition("/")[2] or task for task in tasks}
    letters = int(72 * width / (LETTER * STYLE["axes.titlesize"]))
    return {task: textwrap.fill(name, letters) for task, name in names.items()}


def in_legend(name: str) -> str:
    """Begins a name with a blank where Matplotlib would leave it out of legends, for its underscore."""
    return f" {name}" if name.startswith("_") else name


def _legend(figure: Figure, axes: Iterable) -> None:
    """Draws one legend above all panels, of as many columns as fit beside each other."""
    known = {}
    for axis in axes:
        known |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    names = [_broken(name) for name in known]
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    entry = LEGEND * (LETTER * longest + 5) / 72  # the letters, and the line before them
    fit = max(1, min(5, int(figure.get_figwidth() // entry)))
    down = math.ceil(len(names) / fit)
    columns = [names[i : i + down] for i in range(0, len(names), down)] if names else []
    lines = max((sum(name.count("\n") + 1 for name in column) for column in columns), default=1)
    extra = 1.5 * LEGEND / 72 * (lines - 1)  # at the cost of no panel
    figure.set_figheight(figure.get_figheight() + extra)
    figure.legend(list(known.values()), names, loc="outside upper center", ncols=fit)


def _curves(axis, curves: Iterable[tuple[str, pd.DataFrame | dict]], x: str, look: dict) -> None:
    """Draws a line per algorithm, and the bands where they are known, as one artist: many take seconds."""
    bands, colors = [], []
    for name, curve in curves:
        axis.plot(curve[x], curve["value"], label=in_legend(name), **look[name])
        if not np.isnan(curve["low"]).all():
            low, high = (np.column_stack([curve[x], curve[side]]) for side in ("low", "high"))
            bands.append(np.concatenate([low, high[::-1]]))
            colors.append(look[name]["color"])
    if bands:
        axis.add_collection(PolyCollection(bands, facecolors=colors, alpha=0.18, linewidth=0))
        axis.autoscale_view()


def _count_steps(axis, first: int) -> None:
    axis.set_xlabel("steps")
    if first < 0:  # updates on the data; the environment's steps begin at 0
        axis.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        axis.set_xlabel("steps after the switch to online")
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(lambda x, _: _short(x))


def _short(x: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:g}{letter}"
    return f"{x:g}"
