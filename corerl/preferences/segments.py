"""Segments of a whole dataset, each with a score by which a batch of them is ranked."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.packed import PackedRows
from corerl.preferences.relabelling import Rows


class Segments(NamedTuple):
    """B segments of at most L steps for S seeds, padded with zeros on the right."""

    observations: Tensor  # (S, B, L, O)
    actions: Tensor  # (S, B, L, A)
    valid: Tensor  # (S, B, L), 0.0 in padding
    scores: Tensor  # (S, B), larger for the segments that are preferred


class SegmentBuffer(PackedRows):
    """Of every row the segment that ends there: `length` steps, or fewer where its episode begins.

    Each seed draws its own, uniformly with replacement.

    Attributes:
        scores: (S, N), zeros until somebody writes them; part of a checkpoint.

    Args:
        rows: N rows, stored once.
        seeds: the S seeds. batch_size: B. length: L.
        device: where the rows live.
    """

    def __init__(
        self,
        rows: Rows,
        seeds: Sequence[int],
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
    ):
        count, parts = len(rows.observations), [rows.observations, rows.actions]
        # Padding looks up the filler.
        super().__init__(parts, device, filler=[np.zeros(part.shape[1]) for part in parts])
        self.starts = first_rows(rows, length)
        self._starts = torch.from_numpy(self.starts).to(device)
        self._steps = torch.arange(length, device=device)
        self._indices = seeding.indices(seeds, count, batch_size, device, "segments")
        self.scores = torch.zeros(len(seeds), count, device=device)

    def __len__(self) -> int:
        """Returns N, the number of segments."""
        return len(self._starts)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.scores.nbytes

    def sample(self) -> Segments:
        """Samples the next batch of every seed."""
        chosen = self._indices.next()
        return self.take(chosen)._replace(scores=self.scores.gather(1, chosen))

    def take(self, chosen: Tensor) -> Segments:
        """Returns the segments that end at the rows `chosen` `(S, B)`, with scores of 0."""
        rows = self._starts[chosen][..., None] + self._steps
        inside = rows <= chosen[..., None]
        rows = torch.where(inside, rows, len(self))
        packed = self._rows[rows]
        valid = inside.to(packed.dtype)
        return Segments(*packed.split(self._sizes, dim=-1), valid, valid.new_zeros(chosen.shape))

    def state_dict(self) -> dict:
        return {"indices": self._indices.state_dict(), "scores": self.scores}

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state["indices"])
        self.scores.copy_(state["scores"])


def first_rows(rows: Rows, length: int) -> np.ndarray:
    """Returns the first row `(N,)` of the segment that ends at each row."""
    lengths = np.diff(rows.episode_ends, prepend=0)
    begins = np.repeat(rows.episode_ends - lengths, lengths)
    return np.maximum(begins, np.arange(len(begins)) - length + 1)


def sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums `values` `(N,)` from row `starts[i]` to row i, `(N,)` float64."""
    running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return running[1:] - running[starts]
