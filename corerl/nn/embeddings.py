"""Embeddings of numbers: cosines (IQN), sines of positions, and a learned vector for each."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Cosines(nn.Module):
    """cos(pi i x) of numbers x for `count` whole i from `first` on: `(...)` to `(..., count)` (IQN)."""

    def __init__(self, count: int, first: int = 1):
        super().__init__()
        numbers = torch.arange(first, first + count, dtype=torch.get_default_dtype())
        self.register_buffer("frequencies", math.pi * numbers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x[..., None] * self.frequencies)


class Embedding(nn.Module):
    """An embedding per seed: numbers `(S, ...)` below `size` to `(S, ..., features)`."""

    def __init__(
        self,
        size: int,
        features: int,
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        std: float,
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*lead, size, features))
        with torch.no_grad():
            for weight, rng in zip(self.weight, rngs, strict=True):
                weight.normal_(0, std, generator=rng)

    def forward(self, numbers: Tensor) -> Tensor:
        seeds, size, _ = self.weight.shape
        first = torch.arange(0, seeds * size, size, device=numbers.device)
        rows = numbers + first.view(-1, *[1] * (numbers.ndim - 1))
        return F.embedding(rows, self.weight.flatten(0, 1))


def sines(length: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns the positions of tokens as sines and cosines, `(length, width)` (Vaswani et al. 2017)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
