"""Two-hot targets: a number as shares of the two bins around it, so that a classifier can learn it."""

import torch
from torch import Tensor


def symexp_bins(limit: float, count: int, device: torch.device) -> Tensor:
    """Returns ascending bins sign(x) (exp|x| - 1) of even x in [-limit, limit] (Hafner et al. 2023)."""
    steps = torch.linspace(-limit, limit, count, device=device)
    return steps.sign() * torch.expm1(steps.abs())


def two_hot(values: Tensor, bins: Tensor) -> Tensor:
    """Returns the shares `(..., bins)` of ascending `bins` `(bins,)` whose mean is each value `(...)`.

    A value beyond either end is that end.
    """
    inside = values.clamp(bins[0], bins[-1])
    upper = torch.searchsorted(bins, inside.contiguous()).clamp(1, len(bins) - 1)
    low, high = bins[upper - 1], bins[upper]
    share = ((inside - low) / (high - low))[..., None]
    numbers, upper = torch.arange(len(bins), device=upper.device), upper[..., None]
    return torch.where(numbers == upper, share, torch.where(numbers == upper - 1, 1 - share, 0))
