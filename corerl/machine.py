"""What every process that trains sets up first."""

import torch


def set_up(threads: int | None = None) -> None:
    """Numeric settings of this process; `threads` leaves torch's own choice where None."""
    # Adam's second moments pass through denormals, which cost a CPU a few percent and mean nothing.
    torch.set_flush_denormal(True)
    if threads is not None:
        torch.set_num_threads(threads)
