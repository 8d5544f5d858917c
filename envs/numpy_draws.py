"""A state of its own for each environment that draws from numpy's global generator."""

import numpy as np


class NumpyDraws:
    """The state of numpy's global generator inside `with` blocks. Behind each block the old state returns."""

    def __init__(self):
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """Sets the state from 32 bits of the seed. None sets a random state."""
        bits = None if seed is None else seed % 2**32
        self._state = np.random.RandomState(bits).get_state()

    def __enter__(self) -> None:
        self._others = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._state)  # noqa: NPY002

    def __exit__(self, *_) -> None:
        self._state = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._others)  # noqa: NPY002
