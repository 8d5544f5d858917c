"""What every process that trains sets up first."""

import ctypes
import sys

import torch

from corerl.config import Config
from corerl.experiments import kernel
from corerl.training.run import pick_device

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def set_up(cfg: Config, threads: int | None = None) -> None:
    """Numeric settings of this process; `threads` leaves torch's own choice where None.

    Raises:
        CorerlError: `kernel` cannot be had on this CPU.
    """
    # Adam's second moments pass through denormals, which cost a CPU a few percent and mean nothing.
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision(cfg.precision)
    torch.backends.cudnn.allow_tf32 = cfg.precision != "highest"  # torch's own default is True
    if cfg.precision == "highest" and pick_device(cfg.device).type == "cpu":
        kernel.use(kernel.choose(cfg.kernel))
    if threads is not None:
        torch.set_num_threads(threads)
    if sys.platform == "linux":
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Lets malloc reuse large buffers instead of returning them to the system after every update.

    Activations of tens of MB are otherwise mapped and zeroed anew each time, about a seventh of an
    update of CQL.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
