"""Random streams: one generator per seed and purpose, so that a seed is an identity.

Seed 3 in a batch of ten and seed 3 alone draw the same numbers, because no generator is ever shared
between seeds, and adding a draw for one purpose never shifts the draws of another.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corerl.config import require

BLOCK = 256
"""Most steps drawn in one call, which keeps the host out of the inner loop."""
BLOCK_BYTES = 16 * 2**20
"""Most bytes of one seed's block, of which there are two while the next one is drawn."""


class OtherDevice(Exception):
    """A stream was saved on another kind of device, whose generators draw other numbers."""


def derive(seed: int, purpose: str) -> int:
    """Returns a 63-bit integer that is fixed by `(seed, purpose)` and unrelated for any other pair."""
    digest = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns the generator of one seed and purpose, at its beginning."""
    return torch.Generator(device).manual_seed(derive(seed, purpose))


def generators(
    seeds: Sequence[int], purpose: str, device: torch.device | str = "cpu"
) -> list[torch.Generator]:
    """Returns one generator per seed. Initial weights always come from the CPU, equal on every device."""
    return [generator(seed, purpose, device) for seed in seeds]


class Stream:
    """Draws of shape `(S, *shape)`, one per step, made a block of steps at a time.

    Args:
        seeds: the S seeds.
        purpose: names the stream; equal names give equal numbers.
        draw: `draw(generator, block) -> Tensor (block, *shape)` on the generator's device.
        device: where the numbers are drawn and stay.
        block: steps drawn in one call; None is `BLOCK`, or fewer where those are more than `BLOCK_BYTES`.
        step_bytes: of one seed's draw of one step.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        purpose: str,
        draw: Callable[[torch.Generator, int], Tensor],
        device: torch.device | str = "cpu",
        block: int | None = None,
        step_bytes: int = 1,
    ):
        self._generators = generators(seeds, purpose, device)
        self._draw = draw
        self._given = block or BLOCK
        self._size = block or max(1, min(BLOCK, BLOCK_BYTES // max(1, step_bytes)))
        self._position = self._size
        self._block_start: list[Tensor] = []
        self._block: Tensor | None = None

    def next(self) -> Tensor:
        """Returns the draw of the next step, `(S, *shape)`."""
        if self._position == self._size:
            self._fill()
        assert self._block is not None
        self._position += 1
        return self._block[self._position - 1]

    def _fill(self) -> None:
        self._block_start = [g.get_state() for g in self._generators]
        first = self._draw(self._generators[0], self._size)
        block = first.new_empty(self._size, len(self._generators), *first.shape[1:])
        block[:, 0] = first
        for i, g in enumerate(self._generators[1:], start=1):
            block[:, i] = self._draw(g, self._size)
        self._block, self._position = block, 0

    def state_dict(self) -> dict:
        """Returns the state from which `load_state_dict` continues with the very next draw."""
        inside = self._position < self._size
        starts = self._block_start if inside else [g.get_state() for g in self._generators]
        return {
            "generators": torch.stack(starts),
            "position": self._position,
            "block": self._size,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continues from what `state_dict` returned.

        Raises:
            OtherDevice: that was on another kind of device.
        """
        if state["generators"].shape[1:] != self._generators[0].get_state().shape:
            raise OtherDevice
        for g, start in zip(self._generators, state["generators"], strict=True):
            g.set_state(start.cpu().clone())  # torch crashes on a view into a larger tensor
        self._size = state.get("block", self._given)  # of another size the numbers would be others
        if state["position"] < self._size:
            self._fill()
        self._position = state["position"]


def normal(
    seeds: Sequence[int],
    purpose: str,
    shape: tuple[int, ...],
    device: torch.device | str = "cpu",
    block: int | None = None,
) -> Stream:
    """Returns a stream of standard normal draws `(S, *shape)`."""

    def draw(g: torch.Generator, block: int) -> Tensor:
        return torch.randn((block, *shape), generator=g, device=device)

    return Stream(seeds, purpose, draw, device, block, 4 * math.prod(shape))


def uniform(
    seeds: Sequence[int],
    purpose: str,
    shape: tuple[int, ...],
    device: torch.device | str = "cpu",
    block: int | None = None,
) -> Stream:
    """Returns a stream of draws `(S, *shape)` uniform on [0, 1)."""

    def draw(g: torch.Generator, block: int) -> Tensor:
        return torch.rand((block, *shape), generator=g, device=device)

    return Stream(seeds, purpose, draw, device, block, 4 * math.prod(shape))


def indices(
    seeds: Sequence[int],
    size: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    purpose: str = "batch",
    probabilities: np.ndarray | None = None,
) -> Stream:
    """Returns a stream of row numbers `(S, batch_size)`, int64, on [0, size), with replacement.

    They are uniform, or have `probabilities` `(size,)`: one uniform draw per row number, looked up in their
    sums, which stay on the device. Float64, because float32 draws cannot tell a million rows apart.

    Raises:
        CorerlError: `probabilities` have another shape, or are not non-negative with a positive sum.
    """
    if probabilities is not None:
        _check(probabilities, size)
        sums = np.cumsum(probabilities, dtype=np.float64)
        sums = torch.from_numpy(sums / sums[-1]).to(device)
        last = int(np.flatnonzero(probabilities)[-1])  # the sums may end a hair below one

        def weighted(g: torch.Generator, block: int) -> Tensor:
            shape = (block, batch_size)
            uniform = torch.rand(shape, generator=g, device=device, dtype=torch.float64)
            return torch.searchsorted(sums, uniform, right=True).clamp_(max=last)

        return Stream(seeds, purpose, weighted, device, step_bytes=8 * batch_size)

    def draw(g: torch.Generator, block: int) -> Tensor:
        return torch.randint(size, (block, batch_size), generator=g, device=device)

    return Stream(seeds, purpose, draw, device, step_bytes=8 * batch_size)


def numbers(
    seeds: Sequence[int], purpose: str, batch_size: int, device: torch.device | str = "cpu"
) -> Stream:
    """Returns a stream of whole numbers `(S, batch_size)` for row numbers where rows are still counted.

    They are far wider than any size, so that the remainder of the division by it is uniform on [0, size).
    """

    def draw(g: torch.Generator, block: int) -> Tensor:
        return torch.randint(2**62, (block, batch_size), generator=g, device=device)

    return Stream(seeds, purpose, draw, device)


def _check(probabilities: np.ndarray, size: int) -> None:
    require(
        np.shape(probabilities) == (size,),
        f"The probabilities have shape {np.shape(probabilities)}, but must have shape ({size},), with one "
        "for each row",
    )
    bad = ~((np.asarray(probabilities) >= 0) & np.isfinite(probabilities))
    require(
        not bad.any(),
        f"The probability of row {bad.argmax()} is {probabilities[bad.argmax()]}. Probabilities must be "
        "finite and not negative",
    )
    require(np.any(probabilities), "All probabilities are 0. At least one must be above 0")
