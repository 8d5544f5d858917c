"""Buffers for fine-tuning: a dataset beside a replay, and a replay that knows its returns."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.replay import Batch, OfflineBuffer, ReplayBuffer
from corerl.config import require


class MixedReplay:
    """Batches that are part a dataset's and part the replay's.

    Args:
        data, replay: each draws batches of B rows.
        share: of the data in every batch; None makes it its share of all rows, as if the dataset had
            been the replay's beginning.
        seeds: the S seeds; with `share=None` each has its own stream that decides row by row.
        batch_size: B.
        device: where the rows live.
    """

    def __init__(
        self,
        data: OfflineBuffer,
        replay: ReplayBuffer,
        share: float | None,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
    ):
        self._data, self._replay = data, replay
        self._sizes = None
        if share is not None:
            data_rows = round(share * batch_size)
            self._sizes = (data_rows, batch_size - data_rows)
        self._coins = seeding.uniform(seeds, "mixture", (batch_size,), device)

    def sample(self) -> Batch:
        """Samples the next batch of every seed: the data's rows first where the share is fixed."""
        if self._sizes is not None:
            return _joined(self._data.sample(self._sizes[0]), self._replay.sample(self._sizes[1]))
        rows = len(self._data), len(self._replay)
        chosen = self._coins.next() < rows[0] / sum(rows)
        return _chosen(chosen, self._data.sample(), self._replay.sample())

    def sample_labelled(self) -> tuple[Batch, Tensor]:
        """Samples a batch and its labels `(S, B)`, where the share is fixed."""
        data, data_labels = self._data.sample_labelled(self._sizes[0])
        replay, replay_labels = self._replay.sample_labelled(self._sizes[1])
        return _joined(data, replay), torch.cat([data_labels, replay_labels], 1)

    def state_dict(self) -> dict:
        """Returns the stream of decisions. Data and replay have their own state."""
        return self._coins.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._coins.load_state_dict(state)


def _joined(data: Batch, replay: Batch) -> Batch:
    return Batch(*(torch.cat(pair, 1) for pair in zip(data, _like(replay, data), strict=True)))


def _chosen(from_data: Tensor, data: Batch, replay: Batch) -> Batch:
    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(from_data if a.ndim == 2 else from_data[..., None], a, b)

    return Batch(*map(choose, data, _like(replay, data)))


def _like(replay: Batch, data: Batch) -> Batch:
    """Adds next actions to a replay beside data that has them: they are not recorded, and zero."""
    return replay._replace(
        next_actions=torch.zeros_like(replay.actions[..., : data.next_actions.shape[-1]])
    )


class EpisodeReplay(ReplayBuffer):
    """A replay whose rows carry a label that is known when their episode has ended, such as a return.

    `sample_labelled` draws rows of ended episodes alone, `sample` all rows; nothing is ever overwritten.
    A reward that is NaN, of an environment that crashed, ends an episode too, so that its seed diverges.

    Args:
        label: from an episode's rewards `(n,)` to its labels `(n,)`. Others as for `ReplayBuffer`.
    """

    def __init__(self, *args, label: Callable[[np.ndarray], np.ndarray], **kwargs):
        super().__init__(*args, **kwargs)
        self._label = label
        self._labels = torch.zeros(self._rows.shape[:2], device=self._rows.device)
        self._known = torch.zeros_like(self._starts)  # (S, 1): rows whose episode has ended
        self._ended = np.zeros(len(self._rows), np.int64)  # the same, on the host

    def add(self, step: Sequence[np.ndarray]) -> None:
        """Adds a step of all seeds.

        Raises:
            IndexError: the capacity is exceeded. CorerlError: labels have another shape than rewards.
        """
        if self._added == self._rows.shape[1]:
            raise IndexError(
                "the EpisodeReplay is full, and it never overwrites a step. Choose a capacity "
                "of at least the number of steps that you add"
            )
        super().add(step)
        rewards, _, terminated, truncated = step[2:]
        for i in np.flatnonzero(terminated | truncated | np.isnan(rewards)):
            self._close(i)

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Ends these seeds' running episodes `(S,)` at their last step, as a time limit would."""
        for i in np.flatnonzero(seeds & (self._ended < self._added)):
            self._close(i)

    def _close(self, i: int) -> None:
        episode = slice(self._ended[i], self._added)
        rewards = self._rows[i, episode, sum(self._sizes[:2])].cpu().numpy()
        labels = np.asarray(self._labels_of(i, rewards), np.float32)
        require(
            labels.shape == rewards.shape,
            f"The label function returned shape {labels.shape} for rewards of shape "
            f"{rewards.shape}. Return one number for each step of the episode",
        )
        self._labels[i, episode].copy_(torch.from_numpy(np.ascontiguousarray(labels)))
        self._ended[i] = self._known[i] = self._added

    def _labels_of(self, i: int, rewards: np.ndarray) -> np.ndarray:
        """Returns the labels of an episode of seed number i."""
        return self._label(rewards)

    def sample_labelled(self, count: int | None = None) -> tuple[Batch, Tensor]:
        """Samples the next batch of every seed and its labels `(S, B)`. Every seed has ended an episode."""
        chosen = self._numbers.next()[:, :count] % self._known + self._starts
        return self._take(chosen), self._labels.flatten()[chosen]

    def state_dict(self) -> dict:
        labels = self._labels[:, : len(self)]
        return super().state_dict() | {"labels": labels, "ended": torch.from_numpy(self._ended)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._labels[:, : len(self)].copy_(state["labels"])
        self._ended = state["ended"].numpy().copy()
        self._known.copy_(state["ended"][:, None])
