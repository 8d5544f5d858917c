"""Returns to go as labels of a dataset's rows and of a replay's, on the scale that is learned."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.training import preprocessing


def returns_to_go(rewards: np.ndarray, discount: float, failure: float | None) -> np.ndarray:
    """Returns the discounted sums of rewards `(n,)` to the end of an episode, `(n,)`.

    An episode in which every step has the reward `failure` counts as if it went on like this for ever:
    failure / (1 - discount).
    """
    if failure is not None and (rewards == np.float32(failure)).all():
        return np.full(len(rewards), failure / (1 - discount))
    backwards = rewards[::-1].astype(np.float64).tolist()
    return np.array([*accumulate(backwards, lambda later, now: now + discount * later)])[::-1]


def label_of(cfg: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `returns_to_go` of learned rewards, by `failure_reward`, `discount` and `data` of `cfg`.

    Raises:
        CorerlError: what a failure is learned as depends on the returns in the data, or is infinite.
    """
    failure = cfg.failure_reward
    require(
        failure is None or cfg.discount < 1,
        f"An episode with only algo.failure_reward={failure} returns reward / (1 - discount), which is "
        "infinite with algo.discount=1. Set a smaller discount, or algo.failure_reward=null",
    )
    require(
        not (failure and cfg.data.return_range),
        f"algo.failure_reward={failure} does not fit algo.data.return_range=true, which rescales rewards. "
        "Set algo.data.return_range=false, and algo.data.reward_scale as needed",
    )
    if failure is not None:
        failure = float(preprocessing.affine(np.float32(failure), np.float32(1), cfg.data))
    return partial(returns_to_go, discount=cfg.discount, failure=failure)


def per_episode(dataset: Dataset, label: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Applies `label` to each episode's rewards, `(N,)`."""
    return np.concatenate([label(r) for r in np.split(dataset.rewards, dataset.episode_ends[:-1])])
