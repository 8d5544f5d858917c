"""Arrays of numbers out of pickles. No object is made by the file: its opcodes are read, never run.

Python's unpickler, even one that admits only numpy's names, lets a file set attributes of what it makes: a
dtype that was given flags by hand turns bytes into pointers. Here the opcodes that pickled arrays consist of
move plain values and three inert records on a stack, and the array is made at the end, from bytes whose
number fits its shape and its dtype.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corerl.data.files.io import reading
from corerl.errors import CorerlError

LARGEST = (
    1 << 26
)  # bytes in a file, and numbers in nested lists; published labels have some thousands


def read_integers(path: Path) -> np.ndarray:
    """Reads the one array of integers, or plain list of them, in the pickle, as int64.

    Raises:
        CorerlError: the file asks for anything but arrays, holds other values, or is cut off.
    """
    array = read_array(path)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise CorerlError(
            f"{path} holds {array.dtype} of shape {array.shape}, but must hold integers of shape (n,)."
        )
    return array.astype(np.int64)


def read_array(path: Path) -> np.ndarray:
    """Reads the one array of numbers, or plain list of them, in the pickle. Raises as `read_integers`."""
    with reading(path, "a pickle of one array"):
        size = path.stat().st_size
        if size > LARGEST:
            raise CorerlError(
                f"it has {size:,} bytes, but a file of labels has at most {LARGEST:,}. Download it again."
            )
        return _numbers(_Stack().read(path.read_bytes()))


class _Global(NamedTuple):
    """A name that the file asks for. Never the thing itself."""

    name: str


@dataclass
class _Dtype:
    """A plain numeric dtype: kind and item size, as `i8`, and a byte order."""

    code: str
    order: str = "="


@dataclass
class _Array:
    """An array that is being read. `values` is None until its state has been read."""

    values: np.ndarray | None = None


class _Stack:
    """A stack machine for the opcodes that arrays need (pickletools documents each)."""

    def __init__(self):
        self.values: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """Runs the opcodes of `content` and returns the top of the stack at the end."""
        for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
            if opcode.name == "STOP":
                return self.values.pop()
            if opcode.name in LITERALS:
                self.values.append(argument)
            else:
                self._do(opcode.name, argument)
        raise EOFError("it is cut off")

    def _do(self, name: str, argument: Any) -> None:
        values = self.values
        match name:
            case "PROTO" | "FRAME":
                pass
            case "NONE":
                values.append(None)
            case "NEWTRUE" | "NEWFALSE":
                values.append(name == "NEWTRUE")
            case "GET" | "BINGET" | "LONG_BINGET":
                values.append(self.memo[int(argument)])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[int(argument)] = values[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = values[-1]
            case "MARK":
                self.marks.append(len(values))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                values.append(tuple(self._take(SIZES[name])))
            case "TUPLE":
                values.append(tuple(self._since_mark()))
            case "EMPTY_LIST":
                values.append([])
            case "LIST":
                values.append(self._since_mark())
            case "APPEND" | "APPENDS":
                items = self._take(1) if name == "APPEND" else self._since_mark()
                _only(type(values[-1]) is list, "it appends to an object that is not a list")
                values[-1].extend(items)
            case "GLOBAL":
                values.append(_asked(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                values.append(_asked(*self._take(2)))
            case "REDUCE":
                values.append(_call(*self._take(2)))
            case "BUILD":
                (state,) = self._take(1)
                _set(values[-1], state)
            case _:
                _only(False, f"it has the opcode {name}, which no array needs")

    def _take(self, count: int) -> list[Any]:
        """Removes and returns the topmost values."""
        _only(0 <= count <= len(self.values), "it uses a value that it has not stored")
        at = len(self.values) - count
        taken, self.values[at:] = self.values[at:], []
        return taken

    def _since_mark(self) -> list[Any]:
        return self._take(len(self.values) - self.marks.pop())


LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _only(holds: bool, problem: str) -> None:
    if not holds:
        raise CorerlError(f"{problem}. corerl ran no code of this pickle. Download the file again.")


def _asked(module: Any, name: Any) -> _Global:
    known = re.sub(r"^numpy\._?core\.", "", str(module)) + f" {name}"
    allowed = known in ADMITTED and str(module).partition(".")[0] in ("numpy", "_codecs")
    _only(allowed, f"it imports {module}.{name}, which no array needs")
    return _Global(known)


def _call(called: Any, arguments: Any) -> Any:
    made = ADMITTED[called.name] if type(called) is _Global else None
    _only(made is not None and type(arguments) is tuple, "it calls a function that no array needs")
    return made(*arguments)


def _set(made: Any, state: Any) -> None:
    """Sets the state of an array, or of a dtype: then nothing but a byte order."""
    _only(type(state) is tuple, "it sets the state of an object without state")
    if type(made) is _Array:
        _, shape, dtype, fortran, content = state
        made.values = _made(content, dtype, shape, "F" if fortran else "C")
        return
    _only(type(made) is _Dtype, "it sets the state of an object without state")
    order = _text(state[1])
    plain = state[2:] == (None, None, None, -1, -1, 0) and order in ("<", ">", "|", "=")
    _only(plain, "its dtype is not that of plain numbers")
    made.order = order


def _text(value: Any) -> Any:
    return value.decode("ascii") if isinstance(value, bytes) else value


def _made(content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """Returns an array with memory of its own, where bytes, dtype and shape agree."""
    content = content.encode("latin1") if isinstance(content, str) else content  # Python 2's bytes
    dims = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    bytes_given = isinstance(content, bytes | bytearray) and type(dtype) is _Dtype
    _only(dims and bytes_given, "its array does not consist of bytes, a dtype and a shape")
    kind = np.dtype(dtype.order + dtype.code)
    agree = len(content) == math.prod(shape) * kind.itemsize and order in ("C", "F")
    _only(agree, f"its array has {len(content)} bytes, which do not fit shape {shape} of {kind}")
    return np.frombuffer(content, kind).reshape(shape, order=order).copy()


def _dtype(code: Any, *_: Any) -> _Dtype:
    code = _text(code)
    numeric = isinstance(code, str) and re.fullmatch(r"[iu][1248]|f[248]", code)
    _only(bool(numeric), f"its array holds {code}, not numbers")
    return _Dtype(code)


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes, as Python 3 writes them by protocol 2 and below."""
    _only(isinstance(text, str) and encoding == "latin1", "it encodes an object that is not bytes")
    return text.encode("latin1")


ADMITTED: dict[str, Callable[..., Any] | None] = {
    "numpy ndarray": None,
    "numpy dtype": _dtype,
    "multiarray _reconstruct": lambda *_: _Array(),
    "multiarray scalar": lambda dtype, content: _made(content, dtype, (1,), "C")[0].item(),
    "numeric _frombuffer": lambda *parts: _Array(_made(*parts)),
    "_codecs encode": _encode,
}
"""Names in pickled arrays, and their stand-ins here; numpy 2 renamed numpy.core to numpy._core."""


def _numbers(found: Any) -> np.ndarray:
    """Returns an array, or a list of numbers or of equally long rows of them."""
    if type(found) is _Array:
        _only(found.values is not None, "its array has no contents")
        return found.values
    _only(type(found) is list, f"it holds a {type(found).__name__.strip('_')}, not an array")
    rows = [x.values if type(x) is _Array else x for x in found]
    widths = {len(x) if isinstance(x, list | tuple | np.ndarray) else None for x in rows}
    _only(len(widths) <= 1, "its list holds rows of different lengths")
    width = widths.pop() if widths else None
    _only(
        len(rows) * (width or 1) <= LARGEST,
        "its lists hold more numbers than a file of labels can have",
    )
    flat = rows if width is None else [y for x in rows for y in x]
    numeric = all(type(y) in (int, float) or isinstance(y, np.number) for y in flat)
    array = np.asarray(flat) if numeric else np.empty(0, object)
    _only(array.dtype.kind in "iuf", "its list has entries that are not numbers")
    return array.reshape(len(rows), *(() if width is None else (width,)))
