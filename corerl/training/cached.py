"""What is computed from a dataset once, and kept on the disk under the checksum of what it depends on."""

import hashlib
import warnings
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from corerl.data import download
from corerl.data.files.io import replacing
from corerl.errors import CorerlError


def cached(compute: Callable[[], np.ndarray], kind: str, *arrays: np.ndarray) -> np.ndarray:
    """Returns what `compute` makes of the arrays, kept on the disk under their checksum.

    Of several processes that need it, one computes.
    """
    checksum = hashlib.sha256(kind.encode())
    for array in arrays:
        checksum.update(repr((array.shape, array.dtype)).encode())
        checksum.update(np.ascontiguousarray(array))
    folder = download.data_dir("expert_rewards")
    path = folder / f"{checksum.hexdigest()}.npy"
    with download.alone(folder / ".lock"):
        with suppress(OSError, ValueError, EOFError):
            return np.load(path, allow_pickle=False)
        made = compute()
        try:
            with replacing(path) as part:
                np.save(part, made)
        except CorerlError as error:
            warnings.warn(
                f"{error} Until this is fixed, every run computes the contents of this file again.",
                stacklevel=2,
            )
    return made
