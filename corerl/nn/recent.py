"""Memories of the latest numbers of each seed, and where others stand among them."""

import math

import torch
from torch import Tensor, nn


class Recent(nn.Module):
    """The last `size` numbers of each of `seeds` learners, on the device.

    Attributes:
        additions: how often numbers were added, `(S,)`.
    """

    def __init__(self, seeds: int, size: int):
        super().__init__()
        self.register_buffer("numbers", torch.full((seeds, size), math.inf))  # inf: none yet
        self.register_buffer("count", torch.zeros(seeds, dtype=torch.int64))
        self.register_buffer("additions", torch.zeros(seeds, dtype=torch.int64))

    def add(self, numbers: Tensor) -> None:
        """Remembers `(S, B)`, at most `size` of each seed, in the place of the oldest."""
        ahead = torch.arange(numbers.shape[1], device=numbers.device)
        places = (self.count[:, None] + ahead) % self.numbers.shape[1]
        self.numbers.scatter_(1, places, numbers)
        self.count += numbers.shape[1]
        self.additions += 1

    def percentile(self, percent: Tensor) -> Tensor:
        """Returns the percentiles `(S,)`, between two numbers on the line through them (NumPy's)."""
        place = percent / 100 * (self.count.clamp(max=self.numbers.shape[1]) - 1)
        ends = torch.stack([place.floor(), place.ceil()], 1).long()
        below, above = self.numbers.sort(-1).values.gather(1, ends).unbind(1)
        return below + (place - place.floor()) * (above - below)

    def scaled(self, numbers: Tensor) -> Tensor:
        """Remembers `(S, B)`, and returns them from 0 for the smallest of memory to 1 for the largest."""
        self.add(numbers)
        smallest = self.numbers.amin(1, keepdim=True)
        largest = torch.where(self.numbers < math.inf, self.numbers, smallest).amax(1, keepdim=True)
        return (numbers - smallest) / (largest - smallest).clamp(min=1e-12)
