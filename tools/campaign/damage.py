"""How damaged bytes are made of a file, and when what was read of two files is the same."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from corerl.data.dataset import Dataset
from corerl.preferences.comparisons import Comparisons


class Reader(NamedTuple):
    """One kind of file, and what reads it.

    Attributes:
        file: a small valid one. checked: its format has a checksum, so other bytes are never other data.
        share: of the campaign's inputs, where 1 is the usual: less for what takes long to read.
    """

    file: Path
    read: Callable[[], Any]
    checked: bool = False
    share: float = 1.0


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes with one to four changes: flipped, replaced, cut, doubled, removed or interesting."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        length = min(len(changed) - at, draw.choice((1, 1, 2, 4, 8, 64)))
        kind = draw.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at : at + length] = draw.randbytes(length)
        elif kind == 2:
            changed[at : at + length] = b""
        elif kind == 3:
            changed[at:at] = changed[at : at + length]
        elif kind == 4:
            changed = changed[:at] if draw.random() < 0.3 else changed
        elif kind == 5:
            changed[at : at + length] = draw.choice(WORDS)
        else:
            other = draw.randrange(len(changed) + 1)
            changed[at : at + length] = changed[other : other + length]
    return bytes(changed)


WORDS = (
    *(b"", b"\0", b"\xff" * 8, b"\x00" * 64, b"-1", b"9" * 20, b"nan", b"1e999", b"null", b"true"),
    *(
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"[" * 50,
        b'"',
        b"\n",
        b",",
        b"{",
        b"\xc3\x28",
        b"0",
    ),
    *(b"=", b"'", b"\\", b"${", b"-m", b"*a", b"&a ", b"!!python/name:os.system ", b"../", b": "),
)


def outcome(value: Any) -> Any:
    """A value that is equal where what was read is equal."""
    if isinstance(value, Dataset | Comparisons):
        return {name: outcome(part) for name, part in vars(value).items() if name != "id"}
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: outcome(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [outcome(part) for part in value]
    return repr(value)
