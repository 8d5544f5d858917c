"""Detects agent state that no checkpoint saves."""

import sys
import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor, nn

from corerl.nn.learner import Stateful

NUMBERS = (int, float, np.generic, np.ndarray, deque)
"""What is taken for a setting, which no update changes."""
LIBRARIES = {
    *sys.stdlib_module_names,
    "corerl",
    "gymnasium",
    "mujoco",
    "numpy",
    "omegaconf",
    "torch",
}
"""Whose objects are none of an algorithm's own."""
TORCHS = set(vars(nn.Module()))
"""What every network has for torch's own use."""
MOST = 1000
"""Items of a list, or attributes of an object, that are looked at."""
NAMED = 12
"""Names in one message."""


class Watch:
    """Names, once, what has changed in a run's parts and is not one of the tensors that are kept."""

    def __init__(self, parts: dict[str, Any]):
        self._parts, self._before = parts, _marks_of(parts)
        self._reported: set[str] = set()

    def tell(self, run: str, kept: Iterable[Tensor]) -> None:
        """Prints what a run that is resumed would not find."""
        names = _lost(self._before, _marks_of(self._parts), kept)
        names = [name for name in names if name not in self._reported]
        self._reported |= set(names)
        more = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
        if names:
            print(
                f"corerl: {run}: checkpoints do not save {', '.join(names[:NAMED])}{more}, which "
                "changed in training. A resumed run loses such a value, a CUDA graph keeps its first "
                "value, and compiled code recompiles for every value. Store it as a tensor of the "
                "agent, torch.zeros((), device=spec.device), with a name that does not begin with _. "
                "A buffer of an nn.Module or an optim.Clock also works.",
                file=sys.stderr,
            )


def _marks_of(parts: dict[str, Any]) -> dict[str, Any]:
    """Returns, by name, a mark of each number and tensor that agents, or what they hold, have now.

    A class that has a `state_dict` of its own is left out, and so are objects of libraries.
    """
    return {key: mark for name, part in parts.items() for key, mark in _marks(name, part, set())}


def _lost(before: dict[str, Any], now: dict[str, Any], kept: Iterable[Tensor]) -> list[str]:
    """Returns the names of what differs in two of `_marks_of`, except for the tensors `kept`."""
    memory = {_place(tensor) for tensor in kept}
    names: list[str] = []
    for name in before | now:
        if name in before and name in now:
            mark = now[name]
            if before[name] == mark or (isinstance(mark, _Written) and mark.place in memory):
                continue
        if not any(name.startswith(f"{outer}.") for outer in names):
            names.append(name)
    return names


def _marks(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield name, _Written(value)
    elif isinstance(value, NUMBERS):
        yield name, _mark(value)
    elif id(value) not in seen:
        seen.add(id(value))
        container = isinstance(value, list | tuple | dict | set)
        if container:
            yield name, len(value)
        for key, part in islice(_held(value), MOST):
            if part is not None:
                yield from _marks(f"{name}.{key}", part, seen)
            elif not container:  # a tensor that is made later is loaded where an attribute is None
                yield f"{name}.{key}", None


def _held(value: Any) -> Iterable[tuple[Any, Any]]:
    """Returns, by name, what a container, an agent, a network or an object of an algorithm's own holds."""
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, nn.Module):
        own = {key: part for key, part in vars(value).items() if key not in TORCHS}
        parts = own | value._parameters | value._buffers | value._modules
        return () if _keeps_more(value, nn.Module) else parts.items()
    if isinstance(value, Stateful):
        return () if _keeps_more(value, Stateful) else vars(value).items()
    home = type(value).__module__.split(".")
    others = home[0] in LIBRARIES and home[:2] != ["corerl", "algos"]
    opaque = others or hasattr(value, "state_dict") or not hasattr(value, "__dict__")
    return () if opaque else vars(value).items()


def _keeps_more(value: Any, base: type) -> bool:
    """Tells whether a class has a state of its own, beyond that of `base`."""
    names = [name for name in ("state_dict", "get_extra_state") if hasattr(base, name)]
    return any(getattr(type(value), name) is not getattr(base, name) for name in names)


class _Written:
    """A mark of a tensor: equal to a later one of the same tensor, if nothing was written to it since."""

    def __init__(self, tensor: Tensor):
        self._tensor = weakref.ref(tensor)
        self._writes = 0 if tensor.is_inference() else tensor._version

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Written) and self._tensor() is other._tensor()
        return same and self._writes == other._writes

    @property
    def place(self) -> int:
        """Where the tensor's numbers lie."""
        return _place(self._tensor())


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _mark(value: Any) -> Any:
    """Returns what differs where the value does, however large it is."""
    if isinstance(value, deque):
        return [id(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.shape, zlib.crc32(value.tobytes())
    return repr(value)
