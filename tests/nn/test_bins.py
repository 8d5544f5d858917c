"""Coarse-to-fine bins: counted by hand, against intervals kept by their edges, there and back."""

import numpy as np
import pytest
import torch
from wording import refused

from corerl.algos.arsq import Config
from corerl.nn.bins import Bins


def test_two_levels_of_three_bins_by_hand():
    """[-1, 1] in thirds around -2/3, 0 and 2/3; each of those in thirds 2/9 wide."""
    bins = Bins(levels=2, bins=3)
    choices, centres = bins.encode(torch.tensor([[-1.0, 0.0], [0.4, 1.0]]))
    assert choices.tolist() == [[[0, 1], [0, 1]], [[2, 2], [0, 2]]]
    expected = [[[0, 0], [-6 / 9, 0], [-8 / 9, 0]], [[0, 0], [6 / 9, 6 / 9], [4 / 9, 8 / 9]]]
    torch.testing.assert_close(centres, torch.tensor(expected))
    assert bins.width(0) == 2 and bins.width(2) == pytest.approx(2 / 9)


def by_edges(action: float, levels: int, count: int) -> list[int]:
    low, high, choices = -1.0, 1.0, []
    for _ in range(levels):
        edges = np.linspace(low, high, count + 1)
        choices.append(int(np.searchsorted(edges[1:-1], action, side="right")))
        low, high = edges[choices[-1]], edges[choices[-1] + 1]
    return choices


@pytest.mark.parametrize(("levels", "count"), [(1, 41), (2, 7), (3, 5), (4, 2)])
def test_choices_are_those_of_the_edges_and_lead_back(levels, count):
    bins = Bins(levels, count)
    actions = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (200, 2)))
    choices, centres = bins.encode(actions)
    assert choices.shape == (200, levels, 2) and centres.shape == (200, levels + 1, 2)
    for action, chosen in zip(
        actions.flatten(), choices.transpose(1, 2).flatten(0, 1), strict=True
    ):
        assert chosen.tolist() == by_edges(float(action), levels, count)
    for level in range(levels + 1):
        reach = 1 / count**level + 1e-12
        assert (actions - centres[:, level]).abs().max() <= reach
        assert centres[:, level].abs().max() + reach <= 1 + 2e-12
    again, _ = bins.encode(bins.rounded(actions).float())
    assert torch.equal(again, choices)


@pytest.mark.parametrize("count", [2, 5, 7, 41])
def test_bounds_and_beyond_are_the_outer_bins(count):
    bins = Bins(2, count)
    choices, _ = bins.encode(torch.tensor([-1.5, -1.0, 1.0, 1.5]))
    assert choices.T.tolist() == [[0, 0]] * 2 + [[count - 1] * 2] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 1}, "algo.bins=1 2"),
        ({"levels": 0}, "algo.levels=0"),
        ({"bins": 41, "levels": 4}, "float32"),
    ],
)
def test_nothing_to_choose_is_refused(settings, message):
    with refused(message):
        Config(**settings)
