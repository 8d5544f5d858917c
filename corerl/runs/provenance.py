"""The provenance of a run: versions, hardware and source revision."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

import corerl
from corerl.runs.checkpoint import FORMAT


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, hardware and source revision, for `env.json`. `gpu` where the `device` is one."""
    import gymnasium

    try:
        mujoco = metadata.version("mujoco")  # its import starts a process
    except metadata.PackageNotFoundError:
        mujoco = None
    return {
        "corerl": corerl.__version__,
        "format": FORMAT,
        "git": _git_revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "mujoco": mujoco,
        "machine": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": _kernel(),
        "gpu": _gpu(torch.device(device)),
    }


def _gpu(device: torch.device) -> str | None:
    used = device.type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name(device) if used else None


def _kernel() -> str:
    """Names the library that multiplies float32 matrices on the CPU (see corerl/launch/matmul_library.py)."""
    if not torch.backends.mkl.is_available():
        return "torch's"
    return "onednn" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "mkl"


def _git_revision() -> str | None:
    # Any repository around an installed package would answer: only one that holds this file may.
    held = _git("ls-files", "--error-unmatch", Path(__file__).name)
    return None if held is None else _git("describe", "--always", "--dirty")


def _git(*arguments: str) -> str | None:
    """Returns what git says in this folder, or None where it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError:  # an image for a GPU often has no git
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def cpu_name() -> str:
    """Returns the processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
