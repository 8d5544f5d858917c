"""Nested state as one safetensors file with a checksum."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

import corerl
from corerl.errors import CorerlError
from corerl.runs.files import write_pieces

FORMAT = 2
"""2 added the checksum, and what vouches for the logs."""
READABLE = ("1", str(FORMAT))
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of types in safetensors' header."""
NO_DIGEST = "0" * 64
CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{64})"')
DAMAGE = (
    *(safetensors.SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError),
    RecursionError,
)
"""Errors raised by reading bytes that are no checkpoint."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes nested dicts, lists, numbers and tensors as one safetensors file.

    Its metadata holds the SHA-256 of the whole file, taken with zeros in the place of the digest. The
    checkpoint that was at `path` is kept as `previous(path)`. Tensors are read while they are written:
    beside the state itself no more than one seed's part of one tensor is in memory.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(state, "", tensors)
    metadata = {
        "checksum": NO_DIGEST,
        "corerl": corerl.__version__,
        "format": str(FORMAT),
        "skeleton": json.dumps(skeleton),
    }
    # The largest types first, so that each tensor begins at a multiple of its numbers' size.
    order = sorted(tensors, key=lambda key: -tensors[key].dtype.itemsize)
    header = _header(metadata, {key: tensors[key] for key in order})
    start = header.index(f'"checksum":"{NO_DIGEST}"'.encode()) + len('"checksum":"')
    sha = hashlib.sha256()

    def pieces() -> Iterator[bytes | memoryview]:
        yield header
        for key in order:
            yield from _bytes_of(tensors[key])

    def hashed() -> Iterator[bytes | memoryview]:
        for piece in pieces():
            sha.update(piece)
            yield piece

    write_pieces(
        path,
        hashed(),
        stamp=lambda: (start, sha.hexdigest().encode()),
        keep=previous(path),
    )


def _header(metadata: dict[str, str], tensors: dict[str, Tensor]) -> bytes:
    """Returns the header of a safetensors file of these tensors, in this order."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for key, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype, shape = TYPES[tensor.dtype], list(tensor.shape)
        entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yields its bytes in order, seed by seed where they are not contiguous or not on the CPU."""
    contiguous = tensor.is_contiguous() and tensor.device.type == "cpu"
    for part in [tensor] if contiguous or tensor.ndim < 2 else tensor:
        if part.numel():
            # One number counts as contiguous whatever its stride, and keeps it in a view.
            flat = part.cpu().contiguous().as_strided((part.numel(),), (1,))
            yield memoryview(flat.view(torch.uint8).numpy())


def previous(path: Path) -> Path:
    """Returns the path of the checkpoint before the one at `path`."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def exists(path: Path) -> bool:
    """Tells whether there is a checkpoint at `path`, or the one before it."""
    return path.exists() or previous(path).exists()


def load_latest(path: Path) -> dict[str, Any]:
    """Loads the checkpoint at `path`; where that is damaged or missing, the one before it takes its place.

    Raises:
        CorerlError: neither can be read.
    """
    before = previous(path)
    if path.exists() or not before.exists():
        try:
            return load_checkpoint(path)
        except Damaged as error:
            if not before.exists():
                raise
            told = f"{error.problem}: going on from the one before it"
            print(f"corerl: {told}, {before.name}", file=sys.stderr)
    state = load_checkpoint(before)
    os.replace(before, path)
    return state


class Damaged(CorerlError):
    """A checkpoint is not what was written."""

    def __init__(self, path: Path, reason: Exception):
        first = next(iter(str(reason).splitlines()), type(reason).__name__)
        self.problem = f"{path} is damaged ({first})"
        super().__init__(f"{self.problem}; delete {path.parent} to start this run over.")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads what `save_checkpoint` wrote, tensors on the CPU.

    Raises:
        Damaged: the file is not what was written.
        CorerlError: another version of corerl wrote it.
    """
    try:
        checked = _check(path)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        written = (metadata["corerl"], metadata["format"])
        if not checked and written[1] != "1":  # the format before there was one
            raise ValueError("it has no checksum")
        state = _decode(json.loads(metadata["skeleton"]), tensors)
    except DAMAGE as error:
        raise Damaged(path, error) from error
    if written[0] != corerl.__version__ or written[1] not in READABLE:
        raise CorerlError(
            f"{path} was written by corerl {written[0]} (format {written[1]}) and this is "
            f"{corerl.__version__} (format {FORMAT}): finish it with that version, or delete "
            f"{path.parent} to start over."
        )
    return state


def _check(path: Path) -> bool:
    """Checks the file; returns whether it has a checksum, and raises ValueError where that does not match."""
    with open(path, "rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        if len(length) < 8 or size > path.stat().st_size:
            raise ValueError("it is cut off")
        header = file.read(size)
        found = CHECKSUM.search(header)
        if found is None:
            return False
        blank = header[: found.start(1)] + NO_DIGEST.encode() + header[found.end(1) :]
        sha = hashlib.sha256(length + blank)
        while chunk := file.read(1 << 22):
            sha.update(chunk)
    if sha.hexdigest().encode() != found[1]:
        raise ValueError("its checksum is of other bytes")
    return True


def _encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[key] = value.detach()
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
