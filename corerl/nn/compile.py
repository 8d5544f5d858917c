"""How an update runs: eager, compiled, or as one captured CUDA graph. The numbers are the same.

`gradients` is the one place where an algorithm meets the compiler: forward and backward of a loss as
one graph. (A compiled forward with an ordinary `.backward()` stores relu masks as bool, which is slower
on a CPU than not compiling at all.) `captured` records a whole update, optimisers included, so that
the host launches one graph instead of about a hundred kernels.
"""

import shutil
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corerl.errors import CorerlError

MODES = ("auto", "off", "compile", "graph")
COMPILE_PAYS_FROM = 6_000
"""Updates from which compiling earns back its 5 to 20 seconds (measured on two CPU cores)."""

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""`loss(*inputs) -> (loss per seed (S,), metrics {name: (S,)})`."""


def resolve(mode: str, device: torch.device, steps: int) -> str:
    """`off`, `compile` or `graph` for a job of `steps` updates.

    Raises:
        CorerlError: an unknown mode, or `graph` without a GPU.
    """
    if mode not in MODES:
        raise CorerlError(f"compile={mode} is not one of {', '.join(MODES)}.")
    if mode == "graph" and device.type != "cuda":
        raise CorerlError("compile=graph records CUDA graphs and needs a GPU; use compile=compile.")
    if mode != "auto":
        return mode
    if device.type == "cuda":
        return "graph"
    return "compile" if steps >= COMPILE_PAYS_FROM and _has_compiler() else "off"


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def gradients(loss: Loss, parameters: Sequence[nn.Parameter], mode: str) -> Callable:
    """`f(*inputs) -> (gradients of the summed loss, metrics)`, compiled unless `mode` is `off`.

    Summing the per-seed losses leaves the seeds independent: no term of one seed holds a parameter of
    another.
    """

    def compute(*inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        per_seed, metrics = loss(*inputs)
        grads = torch.autograd.grad(per_seed.sum(), parameters, materialize_grads=True)
        return grads, {name: value.detach() for name, value in metrics.items()}

    if mode == "off":
        return compute
    # Off, torch splits the graph at autograd.grad without a word and runs slower than eager.
    torch._dynamo.config.trace_autograd_ops = True
    # One process may build the same class many times (a seed each); every one is a fresh graph.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return _Fallback(torch.compile(compute, fullgraph=True, dynamic=False), compute)


class _Fallback:
    """Calls the compiled function; where compiling fails, goes on eager and says so, once a process."""

    said = False

    def __init__(self, compiled: Callable, eager: Callable):
        self._function, self._eager = compiled, eager
        self._proven = False

    def __call__(self, *inputs):
        if self._proven:
            return self._function(*inputs)
        try:
            result = self._function(*inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not _Fallback.said:
                reason = str(error).strip().splitlines()[0]
                print(
                    f"corerl: compiling failed, running eager instead ({reason})", file=sys.stderr
                )
            _Fallback.said = True
            self._function = self._eager
            result = self._function(*inputs)
        self._proven = True
        return result


def captured(update: Callable, mode: str) -> Callable:
    """`update` itself, or with mode `graph` its replay as one CUDA graph."""
    return _Captured(update) if mode == "graph" else update


class _Captured:
    """Runs the first calls as they are (they compile and allocate), then records and replays.

    The recorded call reads its inputs from fixed tensors, into which each call copies its own; the
    returned tensors are overwritten by the next call.
    """

    WARM_UP = 3

    def __init__(self, update: Callable):
        self._update = update
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs):
        self._calls += 1
        if self._calls <= self.WARM_UP:
            return self._warm(inputs)
        if self._calls == self.WARM_UP + 1:
            self._record(inputs)
        if self._graph is None:
            return self._update(*inputs)
        torch._foreach_copy_(self._inputs, _tensors(inputs))
        self._graph.replay()
        return self._outputs

    def _warm(self, inputs):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self._update(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _record(self, inputs) -> None:
        fixed = pytree.tree_map_only(Tensor, Tensor.clone, inputs)
        self._inputs = _tensors(fixed)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._outputs = self._update(*fixed)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            print(f"corerl: CUDA graph capture failed, running without ({reason})", file=sys.stderr)
            return
        self._graph = graph


def _tensors(inputs) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
