"""Rows drawn by how good their episode was (Hong et al. 2023, OpenReview OhUAblg27z, arXiv:2306.13085).

Offline algorithms stay near the policy that recorded the data. Draw good episodes more often, and they
stay near a better one, whatever they are:

    return      p_i proportional to exp(x_i / alpha), x_i the return of row i's episode    (paper: RW)
    advantage   the same with x_i = return - V(s_0), V linear in the first observation     (paper: AW)
    top         uniform over the episodes with the highest returns

with x scaled to [0, 1] over the episodes and alpha = 0.1. Returns are the dataset's own, before any
preprocessing of rewards. In the authors' newer wrapper for d3rlpy the returns meet the softmax unscaled;
their paper, and this, scale them.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from corerl.config import Settings, added, one_of, positive, require, within
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError

WEIGHTINGS = ("uniform", "return", "advantage", "top")


@dataclass
class Weighting(Settings):
    """Settings for the sampling weights of rows. Part of a `Config` that does nothing else to its data."""

    prefix: ClassVar[str] = "algo.data."

    weighting: str = added(  # uniform | return, advantage (prefer good episodes) | top (best only)
        one_of(*WEIGHTINGS)
    )
    weighting_alpha: float = added(  # temperature of weighting=return, advantage (near 0: best)
        positive(0.1)
    )
    weighting_share: float = added(within(0.1, "(0, 1]"))  # share of best episodes if weighting=top


def refuse(data: Any, reason: str) -> None:
    """Raises CorerlError where a weighting is asked for that has nothing to go by."""
    require(
        data.weighting == "uniform",
        f"algo.data.weighting={data.weighting} is not possible, because {reason}. Set "
        "algo.data.weighting=uniform",
    )


def probabilities(dataset: Dataset, data: Any, rows: np.ndarray) -> np.ndarray | None:
    """Returns the chances of `rows`, `(len(rows),)` float64 that sum to one, or None where all are alike.

    Raises:
        CorerlError: all episodes are equally good, or none of the rows has any weight.
    """
    if data.weighting == "uniform":
        return None
    of_episodes = episode_weights(dataset, data)
    weights = np.repeat(of_episodes, dataset.episode_lengths())[rows]
    if not weights.any():
        raise CorerlError(
            f"algo.data.weighting={data.weighting} gives all rows of {dataset.id} a weight of 0. Choose a "
            "larger algo.data.weighting_alpha or algo.data.weighting_share."
        )
    weights = weights / weights.sum()
    print(
        f"corerl: with algo.data.weighting={data.weighting}, the effective sample size is "
        f"{1 / np.square(weights).sum():,.0f} of {len(rows):,} rows",
        file=sys.stderr,
    )
    return weights


def episode_weights(dataset: Dataset, data: Any) -> np.ndarray:
    """Returns weights `(E,)` of each episode's rows, not normalised."""
    returns = dataset.episode_returns()
    if data.weighting == "top":
        best = max(1, int(data.weighting_share * len(returns)))
        chosen = np.argsort(-returns, kind="stable")[:best]
        return np.isin(np.arange(len(returns)), chosen).astype(np.float64)
    x, what = returns, "return"
    if data.weighting == "advantage":
        x = returns - start_values(dataset, returns)
        what = "return minus a linear value of the first state"
    spread = np.ptp(x)
    if spread <= 1e-9 * max(1.0, np.abs(returns).max()):
        raise CorerlError(
            f"algo.data.weighting={data.weighting} weights episodes by their {what}, which is "
            f"equal for all episodes of {dataset.id}. Use algo.data.weighting=uniform."
        )
    return np.exp((x - x.max()) / spread / data.weighting_alpha)


def start_values(dataset: Dataset, returns: np.ndarray) -> np.ndarray:
    """Returns the least-squares fit `(E,)` of the returns, linear in each episode's first observation."""
    first = dataset.observations[dataset.episode_starts].reshape(len(returns), -1)
    columns = np.column_stack([np.ones(len(returns)), first.astype(np.float64)])
    solution, *_ = np.linalg.lstsq(columns, returns, rcond=None)
    return columns @ solution
