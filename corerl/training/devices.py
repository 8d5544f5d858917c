"""The device that a run computes on: its choice and its numerics."""

import torch

from corerl.errors import CorerlError


def pick_device(name: str) -> torch.device:
    """Returns the device that `device=` names. `auto` takes a GPU where there is one.

    Raises:
        CorerlError: a GPU is asked for and torch sees none, or the name is not a device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise CorerlError(f"device={name} must be auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CorerlError(
            f"device={name} needs a GPU, but torch {torch.__version__} sees none. Use device=cpu, or "
            "install a CUDA build of torch and check nvidia-smi."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CorerlError(
            f"device={name} does not exist: torch sees {torch.cuda.device_count()} GPU(s), and the "
            "first is cuda:0."
        )
    return device


def select(device: torch.device) -> None:
    """Makes a GPU the one on which streams and graphs are made."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
