"""Memories of recent numbers against NumPy."""

import numpy as np
import pytest
import torch

from corerl.nn.recent import Recent


@pytest.mark.parametrize("percent", [0.0, 0.3, 37.5, 100.0])
def test_percentiles_are_numpys_of_what_is_remembered(percent):
    """Batches of 4 into 10 places: half full, full, and the oldest replaced across the end."""
    rng, memory = np.random.default_rng(0), Recent(2, 10).double()
    seen = np.empty((2, 0))
    for _ in range(6):
        batch = rng.normal(size=(2, 4))
        memory.add(torch.from_numpy(batch))
        seen = np.concatenate([seen, batch], 1)[:, -10:]
        found = memory.percentile(torch.full((2,), percent, dtype=torch.float64))
        np.testing.assert_allclose(found, np.percentile(seen, percent, axis=1), rtol=1e-12)
    assert memory.additions.tolist() == [6, 6]


def test_numbers_are_scaled_by_the_smallest_and_largest_of_memory():
    memory = Recent(1, 4)
    assert memory.scaled(torch.tensor([[1.0, 3.0]])).tolist() == [[0, 1]]
    assert memory.scaled(torch.tensor([[2.0, 5.0]])).tolist() == [[0.25, 1]]
    assert memory.scaled(torch.tensor([[4.0, 4.0]])).tolist() == [[pytest.approx(2 / 3)] * 2]


def test_equal_numbers_are_scaled_to_zero():
    assert Recent(1, 4).scaled(torch.full((1, 2), 0.7)).tolist() == [[0, 0]]
