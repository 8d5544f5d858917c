"""What a captured CUDA graph does, without a GPU: every operation of a call, played again on the same memory.

What a graph cannot do shows up here: Python state that changes between calls, values that the host
reads, random draws inside the update, tensors that are made on no device in particular.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

READ_BY_THE_HOST = {
    *("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal"),
    *("unique2", "_unique2", "_assert_async", "unique_dim", "unique_consecutive"),
}
FROM_PYTHON = {"lift_fresh", "lift_fresh_copy"}
MAKERS = {
    getattr(torch, name)
    for name in (
        *("zeros", "ones", "full", "empty", "arange", "linspace", "eye", "tensor", "as_tensor"),
        *("randn", "rand", "randint", "randperm", "normal", "scalar_tensor", "from_numpy"),
        *("tril_indices", "triu_indices", "empty_strided", "logspace"),
    )
}


class Deviceless(TorchFunctionMode):
    """Counts tensors made without a device: they are born on the CPU, wherever the agent is."""

    def __init__(self, hazards: Counter):
        super().__init__()
        self._hazards = hazards

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in MAKERS and (kwargs or {}).get("device") is None:
            self._hazards[f"no device: {func.__name__}"] += 1
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Keeps every operation with its operands and results, and counts what a graph cannot hold."""

    def __init__(self, hazards: Counter):
        super().__init__()
        self.calls: list[tuple] = []
        self._hazards = hazards

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.__name__.split(".")[0]
        if name in READ_BY_THE_HOST:
            self._hazards[f"read by the host: {name}"] += 1
        if name in FROM_PYTHON:
            self._hazards[f"made of Python numbers: {name}"] += 1
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._hazards[f"random: {name}"] += 1
        if not is_view(func):  # which still looks at its base
            written = [] if func._schema.is_mutable else pytree.tree_leaves(out)
            self.calls.append((func, args, kwargs, written))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, written in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(written, pytree.tree_leaves(again) if written else [], strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def is_view(func) -> bool:
    """Whether the operation only looks at its operand in another way: it launches nothing."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


class CpuGraph:
    """Stands in for `compile.CudaGraph`. `made` lists all since the last `made.clear()`."""

    made: list["CpuGraph"] = []  # noqa: RUF012

    def __init__(self, device: torch.device):
        self.hazards: Counter = Counter()
        self.recorder = Recorder(self.hazards)
        self.replays = 0
        CpuGraph.made.append(self)

    def rehearse(self, call: Callable[[], Any]) -> Any:
        return call()

    def record(self, call: Callable[[], Any]) -> Any:
        with Deviceless(self.hazards), self.recorder:
            return call()

    def replay(self) -> None:
        self.replays += 1
        if self.replays > 1:  # recording here has run it once, which a GPU's has not
            self.recorder.replay()
