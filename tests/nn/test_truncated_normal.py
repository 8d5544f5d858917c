"""Truncated normals: densities and draws as scipy's, also far outside the bounds."""

import numpy as np
import pytest
import torch
from scipy import stats

from corerl.nn import truncated_normal

CASES = [(0, 1), (0, 0.01), (0.8, 0.5), (-0.95, 0.4), (3, 0.5), (-40, 1), (200, 0.01), (-1e4, 7)]


def tensors(mean, std, rows):
    wide = torch.full((rows, 1), float(mean), requires_grad=True)
    return wide, torch.full((rows, 1), float(np.log(std)), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("mean", "std"), CASES)
def test_densities_and_draws_are_scipys(mean, std):
    law = stats.truncnorm((-1 - mean) / std, (1 - mean) / std, mean, std)
    values, noise = (torch.linspace(-end, end, 9, dtype=torch.float64) for end in (1, 4))
    normal = tensors(mean, std, 9)
    found = truncated_normal.log_prob(*normal, values[:, None])
    np.testing.assert_allclose(found.detach(), law.logpdf(values), rtol=1e-6, atol=1e-5)
    found.sum().backward()
    assert all(torch.isfinite(x.grad).all() and x.grad.any() for x in normal[1:])
    drawn = truncated_normal.draw(*(x.detach() for x in normal), noise[:, None])[:, 0]
    np.testing.assert_allclose(drawn, law.ppf(stats.norm.cdf(noise)), atol=1e-7)


@pytest.mark.parametrize("mean", [1e9, -3e38])
def test_a_mean_that_nothing_can_reach_is_at_its_bound(mean):
    normal = tensors(mean, 0.01, 1)
    side = torch.full((1, 1), np.sign(mean))
    at, off = (truncated_normal.log_prob(*normal, side * x) for x in (1, 0.9))
    (at + off).sum().backward()
    assert torch.isfinite(off) and at - off > 1e6 and torch.isfinite(normal[0].grad).all()
    assert truncated_normal.draw(*(x.detach() for x in normal), torch.zeros(1, 1)) == side


def test_a_normal_within_the_bounds_is_not_changed():
    noise = torch.linspace(-4, 4, 9)[:, None]
    drawn = truncated_normal.draw(torch.tensor(-0.3), torch.tensor(0.01).log(), noise)
    torch.testing.assert_close(drawn, -0.3 + 0.01 * noise)
