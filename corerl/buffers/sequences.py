"""Windows of episodes: those of a dataset, and those that a policy remembers while it acts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.packed import PackedRows


class Windows(NamedTuple):
    """Pieces of episodes of S seeds, K steps each. Where `valid` is 0.0 there is only padding."""

    observations: Tensor  # (S, B, K, O)
    actions: Tensor  # (S, B, K, A)
    returns_to_go: Tensor  # (S, B, K)
    timesteps: Tensor  # (S, B, K) int64, steps since the episode's start
    valid: Tensor  # (S, B, K)


class SequenceBuffer(PackedRows):
    """An offline dataset whose windows are cut on the device when they are asked for.

    A window starts at a row that is drawn, so that with uniform draws an episode is chosen in proportion
    to its length, and ends after K steps or with the episode.

    Args:
        observations, actions, returns_to_go: of every recorded step, `(N, ...)`, episode after episode.
        episode_ends: exclusive, `(E,)`.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size, length: B windows of K steps.
        padding: the side on which short windows are filled up, `left` or `right`.
        filler: the observation `(O,)` and the action `(A,)` there; returns and time steps are 0.
        last_timestep: later time steps are counted as this one.
        device: where the rows live.
        probabilities: of the rows that windows start at, `(N,)`; None draws them uniformly.
        labels: a number per row `(N,)`, for `sample_labelled`.

    Attributes:
        discrete: whether actions are discrete, held as one-hot vectors.
    """

    discrete = False

    def __init__(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        returns_to_go: np.ndarray,
        episode_ends: np.ndarray,
        seeds: Sequence[int],
        batch_size: int,
        length: int,
        *,
        filler: tuple[np.ndarray, np.ndarray],
        padding: str = "left",
        last_timestep: int = 999,
        device: torch.device | str = "cpu",
        probabilities: np.ndarray | None = None,
        labels: np.ndarray | None = None,
    ):
        size = len(observations)
        lengths = np.diff(episode_ends, prepend=0)
        ends = np.repeat(episode_ends, lengths)
        timesteps = np.arange(size) - (ends - np.repeat(lengths, lengths))
        parts = [observations, actions, returns_to_go, np.minimum(timesteps, last_timestep)]
        # Every padded step of a window points to the filler.
        super().__init__(parts, device, filler=[*filler, np.zeros(1), np.zeros(1)])
        self._ends = torch.from_numpy(ends).to(device)
        self._steps = torch.arange(length, device=device)
        self._left = padding == "left"
        self._labels = None if labels is None else torch.from_numpy(labels).float().to(device)
        self._indices = seeding.indices(
            seeds, size, batch_size, device, probabilities=probabilities
        )

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._ends.nbytes

    def sample(self) -> Windows:
        """Samples the next windows of every seed."""
        return self.windows(self._indices.next())

    def sample_labelled(self) -> tuple[Windows, Tensor]:
        """Samples windows and the labels of their first rows, `(S, B)`."""
        starts = self._indices.next()
        return self.windows(starts), self._labels[starts]

    def windows(self, starts: Tensor) -> Windows:
        """Returns the windows that start at the rows `starts`, `(S, B)`."""
        rows, valid = self._rows_of(starts[..., None])
        packed = self._rows.index_select(0, rows.flatten()).view(*rows.shape, -1)
        observations, actions, returns_to_go, timesteps = packed.split(self._sizes, -1)
        return Windows(
            observations,
            actions,
            returns_to_go.squeeze(-1),
            timesteps.squeeze(-1).long(),
            valid.to(observations.dtype),
        )

    def _rows_of(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns row numbers `(S, B, K)` and which of them are no padding."""
        left = self._ends[starts] - starts
        length = len(self._steps)
        skipped = (length - left).clamp(min=0) if self._left else torch.zeros_like(left)
        steps = self._steps - skipped
        valid = (steps >= 0) & (steps < left)
        return torch.where(valid, starts + steps, len(self)), valid

    def state_dict(self) -> dict:
        """Returns the position in the stream of row numbers. The data is not part of a checkpoint."""
        return self._indices.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state)


class ContextWindow:
    """The last K steps of n episodes of each of S seeds. Before an episode's first there are zeros.

    Args:
        lead: S and n. length: K.
        observation_dim, action_dim: features.
        last_timestep: later time steps are counted as this one.
        like: a tensor with the type and the device of all others.
    """

    def __init__(
        self,
        lead: tuple[int, int],
        length: int,
        observation_dim: int,
        action_dim: int,
        *,
        last_timestep: int,
        like: Tensor,
    ):
        zeros = like.new_zeros(*lead, length)
        states, actions = (
            zeros[..., None].repeat(1, 1, 1, size) for size in (observation_dim, action_dim)
        )
        self._windows = Windows(states, actions, zeros, zeros.long(), zeros)
        self._step, self._last = 0, last_timestep

    def observe(self, observations: Tensor, returns_to_go: Tensor) -> Windows:
        """Returns windows that end with these, `(S, n, O)` and `(S, n)`, at which nothing was done yet."""
        past = self._windows
        time = torch.full_like(past.timesteps[:, :, 0], min(self._step, self._last))
        unknown = torch.zeros_like(past.actions[:, :, 0])
        latest = (observations, unknown, returns_to_go, time, torch.ones_like(returns_to_go))
        self._windows = Windows(
            *(
                torch.cat([x[:, :, 1:], new[:, :, None]], 2)
                for x, new in zip(past, latest, strict=True)
            )
        )
        self._step += 1
        return self._windows

    def record_actions(self, actions: Tensor) -> None:
        """Records the actions `(S, n, A)` at the last step seen."""
        self._windows.actions[:, :, -1] = actions
