"""Arrays of recorded steps become the fields of a Dataset: types, ends of episodes, next observations."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.data.action_scaling import scaled, scaled_density
from corerl.data.columns import (
    EPISODES,
    array,
    column,
    cuts,
    flags,
    floats,
    shape,
    side_by_side,
    units,
)
from corerl.errors import CorerlError

Parts = tuple[tuple[str, int], ...]
"""Names and widths of a dictionary's observations."""


def fields(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    next_observations: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    has_next: np.ndarray | None,
    behaviour_log_prob: np.ndarray | None,
    durations: np.ndarray | None,
) -> dict[str, np.ndarray | None]:
    """Returns the fields of a Dataset, of steps in whatever types they come: see `Dataset.from_steps`."""
    observations = floats(observations, "observations")
    next_observations = floats(next_observations, "next_observations")
    rewards = floats(column(rewards), "rewards")
    terminated, truncated = flags(terminated, "terminated"), flags(truncated, "truncated")
    if len(terminated) and len(truncated) and not (terminated[-1] or truncated[-1]):
        truncated = truncated.copy()
        truncated[-1] = True
    ends = terminated | truncated if len(terminated) == len(truncated) else truncated
    actions = array(actions, "actions")
    discrete = actions.dtype.kind in "biu"
    actions = column(actions).astype(np.int64) if discrete else floats(actions, "actions")
    if behaviour_log_prob is not None:
        behaviour_log_prob = floats(column(behaviour_log_prob), "behaviour_log_prob")
    has_next = np.ones(len(rewards), bool) if has_next is None else has_next
    return {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "next_observations": next_observations,
        "terminated": terminated,
        "truncated": truncated,
        "episode_ends": np.flatnonzero(ends).astype(np.int64) + 1,
        "has_next": flags(has_next, "has_next"),
        "behaviour_log_prob": behaviour_log_prob,
        "durations": None if durations is None else units(durations),
    }


def steps(
    id: str,
    observations: np.ndarray | Mapping[str, np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray | None,
    truncated: np.ndarray | None,
    next_observations: np.ndarray | Mapping[str, np.ndarray] | None,
    episode: np.ndarray | None,
    has_next: np.ndarray | None,
    behaviour_log_prob: np.ndarray | None,
    durations: np.ndarray | None,
    low: np.ndarray | float | None,
    high: np.ndarray | float | None,
) -> tuple[dict[str, Any], Parts]:
    """Returns the arguments of `Dataset.from_steps`, of those of `from_arrays`, and observations' parts."""
    if (low is None) != (high is None):
        raise CorerlError(f"Dataset {id}, field actions: give both low and high, or neither.")
    if terminated is None and truncated is None and episode is None:
        raise CorerlError(
            f"Nothing marks where the episodes of {id} end. Give terminated, truncated or episode."
        )
    count = step_count(id, rewards)
    observations, next_observations, parts = vectors(id, count, observations, next_observations)
    check_rows(
        *(id, count),
        observations=observations,
        actions=actions,
        terminated=terminated,
        truncated=truncated,
        next_observations=next_observations,
        has_next=has_next,
        episode=episode,
        durations=durations,
    )
    ended, cut = ends(count, terminated, truncated, episode)
    observations = floats(observations, "observations")
    if next_observations is None:
        next_observations, has_next = following(observations, ended, cut, has_next)
    actions = scaled(id, array(actions, "actions"), low, high)
    if behaviour_log_prob is not None and actions.ndim == 2:
        behaviour_log_prob = scaled_density(behaviour_log_prob, low, high, actions.shape[1])
    found = {
        "observations": observations[:, None] if observations.ndim == 1 else observations,
        "actions": actions,
        "rewards": rewards,
        "next_observations": (
            next_observations[:, None] if np.ndim(next_observations) == 1 else next_observations
        ),
        "terminated": ended,
        "truncated": cut,
        "has_next": has_next,
        "behaviour_log_prob": behaviour_log_prob,
        "durations": durations,
    }
    return found, parts


def step_count(id: str, rewards: np.ndarray) -> int:
    """Returns how many steps there are. Raises CorerlError for none, or where a step has several rewards."""
    steps, *rest = shape(id, "rewards", rewards) or (0,)
    if not steps:
        raise CorerlError(f"Dataset {id}, field rewards: it has no rows. Give at least one.")
    if rest not in ([], [1]):
        raise CorerlError(
            f"Dataset {id}, field rewards: its shape is {(steps, *rest)}, but must be {(steps,)}. "
            f"{EPISODES}."
        )
    return steps


def vectors(
    id: str,
    steps: int,
    observations: np.ndarray | Mapping[str, np.ndarray],
    following: np.ndarray | Mapping[str, np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray | None, Parts]:
    """Returns observations and those that followed, a dictionary's parts side by side, and these parts."""
    if not isinstance(observations, Mapping):
        return observations, following, ()
    sizes = {
        name: math.prod(shape(id, f"observations, part {name}", part))
        for name, part in observations.items()
    }
    laid = side_by_side(id, observations, list(sizes), steps)
    if following is not None:
        following = side_by_side(id, following, list(sizes), steps)
    return laid, following, tuple((name, size // steps) for name, size in sizes.items())


def check_rows(id: str, steps: int, **fields: np.ndarray | None) -> None:
    """Raises CorerlError for the first field with another number of rows."""
    for field, given in fields.items():
        rows = steps if given is None else (shape(id, field, given) or (0,))[0]
        if rows != steps:
            raise CorerlError(
                f"Dataset {id}, field {field}: it has {rows} rows, but rewards has {steps}."
            )


def ends(
    steps: int,
    terminated: np.ndarray | None,
    truncated: np.ndarray | None,
    episode: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (N,) bool: where an episode truly ended, and where it was cut off and did not end."""
    ended, cut = (
        np.zeros(steps, bool) if x is None else flags(x, field)
        for field, x in (("terminated", terminated), ("truncated", truncated))
    )
    if episode is not None:
        cut = cut | cuts(episode, steps)
    return ended, cut & ~ended  # not in place: flags may be the caller's own array


def following(
    observations: np.ndarray, ended: np.ndarray, cut: np.ndarray, has_next: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the next row's observations, and where they are real: unless an episode was cut off there."""
    after = np.roll(observations, -1, axis=0)
    after[ended] = observations[ended]  # nothing may bootstrap from it
    recorded = ~cut
    recorded[-1] = ended[-1]
    return after, recorded if has_next is None else recorded & flags(has_next, "has_next")
