"""Batches of comparisons, gathered on the device from flat arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.packed import PackedRows
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.preferences.comparisons import Comparisons


class Pairs(NamedTuple):
    """B comparisons of K segments of L steps for S seeds, of more than two the best first."""

    observations: Tensor  # (S, B, K, L, O)
    actions: Tensor  # (S, B, K, L, A)
    labels: Tensor  # (S, B), the probability that the second of two segments is preferred
    importance: Tensor | None = None  # (S, B, K, L), of each step, with Hindsight PRIOR


def transitions(pairs: Pairs) -> Batch:
    """Returns the steps of all segments but their last, `(S, B * K * (L - 1), ...)`. Nothing ends there.

    The last step is only the state that the one before it leads to. Rewards are 0.
    """
    states, next_states = pairs.observations[..., :-1, :], pairs.observations[..., 1:, :]
    actions = pairs.actions[..., :-1, :].flatten(1, 3)
    zeros = torch.zeros_like(actions[..., 0])
    return Batch(
        states.flatten(1, 3), actions, zeros, next_states.flatten(1, 3), zeros, actions[..., :0]
    )


class PairBuffer(PackedRows):
    """Comparisons on the device. Each seed draws its own, uniformly with replacement.

    Attributes:
        batch_size: B.

    Args:
        comparisons: what is drawn from.
        seeds: the S seeds.
        batch_size: B.
        device: where the rows live: a row is stored once, however many segments it is in, and not at all
            where it is in none.
        crop: steps of a random window of each segment, drawn anew for every sample and segment; None
            takes segments whole.
        crop_alike: the window is the same for all segments of a seed's batch.

    Raises:
        CorerlError: `crop` is longer than the segments.
    """

    def __init__(
        self,
        comparisons: Comparisons,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
        crop: int | None = None,
        crop_alike: bool = False,
    ):
        require(
            crop is None or 0 < crop <= comparisons.length,
            f"algo.crop={crop} must be from 1 to {comparisons.length}, the steps of a segment. "
            "Set algo.crop=null to use whole segments",
        )
        used = np.unique(comparisons.starts[..., None] + np.arange(comparisons.length))
        super().__init__([comparisons.observations, comparisons.actions], device, only=used)
        # All rows of a segment are used, so that they still follow each other.
        self._starts = torch.from_numpy(np.searchsorted(used, comparisons.starts)).to(device)
        self._labels = torch.from_numpy(comparisons.labels).to(self._rows)
        self.batch_size, self._whole = batch_size, comparisons.length
        self._steps = torch.arange(crop or self._whole, device=device)
        self._indices = seeding.indices(seeds, len(comparisons), batch_size, device, "pairs")
        self._spare = self._whole - len(self._steps) + 1
        self._offsets = None
        if self._spare > 1:
            shape = (1, 1) if crop_alike else (batch_size, comparisons.size)
            self._offsets = seeding.uniform(seeds, "crops", shape, device)

    def __len__(self) -> int:
        """Comparisons."""
        return len(self._labels)

    @property
    def length(self) -> int:
        """The length L of segments in a batch."""
        return len(self._steps)

    def sample(self) -> Pairs:
        """Samples the next batch of every seed."""
        chosen = self._indices.next()
        first = self._starts[chosen]
        if self._offsets is not None:
            first = first + (self._offsets.next() * self._spare).long()
        return self._take(chosen, first, self._steps)

    def last(self, count: int) -> Pairs:
        """Returns the last comparisons, whole, with a seed axis of 1."""
        chosen = torch.arange(len(self) - count, len(self), device=self._rows.device)[None]
        steps = torch.arange(self._whole, device=self._rows.device)
        return self._take(chosen, self._starts[chosen], steps)

    def _take(self, chosen: Tensor, first: Tensor, steps: Tensor) -> Pairs:
        """Comparisons `(S, B)`, of each segment the `steps` counted from the rows `first` `(S, B, K)`."""
        rows = (first[..., None] + steps).flatten()
        packed = self._rows.index_select(0, rows).view(*first.shape, len(steps), -1)
        return Pairs(*packed.split(self._sizes, dim=-1), self._labels[chosen])

    def state_dict(self) -> dict:
        """Returns the positions in the streams. The comparisons are not part of a checkpoint."""
        offsets = None if self._offsets is None else self._offsets.state_dict()
        return {"indices": self._indices.state_dict(), "offsets": offsets}

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state["indices"])
        if self._offsets is not None:
            self._offsets.load_state_dict(state["offsets"])
