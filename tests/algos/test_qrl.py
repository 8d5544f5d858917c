"""QRL's quasimetrics: the length of a union of intervals, and what makes a distance."""

import numpy as np
import pytest
import torch

from corerl import seeding
from corerl.algos.qrl import Quasimetric, union_lengths


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([(0, 1)], 1),
        ([(0, 1), (0.5, 2)], 2),  # they overlap
        ([(0, 3), (1, 2)], 3),  # one holds the other
        ([(0, 1), (2, 3)], 2),
        ([(0, 1), (1, 2)], 2),
        ([(1, 0), (5, 4)], 0),  # empty ones
        ([(1, 0), (0, 1)], 1),
        ([(2, 2)], 0),
    ],
)
def test_the_length_of_a_union(intervals, length):
    low, high = torch.tensor(intervals, dtype=torch.float32).T
    assert union_lengths(low, high).item() == length


def test_the_length_of_a_union_is_what_a_sweep_finds():
    rng = np.random.default_rng(0)
    low, high = rng.normal(size=(2, 200, 8))
    points = np.linspace(-5, 5, 4001)
    inside = (low[..., None] <= points) & (points < high[..., None])
    swept = inside.any(1).mean(-1) * 10
    found = union_lengths(torch.tensor(low), torch.tensor(high))
    np.testing.assert_allclose(found, swept, atol=0.02)


@pytest.mark.parametrize("kind", ["iqe", "mrn"])
def test_a_distance_is_0_to_itself_keeps_the_triangle_and_is_another_way_back(kind):
    net = Quasimetric([3, 8, 16], kind, seeding.generators([0, 1], "init"))
    a, b, c = net.embed(torch.randn(2, 300, 3)).split(100, 1)
    assert net(a, a).abs().max() < 1e-5
    assert (net(a, c) <= net(a, b) + net(b, c) + 1e-5).all()
    assert (net(a, b) >= 0).all() and ((net(a, b) - net(b, a)).abs() > 1e-3).any()
