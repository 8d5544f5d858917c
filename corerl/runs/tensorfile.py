"""Named tensors as one safetensors file with a checksum of all its bytes."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from corerl.runs.files import write_pieces

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


def write(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], keep: Path | None = None
) -> str:
    """Writes tensors and texts as one file and returns its SHA-256, taken with zeros in the digest's place.

    Tensors are read while they are written: beside them no more than one seed's part of one of them is in
    memory. With `keep` the file that was at `path` is kept under that name.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    # The largest types first, so that each tensor begins at a multiple of its numbers' size.
    order = sorted(tensors, key=lambda key: -tensors[key].dtype.itemsize)
    header = _header({"checksum": NO_DIGEST} | metadata, {key: tensors[key] for key in order})
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

    write_pieces(path, hashed(), stamp=lambda: (start, sha.hexdigest().encode()), keep=keep)
    return sha.hexdigest()


def _header(metadata: dict[str, str], tensors: dict[str, Tensor]) -> bytes:
    """Returns the header of a safetensors file of these tensors, in this order."""
    entries: dict[str, object] = {"__metadata__": metadata}
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


def check(path: Path) -> str | None:
    """Reads the whole file and returns its checksum, or None where it has none.

    Raises:
        ValueError: the file is cut off, or its checksum is of other bytes.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        if len(length) < 8 or size > path.stat().st_size:
            raise ValueError("it is cut off")
        header = file.read(size)
        found = CHECKSUM.search(header)
        if found is None:
            return None
        blank = header[: found.start(1)] + NO_DIGEST.encode() + header[found.end(1) :]
        sha = hashlib.sha256(length + blank)
        while chunk := file.read(1 << 22):
            sha.update(chunk)
    if sha.hexdigest().encode() != found[1]:
        raise ValueError("its checksum does not match its bytes")
    return sha.hexdigest()
