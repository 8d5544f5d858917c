"""A dataset's episodes side by side, and the importance weights of a policy on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError


@dataclass(frozen=True, eq=False)
class Logs:
    """E episodes of T steps and fewer. After an episode's end everything is 0.

    Attributes:
        rewards: `(E, T)` float64. alive: `(E, T)` bool, whether the step was made.
        rows: `(E, T)` the step's row in the dataset; 0 where none was made.
        discount: of the return that is judged.
        cut: episodes of the dataset that were left out, because they stop without an end.
    """

    rewards: np.ndarray
    alive: np.ndarray
    rows: np.ndarray
    discount: float = 1.0
    cut: int = 0

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        discount: float = 1.0,
        horizon: int | None = None,
        *,
        leave_out_cut: bool = False,
        keep_cut: bool = False,
    ) -> Logs:
        """Returns the first `horizon` steps of every episode. None is the longest episode's length.

        An episode is whole if it ended in a terminal state or lasted `horizon` steps; one that stops
        earlier, where the recording did, says nothing of the rewards that would have followed.

        Args:
            leave_out_cut: leaves out episodes that are not whole. keep_cut: keeps them, unless they are
                left out, for estimates that rest on first states or single steps.

        Raises:
            CorerlError: a horizon or discount that makes no sense, or episodes that are cut, and
                neither kept nor left out.
        """
        require(0 < discount <= 1, f"discount={discount} must lie in (0, 1]")
        lengths = dataset.episode_lengths()
        horizon = int(lengths.max()) if horizon is None else horizon
        check_horizon(dataset, horizon)
        whole = (lengths >= horizon) | dataset.terminated[dataset.episode_ends - 1]
        if keep_cut and not leave_out_cut:
            whole[:] = True
        elif not whole.all() and not leave_out_cut:
            raise _cut(dataset, lengths, whole, horizon)
        require(
            whole.any(),
            f"No episode of {dataset.id} is complete up to horizon={horizon}. Choose a shorter horizon",
        )
        lengths = np.minimum(lengths[whole], horizon)
        steps = np.arange(lengths.max())
        alive = steps < lengths[:, None]
        rows = np.where(alive, dataset.episode_starts[whole][:, None] + steps, 0)
        rewards = np.where(alive, dataset.rewards[rows].astype(np.float64), 0.0)
        return cls(rewards, alive, rows, discount, int((~whole).sum()))

    @property
    def episodes(self) -> int:
        """The number of episodes E."""
        return len(self.rewards)

    @cached_property
    def discounts(self) -> np.ndarray:
        """Returns discount^t, `(T,)`."""
        return self.discount ** np.arange(self.rewards.shape[1])

    @cached_property
    def returns(self) -> np.ndarray:
        """Returns discounted returns, `(E,)`."""
        return self.rewards @ self.discounts

    def spread(self, of_rows: np.ndarray) -> np.ndarray:
        """Spreads numbers per row of the dataset `(N,)` to `(E, T)`, 0 where no step was made."""
        return np.where(self.alive, of_rows[self.rows], 0.0)


def check_horizon(dataset: Dataset, horizon: int) -> None:
    """Raises CorerlError where no episode lasts as long."""
    longest = int(dataset.episode_lengths().max())
    require(
        0 < horizon <= longest,
        f"horizon={horizon} must lie in [1, {longest}], because the longest episode of {dataset.id} has "
        f"{longest} steps",
    )


def _cut(dataset: Dataset, lengths: np.ndarray, whole: np.ndarray, horizon: int) -> CorerlError:
    terminal = dataset.terminated[dataset.episode_ends - 1]
    shortest = int(lengths[~terminal].min())
    return CorerlError(
        f"{int((~whole).sum())} of {len(lengths)} episodes of {dataset.id} stop before step {horizon} "
        f"without a terminal state. Choose --horizon {shortest} or less, --leave-out-cut, or the "
        "method fqe alone."
    )


@dataclass(frozen=True, eq=False)
class Weights:
    """Importance weights w_{0:t} = prod_{k<=t} pi_e / pi_b of one policy, `(E, T)`.

    After an episode's end the weight stays what it was.

    Attributes:
        clipped: the share of episodes of which a weight was clipped. limit: the quantile at which.
    """

    values: np.ndarray
    clipped: float = 0.0
    limit: float | None = None

    @classmethod
    def of(
        cls, log_ratios: np.ndarray, clip: float | None = None, *, relative: bool = False
    ) -> Weights:
        """Builds weights from log pi_e - log pi_b of every step `(E, T)`, 0 where none was made.

        Args:
            clip: weights are clipped at this quantile, step by step, over the episodes; None for none.
            relative: divides each step's weights by their largest, which methods that normalise them do
                not see: those of long horizons may be numbers that a float64 cannot hold.

        Raises:
            CorerlError: a weight that is no number, all weights zero, weights too large or too small, or a
                quantile outside (0, 1).
        """
        require(clip is None or 0 < clip < 1, f"clip={clip} must be a quantile in (0, 1)")
        require(
            not np.isnan(log_ratios).any(),
            "A weight is NaN, because a recorded propensity is NaN. Repair or remove its row",
        )
        if (log_ratios == np.inf).any():
            raise CorerlError(
                "A recorded action has probability 0 under the behaviour policy. Repair the recorded "
                "propensities, or choose method fqe, which needs none."
            )
        logs = np.cumsum(log_ratios, axis=1)
        if (logs[:, -1] == -np.inf).all():
            raise CorerlError(
                "All weights are zero, because this policy would never play any of the recorded "
                "episodes. Choose --epsilon or --policy sample for a stochastic policy, a shorter "
                "--horizon, or method fqe, which needs no weights."
            )
        with np.errstate(over="ignore"):
            values = np.exp(logs - logs.max(0) if relative else logs)
        require(
            bool(np.isfinite(values).all() and values[:, -1].any()),
            "The weights overflow or underflow a float64. Choose a shorter horizon, "
            "only self-normalised methods, or method fqe",
        )
        if clip is None:
            return cls(values)
        limits = np.quantile(values, clip, axis=0)
        clipped = float((values > limits).any(1).mean())
        return cls(np.minimum(values, limits), clipped, clip)

    @property
    def last(self) -> np.ndarray:
        """Returns the weights of whole episodes, w_{0:T}, `(E,)`."""
        return self.values[:, -1]

    @property
    def previous(self) -> np.ndarray:
        """w_{0:t-1}, `(E, T)`, 1 before the first step."""
        return np.hstack([np.ones((len(self.values), 1)), self.values[:, :-1]])


def effective(weights: np.ndarray) -> float:
    """Returns the effective sample size (sum w)^2 / sum w^2 along the first axis, mean over further ones."""
    largest = weights.max(0)
    shares = weights / np.where(largest > 0, largest, 1.0)  # a square of a small weight may be 0
    squares = np.square(shares).sum(0)
    return float(np.mean(np.square(shares.sum(0)) / np.where(largest > 0, squares, 1.0)))
