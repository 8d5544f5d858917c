import functools
import itertools
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from corerl.report import drawing, figures, stats
from corerl.report.colours import looks


@pytest.mark.parametrize("steps", [3, 200, 999])
def test_a_tasks_curve_is_thinned_but_ends_where_it_ends(steps):
    rows = [("A", "d4rl/x", s, k, s + k / 10) for s in (0, 1, 2) for k in range(1, steps + 1)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    figure = figures.tasks(history, looks(["A"]), "score")
    (line,) = figure.axes[0].lines
    x, y = line.get_data()
    assert x[-1] == steps
    assert min(steps, 100) <= len(x) <= figures.MOST_POINTS
    np.testing.assert_allclose(y, 1 + np.asarray(x) / 10)
    low, high = stats.mean_interval(np.array([0.0, 1.0, 2.0]) + steps / 10)
    (band,) = figure.axes[0].collections
    edge = band.get_paths()[0].vertices
    ends = edge[edge[:, 0] == steps, 1]
    assert (ends.min(), ends.max()) == pytest.approx((low, high))


def test_two_seeds_have_a_mean_and_no_band():
    rows = [("A", "d4rl/x", s, k, s + k / 10) for s in (0, 1) for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    (axis,) = figures.tasks(history, looks(["A"]), "score").axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [0.6, 0.7])
    assert not axis.collections


def test_a_task_that_was_evaluated_once_has_no_curve():
    rows = [("A", "d4rl/x", 0, 1, 1.0), ("A", "d4rl/y", 0, 1, 1.0), ("A", "d4rl/y", 0, 2, 1.0)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    (axis,) = figures.tasks(history, looks(["A"]), "score").axes
    assert axis.get_title() == "y"


def test_one_evaluation_each_at_different_steps_is_no_curve():
    rows = [("A", "d4rl/x", 0, 1, 1.0), ("B", "d4rl/x", 0, 2, 1.0)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    assert figures.curved(history).empty


def test_a_legend_names_no_line_that_is_not_drawn():
    """A's seeds have no step in common, and B was evaluated once."""
    steps = {"A0": (1, 3), "A1": (2, 4), "B0": (4,), "B1": (4,), "C0": (1, 4), "C1": (1, 2, 4)}
    rows = [(run[0], "d4rl/x", int(run[1]), k, 1.0) for run, own in steps.items() for k in own]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    curves = stats.curves(history, replicates=0)
    for figure in (
        figures.tasks(history, looks("ABC"), "score"),
        figures.efficiency(curves, looks("ABC"), "iqm", "score"),
    ):
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["C"]
        (line,) = figure.axes[0].lines
        assert line.get_xdata().tolist() == [1, 4]
    assert figures.curved(history[history["algorithm"] != "C"]).empty


def test_a_name_that_begins_with_an_underscore_stands_in_the_legend():
    rows = [(name, "d4rl/x", 0, k, 1.0) for name in ("_A", "B") for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    pooled = history[history["step"] == 2].drop(columns="step")
    returns = pooled.assign(returns=[np.arange(3.0)] * 2)
    ends = {f"{k}{end}": 1.0 for k in ("mean", "tail") for end in ("", "_low", "_high")}
    look = looks(["_A", "B"])
    for figure in (
        figures.tasks(history, look, "score"),
        figures.efficiency(stats.curves(history, replicates=0), look, "iqm", "score"),
        figures.profile(stats.profiles(pooled, [0.0, 2.0], replicates=0), look, "score"),
        figures.distributions(returns, look),
        figures.tradeoff(pooled.assign(tau=np.nan, **ends)),
    ):
        figure.canvas.draw()
        assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == ["_A", "B"]


@pytest.mark.parametrize("first", [-500, 500])
def test_the_first_step_of_the_environment_is_marked(first):
    rows = [("A", "d4rl/x", 0, k, 1.0) for k in (first, 1000)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    (axis,) = figures.tasks(history, looks(["A"]), "score").axes
    marks = [line for line in axis.lines if len(set(line.get_xdata())) == 1]
    assert len(marks) == (first < 0)
    assert (axis.get_xlabel() == "steps") == (first > 0)


def test_improvement_shows_one_bar_per_pair():
    table = pd.DataFrame(
        [("A", "C", 0.75, 0.6, 0.9, "5"), ("B", "C", 0.4, np.nan, np.nan, "1")],
        columns=["x", "y", "value", "low", "high", "n"],
    )
    axis = figures.improvement(table, looks("ABC")).axes[0]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["B", "A"]
    assert axis.get_xlabel() == "P(… > C)"
    (bar,) = axis.patches  # no interval, no bar
    assert (bar.get_x(), bar.get_width()) == pytest.approx((0.6, 0.3))


def test_long_names_stay_on_the_paper():
    """Beside the axis as below it, where they once pushed the axis' own label out."""
    names = [f"IQL beta=10.0 expectile=0.9 hidden_layers=3 hidden_width={n}" for n in (1, 2, 3)]
    rows = [(x, names[0], 0.5, 0.4, 0.6, "5") for x in names[1:]]
    table = pd.DataFrame(rows, columns=["x", "y", "value", "low", "high", "n"])
    figure = figures.improvement(table, looks(names))
    figure.canvas.draw()
    (axis,), paper = figure.axes, figure.bbox
    for text in (axis.xaxis.label, *axis.get_yticklabels()):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= paper.x1, text.get_text()
    above, below = (label.get_window_extent() for label in axis.get_yticklabels())
    assert not above.overlaps(below)


LONG = (
    "x" * 180,
    "A long name with many words that describe the method and its settings lr=3e-4 batch=256",
    "BC",
)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_long_names_stay_on_the_paper_above_panels_and_in_legends(tasks):
    names = [f"x/a_very_long_task_name_that_goes_on_and_on_for_{t}-medium-v2" for t in range(tasks)]
    rows = [(a, t, 0, k, 1.0 * k) for a in LONG for t in names for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    with matplotlib.rc_context(drawing.STYLE):
        figure = figures.tasks(history, looks(LONG), "score")
        figure.canvas.draw()
    panels, paper = [axis for axis in figure.axes if axis.get_visible()], figure.bbox
    assert len(panels) == tasks
    texts = [axis.title.get_window_extent() for axis in panels]
    texts.append(figure.legends[0].get_window_extent())
    for box in texts:
        assert box.x0 >= 0 and box.x1 <= paper.x1 and box.y1 <= paper.y1
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)
    heights = [axis.get_window_extent().height for axis in panels]
    assert min(heights) / figure.dpi > 1.2  # inches that are left for the curves


def test_what_stands_below_a_figure_is_whole_and_takes_no_panel_s_place():
    rows = [("A", "d4rl/x", 0, k, 1.0) for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    bare, reported = (figures.tasks(history, looks(["A"]), "score") for _ in range(2))
    text = "10,000 of 1,000,000 updates (1/100); width 64 of 256, batches of 64 of 256, five seeds"
    for figure, foot in ((bare, ""), (reported, text)):
        drawing.render(lambda figure=figure: figure, "tasks", foot)
    (below,) = reported.texts
    box, axis = below.get_window_extent(), reported.axes[0].xaxis.get_tightbbox()
    assert not bare.texts and below.get_text().replace("\n", " ") == text
    assert box.x0 >= 0 and box.x1 <= reported.bbox.x1 and box.y0 >= 0 and box.y1 <= axis.y0
    heights = [
        figure.axes[0].get_window_extent().height / figure.dpi for figure in (bare, reported)
    ]
    assert heights[1] == pytest.approx(heights[0], abs=0.05)  # inches


def test_letters_that_the_font_lacks_are_named_and_draw_no_warning():
    rows = [("中文", "x/t", 0, k, 1.0) for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing.render(lambda: figures.tasks(history, looks(["中文"]), "score"), "tasks")
    assert drawing.boxes(["中文", "IQL τ=0.5 é", "文"]) == "中文"


def test_improvement_of_one_over_the_others():
    rows = [("A", y, 0.75, 0.6, 0.9, "5") for y in "BC"]
    table = pd.DataFrame(rows, columns=["x", "y", "value", "low", "high", "n"])
    axis = figures.improvement(table, looks("ABC")).axes[0]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["C", "B"]
    assert axis.get_xlabel() == "P(A > …)"


@pytest.mark.parametrize("tasks", ["x", "xy"])
def test_more_than_one_panel_needs_the_width_of_the_page(tasks):
    rows = [("A", f"d4rl/{t}", 0, k, 1.0) for t in tasks for k in (1, 2)]
    history = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    draw = functools.partial(figures.tasks, history, looks(["A"]), "score")
    assert drawing.render(draw, "tasks")[2] == (len(tasks) > 1)


def test_ids_of_inlined_figures_are_their_own():
    svg = b'<?xml?><svg id="a"><metadata>x</metadata><use href="#a"/><g clip-path="url(#a)"/></svg>'
    text = drawing.inline(svg, "d4rl-one", "A figure")
    assert 'id="d4rl-one-a"' in text and 'href="#d4rl-one-a"' in text
    assert "url(#d4rl-one-a)" in text and "metadata" not in text and text.startswith("<svg ")


def test_few_seeds_are_grey_and_told():
    rows = [
        (a, "iqm", 50.0, low, 60.0, n, n)
        for a, low, n in (("A", 40, 5), ("B", 45, 3), ("C", 60, 5))
    ]
    names = ["algorithm", "metric", "value", "low", "high", "seeds_min", "seeds_max"]
    table = pd.DataFrame(rows, columns=names)
    (axis,) = figures.aggregates(table, looks("ABC"), list("ABC"), ["iqm"]).axes
    assert [t.get_text() for t in axis.get_yticklabels()] == ["C", "B (n=3)", "A"]
    grey, coloured = axis.patches  # C's interval has no width
    assert to_hex(grey.get_facecolor()) == drawing.GREY
    assert to_hex(coloured.get_facecolor()).upper() == looks("ABC")["A"]["color"]
