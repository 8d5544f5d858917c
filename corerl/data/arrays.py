"""What a Dataset derives from somebody's own arrays: rows that fit, ends of episodes, next observations."""

import math
from collections.abc import Mapping

import numpy as np

from corerl.data.columns import EPISODES, cuts, flags, shape, side_by_side
from corerl.errors import CorerlError

Parts = tuple[tuple[str, int], ...]
"""Names and widths of a dictionary's observations."""


def count(id: str, rewards: np.ndarray) -> int:
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
    for field, array in fields.items():
        rows = steps if array is None else (shape(id, field, array) or (0,))[0]
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
