"""The robust estimate of R2PVI and DR-RPO once more, from samples and with c searched on a grid."""

import numpy as np


def estimate(kind: str, after, seen, inverse, value, scale: float, steps: int) -> np.ndarray:
    """nu (d,), of samples: V of the next states (n,) and features (n, d). c is searched on a grid."""
    grid = np.union1d(np.linspace(value.min(), value.max(), 4001), value)
    cut = np.minimum(after[:, None], grid)  # (n, C)
    if kind == "none":
        return inverse @ (seen.T @ after)
    if kind == "tv":
        return inverse @ (seen.T @ np.minimum(after, value.min() + scale))
    if kind == "kl":
        mean = inverse @ (seen.T @ np.exp(-after / scale))
        return -scale * np.log(np.maximum(mean, np.exp(-steps / scale)))
    first, second = inverse @ (seen.T @ cut), inverse @ (seen.T @ cut**2)
    if kind == "ball":
        return (first - scale * (grid - value.min())).max(-1)
    return (first + (first**2 - second) / (4 * scale)).max(-1)
