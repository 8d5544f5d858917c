"""Nested state as one safetensors file with a checksum, beside the parts of a replay that it names."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

import corerl
from corerl.errors import CorerlError, first_line
from corerl.runs import tensorfile
from corerl.runs.replay_files import ReplayFiles, Ring

FORMAT = 3
"""2 added the checksum, and what vouches for the logs; 3 a replay in parts."""
READABLE = ("1", "2", str(FORMAT))
PLAIN = (str, int, float, type(None))
"""What stands in a file as it is."""
DAMAGE = (
    *(safetensors.SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError),
    RecursionError,
)
"""Errors raised by reading bytes that are no checkpoint."""


def save_checkpoint(path: Path, state: dict[str, Any], replay: ReplayFiles | None = None) -> None:
    """Writes nested dicts, lists, numbers, tensors and arrays as one file (see `tensorfile.write`).

    The checkpoint that was at `path` is kept as `previous(path)`. With `replay` the new steps of a
    replay (each `Ring`) are written as a part beside it, and not into it; else they are part of it.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(state, "", tensors)
    rings = {key: x for key, x in tensors.items() if isinstance(x, Ring) and x.added}
    if replay is not None and rings:
        replay.extend(rings)
        tensors = {key: x for key, x in tensors.items() if key not in rings}
    metadata = {
        "corerl": corerl.__version__,
        "format": str(FORMAT),
        "skeleton": json.dumps(skeleton),
    }
    metadata |= replay.metadata() if replay is not None else {}
    tensorfile.write(path, tensors, metadata, keep=previous(path))
    if replay is not None:
        replay.prune()


def path_in(directory: Path) -> Path:
    """Returns the path of the checkpoint of a group of seeds."""
    return directory / "checkpoint.safetensors"


def previous(path: Path) -> Path:
    """Returns the path of the checkpoint before the one at `path`."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def exists(path: Path) -> bool:
    """Tells whether there is a checkpoint at `path`, or the one before it."""
    return path.exists() or previous(path).exists()


def replay_files_of(path: Path) -> ReplayFiles:
    """Returns the replay whose parts lie beside the checkpoint at `path`."""
    return ReplayFiles(path.with_name("replay"))


def load_latest(path: Path, replay: ReplayFiles | None = None) -> dict[str, Any]:
    """Loads the checkpoint at `path`. Where that is damaged or missing, the one before it takes its place.

    `replay` goes on with the parts that the loaded one names.

    Raises:
        CorerlError: neither can be read.
    """
    before = previous(path)
    if path.exists() or not before.exists():
        try:
            return load_checkpoint(path, replay)
        except Damaged as error:
            if not before.exists():
                raise
            reported = f"{error.problem}, so the run resumes from the previous checkpoint"
            print(f"corerl: {reported}, {before.name}", file=sys.stderr)
    state = load_checkpoint(before, replay)
    os.replace(before, path)
    return state


def saved_step(path: Path) -> int:
    """Returns the step from which a run resumes, by the header of its checkpoint. 0 without one."""
    for at in (path, previous(path)):
        with suppress(*DAMAGE), safetensors.safe_open(at, framework="pt") as file:
            state = dict(json.loads(file.metadata()["skeleton"])["dict"])
            return dict(state["loop"]["dict"])["step"]
    return 0


class Damaged(CorerlError):
    """A checkpoint is not what was written."""

    def __init__(self, path: Path, reason: Exception):
        self.problem = f"{path} is damaged ({first_line(reason)})"
        super().__init__(f"{self.problem}. To start over, delete {path.parent}.")


def load_checkpoint(path: Path, replay: ReplayFiles | None = None) -> dict[str, Any]:
    """Reads what `save_checkpoint` wrote, tensors on the CPU. `replay` as for `load_latest`.

    Raises:
        Damaged: the file is not what was written.
        CorerlError: another version of corerl wrote it.
    """
    try:
        checked = tensorfile.check(path)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        written = (metadata["corerl"], metadata["format"])
        if not checked and written[1] != "1":  # the format before there was one
            raise ValueError("it has no checksum")
        replay = replay_files_of(path) if replay is None else replay
        replay.adopt(metadata)
        state = _decode(json.loads(metadata["skeleton"]), tensors | replay.read())
    except DAMAGE as error:
        raise Damaged(path, error) from error
    if written[0] != corerl.__version__ or written[1] not in READABLE:
        raise CorerlError(
            f"{path} was written by corerl {written[0]} (format {written[1]}), but this is "
            f"corerl {corerl.__version__} (format {FORMAT}). Finish the run with that version, or delete "
            f"{path.parent} to start over."
        )
    return state


def tensors_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """Returns by name the tensors and arrays of a nested state, as `save_checkpoint` would write them.

    Raises:
        CorerlError: something in it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    _encode(state, "", tensors)
    return tensors


def _encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict) and all(isinstance(k, PLAIN) for k in value):
        return {"dict": [[k, _encode(v, f"{key}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(v, f"{key}/{i}", tensors) for i, v in enumerate(value)]
    if isinstance(value, PLAIN):
        return value
    array = isinstance(value, np.ndarray | np.generic)
    tensor = _tensor(value) if array else value
    if not isinstance(tensor, Tensor) or tensor.dtype not in tensorfile.TYPES:
        raise CorerlError(
            f"A checkpoint cannot store {key.lstrip('/')}, {_described(value)}. A state_dict may "
            "hold tensors, arrays of numbers, numbers, texts, None, and lists and dictionaries of "
            "these."
        )
    tensors[key] = tensor if isinstance(tensor, Ring) else tensor.detach()
    return {"array" if array else "tensor": key}


def _tensor(array: np.ndarray | np.generic) -> Tensor | None:
    """Returns a copy, for numpy's memory may have gaps, or None where torch has no such numbers."""
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError):
        return None


def _described(value: Any) -> str:
    kind = f"a {type(value).__name__}"
    return f"{kind} of {value.dtype}" if hasattr(value, "dtype") else kind


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(v, tensors) for v in value]
    if isinstance(value, dict) and "tensor" in value:
        return tensors[value["tensor"]]
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]].numpy()[()]  # of one number no array, but the number
    if isinstance(value, dict):
        return {k: _decode(v, tensors) for k, v in value["dict"]}
    return value
