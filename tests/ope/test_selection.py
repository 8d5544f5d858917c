"""Choosing among policies by estimates: closed forms."""

import math

import numpy as np
import pytest
from wording import refused

from corerl.ope import selection

TRUTHS = np.array([1.0, 5.0, 3.0, 2.0])


def test_perfect_and_reversed_estimates():
    assert selection.rank_correlation(TRUTHS * 10 - 3, TRUTHS) == pytest.approx(1)
    assert selection.rank_correlation(-TRUTHS, TRUTHS) == pytest.approx(-1)
    assert selection.regret(TRUTHS, TRUTHS) == 0
    assert selection.regret(-TRUTHS, TRUTHS) == 1
    assert selection.regret(-TRUTHS, TRUTHS, k=3) == pytest.approx(0.5)
    assert selection.regret(-TRUTHS, TRUTHS, k=4) == 0


def test_the_top_by_hand():
    estimates = np.array([4.0, 1.0, 3.0, 2.0])  # chooses 1.0, then 3.0, then 2.0
    assert selection.top(estimates, TRUTHS, 2) == (3.0, 1.0, 2.0, 1.0)
    assert selection.sharpe_ratio(estimates, TRUTHS, 2.5, 2) == pytest.approx(0.5)
    assert math.isnan(selection.sharpe_ratio(estimates, TRUTHS, 2.5, 1))
    alike = np.array([0.1, 0.1, 0.1, 0.0])  # whose deviation is 1e-17
    assert math.isnan(selection.sharpe_ratio(np.arange(4.0)[::-1], alike, 0.05, 3))


def test_error_rates_by_hand():
    estimates = np.array([0.9, 0.2, 0.7, 0.1])
    # Good: 5, 3 (from 2.5 on). Judged good: the first and the third.
    assert selection.error_rates(estimates, TRUTHS, (0.5, 2.5)) == (0.5, 0.5)
    assert selection.error_rates(estimates, TRUTHS, (0.7, 3.0)) == (0.5, 0.5)  # what they meet, too
    worst = selection.error_rates(np.array([3.0, 2, 1, 0, 0]), np.arange(5.0), (1.0, 2.0))
    assert worst == (1, pytest.approx(2 / 3))  # both bad ones, two of the three good ones
    one, two = selection.error_rates(estimates, TRUTHS, (0.5, 0.0))
    assert math.isnan(one) and two == 0.5


def test_policies_of_one_algorithm_are_drawn_together():
    # Three algorithms; the estimate is right within each, and takes the worst of them for the best.
    truths = np.concatenate([np.arange(8.0), 10 + np.arange(8.0), 20 + np.arange(8.0)])
    estimates = truths + 30 * (truths < 8)
    labels = np.repeat(["a", "b", "c"], 8)
    alone = selection.rank_interval(estimates, truths)
    low, high = selection.rank_interval(estimates, truths, groups=labels)
    # A third of the draws of algorithms lack the first or have it alone; hardly any draw of policies does.
    assert high == pytest.approx(1) and low < 0 and alone[1] < 0.5
    single = [str(i) for i in range(24)]
    assert selection.rank_interval(estimates, truths, groups=single) == alone
    assert math.isnan(selection.rank_interval(estimates, truths, groups=["a", "b"] * 12)[0])


def test_whom_an_estimate_overrates():
    ranks = selection.overrated(np.array([9.0, 1.0, 2.0, 3.0]), TRUTHS, list("aabc"))
    # By estimate 1, 0, 1/3, 2/3; by truth 0, 1, 2/3, 1/3.
    assert ranks["a"] == (2, 0.5, 0.5)
    assert ranks["b"] == (1, pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert ranks["c"] == (1, pytest.approx(2 / 3), pytest.approx(1 / 3))
    # Tied estimates have their mean rank.
    assert selection.overrated(np.ones(4), TRUTHS, list("aaaa"))["a"][1] == 0.5


def test_impossible_estimates_are_chosen_last():
    marked = np.array([True, False, False, True])
    values = selection.last(np.array([1e6, 5.0, 3.0, -1e6]), marked)
    assert list(np.argsort(-values[:3])) == [1, 2, 0] and values[0] == values[3] < 3
    assert selection.regret(values, TRUTHS) == 0
    assert np.ptp(selection.last(TRUTHS, np.ones(4, bool))) == 0
    low, lowest = selection.last(np.array([-1e20, np.nan]), np.array([False, True]))
    assert lowest < low == -1e20


def test_an_estimate_that_says_nothing_has_no_rank():
    assert math.isnan(selection.rank_correlation(np.ones(4), TRUTHS))
    chosen = selection.assess("fqe", np.ones(4), TRUTHS, (1.0, 2.5))
    assert math.isnan(chosen.rank) and math.isnan(chosen.mse)
    assert selection.assess("fqe", TRUTHS + 1, TRUTHS, (1.0, 2.5), same_unit=True).mse == 1


def test_policies_without_numbers_are_refused():
    with refused("out"):
        selection.rank_correlation(np.array([1.0, np.nan]), TRUTHS[:2])
    with refused("(3,) (4,)"):
        selection.regret(TRUTHS[:3], TRUTHS)
    with refused("1 4"):
        selection.top(TRUTHS, TRUTHS, 5)


def test_the_figure_has_a_row_per_method_and_names_every_algorithm():
    labels = ["_a", "_a", "b", "b"]
    figure = selection.draw({"fqe": TRUTHS, "is": -TRUTHS}, TRUTHS, labels, 2.0)
    assert len(figure.axes) == 6
    assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == ["_a", "b"]


def test_a_critic_that_diverged_does_not_squeeze_the_figure():
    estimates = np.array([1.0, 2.0, 3.0, 4.0, 5.0, -80_000.0])
    axis = selection.draw({"fqe": estimates}, np.arange(6.0), list("aabbcc"), 2.0).axes[0]
    low, high = axis.get_xlim()
    assert -10 < low < 1 and 5 < high < 10
    (edge,) = [line for line in axis.lines if line.get_marker() == "<" and len(line.get_xdata())]
    assert list(edge.get_ydata()) == [5.0]
    assert not any(len(line.get_xdata()) for line in axis.lines if line.get_marker() == ">")
