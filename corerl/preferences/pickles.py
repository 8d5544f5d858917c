"""Arrays out of pickles, and nothing else: a pickle may name any function to be called on reading it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from corerl.data.reading import reading
from corerl.errors import CorerlError


def read_integers(path: Path) -> np.ndarray:
    """The one array of integers, or plain list of them, in the pickle; as int64.

    Raises:
        CorerlError: the file asks for anything but arrays, holds other values, or is cut off.
    """
    array = read_array(path)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise CorerlError(f"{path} holds {array.dtype} of shape {array.shape}, not integers (n,).")
    return array.astype(np.int64)


def read_array(path: Path) -> np.ndarray:
    """The one array of numbers, or plain list of them, in the pickle. Raises as `read_integers`."""
    with reading(path, "a pickle of one array"), open(path, "rb") as file:
        found = _Arrays(file).load()
        if not isinstance(found, np.ndarray | list):
            raise CorerlError(f"it holds a {type(found).__name__} and no array.")
        array = np.asarray(found)
        if array.dtype.kind not in "iuf":
            raise CorerlError(f"its array holds {array.dtype} and no numbers.")
        return array


def _frombuffer(buffer: bytes, dtype: np.dtype, shape: tuple, order: str) -> np.ndarray:
    """What numpy's function of this name does in pickles of protocol 5."""
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


ADMITTED = {
    "numpy ndarray": np.ndarray,
    "numpy dtype": np.dtype,
    "multiarray _reconstruct": np._core.multiarray._reconstruct,
    "multiarray scalar": np._core.multiarray.scalar,
    "numeric _frombuffer": _frombuffer,
}
"""What pickled arrays need; numpy 2 renamed numpy.core to numpy._core."""


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        key = f"{module.removeprefix('numpy._core.').removeprefix('numpy.core.')} {name}"
        if key not in ADMITTED or module.partition(".")[0] != "numpy":
            raise CorerlError(f"it asks for {module}.{name}, and arrays do not: nothing was run.")
        return ADMITTED[key]
