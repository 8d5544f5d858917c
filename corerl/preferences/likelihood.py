"""Maximum likelihood of linear rewards from rankings of segments, in numpy (Plackett and Luce 1975).

A segment has features phi `(d,)` and the utility theta . phi. In a ranking, each segment wins against those
that are left with probability exp(utility) / sum exp(utility). Of two that is Bradley and Terry's model.
"""

import numpy as np
from scipy import optimize

from corerl.config import require


def check(ranked: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns rankings `(N, K, d)` and their counts `(N,)` as float64.

    Raises:
        CorerlError: shapes that do not fit, fewer than two segments in a ranking, or values that are no
            finite numbers.
    """
    ranked = np.asarray(ranked, np.float64)
    require(
        ranked.ndim == 3 and 0 not in ranked.shape,
        f"rankings have shape {ranked.shape}, but must have shape (N, K, d), for N rankings of K segments "
        "with d features",
    )
    require(
        ranked.shape[1] > 1,
        "A ranking of one segment compares nothing. Give every ranking at least two segments",
    )
    require(np.isfinite(ranked).all(), "rankings hold a NaN or an infinity")
    weights = np.ones(len(ranked)) if weights is None else np.asarray(weights, np.float64)
    fits = weights.shape == (len(ranked),)
    require(
        fits,
        f"weights have shape {weights.shape}, but must have shape ({len(ranked)},), one per ranking",
    )
    require(
        np.isfinite(weights).all() and (weights > 0).all(), "weights must be finite and above 0"
    )
    return ranked, weights


def pairs_of(ranked: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits rankings into all their pairs, better first: `(N K(K-1)/2, 2, d)` and counts."""
    better, worse = np.triu_indices(ranked.shape[1], 1)
    split = np.stack([ranked[:, better], ranked[:, worse]], 2)
    return split.reshape(-1, 2, ranked.shape[2]), np.repeat(weights, len(better))


def log_likelihood(
    theta: np.ndarray, ranked: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the Plackett-Luce log-likelihood, its gradient `(d,)` and its Hessian `(d, d)`."""
    value, gradient, hessian = 0.0, np.zeros(len(theta)), np.zeros((len(theta),) * 2)
    for k in range(ranked.shape[1] - 1):
        left = ranked[:, k:]  # the k-th wins against those that are left
        utilities = left @ theta
        highest = utilities.max(1, keepdims=True)
        mass = np.exp(utilities - highest)
        total = mass.sum(1, keepdims=True)
        value += weights @ (utilities[:, 0] - highest[:, 0] - np.log(total[:, 0]))
        chance = mass / total
        mean = (chance[..., None] * left).sum(1)
        gradient += weights @ (left[:, 0] - mean)
        spread = left - mean[:, None]
        scaled = (weights[:, None] * chance)[..., None] * spread
        hessian -= np.einsum("nkd,nke->de", scaled, spread)
    return float(value), gradient, hessian


def fit(
    ranked: np.ndarray, weights: np.ndarray | None = None, bound: float | None = 2.0
) -> np.ndarray:
    """Returns the most likely theta `(d,)` with ||theta|| <= bound, zero where nothing is compared.

    Args:
        ranked: `(N, K, d)` features, best first. weights: `(N,)`, how often each was seen; None for once.
        bound: None for no bound.

    Raises:
        CorerlError: `check`'s, or there is no bound and the likelihood has no maximum.
    """
    ranked, weights = check(ranked, weights)
    if bound is None:
        _check_maximum(ranked)
    differences = (ranked[:, 1:] - ranked[:, :1]).reshape(-1, ranked.shape[2])
    _, scale, rows = np.linalg.svd(differences, full_matrices=False)
    basis = rows[scale > 1e-10 * max(scale[0], 1e-300)].T  # (d, r): what comparisons show
    inside = ranked @ basis
    point = np.zeros(basis.shape[1])
    value, gradient, hessian = log_likelihood(point, inside, weights)
    for _ in range(200):
        step = _quadratic_in_ball(hessian, gradient - hessian @ point, bound) - point
        gain = gradient @ step
        if gain <= 1e-13 * weights.sum():
            break
        size = 1.0
        while True:
            trial = point + size * step
            found = log_likelihood(trial, inside, weights)
            if found[0] >= value + 1e-4 * size * gain or size < 1e-10:
                break
            size /= 2
        point, (value, gradient, hessian) = trial, found
    return basis @ point


def _quadratic_in_ball(hessian: np.ndarray, linear: np.ndarray, bound: float | None) -> np.ndarray:
    """Maximises linear.x + x.hessian x / 2 over ||x|| <= bound, for a negative definite Hessian."""
    curvature, axes = np.linalg.eigh(-hessian)
    curvature, linear = np.maximum(curvature, 1e-12), axes.T @ linear
    price = 0.0  # multiplier of the bound
    if bound is not None and np.linalg.norm(linear / curvature) > bound:
        for _ in range(100):  # Newton steps of 1 / bound - 1 / ||x||, which rise to the root
            x = linear / (curvature + price)
            norm = np.linalg.norm(x)
            if norm <= bound * (1 + 1e-14):
                break
            price += norm**2 / (x**2 / (curvature + price)).sum() * (norm / bound - 1)
    return axes @ (linear / (curvature + price))


def _check_maximum(ranked: np.ndarray) -> None:
    """Raises CorerlError where some theta agrees with every answer, so that longer is likelier."""
    pair, _ = pairs_of(ranked, np.ones(len(ranked)))
    gaps = np.unique(pair[:, 0] - pair[:, 1], axis=0)
    found = optimize.linprog(-gaps.sum(0), A_ub=-gaps, b_ub=np.zeros(len(gaps)), bounds=(-1, 1))
    require(
        -found.fun <= 1e-9 * max(1.0, np.abs(gaps).max()),
        "The likelihood has no maximum: some theta agrees with every answer, so larger multiples of "
        "this theta are always likelier. Set algo.bound, the largest norm of theta",
    )


def covariance(ranked: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Returns Sigma `(d, d)`, the mean of the outer products of differences."""
    split, counts = pairs_of(*check(ranked, weights))
    gaps = split[:, 0] - split[:, 1]
    return (counts[:, None] * gaps).T @ gaps / counts.sum()
