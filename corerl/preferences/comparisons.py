"""Comparisons of two segments: the one form in which preferences are read, made and learned from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from corerl.data.dataset import Dataset
from corerl.errors import CorerlError

LABELS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class Comparisons:
    """P comparisons of segments of L steps, which are rows of one flat store of N steps.

    Attributes:
        id: what is compared. source: who judged, for tables: labels of different sources never share one.
        observations, next_observations: (N, O) float32. actions: (N, A) float32.
        terminated: (N,) bool. rewards: (N,) float32, the true ones, where they are known; no algorithm
            learns from them.
        ends: (E,) int64, exclusive ends of the store's episodes. A segment lies within one.
        starts: (P, 2) int64, the first row of each segment. length: L.
        labels: (P,) float32, the probability that the second segment is preferred: 0, 0.5 or 1.

    Raises:
        CorerlError: an array breaks this; names the comparison.
    """

    id: str
    source: str
    observations: np.ndarray
    actions: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray
    rewards: np.ndarray | None
    ends: np.ndarray
    starts: np.ndarray
    length: int
    labels: np.ndarray

    def __post_init__(self):
        rows = {name: len(getattr(self, name)) for name in ("actions", "terminated")}
        rows["next_observations"] = len(self.next_observations)
        for name, count in rows.items():
            if count != len(self.observations):
                raise CorerlError(
                    f"{name} has {count} rows and observations {len(self.observations)}."
                )
        if self.labels.ndim != 1:
            raise CorerlError(f"labels {self.labels.shape} must be (P,), one number per pair.")
        if self.starts.shape != (len(self.labels), 2):
            raise CorerlError(
                f"starts {self.starts.shape} must be ({len(self.labels)}, 2), as there are labels."
            )
        if not len(self.labels):
            raise CorerlError("there is no comparison to learn from.")
        if self.length < 1:
            raise CorerlError(f"segments of {self.length} steps cannot be compared.")
        self._check_labels()
        self._check_segments()
        self._check_values()

    def _check_labels(self) -> None:
        bad = np.flatnonzero(~np.isin(self.labels, LABELS))
        if bad.size:
            raise CorerlError(
                f"comparison {bad[0]} has label {self.labels[bad[0]]:g}, which is not 0 (the first is "
                "preferred), 0.5 (neither) or 1 (the second)."
            )

    def _check_segments(self) -> None:
        last = self.starts + self.length
        for p, which in np.argwhere((self.starts < 0) | (last > len(self.observations)))[:1]:
            raise CorerlError(
                f"comparison {p}: segment {which + 1} is rows {self.starts[p, which]} to "
                f"{last[p, which]}, and there are {len(self.observations)}: these labels belong to "
                "another version of the data."
            )
        # The episode of a row is the number of ends at or before it.
        episode = np.searchsorted(self.ends, self.starts, side="right")
        for p, which in np.argwhere(episode != np.searchsorted(self.ends, last - 1, side="right"))[
            :1
        ]:
            raise CorerlError(
                f"comparison {p}: segment {which + 1}, rows {self.starts[p, which]} to "
                f"{last[p, which]}, crosses the end of an episode."
            )

    def _check_values(self) -> None:
        for name in ("observations", "actions", "next_observations"):
            bad = np.flatnonzero(~np.isfinite(getattr(self, name)).all(1))
            if bad.size:
                raise CorerlError(f"{name} of row {bad[0]} hold a NaN or an infinity.")

    @classmethod
    def of_dataset(
        cls, dataset: Dataset, starts: np.ndarray, length: int, labels: np.ndarray, source: str
    ) -> Comparisons:
        """Builds comparisons from raw rows of a dataset."""
        return cls(
            id=dataset.id,
            source=source,
            observations=dataset.observations,
            actions=dataset.actions,
            next_observations=dataset.next_observations,
            terminated=dataset.terminated,
            rewards=dataset.rewards,
            ends=dataset.episode_ends,
            starts=integers("starts", starts),
            length=one_length(length),
            labels=_numbers("labels", labels),
        )

    @classmethod
    def by_value(
        cls,
        id: str,
        source: str,
        observations: np.ndarray,
        actions: np.ndarray,
        labels: np.ndarray,
        rewards: np.ndarray | None = None,
    ) -> Comparisons:
        """Builds comparisons from segments as arrays (P, 2, L, ...), each an episode of its own.

        Nothing is known beyond a segment's last step, so its next observation is that step's own.
        """
        if observations.shape[:3] != actions.shape[:3] or observations.shape[1] != 2:
            raise CorerlError(
                f"segments of observations {observations.shape} and actions {actions.shape} must be "
                "(P, 2, L, ...) alike."
            )
        pairs, _, length = observations.shape[:3]
        following = np.concatenate([observations[:, :, 1:], observations[:, :, -1:]], axis=2)
        states, after = (
            np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
            for x in (observations, following)
        )
        starts = np.arange(2 * pairs, dtype=np.int64) * length
        return cls(
            id=id,
            source=source,
            observations=states,
            actions=np.asarray(actions, np.float32).reshape(len(states), -1),
            next_observations=after,
            terminated=np.zeros(len(states), bool),
            rewards=None if rewards is None else np.asarray(rewards, np.float32).reshape(-1),
            ends=starts + length,
            starts=starts.reshape(pairs, 2),
            length=length,
            labels=_numbers("labels", labels),
        )

    def __len__(self) -> int:
        """Returns P, the number of pairs."""
        return len(self.labels)

    @property
    def observation_dim(self) -> int:
        return self.observations.shape[1]

    @property
    def action_dim(self) -> int:
        return self.actions.shape[1]

    def first(self, pairs: int | None) -> Comparisons:
        """Returns the first `pairs` comparisons; None keeps all.

        Raises:
            CorerlError: there are fewer.
        """
        if pairs is None:
            return self
        if not 0 < pairs <= len(self):
            raise CorerlError(
                f"{self.id} has {len(self)} comparisons ({self.source}), not {pairs}."
            )
        return replace(self, starts=self.starts[:pairs], labels=self.labels[:pairs])

    def segments(self, values: np.ndarray) -> np.ndarray:
        """Returns the rows `values` (N, ...) of every segment, (P, 2, L, ...)."""
        return values[self.starts[..., None] + np.arange(self.length)]


def integers(name: str, values: Any) -> np.ndarray:
    """Returns `values` as int64.

    Raises:
        CorerlError: they are of another kind: 20.9 is no row.
    """
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise CorerlError(f"{name} must be of an integer type, not {array.dtype}.")
    return array.astype(np.int64)


def one_length(value: Any) -> int:
    """Returns the length of all segments as an int. Raises CorerlError where it is no integer, or several."""
    length = integers("length", value)
    if length.ndim:
        raise CorerlError(
            f"length must be one integer, of all segments, not of shape {length.shape}."
        )
    return int(length)


def _numbers(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "biuf":
        raise CorerlError(f"{name} must be real numbers, not {array.dtype}.")
    return array.astype(np.float32)
