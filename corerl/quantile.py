"""The quantile Huber loss, and the fractions at which a fixed set of quantiles stands."""

import torch
from torch import Tensor


def midpoints(count: int, device: torch.device | str = "cpu") -> Tensor:
    """The fractions (2i - 1) / 2N of `count` quantiles of equal mass, `(N,)`."""
    return (torch.arange(count, device=device, dtype=torch.get_default_dtype()) + 0.5) / count


def huber_quantile_loss(
    quantiles: Tensor, targets: Tensor, fractions: Tensor, kappa: float = 1.0
) -> Tensor:
    """Every predicted quantile against every target: summed over the former, averaged over the latter.

    Dabney et al. 2018 (arXiv:1710.10044), eqs. 9 and 10, with the division by kappa of
    arXiv:1806.06923, eq. 3; with kappa 0 the absolute error of plain quantile regression.

    Args:
        quantiles: predicted, `(..., N)`. targets: samples or quantiles, `(..., M)`, without gradient.
        fractions: of the predicted quantiles, `(..., N)` or `(N,)`.
        kappa: where the squared error turns into the absolute one.

    Returns:
        `(...)`.
    """
    u = targets[..., None, :] - quantiles[..., :, None]
    size = u.abs()
    if kappa > 0:
        size = torch.where(size <= kappa, 0.5 * u.square(), kappa * (size - 0.5 * kappa)) / kappa
    weight = (fractions[..., :, None] - (u < 0).to(u.dtype)).abs()
    return (weight * size).mean(-1).sum(-1)
