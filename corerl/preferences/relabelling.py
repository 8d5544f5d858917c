"""Datasets under learned rewards, which differ between seeds: a table `(S, N)` beside the rows.

The rows are those that make transitions, in their order, so that a reward model, sums over episodes and the
buffers agree on their numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.replay import Batch, OfflineBuffer
from corerl.buffers.sequences import SequenceBuffer
from corerl.config import require
from corerl.data.dataset import Dataset, Transitions
from corerl.nn.networks import Normalizer
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.loading import refuse_recorded
from corerl.training import preprocessing
from corerl.training.run import Run


class Rows(NamedTuple):
    """The rows of a dataset that make transitions, episode after episode."""

    observations: np.ndarray  # (N, O)
    actions: np.ndarray  # (N, A)
    terminated: np.ndarray  # (N,)
    episode_ends: np.ndarray  # (E,), exclusive


def rows_of(dataset: Dataset, clip_actions: float = 1.0) -> Rows:
    """Returns D4RL's `qlearning_dataset`, with the ends of its true episodes."""
    t = dataset.transitions()
    episode = np.searchsorted(dataset.episode_ends, t.rows, side="right")
    ends = np.append(np.flatnonzero(np.diff(episode)) + 1, len(episode))
    actions = np.clip(t.actions, -clip_actions, clip_actions)
    return Rows(t.observations, actions, t.terminated, ends)


def blocks(rows: Rows, size: int = 1000) -> Rows:
    """Returns the rows cut after every `size`, whatever ends there, and the rest dropped (DTR's authors)."""
    kept = len(rows.observations) // size * size
    require(
        kept > 0,
        f"algo.trajectories=blocks needs blocks of {size} rows, but the dataset has only "
        f"{len(rows.observations)} rows. Use algo.trajectories=episodes",
    )
    return Rows(*(x[:kept] for x in rows[:3]), np.arange(size, kept + 1, size))


def compared_rows(compared: Comparisons) -> Rows:
    """Returns the steps of all compared segments, one after the other. Each segment is a piece."""
    values = (compared.observations, compared.actions, compared.terminated)
    flat = [compared.segments(x).reshape(-1, *x.shape[1:]) for x in values]
    length = compared.length
    return Rows(*flat, np.arange(length, len(flat[0]) + 1, length))


def episode_returns(rewards: Tensor, ends: np.ndarray) -> Tensor:
    """Returns the undiscounted sums `(S, E)` of `(S, N)`."""
    sums = _running(rewards)
    last = torch.from_numpy(ends).to(rewards.device)
    return (sums[:, last] - sums[:, _starts(last)]).to(rewards.dtype)


def returns_to_go(rewards: Tensor, ends: np.ndarray) -> Tensor:
    """Returns the undiscounted sums to the end of the episode, `(S, N)`."""
    sums = _running(rewards)
    lengths = np.diff(ends, prepend=0)
    last = torch.from_numpy(np.repeat(ends, lengths)).to(rewards.device)
    return (sums[:, last] - sums[:, :-1]).to(rewards.dtype)


def _running(rewards: Tensor) -> Tensor:
    """Sums of the first 0 to N rewards, `(S, N + 1)`, in float64: rewards of a million rows cancel."""
    return F.pad(rewards.double().cumsum(1), (1, 0))


def _starts(ends: Tensor) -> Tensor:
    return F.pad(ends[:-1], (1, 0))


def scaled(
    rewards: Tensor, ends: np.ndarray, data: preprocessing.Preprocess, spread_worst: bool = False
) -> Tensor:
    """Scales learned rewards `(S, N)` by the settings `data`, with each seed's own returns.

    With `spread_worst`, the worst return is first taken from every episode, evenly over its steps.

    Raises:
        CorerlError: the return range is asked for, and a seed's returns are all the same.
    """
    returns = episode_returns(rewards, ends)
    worst, best = returns.amin(1, keepdim=True), returns.amax(1, keepdim=True)
    if spread_worst:
        lengths = np.diff(ends, prepend=0)
        per_row = torch.from_numpy(np.repeat(lengths, lengths)).to(rewards.device)
        rewards = rewards - worst / per_row
    if data.return_range:
        require(
            bool((best != worst).all()),
            "algo.data.return_range=true divides by the range of the learned returns, but all episodes "
            "have the same learned return. Set algo.data.return_range=false",
        )
        rewards = rewards * (1000 / (best - worst))
    return rewards * data.reward_scale + data.reward_shift


# Buffers.


def transitions(
    run: Run, data: preprocessing.Preprocess, batch_size: int
) -> tuple[Rows, "RelabelledBuffer", Normalizer]:
    """Returns the run's rows with raw states, their buffer without rewards, and the states' normaliser.

    Raises:
        CorerlError: the dataset has discrete actions or images.
    """
    refuse_recorded(data)
    as_it_is = replace(data, return_range=False, reward_scale=1.0, reward_shift=0.0)
    buffer, normalizer = preprocessing.load(run, as_it_is, batch_size, kind=RelabelledBuffer)
    dataset = preprocessing.vectors(run).ended_by(data.end_reward)
    return rows_of(dataset, data.clip_actions), buffer, normalizer


def sequences(
    run: Run, rows: Rows, batch_size: int, length: int, **options
) -> tuple["RelabelledSequences", Normalizer]:
    """Returns windows of the rows without rewards, states at mean 0 and deviation 1, and their normaliser.

    Padding is 0, before normalisation; `options` are those of `RelabelledSequences`.
    """
    mean = rows.observations.mean(0, dtype=np.float64)
    normalizer = Normalizer.of(mean, rows.observations.std(0, dtype=np.float64) + 1e-6)
    buffer = RelabelledSequences(
        rows._replace(observations=normalizer.of_array(rows.observations)),
        run.seeds,
        batch_size,
        length,
        filler=(
            normalizer.of_array(np.zeros_like(mean, np.float32)),
            np.zeros(rows.actions.shape[1]),
        ),
        device=run.device,
        **options,
    )
    return buffer, normalizer.to(run.device)


class RelabelledBuffer(OfflineBuffer):
    """An `OfflineBuffer` whose rewards `(S, N)` are each seed's own, and part of a checkpoint."""

    def __init__(
        self,
        transitions: Transitions,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
        labels: np.ndarray | None = None,
    ):
        super().__init__(transitions, seeds, batch_size, device, labels)
        self.rewards = torch.zeros(len(seeds), len(self), device=device)

    def _take(self, chosen: Tensor) -> tuple[Batch, Tensor]:
        batch, labels = super()._take(chosen)
        return batch._replace(rewards=self.rewards.gather(1, chosen)), labels

    def state_dict(self) -> dict:
        return {"batch": super().state_dict(), "rewards": self.rewards}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state["batch"])
        self.rewards.copy_(state["rewards"])


class RewardedWindows(NamedTuple):
    """`Windows` with what a critic needs. In padding, rewards are 0."""

    observations: Tensor  # (S, B, K, O)
    actions: Tensor  # (S, B, K, A)
    returns_to_go: Tensor  # (S, B, K)
    timesteps: Tensor  # (S, B, K) int64
    valid: Tensor  # (S, B, K)
    rewards: Tensor  # (S, B, K)
    terminated: Tensor  # (S, B, K)


class RelabelledSequences(SequenceBuffer):
    """A `SequenceBuffer` whose rewards are each seed's own, and part of a checkpoint.

    Args:
        rows: what is recorded; `rows.episode_ends` may also be the ends of other pieces than episodes.
        return_scale: returns-to-go are divided by it.
        options: as of `SequenceBuffer`.
    """

    def __init__(
        self, rows: Rows, seeds, batch_size, length, *, return_scale: float, device="cpu", **options
    ):
        observations, actions, terminated, ends = rows
        nothing = np.zeros(len(observations), np.float32)
        super().__init__(
            *(observations, actions, nothing, ends, seeds, batch_size, length),
            device=device,
            **options,
        )
        self._episode_ends, self._scale = ends, return_scale
        shape = (len(seeds), len(observations) + 1)  # the last column is padding's
        self._rewards, self._to_go = (torch.zeros(shape, device=device) for _ in range(2))
        ended = torch.from_numpy(terminated.astype(np.float32)).to(device)
        self._terminated = F.pad(ended, (0, 1), value=1.0)

    def relabel(self, rewards: Tensor) -> None:
        """Replaces the rewards by `(S, N)`. Those of rows that are not recorded come last."""
        rewards = rewards[:, : len(self)]
        self._rewards[:, :-1].copy_(rewards)
        to_go = returns_to_go(rewards, self._episode_ends) / self._scale
        self._to_go[:, :-1].copy_(to_go)

    def episode_returns(self) -> Tensor:
        """Returns the undiscounted sums of the rewards `(S, E)`, not scaled."""
        return episode_returns(self._rewards[:, :-1], self._episode_ends)

    def windows(self, starts: Tensor) -> RewardedWindows:
        windows = super().windows(starts)
        rows, _ = self._rows_of(starts[..., None])
        rewards, to_go = (
            x.gather(1, rows.flatten(1)).view(rows.shape) for x in (self._rewards, self._to_go)
        )
        windows = windows._replace(returns_to_go=to_go)
        return RewardedWindows(*windows, rewards, self._terminated[rows])

    def state_dict(self) -> dict:
        return {"batch": super().state_dict(), "rewards": self._rewards[:, :-1]}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state["batch"])
        self.relabel(state["rewards"].to(self._rewards.device))
