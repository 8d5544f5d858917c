"""CVaR of samples and of discrete distributions: one estimator, which splits the atom at the boundary."""

import numpy as np

from corerl.errors import CorerlError

TAUS = (0.05, 0.1, 0.25)  # the lower tails whose static CVaR is reported


def cvar(samples: np.ndarray, tau: float) -> float:
    """Returns the mean of the worst fraction `tau` of the samples (n,), splitting the sample at the boundary.

    With sorted samples x_1 <= ... <= x_n and k = floor(tau n), it is
    (x_1 + ... + x_k + (tau n - k) x_{k+1}) / (tau n): the CVaR of the empirical distribution
    (Rockafellar and Uryasev 2002), not the mean of a rounded number of samples.
    """
    samples = check_samples(samples, tau)
    return float(cvar_of_law(samples, np.full(samples.size, 1 / samples.size), tau))


def cvar_of_law(values: np.ndarray, probabilities: np.ndarray, tau: float) -> np.ndarray:
    """Returns CVaR_tau of discrete laws (..., K) along the last axis, the atom at the boundary split.

    Higher is better and `tau` is the mass of the lower tail. A probability of 0 is an atom that is not
    there.

    Raises:
        CorerlError: tau outside (0, 1], negative probabilities, or some that do not sum to one.
    """
    check_tau(tau)
    values, probabilities = np.broadcast_arrays(
        np.asarray(values, np.float64), np.asarray(probabilities, np.float64)
    )
    if not (probabilities >= 0).all() or not np.allclose(probabilities.sum(-1), 1, atol=1e-9):
        raise CorerlError(
            "CVaR of a distribution needs non-negative probabilities that sum to one."
        )
    order = np.argsort(values, axis=-1, kind="stable")
    upper = np.cumsum(np.take_along_axis(probabilities, order, -1), axis=-1)
    shares = np.diff(np.minimum(upper, tau), axis=-1, prepend=0.0)
    return (shares * np.take_along_axis(values, order, -1)).sum(-1) / shares.sum(-1)


def check_tau(tau: float) -> None:
    """Raises CorerlError unless 0 < tau <= 1."""
    if not 0.0 < tau <= 1.0:
        raise CorerlError(f"CVaR needs 0 < tau <= 1, not tau={tau}.")


def check_samples(samples: np.ndarray, tau: float) -> np.ndarray:
    """Returns samples (n,) as float64 and raises CorerlError where one is not finite, or tau no fraction."""
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 1 or not samples.size or not np.isfinite(samples).all():
        raise CorerlError(
            "CVaR needs a one-dimensional array of finite samples, with at least one sample."
        )
    check_tau(tau)
    return samples
