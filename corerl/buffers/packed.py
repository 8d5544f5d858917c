"""Arrays of equally many rows, side by side on a device."""

from collections.abc import Sequence

import numpy as np
import torch


class PackedRows:
    """Holds arrays of N rows packed as one row each, so that a batch is one gather.

    Attributes:
        observation_dim, action_dim: features of the first two arrays.
        nbytes: bytes on the device.

    Args:
        parts: the arrays `(N, ...)`, observations and actions first.
        device: where the rows live.
        only: the numbers of the rows to hold; None holds all.
        filler: one more, last row, for places that hold nothing: a vector for each array.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        device: torch.device | str,
        only: np.ndarray | None = None,
        filler: Sequence[np.ndarray] = (),
    ):
        size = len(parts[0]) if only is None else len(only)
        parts = [part.reshape(len(part), -1) for part in parts]
        self._sizes = [part.shape[1] for part in parts]
        self._rows = torch.empty(size + bool(filler), sum(self._sizes), device=device)
        columns = self._rows.split(self._sizes, dim=1)
        for column, part in zip(columns, parts, strict=True):
            rows = part if only is None else part[only]
            # Torch takes no array that is turned round.
            column[:size].copy_(torch.from_numpy(np.ascontiguousarray(rows)))
        for column, fill in zip(columns if filler else (), filler, strict=True):
            column[-1].copy_(torch.from_numpy(fill))

    @property
    def observation_dim(self) -> int:
        return self._sizes[0]

    @property
    def action_dim(self) -> int:
        return self._sizes[1]

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes
