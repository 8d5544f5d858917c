"""Copies between the host and the device in one transfer each way."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16
"""Bytes at whose multiples a part begins, so that it can be looked at as numbers of any type."""


class Outbox:
    """Arrays on the host that reach the device together: fill what `open` gives, then `send`.

    For a GPU their memory is pinned, so that the host goes on while they travel.

    Args:
        parts: name -> shape and type.
        device: where they go; on a CPU nothing travels, and what `send` returns is the host's memory.
    """

    def __init__(
        self, parts: dict[str, tuple[Sequence[int], torch.dtype]], device: torch.device | str
    ):
        self._parts, self._device = parts, torch.device(device)
        self._starts, total = {}, 0
        for name, (shape, dtype) in parts.items():
            self._starts[name] = total
            total += -(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        pinned = self._device.type == "cuda"
        self._host = torch.empty(total, dtype=torch.uint8, pin_memory=pinned)
        self._arrays = {name: view.numpy() for name, view in self._views(self._host).items()}
        self._sent = torch.cuda.Event() if pinned else None

    def open(self) -> dict[str, np.ndarray]:
        """Returns the arrays to fill, once the last transfer has read them."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._arrays

    def send(self) -> dict[str, Tensor]:
        """Returns the arrays on the device. On a CPU they are good until the next `open`."""
        sent = self._host.to(self._device, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device))
        return self._views(sent)

    def _views(self, memory: Tensor) -> dict[str, Tensor]:
        views = {}
        for name, (shape, dtype) in self._parts.items():
            start = self._starts[name]
            numbers = memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype)
            views[name] = numbers.view(tuple(shape))
        return views


class Inbox:
    """A tensor of the device that reaches the host in one transfer, through pinned memory."""

    def __init__(self) -> None:
        self._host: Tensor | None = None

    def receive(self, sent: Tensor) -> Tensor:
        """Waits for `sent` and returns it on the host. On a CPU nothing travels."""
        if sent.device.type == "cpu":
            return sent
        if self._host is None or (self._host.shape, self._host.dtype) != (sent.shape, sent.dtype):
            pinned = sent.device.type == "cuda"
            self._host = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=pinned)
        self._host.copy_(sent, non_blocking=True)
        if sent.device.type == "cuda":
            torch.cuda.current_stream(sent.device).synchronize()
        return self._host.clone()  # the next one is written over it
