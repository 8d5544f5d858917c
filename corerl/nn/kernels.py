"""The kernel of a maximum mean discrepancy: a mixture of Gaussians of several bandwidths."""

import torch
from torch import Tensor

CHUNK = {"cpu": 2**16, "cuda": 2**22}
"""Distances whose kernels are held at once: with 17 bandwidths 4.5 MB on a CPU, 285 MB on a GPU."""


def gaussian_mixture(distances: Tensor, bandwidths: Tensor, weights: Tensor) -> Tensor:
    """Returns sum_b w_b exp(-d / b) of every element of `distances`, which are squared.

    Autograd would keep a copy per bandwidth. The kernel is a function of one number, so its slope is
    computed along with it, a chunk at a time, and all that is kept is one slope per distance.
    """
    chunk = CHUNK["cuda" if distances.is_cuda else "cpu"]
    both = torch.stack([weights, weights / bandwidths], -1)
    with torch.no_grad():
        parts = []
        for part in distances.detach().flatten().split(chunk):
            # exp(-80) is nothing beside 1, and a CPU takes 20 times as long for what underflows.
            exponents = (part[:, None] / -bandwidths).clamp(min=-80)
            parts.append(torch.exp(exponents) @ both)
        value, slope = torch.cat(parts).view(*distances.shape, 2).unbind(-1)
    return value - slope * (distances - distances.detach())
