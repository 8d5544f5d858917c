"""Arrays of recorded steps become the fields of a Dataset: types, ends of episodes, next observations."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.config import require
from corerl.data.files.io import such
from corerl.errors import CorerlError, RowError

EPISODES = (
    "Join a list of episodes with numpy.concatenate, and mark where each ends with terminated, "
    "truncated or episode"
)


def array(x: Any, field: str) -> np.ndarray:
    """Returns whatever holds an array as one of numpy. A bfloat16 tensor becomes float32.

    Raises:
        CorerlError: some of it is masked, and would count as what lies under the mask.
    """
    if np.ma.is_masked(x):
        raise CorerlError(
            f"field {field}: {np.ma.count_masked(x):,} entries are masked. Fill them "
            "(numpy.ma.filled), or leave out their rows."
        )
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    return np.asarray(x)


def flags(x: np.ndarray, field: str) -> np.ndarray:
    """Returns (N,) bool from flags (N,) or (N, 1) of any dtype that holds nothing but 0 and 1.

    Raises:
        CorerlError: something else, which `astype(bool)` would take for True; the row is named.
    """
    x = column(array(x, field))
    if x.dtype == bool:
        return x
    refuse_kind(x, field)
    _refuse_rows((x != 0) & (x != 1), x, field, "a flag must be 0 or 1")
    return x.astype(bool)


def floats(x: np.ndarray, field: str) -> np.ndarray:
    """Returns float32 numbers, infinite where that cannot hold them. Bytes of observations stay bytes.

    Raises:
        CorerlError: complex numbers, texts or objects; or some are masked.
    """
    x = array(x, field)
    refuse_kind(x, field)
    seen = field in ("observations", "next_observations")
    with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
        return x if seen and x.dtype == np.uint8 else np.asarray(x, np.float32)


def units(x: np.ndarray) -> np.ndarray:
    """Returns durations (N,) int64.

    Raises:
        CorerlError: one is not a whole number of 1 or more; the row is named.
    """
    x = column(array(x, "durations"))
    refuse_kind(x, "durations")
    whole = (x >= 1) & (x == np.floor(x)) & (x < 2**31)
    _refuse_rows(~whole, x, "durations", "a duration must be a whole number of 1 or more")
    return x.astype(np.int64)


def _refuse_rows(bad: np.ndarray, x: np.ndarray, field: str, rule: str) -> None:
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise RowError(field, row, None, f"holds {x[row]}, but {rule}")


def shape(id: str, field: str, x: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of an array. Raises CorerlError for a list of arrays that are not alike."""
    try:
        return np.shape(x)
    except ValueError:
        raise CorerlError(
            f"Dataset {id}, field {field}: its rows have different shapes. {EPISODES}."
        ) from None


def side_by_side(id: str, given: Mapping, names: list[str], steps: int) -> np.ndarray:
    """Lays the named parts of a dictionary side by side, `(steps, widths in sum)`.

    Raises:
        CorerlError: a part is missing, is a dictionary itself, or has another number of rows.
    """
    where = f"Dataset {id}, observations:"
    require(len(names) > 0, f"{where} the dictionary is empty. Give it at least one array")
    for name in names:
        if isinstance(inner := given.get(name), Mapping):
            reported = ", ".join(f"{name}/{key}" for key in inner)
            raise CorerlError(
                f"{where} part {name} is itself a dictionary. Give its parts in its place, as {reported}."
            )
        require(
            name in given and (shape(id, name, given[name]) or (1,))[0] == steps,
            f"{where} part {name} must have {steps} rows, as many as rewards, in observations and in "
            "next_observations",
        )
    parts = [array(given[name], f"observations, part {name}") for name in names]
    return np.concatenate([part.reshape(steps, -1) for part in parts], 1)


def refuse_kind(x: np.ndarray, field: str) -> None:
    """Refuses complex numbers, which would lose a part, and texts, which would become numbers."""
    real = x.dtype.kind in "biuf"
    require(real, f"field {field}: its dtype is {x.dtype}, but its values must be real numbers")


def column(x: np.ndarray) -> np.ndarray:
    """Returns (N,) where there is one column, (N, 1). Everything else as it is."""
    x = x if isinstance(x, np.ma.MaskedArray) else array(x, "")  # refused where the field is known
    return x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x


def missing(x: np.ndarray) -> np.ndarray:
    """Tells where an array of any dtype holds NaN or None, as an empty cell of a table is read."""
    import pandas

    return pandas.isna(x)


def without_actions(actions: np.ndarray) -> np.ndarray:
    """Tells which rows `(N,)` have no action: all of its cells are empty."""
    if actions.dtype.kind != "f":
        return np.zeros(len(actions), bool)
    return np.isnan(actions).reshape(len(actions), -1).all(1)


def cuts(episode: np.ndarray, steps: int) -> np.ndarray:
    """Returns (N,) bool: the rows after which the numbers or names of an episode, (N,) or (N, ...), change.

    Raises:
        CorerlError: a row names no episode.
    """
    names = array(episode, "episode").reshape(steps, -1)
    unnamed = missing(names).any(1)
    if unnamed.any():
        problem = f"has no episode number or name{such(unnamed)}"
        raise RowError("episode", int(np.argmax(unnamed)), None, problem)
    return np.append((names[1:] != names[:-1]).any(1), True)


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
) -> tuple[dict[str, Any], Parts]:
    """Returns the arguments of `Dataset.from_steps`, of those of `from_arrays`, and observations' parts."""
    marked = any(x is not None for x in (terminated, truncated, episode))
    problem = f"Nothing marks where the episodes of {id} end. Give terminated, truncated or episode"
    require(marked, problem)
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
    observations, next_observations = (
        x[:, None] if np.ndim(x) == 1 else x for x in (observations, next_observations)
    )
    found = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "next_observations": next_observations,
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
    where = f"Dataset {id}, field rewards:"
    require(steps > 0, f"{where} it has no rows. Give at least one")
    flat = rest in ([], [1])
    require(flat, f"{where} its shape is {(steps, *rest)}, but must be {(steps,)}. {EPISODES}")
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
        fault = f"Dataset {id}, field {field}: it has {rows} rows, but rewards has {steps}"
        require(rows == steps, fault)


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
