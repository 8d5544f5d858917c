"""Comparisons and rankings of segments: the one form in which preferences are read, made and learned from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from corerl.data.dataset import Dataset
from corerl.errors import CorerlError

LABELS = (0.0, 0.5, 1.0)


def following(dataset: Dataset) -> np.ndarray:
    """Returns the next observations of raw rows `(N, O)`: the row's own where nothing is known behind it.

    D4RL's terminal rows hold the next episode's first observation, which does not follow from anything.
    """
    last = dataset.episode_ends - 1
    known = dataset.has_next.copy()
    borrowed = dataset.observations[dataset.episode_ends % len(known)]
    known[last] &= (dataset.next_observations[last] != borrowed).any(1)
    return np.where(known[:, None], dataset.next_observations, dataset.observations)


@dataclass(frozen=True, eq=False)
class Comparisons:
    """P comparisons of K segments of L steps, which are rows of one flat store of N steps.

    Two segments have a label. More than two are a ranking, whose segments stand best first.

    Attributes:
        id: what is compared. source: who judged, for tables: labels of different sources never share one.
        observations, next_observations: (N, O) float32. A row whose next observation is not known has its
            own there. actions: (N, A) float32.
        terminated: (N,) bool. rewards: (N,) float32, the true ones, where they are known; no algorithm
            learns from them.
        ends: (E,) int64, exclusive ends of the store's episodes. A segment lies within one.
        starts: (P, K) int64, the first row of each segment. length: L.
        labels: (P,) float32, the probability that the second segment is preferred: 0, 0.5 or 1. In rankings
            it is 0.
        labellers: (P,) int64, who judged each, as a place in `names`; None where that is not known.

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
    labellers: np.ndarray | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self):
        rows = {name: len(getattr(self, name)) for name in ("actions", "terminated")}
        rows["next_observations"] = len(self.next_observations)
        for name, count in rows.items():
            if count != len(self.observations):
                raise CorerlError(
                    f"{name} has {count} rows, but observations has {len(self.observations)}."
                )
        if self.labels.ndim != 1:
            raise CorerlError(
                f"labels have shape {self.labels.shape}, but must have shape (P,), one number per pair."
            )
        if self.starts.ndim != 2 or len(self.starts) != len(self.labels) or self.size < 2:
            raise CorerlError(
                f"starts have shape {self.starts.shape}, but must have shape ({len(self.labels)}, 2), "
                "with one row per label and two segments per row (K segments for rankings of K)."
            )
        if not len(self.labels):
            raise CorerlError("there is no comparison to learn from. Give at least one.")
        if self.length < 1:
            raise CorerlError(f"segments have {self.length} steps, but need at least 1.")
        self._check_labels()
        self._check_segments()
        self._check_values()

    def _check_labels(self) -> None:
        if self.size > 2 and self.labels.any():
            p = np.flatnonzero(self.labels)[0]
            raise CorerlError(
                f"ranking {p} has label {self.labels[p]:g}. Rankings of {self.size} segments must "
                "have label 0 and list the best segment first. They cannot have ties."
            )
        if self.labellers is not None and not (
            self.labellers.shape == self.labels.shape
            and (self.labellers >= 0).all()
            and (self.labellers < len(self.names)).all()
        ):
            raise CorerlError(
                f"labellers have shape {self.labellers.shape}, but must have shape ({len(self.labels)},) "
                f"and hold indices into the {len(self.names)} names of labellers."
            )
        bad = np.flatnonzero(~np.isin(self.labels, LABELS))
        if bad.size:
            raise CorerlError(
                f"comparison {bad[0]} has label {self.labels[bad[0]]:g}, but a label must be 0 (the first is "
                "preferred), 0.5 (neither) or 1 (the second)."
            )

    def _check_segments(self) -> None:
        last = self.starts + self.length
        for p, which in np.argwhere((self.starts < 0) | (last > len(self.observations)))[:1]:
            raise CorerlError(
                f"comparison {p}: segment {which + 1} starts at row {self.starts[p, which]} and ends before "
                f"row {last[p, which]}, but the data has only {len(self.observations)} rows. Get the "
                "version of the data that was labelled."
            )
        # The episode of a row is the number of ends at or before it.
        episode = np.searchsorted(self.ends, self.starts, side="right")
        for p, which in np.argwhere(episode != np.searchsorted(self.ends, last - 1, side="right"))[
            :1
        ]:
            raise CorerlError(
                f"comparison {p}: segment {which + 1} starts at row {self.starts[p, which]}, ends before row "
                f"{last[p, which]} and crosses the end of an episode. Drop this comparison."
            )

    def _check_values(self) -> None:
        for name in ("observations", "actions", "next_observations"):
            bad = np.flatnonzero(~np.isfinite(getattr(self, name)).all(1))
            if bad.size:
                raise CorerlError(
                    f"{name} of row {bad[0]} hold a NaN or an infinity. Repair or drop such rows."
                )

    @classmethod
    def of_dataset(
        cls,
        dataset: Dataset,
        starts: np.ndarray,
        length: int,
        labels: np.ndarray,
        source: str,
        labellers: np.ndarray | None = None,
    ) -> Comparisons:
        """Builds comparisons from raw rows of a dataset. `labellers` (P,) are names, or None."""
        names, places = (), None
        if labellers is not None:
            names, places = np.unique(np.asarray(labellers, str), return_inverse=True)
        return cls(
            id=dataset.id,
            source=source,
            observations=dataset.observations,
            actions=dataset.actions,
            next_observations=following(dataset),
            terminated=dataset.terminated,
            rewards=dataset.rewards,
            ends=dataset.episode_ends,
            starts=integers("starts", starts),
            length=one_length(length),
            labels=_numbers("labels", labels),
            labellers=places,
            names=tuple(map(str, names)),
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
                f"segments have observations of shape {observations.shape} and actions of shape "
                f"{actions.shape}, but both shapes must be (P, 2, L, ...) with the same P and L."
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
        """Returns P, the number of comparisons."""
        return len(self.labels)

    @property
    def size(self) -> int:
        """K, the segments of a comparison."""
        return self.starts.shape[1]

    @property
    def observation_dim(self) -> int:
        return self.observations.shape[1]

    @property
    def action_dim(self) -> int:
        return self.actions.shape[1]

    def first(self, pairs: int | None) -> Comparisons:
        """Returns the first `pairs` comparisons. None keeps all.

        Raises:
            CorerlError: there are fewer.
        """
        if pairs is None:
            return self
        if not 0 < pairs <= len(self):
            raise CorerlError(
                f"{self.id} has only {len(self)} comparisons ({self.source}). Ask for fewer pairs than "
                f"{pairs}."
            )
        return self.of(np.arange(pairs))

    def of(self, chosen: np.ndarray) -> Comparisons:
        """Returns the comparisons of these numbers."""
        labellers = None if self.labellers is None else self.labellers[chosen]
        return replace(
            self, starts=self.starts[chosen], labels=self.labels[chosen], labellers=labellers
        )

    def pairs(self) -> Comparisons:
        """Returns all pairs of each ranking, the better first. Pairs are returned as they are."""
        if self.size == 2:
            return self
        better, worse = np.triu_indices(self.size, 1)
        split = self.of(np.repeat(np.arange(len(self)), len(better)))
        starts = np.stack([self.starts[:, better], self.starts[:, worse]], -1).reshape(-1, 2)
        return replace(split, starts=starts)

    def in_circles(self) -> int:
        """Counts answers in circles: a over b, b over c and c over a, or a over b and b over a.

        An answer decides about a pair, so that a ranking holds several.
        """
        pairs = self.pairs()
        decided = pairs.labels != 0.5
        _, segments = np.unique(pairs.starts, return_inverse=True)
        segments = segments.reshape(pairs.starts.shape)[decided]
        second = pairs.labels[decided, None] == 1
        better, worse = np.where(second, segments[:, ::-1], segments).T
        graph = sparse.coo_matrix((np.ones(len(better)), (better, worse)), [pairs.starts.size] * 2)
        _, parts = csgraph.connected_components(graph, connection="strong")
        return int((parts[better] == parts[worse]).sum())

    def segments(self, values: np.ndarray) -> np.ndarray:
        """Returns the rows `values` (N, ...) of every segment, (P, K, L, ...)."""
        return values[self.starts[..., None] + np.arange(self.length)]


def integers(name: str, values: Any) -> np.ndarray:
    """Returns `values` as int64.

    Raises:
        CorerlError: they are of another kind: 20.9 is no row.
    """
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise CorerlError(f"{name} must have an integer dtype, not {array.dtype}.")
    return array.astype(np.int64)


def one_length(value: Any) -> int:
    """Returns the length of all segments as an int. Raises CorerlError where it is no integer, or several."""
    length = integers("length", value)
    if length.ndim:
        raise CorerlError(
            "length must be one integer, the number of steps in every segment, but it has shape "
            f"{length.shape}."
        )
    return int(length)


def _numbers(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "biuf":
        raise CorerlError(f"{name} must be real numbers, not {array.dtype}.")
    return array.astype(np.float32)
