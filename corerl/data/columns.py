"""Arrays of recorded steps, a field each, in the shapes and dtypes that a Dataset holds."""

from collections.abc import Mapping

import numpy as np

from corerl.data.reading import unit_actions
from corerl.errors import CorerlError


def flags(x: np.ndarray, field: str) -> np.ndarray:
    """Returns (N,) bool from flags (N,) or (N, 1) of any dtype that holds nothing but 0 and 1.

    Raises:
        CorerlError: something else, which `astype(bool)` would take for True; the row is named.
    """
    x = column(x)
    if x.dtype == bool:
        return x
    _refuse_kind(x, field)
    bad = (x != 0) & (x != 1)
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise CorerlError(f"field {field}: row {row} holds {x[row]} where a flag is 0 or 1.")
    return x.astype(bool)


def floats(x: np.ndarray, field: str) -> np.ndarray:
    """Returns float32 numbers, infinite where that cannot hold them; bytes stay bytes.

    Raises:
        CorerlError: complex numbers, texts or objects.
    """
    x = np.asarray(x)
    _refuse_kind(x, field)
    with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
        return x if x.dtype == np.uint8 else np.asarray(x, np.float32)


def side_by_side(id: str, given: Mapping, names: list[str], steps: int) -> np.ndarray:
    """Lays the named parts of a dictionary side by side, `(steps, widths in sum)`.

    Raises:
        CorerlError: a part is missing, or has another number of rows.
    """
    for name in names:
        if name not in given or len(np.atleast_1d(given[name])) != steps:
            raise CorerlError(
                f"Dataset {id}, observations: part {name} needs {steps} rows, as rewards have, also in "
                "next_observations."
            )
    return np.concatenate([np.asarray(given[name]).reshape(steps, -1) for name in names], 1)


def _refuse_kind(x: np.ndarray, field: str) -> None:
    """Refuses complex numbers, which would lose a part, and texts, which would become numbers."""
    if x.dtype.kind not in "biuf":
        raise CorerlError(f"field {field}: it holds {x.dtype} and no real numbers.")


def column(x: np.ndarray) -> np.ndarray:
    """Returns (N,) where there is one column, (N, 1); everything else as it is."""
    x = np.asarray(x)
    return x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x


def name_column(bad: np.ndarray) -> str:
    """Names the column of the first bad entry; empty where a row is one number."""
    at = [int(i) for i in np.argwhere(bad)[0]]
    return f", column {at[0] if len(at) == 1 else tuple(at)}," if at else ""


def scaled(id: str, actions: np.ndarray, low, high) -> np.ndarray:
    """Scales actions of the box [low, high] to [-1, 1]; numbered ones, (N,) integers, as they are.

    Raises:
        CorerlError: an action beyond the box; it names row and column.
    """
    numbered = actions.dtype.kind in "iu" and actions.size == len(actions) and low is None
    if numbered:
        return actions.reshape(-1)
    actions = np.asarray(actions, np.float32)
    actions = actions[:, None] if actions.ndim == 1 else actions
    known = low is not None
    low, high = np.asarray(-1 if low is None else low), np.asarray(1 if high is None else high)
    beyond = (actions < low - 1e-4 * (high - low)) | (actions > high + 1e-4 * (high - low))
    if beyond.any():
        row, column = np.argwhere(beyond)[0]
        bounds = f"[{np.broadcast_to(low, actions[0].shape)[column]:g}, "
        bounds += f"{np.broadcast_to(high, actions[0].shape)[column]:g}]"
        raise CorerlError(
            f"Dataset {id}, field actions: row {row} holds {actions[row, column]:g} in column {column}, "
            f"outside {bounds} ({int(beyond.any(1).sum())} such rows)"
            + (
                "."
                if known
                else "; say what is lowest and highest: env=gym/ID, or data.action_low=... "
                "data.action_high=..., in Python low=..., high=..."
            )
        )
    return unit_actions(actions, low, high)


def scaled_density(log_prob: np.ndarray, low, high, count: int) -> np.ndarray:
    """Returns log-densities (N,) of `count` actions in [low, high] as those of the same in [-1, 1].

    The density of x' = 2 (x - low) / (high - low) - 1 is that of x times (high - low) / 2, per dimension.
    """
    half = (np.asarray(1 if high is None else high) - np.asarray(-1 if low is None else low)) / 2
    given = floats(column(log_prob), "behaviour_log_prob")
    return (given + np.log(np.broadcast_to(half, count)).sum()).astype(np.float32)
