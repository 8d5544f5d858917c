"""Nested state as one safetensors file, and classes whose state is that of their parts."""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

import corerl
from corerl.errors import CorerlError
from corerl.runs.files import write_atomically

FORMAT = 1
"""Raised by one whenever an older checkpoint could no longer be read."""


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
