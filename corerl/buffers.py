"""Device-resident experience, sampled for all seeds at once.

An offline dataset is stored once; only the row numbers `(S, B)` differ between seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import streams
from corerl.data.dataset import Transitions


class Batch(NamedTuple):
    """Transitions of S seeds. `terminated` is 1.0 at a true terminal and 0.0 elsewhere."""

    observations: Tensor  # (S, B, O)
    actions: Tensor  # (S, B, A)
    rewards: Tensor  # (S, B)
    next_observations: Tensor  # (S, B, O)
    terminated: Tensor  # (S, B)
    next_actions: Tensor  # (S, B, A); A = 0 unless the buffer was built with them


class OfflineBuffer:
    """A dataset's transitions packed as one row each, so that a batch is one gather.

    Args:
        transitions: of a dataset with vector observations and continuous actions.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size: B.
        device: where the rows live. 1M HalfCheetah transitions take 168 MB (192 with next actions).
    """

    def __init__(
        self,
        transitions: Transitions,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
    ):
        size = len(transitions.rewards)
        parts = [getattr(transitions, name) for name in Batch._fields]
        parts = [np.empty((size, 0)) if part is None else part.reshape(size, -1) for part in parts]
        self._sizes = [part.shape[1] for part in parts]
        self._rows = torch.empty(size, sum(self._sizes), device=device)
        for column, part in zip(self._rows.split(self._sizes, dim=1), parts, strict=True):
            column.copy_(torch.from_numpy(part))
        self._lead = (len(seeds), batch_size)
        self._indices = streams.indices(seeds, size, batch_size, device)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def observation_dim(self) -> int:
        return self._sizes[0]

    @property
    def action_dim(self) -> int:
        return self._sizes[1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._rows.nbytes

    def sample(self) -> Batch:
        """The next batch of every seed, drawn uniformly with replacement."""
        rows = self._rows.index_select(0, self._indices.next().flatten()).view(*self._lead, -1)
        fields = Batch(*rows.split(self._sizes, dim=-1))
        return fields._replace(
            rewards=fields.rewards.squeeze(-1), terminated=fields.terminated.squeeze(-1)
        )

    def state_dict(self) -> dict:
        """The position in the stream of row numbers; the data is not part of a checkpoint."""
        return self._indices.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state)
