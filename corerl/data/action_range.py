"""Policies that act in a part of the environment's range, as their data does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from corerl.config import require
from corerl.data.action_scaling import scaled, scaled_density
from corerl.data.dataset import Dataset

Range = tuple[tuple[float, ...], tuple[float, ...]]
"""The lowest and the highest action, in the environment's [-1, 1]; one number stands for every dimension."""


def parse(given: Any) -> Range | None:
    """Returns the setting `action_range`, `[low, high]`, each a number or a list of them. None as it is.

    Raises:
        CorerlError: it is something else, or low < high within [-1, 1] does not hold.
    """
    if given is None:
        return None
    problem = (
        f"action_range={given} must be [low, high] with -1 <= low < high <= 1, as in [-0.03,0.03]. Each may "
        "be a list with one number per action dimension"
    )
    require(isinstance(given, list | tuple) and len(given) == 2, problem)
    try:
        low, high = (np.atleast_1d(np.asarray(bound, float)) for bound in given)
        sound = (low >= -1) & (low < high) & (high <= 1)
    except (TypeError, ValueError):
        sound = np.zeros(1, bool)
    require(sound.ndim == 1 and bool(sound.all()), problem)
    return tuple(low.tolist()), tuple(high.tolist())


def narrowed(dataset: Dataset, within: Range) -> Dataset:
    """Returns the dataset with actions that are -1 and 1 at the ends of the range.

    Raises:
        CorerlError: an action lies outside it, or actions are discrete.
    """
    require(
        not dataset.discrete,
        f"action_range is for continuous actions, but {dataset.id} has discrete actions. Leave "
        "action_range out",
    )
    low, high = _bounds(within, dataset.actions.shape[1], dataset.id)
    actions, log_prob = scaled(dataset.id, dataset.actions, low, high), dataset.behaviour_log_prob
    if log_prob is not None:
        log_prob = scaled_density(log_prob, low, high, actions.shape[1])
    return replace(dataset, actions=actions, behaviour_log_prob=log_prob)


class Narrow(gymnasium.ActionWrapper):
    """Takes actions in [-1, 1] and puts them into the range.

    Raises:
        CorerlError: the environment's actions are discrete, or others in number than the range has.
    """

    def __init__(self, env: gymnasium.Env, within: Range):
        super().__init__(env)
        space = env.action_space
        require(
            isinstance(space, spaces.Box),
            f"action_range is for continuous actions, but those of {env.unwrapped} are {space}. Leave "
            "action_range out",
        )
        low, high = _bounds(within, space.shape[0], str(env.unwrapped))
        self._middle, self._half = (high + low) / 2, (high - low) / 2

    def action(self, action: np.ndarray) -> np.ndarray:
        return self._middle + self._half * np.clip(action, -1, 1).astype(np.float32)


def in_units(
    within: Range | None, low: np.ndarray | None, high: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns what a policy's -1 and 1 are where [-1, 1] of the environment is `low` to `high`, or itself."""
    if within is None:
        return low, high
    ends = (np.asarray(bound, np.float32) for bound in within)
    if low is None:
        return tuple(ends)
    return tuple(low + (end + 1) / 2 * (high - low) for end in ends)


def _bounds(within: Range, count: int, of: str) -> tuple[np.ndarray, np.ndarray]:
    sizes = {len(bound) for bound in within}
    require(
        sizes <= {1, count},
        f"A bound in action_range has {max(sizes)} numbers, but actions of {of} have {count} dimensions. "
        f"Give each bound as {count} numbers, or as one number for all dimensions",
    )
    return tuple(np.broadcast_to(np.asarray(bound, np.float32), count) for bound in within)
