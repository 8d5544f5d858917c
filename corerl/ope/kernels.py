"""Kernels that stand in for the density of a policy that takes one action (Kallus and Zhou 2018).

pi_e(a|s) is replaced by prod_d K((a_d - pi_e(s)_d) / h_d) / h_d, with h_d the bandwidth times the
standard deviation of the data's actions: wide is biased towards the data's actions, narrow leaves few of
them with any weight.
"""

import numpy as np

from corerl.config import require

KERNELS = {
    "gaussian": lambda u: np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi),
    "epanechnikov": lambda u: 0.75 * np.maximum(1 - u**2, 0),
    "triangular": lambda u: np.maximum(1 - np.abs(u), 0),
    "uniform": lambda u: 0.5 * (np.abs(u) <= 1),
}
"""Densities on the real line, `(...) -> (...)`."""


def log_kernel(
    taken: np.ndarray, wanted: np.ndarray, scale: np.ndarray, kernel: str = "gaussian"
) -> np.ndarray:
    """Returns log of the kernel's density `(n,)` at actions `taken` around `wanted` `(n, A)`.

    Args:
        scale: h, `(A,)`, the bandwidth of every action feature.

    Raises:
        CorerlError: an unknown kernel, or a bandwidth that is not positive.
    """
    require(kernel in KERNELS, f"kernel={kernel} is not one of {', '.join(KERNELS)}")
    require(bool((scale > 0).all()), "bandwidth must be positive, and so must the actions' spread")
    with np.errstate(divide="ignore"):
        density = np.log(KERNELS[kernel]((taken - wanted) / scale)) - np.log(scale)
    return density.sum(-1)
