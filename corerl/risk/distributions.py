"""Two ways for a network to give the law of a return: equally likely quantiles, or probabilities of atoms.

Both have the same methods on a network's output `(..., N)`: `mean`, `shortfall`, `cvar`, and `loss`, which
pulls the law towards rewards plus a later law. Averaging laws keeps the shortfall of atoms (it is linear in
probabilities) and makes that of quantiles smaller (it is convex in values). A network that blurs two laws
into one is therefore too hopeful with quantiles, and not with atoms.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.risk import stock_augmentation
from corerl.risk.quantiles import huber_quantile_loss, midpoints, quantile_loss


class Quantiles:
    """N equally likely values (Dabney et al. 2018); `kappa` 0 is plain quantile regression."""

    def __init__(self, count: int, kappa: float = 0.0, device: torch.device | str = "cpu"):
        self.fractions, self.kappa = midpoints(count, device), kappa

    def atoms(self, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values and their probabilities; None: all the same."""
        return output, None

    def mean(self, output: Tensor) -> Tensor:
        return output.mean(-1)

    def shortfall(self, output: Tensor, at: Tensor) -> Tensor:
        """E[(c - Z)^+] at c `(...)`."""
        return stock_augmentation.shortfall(output, at)

    def cvar(self, output: Tensor, tau: float) -> Tensor:
        return stock_augmentation.cvar(output, tau)

    def loss(self, output: Tensor, values: Tensor, mass: Tensor | None) -> Tensor:
        """Quantile regression `(...)` of `output` onto equally likely values `(..., M)`."""
        if self.kappa == 0:
            return quantile_loss(output, values, self.fractions)
        return huber_quantile_loss(output, values, self.fractions, self.kappa)


class Categorical:
    """Probabilities, the softmax of the output, of N even atoms on [low, high] (Bellemare et al. 2017)."""

    def __init__(self, count: int, low: float, high: float, device: torch.device | str = "cpu"):
        self.support = torch.linspace(low, high, count, device=device)
        self.low, self.gap = low, (high - low) / (count - 1)

    def atoms(self, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values and their probabilities."""
        return self.support.expand_as(output), output.softmax(-1)

    def mean(self, output: Tensor) -> Tensor:
        return (output.softmax(-1) * self.support).sum(-1)

    def shortfall(self, output: Tensor, at: Tensor) -> Tensor:
        """E[(c - Z)^+] at c `(...)`."""
        return (output.softmax(-1) * (at[..., None] - self.support).clamp(min=0)).sum(-1)

    def cvar(self, output: Tensor, tau: float) -> Tensor:
        below = output.softmax(-1).cumsum(-1).clamp(max=tau)
        shares = torch.diff(below, dim=-1, prepend=torch.zeros_like(below[..., :1]))
        return (shares * self.support).sum(-1) / below[..., -1]

    def loss(self, output: Tensor, values: Tensor, mass: Tensor | None) -> Tensor:
        """Cross-entropy `(...)` to values `(..., M)` with probabilities `mass`, shared out among the nearest
        two atoms so that means stay."""
        mass = torch.full_like(values, 1 / values.shape[-1]) if mass is None else mass
        count = len(self.support)
        place = ((values - self.low) / self.gap).clamp(0, count - 1)
        lower = place.floor().clamp(max=count - 2)
        share, lower = place - lower, lower.long()
        wanted = torch.zeros_like(output).scatter_add(-1, lower, mass * (1 - share))
        wanted = wanted.scatter_add(-1, lower + 1, mass * share)
        return -(wanted * F.log_softmax(output, -1)).sum(-1)
