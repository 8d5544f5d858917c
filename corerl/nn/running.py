"""Running statistics."""

import torch
from torch import Tensor

from corerl.nn.learner import Stateful


class Spread(Stateful):
    """The running mean and variance of each seed's numbers, `(S,)` each, by Chan's formula."""

    def __init__(self, seeds: int, device: torch.device | str):
        self.mean, self.count = torch.zeros(seeds, device=device), torch.zeros((), device=device)
        self.variance = torch.ones(seeds, device=device)
        self.count += 1e-4

    def update(self, values: Tensor) -> Tensor:
        """Adds `(S, B)` and returns the standard deviation `(S,)`."""
        many = values.shape[1]
        change, total = values.mean(1) - self.mean, self.count + many
        summed = self.variance * self.count + values.var(1, correction=min(1, many - 1)) * many
        summed = summed + change.square() * self.count * many / total
        self.mean.add_(change * many / total)
        self.variance.copy_(summed / total)
        self.count.copy_(total)
        return self.variance.sqrt()
