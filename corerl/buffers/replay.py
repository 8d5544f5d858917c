"""Device-resident experience, sampled for all seeds at once.

An offline dataset is stored once; only the row numbers `(S, B)` differ between seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers import memory_check
from corerl.buffers.packed import PackedRows
from corerl.buffers.transfer import Outbox
from corerl.config import require
from corerl.data.dataset import Transitions
from corerl.runs.replay_files import Ring


class Batch(NamedTuple):
    """Transitions of S seeds. `terminated` is 1.0 at a true terminal and 0.0 elsewhere.

    After steps of longer duration it lies between (`preprocessing.timed_transitions`).
    """

    observations: Tensor  # (S, B, O)
    actions: Tensor  # (S, B, A)
    rewards: Tensor  # (S, B)
    next_observations: Tensor  # (S, B, O)
    terminated: Tensor  # (S, B)
    next_actions: Tensor  # (S, B, A) (A = 0 unless the buffer was built with them)


class OfflineBuffer(PackedRows):
    """A dataset's transitions packed as one row each, so that a batch is one gather.

    Args:
        transitions: of a dataset with vector observations and continuous actions.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size: B.
        device: where the rows live. 1M HalfCheetah transitions take 168 MB (192 with next actions).
        labels: a number per row `(N,)`, for `sample_labelled`.
        probabilities: of the rows `(N,)`; None draws them uniformly.
        purpose: of the stream of row numbers (`seeding`).

    Raises:
        CorerlError: labels, or another array, of another length than the rewards, or probabilities that
            are not non-negative `(N,)` with a positive sum.

    Attributes:
        discrete: whether actions are discrete, held as one-hot vectors.
    """

    discrete = False

    def __init__(
        self,
        transitions: Transitions,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
        labels: np.ndarray | None = None,
        probabilities: np.ndarray | None = None,
        purpose: str = "batch",
    ):
        size = len(transitions.rewards)
        parts = {name: getattr(transitions, name) for name in Batch._fields} | {"labels": labels}
        for name, part in parts.items():
            require(
                part is None or part.shape[:1] == (size,),
                f"{name} has shape {np.shape(part)}, but needs one row for each of the {size} "
                "transitions",
            )
        nothing = np.empty((size, 0))
        super().__init__([nothing if part is None else part for part in parts.values()], device)
        self._indices = seeding.indices(
            seeds, size, batch_size, device, purpose, probabilities=probabilities
        )

    def __len__(self) -> int:
        return len(self._rows)

    def sample(self, count: int | None = None) -> Batch:
        """Samples the next batch of every seed, drawn with replacement, or its first `count` rows."""
        return self._draw(count)[0]

    def sample_labelled(self, count: int | None = None) -> tuple[Batch, Tensor]:
        """Samples a batch and the labels of its rows, `(S, B)`."""
        batch, labels = self._draw(count)
        return batch, labels.squeeze(-1)

    def _draw(self, count: int | None) -> tuple[Batch, Tensor]:
        return self._take(self._indices.next()[:, :count])

    def _take(self, chosen: Tensor) -> tuple[Batch, Tensor]:
        """Takes the rows of these numbers, `(S, B)`, and their labels."""
        rows = self._rows.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        *parts, labels = rows.split(self._sizes, dim=-1)
        fields = Batch(*parts)
        flat = {"rewards": fields.rewards.squeeze(-1), "terminated": fields.terminated.squeeze(-1)}
        return fields._replace(**flat), labels

    def state_dict(self) -> dict:
        """Returns the position in the stream of row numbers. The data is not part of a checkpoint."""
        return self._indices.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state)


class ReplayBuffer:
    """The latest `capacity` transitions of each of S seeds, `(S, capacity, ...)`, on the device.

    A transition is one packed row, so that a batch is one gather; the oldest row is overwritten first.
    `truncated` is kept for those who make datasets, and is no part of a batch: a time limit must not
    cut the bootstrap. Every batch has the fields of `Batch`, so that an offline buffer's can be
    concatenated to it along the batch axis.

    Args:
        observation_dim, action_dim: features.
        capacity: transitions per seed. 1M of HalfCheetah take 172 MB per seed.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size: B.
        device: where the rows live.
        purpose: of the stream of row numbers (`seeding`); another one beside a dataset's batches.

    Raises:
        CorerlError: the device has no room for them.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        capacity: int,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
        purpose: str = "batch",
    ):
        self._sizes = [observation_dim, action_dim, 1, observation_dim, 1, 1]
        shape = (len(seeds), capacity, sum(self._sizes))
        self._rows = memory_check.take(shape, torch.float32, device, "capacity")
        row = (len(seeds), sum(self._sizes))
        self._incoming = Outbox({"rows": (row, torch.float32)}, device)
        incoming = self._incoming.open()["rows"]
        self._columns = np.split(incoming, np.cumsum(self._sizes)[:-1], axis=1)
        self._added = 0
        self._starts = torch.arange(len(seeds), device=device)[:, None] * capacity
        self._numbers = seeding.numbers(seeds, purpose, batch_size, device)

    def __len__(self) -> int:
        """Transitions per seed."""
        return min(self._added, self._rows.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._rows.nbytes

    def add(self, step: Sequence[np.ndarray]) -> None:
        """Stores one transition per seed: observations `(S, O)`, actions `(S, A)`, rewards `(S,)`,
        next observations, terminated and truncated, in this order."""
        self._incoming.open()
        for column, value in zip(self._columns, step, strict=True):
            column[:] = value.reshape(column.shape)
        position = self._added % self._rows.shape[1]
        self._rows[:, position].copy_(self._incoming.send()["rows"])
        self._added += 1

    def sample(self, count: int | None = None) -> Batch:
        """Samples the next batch of every seed, drawn uniformly with replacement, or its first `count`."""
        return self._take(self._numbers.next()[:, :count] % len(self) + self._starts)

    def _take(self, chosen: Tensor) -> Batch:
        """Takes the rows of these numbers `(S, B)`, counted over all seeds."""
        rows = self._rows.view(-1, self._rows.shape[2]).index_select(0, chosen.flatten())
        fields = rows.unflatten(0, chosen.shape).split(self._sizes, dim=-1)
        observations, actions, rewards, next_observations, terminated, _ = fields
        return Batch(
            observations,
            actions,
            rewards.squeeze(-1),
            next_observations,
            terminated.squeeze(-1),
            actions[..., :0],
        )

    def segments(self, first: Tensor, length: int) -> Tensor:
        """Returns observations and actions `(S, ..., L, O + A)` of segments whose first steps `(S, ...)` are
        counted from the beginning of the run. Their rows must still be kept."""
        return self.at(self._steps_of(first, length))

    def transitions(self, first: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns observations, actions and next observations of segments as of `segments`."""
        rows = self.at(self._steps_of(first, length), len(self._sizes))
        observations, actions, _, next_observations, *_ = rows.split(self._sizes, -1)
        return observations, actions, next_observations

    def at(self, steps: Tensor, fields: int = 2) -> Tensor:
        """Returns observations and actions `(S, ..., O + A)`, or the first so many `fields`, of steps
        `(S, ...)` that are counted from the beginning of the run."""
        places = steps.to(self._rows.device) % self._rows.shape[1]
        rows = (places + self._starts.view(-1, *[1] * (places.ndim - 1))).flatten()
        wide = self._rows.view(-1, self._rows.shape[2])[:, : sum(self._sizes[:fields])]
        return wide.index_select(0, rows).unflatten(0, places.shape)

    @staticmethod
    def _steps_of(first: Tensor, length: int) -> Tensor:
        return first[..., None] + torch.arange(length, device=first.device)

    def states(self, count: int) -> Tensor:
        """Returns the observations of the first `count` rows, `(S, count, O)`, kept or not yet filled."""
        return self._rows[:, :count, : self._sizes[0]]

    def recorded(self, seed_index: int = 0) -> list[np.ndarray]:
        """Returns one seed's transitions in order of arrival, as the arrays that `add` took, `(n, ...)`."""
        rows = self._rows[seed_index, : len(self)]
        if self._added > len(self):
            rows = rows.roll(-(self._added % len(self)), 0)
        parts = [part.cpu().numpy() for part in rows.split(self._sizes, dim=-1)]
        flat = [part[:, 0] if i in (2, 4, 5) else part for i, part in enumerate(parts)]
        return [*flat[:4], flat[4].astype(bool), flat[5].astype(bool)]

    def state_dict(self) -> dict:
        """Returns the rows themselves, and the position in the stream of row numbers."""
        return {
            "rows": Ring.of(self._rows, self._added),
            "added": self._added,
            "numbers": self._numbers.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        self._added = state["added"]
        # Seed by seed: all at once take the room of a second replay on the device.
        for mine, saved in zip(self._rows, state["rows"], strict=True):
            mine[: len(self)].copy_(saved)
        self._numbers.load_state_dict(state["numbers"])
