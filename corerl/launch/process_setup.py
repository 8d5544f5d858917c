"""Sets up every process that trains: threads, precision, output."""

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import torch

from corerl.config import Config
from corerl.launch import matmul_library
from corerl.training.devices import pick_device

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


@contextmanager
def numerics(cfg: Config, threads: int | None = None) -> Iterator[None]:
    """Applies numeric settings to this process for a while. `threads` leaves torch's own choice where None.

    What a caller had set returns: `corerl.train` runs in the process of a notebook or of other tests.

    Raises:
        CorerlError: `kernel` cannot be had on this CPU.
    """
    cudnn, products = torch.backends.cudnn, torch.backends.mkldnn.matmul
    flushed, precision = _flushes_denormals(), torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, products.fp32_precision, torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            # Torch's advice on a GPU, in words of its own; here it is precision=high.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            _set_up(cfg, threads)
            yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32, products.fp32_precision = before[:2]
        torch.set_num_threads(before[2])


def _set_up(cfg: Config, threads: int | None) -> None:
    # Adam's second moments pass through denormals, which cost a CPU a few percent and mean nothing.
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision(cfg.precision)
    torch.backends.cudnn.allow_tf32 = cfg.precision != "highest"  # torch's own default is True
    if cfg.precision == "highest" and pick_device(cfg.device).type == "cpu":
        matmul_library.use(matmul_library.choose(cfg.kernel))
    if threads is not None:
        torch.set_num_threads(threads)
    if sys.platform == "linux":
        _keep_freed_memory()


def _flushes_denormals() -> bool:
    """Tells whether this thread rounds denormals to zero, which torch can set and not tell."""
    return float(torch.tensor(torch.finfo(torch.float32).tiny).div(2)) == 0


@contextmanager
def lasting_output() -> Iterator[None]:
    """Drops output that a closed pipe, a full disk or a terminal that is gone cannot take.

    What is trained is worth more than what is said of it: `corerl train ... | head` trains to its end.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Lasting, streams)
    try:
        yield
    finally:
        for lasting in (sys.stdout, sys.stderr):
            lasting.flush()
        sys.stdout, sys.stderr = streams


class _Lasting:
    """A text stream, except for the errors of writing to it."""

    def __init__(self, stream: TextIO | None):
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  None: closed before we began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: it was closed
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        """Points the file descriptor at nothing, for whatever else would write to it."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _keep_freed_memory() -> None:
    """Lets malloc reuse large buffers instead of returning them to the system after every update.

    Activations of tens of MB are otherwise mapped and zeroed anew each time, about a seventh of an
    update of CQL.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
