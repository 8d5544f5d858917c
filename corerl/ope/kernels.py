"""Kernels that stand in for the density of a policy that takes one action (Kallus and Zhou 2018).

pi_e(a|s) is replaced by prod_d K((a_d - pi_e(s)_d) / h_d) / (h_d m_d), with h_d the bandwidth times the
standard deviation of the data's actions, and m_d the kernel's mass within the actions' bounds, [-1, 1]. Data
has no action beyond them, so that without m_d a policy at a bound would lose half of its weight per step
and action feature, whatever h is. SCOPE-RL does not divide by it (arXiv:2311.18206).

What is left biased: the kernel averages over actions near the policy's, with an error of order h^2, and of h
at a bound, where it looks to one side; wide is biased towards the data's actions, narrow leaves few of them
with any weight. Where the behaviour never takes the actions near the policy's, their mass is lost.
"""

import numpy as np
from scipy import special

from corerl.config import require


def _inside(u: np.ndarray) -> np.ndarray:
    return np.clip(u, -1, 1)


KERNELS = {
    "gaussian": (lambda u: np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi), special.ndtr),
    "epanechnikov": (
        lambda u: 0.75 * np.maximum(1 - u**2, 0),
        lambda u: 0.5 + 0.75 * _inside(u) - 0.25 * _inside(u) ** 3,
    ),
    "triangular": (
        lambda u: np.maximum(1 - np.abs(u), 0),
        lambda u: 0.5 + _inside(u) * (1 - 0.5 * np.abs(_inside(u))),
    ),
    "uniform": (lambda u: 0.5 * (np.abs(u) <= 1), lambda u: 0.5 + 0.5 * _inside(u)),
}
"""Even densities on the real line and their mass below a point, both `(...) -> (...)`."""


def log_kernel(
    taken: np.ndarray, wanted: np.ndarray, scale: np.ndarray, kernel: str = "gaussian"
) -> np.ndarray:
    """Returns log of the kernel's density in [-1, 1], `(n,)`, at actions `taken` around `wanted` `(n, A)`.

    Args:
        scale: h, `(A,)`, the bandwidth of every action feature.

    Raises:
        CorerlError: an unknown kernel, or a bandwidth that is not positive.
    """
    require(kernel in KERNELS, f"kernel={kernel} is not one of {', '.join(KERNELS)}")
    require(
        bool((scale > 0).all()),
        "The bandwidth and the standard deviation of every action dimension must be positive",
    )
    density, below = KERNELS[kernel]
    far = np.abs(wanted)
    mass = below((1 - far) / scale) - below((-1 - far) / scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(density((taken - wanted) / scale)) - np.log(scale * mass)
    return np.where(mass > 0, logs, -np.inf).sum(-1)  # no mass: far outside the bounds
