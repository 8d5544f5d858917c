"""Arrays of recorded steps, a field each, in the shapes and dtypes that a Dataset holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.data.file_reading import first_column, such, unit_actions
from corerl.errors import CorerlError, RowError

EPISODES = (
    "Lay a list of episodes one after the other (numpy.concatenate), and say where each ends "
    "(terminated, truncated, or episode)"
)
AS_NUMBERED = "If they are discrete, write them as whole numbers (1, not 1.0, of an integer dtype)"


def array(x: Any, field: str) -> np.ndarray:
    """Returns whatever holds an array as one of numpy. A bfloat16 tensor becomes float32.

    Raises:
        CorerlError: some of it is masked, and would count as what lies under the mask.
    """
    if np.ma.is_masked(x):
        raise CorerlError(
            f"field {field}: {np.ma.count_masked(x):,} of its entries are masked: fill them "
            "(numpy.ma.filled), or leave their rows out."
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
    _refuse_kind(x, field)
    bad = (x != 0) & (x != 1)
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise RowError(field, row, None, f"holds {x[row]} where a flag is 0 or 1")
    return x.astype(bool)


def floats(x: np.ndarray, field: str) -> np.ndarray:
    """Returns float32 numbers, infinite where that cannot hold them. Bytes of observations stay bytes.

    Raises:
        CorerlError: complex numbers, texts or objects; or some are masked.
    """
    x = array(x, field)
    _refuse_kind(x, field)
    seen = field in ("observations", "next_observations")
    with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
        return x if seen and x.dtype == np.uint8 else np.asarray(x, np.float32)


def units(x: np.ndarray) -> np.ndarray:
    """Returns durations (N,) int64.

    Raises:
        CorerlError: one is not a whole number of 1 or more; the row is named.
    """
    x = column(array(x, "durations"))
    _refuse_kind(x, "durations")
    bad = ~((x >= 1) & (x == np.floor(x)) & (x < 2**31))
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise RowError(
            "durations", row, None, f"holds {x[row]}. A duration is a whole number, 1 or more"
        )
    return x.astype(np.int64)


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
    if not names:
        raise CorerlError(f"Dataset {id}, observations: the dictionary is empty.")
    for name in names:
        if isinstance(inner := given.get(name), Mapping):
            reported = ", ".join(f"{name}/{key}" for key in inner)
            raise CorerlError(
                f"Dataset {id}, observations: part {name} is a dictionary: write {reported} in its place."
            )
        if name not in given or (shape(id, name, given[name]) or (1,))[0] != steps:
            raise CorerlError(
                f"Dataset {id}, observations: part {name} needs {steps} rows, as rewards have, also in "
                "next_observations."
            )
    parts = [array(given[name], f"observations, part {name}") for name in names]
    return np.concatenate([part.reshape(steps, -1) for part in parts], 1)


def _refuse_kind(x: np.ndarray, field: str) -> None:
    """Refuses complex numbers, which would lose a part, and texts, which would become numbers."""
    if x.dtype.kind not in "biuf":
        raise CorerlError(f"field {field}: its values are {x.dtype}, not real numbers.")


def column(x: np.ndarray) -> np.ndarray:
    """Returns (N,) where there is one column, (N, 1). Everything else as it is."""
    x = x if isinstance(x, np.ma.MaskedArray) else array(x, "")  # refused where the field is known
    return x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x


def missing(x: np.ndarray) -> np.ndarray:
    """Tells where an array of any dtype holds NaN or None, as an empty cell of a table is read."""
    import pandas

    return pandas.isna(x)


def cuts(episode: np.ndarray, steps: int) -> np.ndarray:
    """Returns (N,) bool: the rows after which the numbers or names of an episode, (N,) or (N, ...), change.

    Raises:
        CorerlError: a row names no episode.
    """
    names = array(episode, "episode").reshape(steps, -1)
    unnamed = missing(names).any(1)
    if unnamed.any():
        problem = f"names no episode{such(unnamed)}"
        raise RowError("episode", int(np.argmax(unnamed)), None, problem)
    return np.append((names[1:] != names[:-1]).any(1), True)


def scaled(id: str, actions: np.ndarray, low, high) -> np.ndarray:
    """Scales actions of the box [low, high] to [-1, 1]. Discrete ones, (N,) integers, as they are.

    True and false are the numbers 1 and 0.

    Raises:
        CorerlError: an action beyond the box; it names row and column. Several of true and false a row.
    """
    if actions.dtype == bool:
        _refuse_switches(id, actions, low)
        actions = actions.astype(np.int64)
    discrete = actions.dtype.kind in "iu" and actions.size == len(actions) and low is None
    if discrete:
        return actions.reshape(-1)
    _refuse_kind(actions, "actions")
    actions = np.asarray(actions, np.float32)
    actions = actions[:, None] if actions.ndim == 1 else actions
    known = low is not None
    low = _bound(id, -1 if low is None else low, actions)
    high = _bound(id, 1 if high is None else high, actions)
    if not (low < high).all():
        fixed = np.flatnonzero(~(low < high))[0]
        raise CorerlError(
            f"Dataset {id}, field actions: in column {fixed} the low {low.flat[fixed]:g} is not "
            f"below the high {high.flat[fixed]:g}. Leave out a column that never changes."
        )
    beyond = (actions < low - 1e-4 * (high - low)) | (actions > high + 1e-4 * (high - low))
    for row, *_ in np.argwhere(beyond)[:1]:
        column = first_column(beyond[row])
        problem = f"holds {actions[row][column]:g}, outside [{low[column]:g}, {high[column]:g}]"
        problem += such(beyond.reshape(len(actions), -1).any(1))
        if not known:
            problem += ". Set the bounds with env=gym/ID, or with data.action_low and "
            problem += "data.action_high (in Python: low and high)"
            problem += f". {AS_NUMBERED}" if counted(actions) else ""
        raise RowError("actions", int(row), column, problem, id)
    return unit_actions(actions, low, high)


def counted(actions: np.ndarray) -> bool:
    """Tells whether floats (N, A) are one column of nothing but 0, 1, 2, ..., as numbers of actions are."""
    whole = (actions >= 0) & (actions == np.floor(actions))
    return actions.shape[1:] == (1,) and bool(whole.all())


def _refuse_switches(id: str, actions: np.ndarray, low) -> None:
    if actions.size > len(actions) and low is None:
        raise CorerlError(
            f"Dataset {id}, field actions: every row holds {actions[0].size} booleans. corerl supports one "
            "discrete action. Number the combinations, or treat them as continuous with "
            "data.action_low=0 data.action_high=1 (in Python low and high)."
        )


def scaled_density(log_prob: np.ndarray, low, high, count: int) -> np.ndarray:
    """Returns log-densities (N,) of `count` actions in [low, high] as those of the same in [-1, 1].

    The density of x' = 2 (x - low) / (high - low) - 1 is that of x times (high - low) / 2, per dimension.
    """
    half = (np.asarray(1 if high is None else high) - np.asarray(-1 if low is None else low)) / 2
    given = floats(column(log_prob), "behaviour_log_prob")
    return (given + np.log(np.broadcast_to(half, count)).sum()).astype(np.float32)


def _bound(id: str, bound, actions: np.ndarray) -> np.ndarray:
    """Returns a bound as a number per column of the actions."""
    shape = actions.shape[1:]
    try:
        return np.broadcast_to(np.asarray(bound, np.float64), shape)
    except (TypeError, ValueError):
        raise CorerlError(
            f"Dataset {id}, field actions: {bound} is not a valid bound. Give one number, or "
            f"{' x '.join(map(str, shape))} in a list."
        ) from None
