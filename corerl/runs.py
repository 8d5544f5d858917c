"""The run directory: what is written, where, and so that a kill at any moment loses nothing.

`<root>/<task>/<algorithm>-<hash>/seeds-<first>[-<last>]/` is named by content: the hash is over every
setting that can change a number, so the same command finds the same directory, and more seeds of the
same settings stand beside each other.
"""

import errno
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

import corerl
from corerl.config import Config
from corerl.errors import CorerlError

FORMAT = 1
"""Raised by one whenever an older checkpoint could no longer be read."""

NOT_IN_HASH = (
    *("seeds", "root", "device", "compile", "processes", "save_every", "log_every", "wandb"),
    "table",
)
"""Settings that change where or how fast a run goes, not what it computes (beyond rounding), and the
name of the table, whose values are in the settings already."""


def settings(cfg: Config) -> dict[str, Any]:
    """The settings that name a cell, as plain types."""
    values = asdict(cfg)
    return {name: value for name, value in values.items() if name not in NOT_IN_HASH}


def config_hash(cfg: Config) -> str:
    """Eight hex digits that name the settings."""
    text = json.dumps(settings(cfg), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def cell_directory(cfg: Config) -> Path:
    """Where all seeds of these settings live."""
    return Path(cfg.root) / cfg.task / f"{cfg.algo.name}-{config_hash(cfg)}"


def group_name(seeds: Sequence[int]) -> str:
    """`seeds-3`, `seeds-0-9`, or every number where there are gaps."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) == 1:
        return f"seeds-{first}"
    if list(seeds) == list(range(first, last + 1)):
        return f"seeds-{first}-{last}"
    return "seeds-" + "_".join(map(str, seeds))


def seeds_of_group(name: str) -> list[int]:
    """The inverse of `group_name`."""
    numbers = name.removeprefix("seeds-")
    if "_" in numbers:
        return [int(n) for n in numbers.split("_")]
    first, _, last = numbers.partition("-")
    return list(range(int(first), int(last or first) + 1))


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` in one step, so that no reader and no kill ever sees half a file.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise _write_error(path, error) from error


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends whole lines in one write."""
    try:
        with open(path, "a") as file:
            file.write("".join(line + "\n" for line in lines))
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> CorerlError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CorerlError(
            f"The disk is full: {path} was not written; what was saved before is whole. Free some "
            "space and run the same command to resume."
        )
    return CorerlError(f"Cannot write {path}: {error.strerror}.")


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorerlError(
            f"{path} is not valid JSON ({error}); delete it to start over."
        ) from error


def truncate_after(path: Path, step: int, step_of: Any) -> None:
    """Drops the lines written after the checkpoint at `step`; they will be computed again.

    A last line that was cut short goes too, whatever number its rest may hold. `step_of(line)` gives a
    line's step, and None for one to keep regardless (a header).
    """
    if not path.exists():
        return
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    steps = [step_of(line) for line in whole]
    kept = [line for line, at in zip(whole, steps, strict=True) if at is None or at <= step]
    write_atomically(path, "".join(kept).encode())


def environment() -> dict[str, Any]:
    """Versions, hardware and source revision, for `env.json`."""
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
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


class Stateful:
    """`state_dict` and `load_state_dict` over every attribute that has them.

    An agent that derives from this cannot forget its target networks, its optimisers or its
    normaliser in a checkpoint.
    """

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if hasattr(v, "load_state_dict")}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes nested dicts, lists, numbers and tensors as one safetensors file."""
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(state, "", tensors)
    metadata = {
        "corerl": corerl.__version__,
        "format": str(FORMAT),
        "skeleton": json.dumps(skeleton),
    }
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, tensors on the CPU.

    Raises:
        CorerlError: the file is damaged, or another version of corerl wrote it.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        written = (metadata["corerl"], metadata["format"])
    except (safetensors.SafetensorError, KeyError) as error:
        raise CorerlError(
            f"{path} is damaged ({error}); delete {path.parent} to start this run over."
        ) from error
    if written != (corerl.__version__, str(FORMAT)):
        raise CorerlError(
            f"{path} was written by corerl {written[0]} (format {written[1]}) and this is "
            f"{corerl.__version__} (format {FORMAT}): finish it with that version, or delete "
            f"{path.parent} to start over."
        )
    return _decode(json.loads(metadata["skeleton"]), tensors)


def _encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, dict):
        return {"dict": [[k, _encode(v, f"{key}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(v, f"{key}/{i}", tensors) for i, v in enumerate(value)]
    return value


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(v, tensors) for v in value]
    if isinstance(value, dict) and "tensor" in value:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        return {k: _decode(v, tensors) for k, v in value["dict"]}
    return value
