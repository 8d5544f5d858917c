"""Normal distributions truncated to the actions' bounds [-1, 1]: log-mass, log-density and draws.

All of it is float64, and stable for means far outside the bounds.
"""

import torch
from scipy import special
from torch import Tensor

from corerl.nn.policies import gaussian_log_prob

FAR = 1e6
"""Standard deviations beyond a bound, from where the mean counts as this far."""


def log_mass(mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns log of the probability that a normal has within [-1, 1], of every feature."""
    _, _, below, above = _folded(mean, log_std)
    return _log_difference(below, above)


def log_prob(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Returns the log-density of values in [-1, 1], summed over the last axis."""
    mean, log_std = _near(mean, log_std)
    gaussian = gaussian_log_prob(mean, log_std, value.double())
    return gaussian - log_mass(mean, log_std).sum(-1)


def draw(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Draws values in [-1, 1], from standard normal noise by the inverse distribution function."""
    side, far, below, above = _folded(mean, log_std)
    share = torch.special.log_ndtr(side * noise.double())
    quantile = torch.logaddexp(below, share + _log_difference(below, above)).cpu().numpy()
    scaled = torch.from_numpy(special.ndtri_exp(quantile)).to(mean.device)
    drawn = side * (far + log_std.double().exp() * scaled)
    return drawn.clamp(-1, 1).to(noise.dtype)


def _folded(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mirrors negative means, so that bounds lie in the lower tail, where log-probabilities are exact.

    Returns the sign of the mean, its size, and the log-probabilities below -1 and below 1.
    """
    mean, log_std = _near(mean, log_std)
    side = torch.where(mean < 0, -1.0, 1.0).to(mean)
    bounds = ((bound - mean.abs()) * torch.exp(-log_std) for bound in (-1, 1))
    return side, mean.abs(), *map(torch.special.log_ndtr, bounds)


def _near(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both in float64. The mean is at most `FAR` away, where squares still have decimals."""
    log_std = log_std.double()
    limit = 1 + FAR * log_std.exp()
    return mean.double().clamp(-limit, limit), log_std


def _log_difference(below: Tensor, above: Tensor) -> Tensor:
    """Returns log(exp(above) - exp(below))."""
    return above + torch.log(-torch.expm1(below - above))
