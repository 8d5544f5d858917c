"""Actions of a user's box, scaled to [-1, 1] as every policy acts."""

from typing import Any

import numpy as np

from corerl.config import require
from corerl.data.files.arrays import array, column, floats, refuse_kind
from corerl.data.files.io import first_column, such
from corerl.errors import CorerlError, RowError

AS_NUMBERED = "If the actions are discrete, store them with an integer dtype (1, not 1.0)"


def scaled_steps(id: str, steps: dict[str, Any], low, high) -> dict[str, Any]:
    """Scales the actions of steps, and their densities, from the box [low, high] to [-1, 1].

    Raises:
        CorerlError: one bound is given, or an action does not fit, as of `scaled`.
    """
    both = (low is None) == (high is None)
    require(both, f"Dataset {id}, field actions: give both low and high, or neither")
    actions = scaled(id, array(steps["actions"], "actions"), low, high)
    density = steps["behaviour_log_prob"]
    if density is not None and actions.ndim == 2:
        density = scaled_density(density, low, high, actions.shape[1])
    return steps | {"actions": actions, "behaviour_log_prob": density}


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
    refuse_kind(actions, "actions")
    actions = np.asarray(actions, np.float32)
    actions = actions[:, None] if actions.ndim == 1 else actions
    known = low is not None
    low = _bound(id, -1 if low is None else low, actions)
    high = _bound(id, 1 if high is None else high, actions)
    if not (low < high).all():
        fixed = np.flatnonzero(~(low < high))[0]
        raise CorerlError(
            f"Dataset {id}, field actions: column {fixed} has low={low.flat[fixed]:g} and "
            f"high={high.flat[fixed]:g}, but low must be below high. Leave out a column that never changes."
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
            f"Dataset {id}, field actions: every row holds {actions[0].size} booleans, but corerl supports "
            "one discrete action per row. Store each combination as one whole number. Or treat the booleans "
            "as continuous with data.action_low=0 data.action_high=1 (in Python: low=0, high=1)."
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
            f"a list of {' x '.join(map(str, shape))} numbers."
        ) from None


def unit_actions(actions: np.ndarray, low, high) -> np.ndarray:
    """Returns float32 actions (N, A) of a box [low, high] in [-1, 1], as every corerl policy acts.

    Actions beyond the box are clipped, as the simulators do. Raises CorerlError where the box is
    unbounded, because then no scale is right, and where an action is no finite number, because
    clipping would make it one.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise CorerlError(
            "the action space has no finite bounds, so corerl cannot scale actions to [-1, 1]. Give its Box "
            "finite low and high."
        )
    if np.asarray(actions).dtype.kind not in "biuf":
        raise CorerlError(
            f"actions have dtype {np.asarray(actions).dtype}, but must be real numbers."
        )
    with np.errstate(over="ignore"):
        actions = np.asarray(actions, np.float32)
    for row, *_ in np.argwhere(~np.isfinite(actions))[:1]:
        bad = ~np.isfinite(actions[row])
        problem = f"holds {actions[row][bad].flat[0]}. Repair or drop this row"
        raise RowError("actions", int(row), first_column(bad), problem)
    if (low != -1).any() or (high != 1).any():
        actions = 2 * (actions - low) / (high - low) - 1
    if actions.size and (actions.min() < -1 or actions.max() > 1):
        actions = np.clip(actions, -1, 1)
    return actions
