"""Arrays of recorded steps, a field each, in the shapes and dtypes that a Dataset holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.data.file_reading import such
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
    bad = (x != 0) & (x != 1)
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise RowError(field, row, None, f"holds {x[row]}, but a flag must be 0 or 1")
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
    bad = ~((x >= 1) & (x == np.floor(x)) & (x < 2**31))
    if bad.any():
        row = int(np.argmax(bad.reshape(len(x), -1).any(1)))
        raise RowError(
            "durations",
            row,
            None,
            f"holds {x[row]}, but a duration must be a whole number of 1 or more",
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
        raise CorerlError(
            f"Dataset {id}, observations: the dictionary is empty. Give it at least one array."
        )
    for name in names:
        if isinstance(inner := given.get(name), Mapping):
            reported = ", ".join(f"{name}/{key}" for key in inner)
            raise CorerlError(
                f"Dataset {id}, observations: part {name} is itself a dictionary. Give its parts in its "
                f"place, as {reported}."
            )
        if name not in given or (shape(id, name, given[name]) or (1,))[0] != steps:
            raise CorerlError(
                f"Dataset {id}, observations: part {name} must have {steps} rows, as many as rewards, "
                "in observations and in next_observations."
            )
    parts = [array(given[name], f"observations, part {name}") for name in names]
    return np.concatenate([part.reshape(steps, -1) for part in parts], 1)


def refuse_kind(x: np.ndarray, field: str) -> None:
    """Refuses complex numbers, which would lose a part, and texts, which would become numbers."""
    if x.dtype.kind not in "biuf":
        raise CorerlError(
            f"field {field}: its dtype is {x.dtype}, but its values must be real numbers."
        )


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
        problem = f"has no episode number or name{such(unnamed)}"
        raise RowError("episode", int(np.argmax(unnamed)), None, problem)
    return np.append((names[1:] != names[:-1]).any(1), True)
