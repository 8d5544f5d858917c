"""The quantile Huber loss, and the fractions at which a fixed set of quantiles stands."""

import torch
from torch import Tensor


def midpoints(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns the fractions (2i - 1) / 2N of `count` quantiles of equal mass, `(N,)`."""
    return (torch.arange(count, device=device, dtype=torch.get_default_dtype()) + 0.5) / count


def partition(uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Cuts [0, 1] at random into N pieces, none tiny: their middles and lengths, `(..., N)` each."""
    masses = uniforms + 0.1
    masses = masses / masses.sum(-1, keepdim=True)
    return masses.cumsum(-1) - 0.5 * masses, masses


def quantile_regression(
    quantiles: Tensor, targets: Tensor, fractions: Tensor, kappa: float
) -> Tensor:
    """Computes `huber_quantile_loss`, where kappa is 0 by the faster `quantile_loss`."""
    if kappa == 0:
        return quantile_loss(quantiles, targets, fractions)
    return huber_quantile_loss(quantiles, targets, fractions, kappa)


def huber_quantile_loss(
    quantiles: Tensor,
    targets: Tensor,
    fractions: Tensor,
    kappa: float = 1.0,
    masses: Tensor | None = None,
) -> Tensor:
    """Compares every predicted quantile with every target and sums over the former, averages over the latter.

    Dabney et al. 2018 (arXiv:1710.10044), eqs. 9 and 10, with the division by kappa of
    arXiv:1806.06923, eq. 3; with kappa 0 the absolute error of plain quantile regression.

    Args:
        quantiles: predicted, `(..., N)`. targets: samples or quantiles, `(..., M)`, without gradient.
        fractions: of the predicted quantiles, `(..., N)` or `(N,)`.
        kappa: where the squared error turns into the absolute one.
        masses: of the targets, `(..., M)`, with sum 1; None: all alike.

    Returns:
        `(...)`.
    """
    u = targets[..., None, :] - quantiles[..., :, None]
    size = u.abs()
    if kappa > 0:
        size = torch.where(size <= kappa, 0.5 * u.square(), kappa * (size - 0.5 * kappa)) / kappa
    weight = (fractions[..., :, None] - (u < 0).to(u.dtype)).abs()
    if masses is not None:
        return (weight * size * masses[..., None, :]).sum((-2, -1))
    return (weight * size).mean(-1).sum(-1)


def quantile_loss(quantiles: Tensor, targets: Tensor, fractions: Tensor) -> Tensor:
    """Computes `huber_quantile_loss` with kappa 0, in N + M steps rather than N * M.

    Of M targets y, mean_j rho(y_j - q) = fraction * (mean(y) - q) + mean_j (q - y_j)^+, and the last term
    needs only how many targets lie below q and their sum.
    """
    count = targets.shape[-1]
    ascending = targets.sort(-1).values
    below = torch.searchsorted(ascending, quantiles.detach().contiguous())
    sums = torch.cat([torch.zeros_like(ascending[..., :1]), ascending.cumsum(-1)], -1)
    over = (below * quantiles - sums.gather(-1, below)) / count
    return (fractions * (targets.mean(-1, keepdim=True) - quantiles) + over).sum(-1)
