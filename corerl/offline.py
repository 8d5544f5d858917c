"""From a task's dataset to batches: the preprocessing that papers choose per dataset."""

import sys
from dataclasses import dataclass

import numpy as np

from corerl.buffers import OfflineBuffer
from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError
from corerl.loop import Run
from corerl.networks import Normalizer


@dataclass
class Preprocess:
    """What is done to a dataset before training, in this order; part of an algorithm's `Config`."""

    return_range: bool = False  # rewards x 1000 / (largest - smallest episode return)
    reward_scale: float = 1.0  # then rewards x scale + shift
    reward_shift: float = 0.0
    clip_actions: float = 1.0  # dataset actions are clipped to plus-minus this
    normalize_states: bool = False  # (s - mean) / (std + 1e-3), also when acting

    def __post_init__(self):
        limit = self.clip_actions
        require(0 < limit <= 1, f"algo.data.clip_actions={limit} must lie in (0, 1]")


def load(
    run: Run, data: Preprocess, batch_size: int, *, next_actions: bool = False, best: float = 1.0
) -> tuple[OfflineBuffer, Normalizer]:
    """The run's buffer, preprocessed, and the normaliser that its policy needs.

    Args:
        next_actions: batches carry the dataset's next action; rows without one are left out.
        best: the share of episodes to keep, highest return first.

    Raises:
        CorerlError: the dataset has discrete actions or images.
    """
    dataset = vectors(run)
    if best < 1:
        dataset = dataset.best_episodes(best)
    _warn_of_saturation(dataset, data)
    width = dataset.observations.shape[1]
    mean, std = dataset.obs_stats() if data.normalize_states else (np.zeros(width), np.ones(width))
    transitions = dataset.with_rewards(preprocessed_rewards(dataset, data)).transitions(
        next_actions
    )
    limit = data.clip_actions
    transitions = transitions._replace(
        observations=((transitions.observations - mean) / std).astype(np.float32),
        next_observations=((transitions.next_observations - mean) / std).astype(np.float32),
        actions=np.clip(transitions.actions, -limit, limit),
    )
    buffer = OfflineBuffer(transitions, run.seeds, batch_size, run.device)
    return buffer, Normalizer.of(mean, std).to(run.device)


def _warn_of_saturation(dataset: Dataset, data: Preprocess) -> None:
    """A tanh policy that starts out saturated has no gradient and never learns, without a word."""
    size = float(np.abs(dataset.obs_stats()[0]).max())
    if size > 50 and not data.normalize_states:
        print(
            f"corerl: a feature of {dataset.id} is {size:.0f} on average, which saturates a fresh "
            "policy; consider algo.data.normalize_states=true",
            file=sys.stderr,
        )


def vectors(run: Run) -> Dataset:
    """The run's data, of vector observations and continuous actions.

    Raises:
        CorerlError: the dataset has discrete actions or images.
    """
    dataset = run.dataset()
    if dataset.discrete or dataset.observations.ndim != 2:
        raise CorerlError(
            f"{run.cfg.algo.name} needs vector observations and continuous actions, and {dataset.id} "
            f"has observations of shape {dataset.observations.shape[1:]} and "
            f"{'discrete' if dataset.discrete else 'continuous'} actions."
        )
    return dataset


def preprocessed_rewards(dataset: Dataset, data: Preprocess) -> np.ndarray:
    """Rewards `(N,)` after the return-range scaling, then scale and shift.

    The range is over true episodes. The authors of IQL and CORL split the filtered rows instead, where
    a timed-out episode has lost its last reward (CORL's boundaries also drift by one row per such
    episode), so their factor differs by about 0.1 %.
    """
    rewards = dataset.rewards
    if data.return_range:
        returns = dataset.episode_returns()
        spread = float(returns.max() - returns.min())
        if spread == 0:
            raise CorerlError(
                f"data.return_range=true divides by the spread of episode returns, and all episodes "
                f"of {dataset.id} return {returns[0]:g}; set algo.data.return_range=false."
            )
        rewards = rewards * np.float32(1000 / spread)
    return (rewards * data.reward_scale + data.reward_shift).astype(np.float32)
