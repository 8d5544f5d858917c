"""Choice of a run's policy: the one whose error on held-out data was the lowest."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from corerl.nn import optim


class BestPolicy(nn.Module):
    """The policy of each of S seeds whose error was the lowest so far. That error and its step `(S,)`."""

    def __init__(self, policy: nn.Module, seeds: int):
        super().__init__()
        self.policy = optim.target_of(policy)
        self.register_buffer("lowest", torch.full((seeds,), torch.inf))
        self.register_buffer("step", torch.zeros(seeds, dtype=torch.int64))

    @torch.no_grad()
    def offer(self, policy: nn.Module, error: Tensor, step: int) -> None:
        """Keeps `policy` for each seed whose `error` `(S,)` is a new lowest."""
        better = error < self.lowest
        self.lowest.copy_(torch.where(better, error, self.lowest))
        self.step.masked_fill_(better, step)
        for kept, new in zip(self.policy.parameters(), policy.parameters(), strict=True):
            kept.copy_(torch.where(better.view(-1, *[1] * (new.ndim - 1)), new, kept))


@torch.no_grad()
def squared_error(
    act: Callable[[Tensor], Tensor], observations: Tensor, actions: Tensor, batch_size: int
) -> Tensor:
    """Returns the mean squared error `(S,)` of `act: (1, n, O) -> (S, n, A)` on `(N, O)` and `(N, A)`.

    It is the mean over batches in the file's order, of which a shorter last one counts as much as the
    others (offlinerl 0.0.2).
    """
    pairs = zip(observations.split(batch_size), actions.split(batch_size), strict=True)
    errors = [(act(o[None]) - a).square().mean((1, 2)) for o, a in pairs]
    return torch.stack(errors).mean(0)
