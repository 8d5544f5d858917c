"""Running an update eager, compiled, or as one captured CUDA graph. The numbers are the same.

`gradients` is the one place where an algorithm meets the compiler: forward and backward of a loss as
one graph. (A compiled forward with an ordinary `.backward()` stores relu masks as bool, which is slower
on a CPU than not compiling at all.) `captured` records a whole update, optimisers included, so that
the host launches one graph instead of about a hundred kernels.

A batch is gathered outside the graph, which costs a launch for the gather and one for the copy of each
field. Row numbers and noise alone would be copied either way, and a replay draws its rows by its size,
which grows: inside, every buffer's size would have to be a tensor. The host makes these launches while
the GPU is still busy with the graph before.

Compiled code lies on the disk (torch's own cache), so that of a sweep's processes the later ones load
what the first has made.
"""

import gc
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corerl.errors import CorerlError, first_line

MODES = ("auto", "off", "compile", "graph")
COMPILE_PAYS_FROM = 6_000
"""Updates from which compiling earns back its 5 to 20 seconds (measured on two CPU cores)."""
MOST_GRAPHS = 4096
"""Losses that a process may compile. A sweep on a GPU trains cell after cell in one."""
COMPILING = (
    "compiling the update: up to 30 s, or a few seconds if this machine has compiled it before"
)

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""`loss(*inputs) -> (loss per seed (S,), metrics {name: (S,)})`."""


class Mode:
    """How a job's updates are to run, and how they ran.

    Attributes:
        plan: `off`, `compile` or `graph`.
        demanded: asked for by name, so that a graph that cannot be had is an error.
        ran: how updates run in fact, in the words of the plan or as "graph of eager operations".
        problem: why that is not the plan, or "".
        tell: called with what is waited for, and with "" when it is over.
    """

    def __init__(self, plan: str, demanded: bool = False):
        self.plan, self.demanded = plan, demanded
        self.ran, self.problem = plan, ""
        self.tell: Callable[[str], None] = lambda text: None

    @classmethod
    def of(cls, mode: "str | Mode") -> "Mode":
        """Returns `mode` itself, or the mode of a plan."""
        return mode if isinstance(mode, Mode) else cls(mode)

    def reported(self) -> str:
        """Says how updates run, and why that is not as planned."""
        return f"{self.ran} ({self.problem})" if self.problem else self.ran

    def fall_back(self, ran: str, problem: str) -> None:
        """Remembers that updates run as `ran` instead."""
        self.ran, self.problem = ran, problem


def resolve(mode: str, device: torch.device, steps: int) -> Mode:
    """Returns `off`, `compile` or `graph` for a job of `steps` updates.

    Raises:
        CorerlError: an unknown mode, or `graph` without a GPU.
    """
    if mode not in MODES:
        raise CorerlError(f"compile={mode} is not one of {', '.join(MODES)}.")
    if mode == "graph" and device.type != "cuda":
        raise CorerlError(
            "compile=graph records CUDA graphs, which need a GPU. Use compile=compile."
        )
    automatic = mode == "auto"
    return Mode(_automatic(device, steps) if automatic else mode, demanded=not automatic)


def _automatic(device: torch.device, steps: int) -> str:
    if device.type == "cuda":
        return "graph"
    return "compile" if steps >= COMPILE_PAYS_FROM and _has_compiler() else "off"


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def gradients(loss: Loss, parameters: Sequence[nn.Parameter], mode: str | Mode) -> Callable:
    """Returns `f(*inputs) -> (gradients of the summed loss, metrics)`, compiled unless `mode` is `off`.

    Summing the per-seed losses leaves the seeds independent: no term of one seed holds a parameter of
    another.

    Raises:
        CorerlError: at the first call, the loss is no number per seed, or several seeds share a parameter.
    """

    def compute(*inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        per_seed, metrics = loss(*inputs)
        if per_seed.ndim != 1:
            raise CorerlError(
                f"A loss has shape {tuple(per_seed.shape)}, but must be (S,): one number for each "
                "of S seeds. A mean or sum over all axes mixes seeds. Name the axes, as in "
                "mean(-1)."
            )
        S = len(per_seed)
        for shape in (tuple(p.shape) for p in parameters):
            if S > 1 and shape[:1] != (S,):
                raise CorerlError(
                    f"{S} seeds that train together would share a parameter of shape {shape}. "
                    "The first axis must be the seeds, as in corerl.nn.networks.Linear. For modules "
                    "without this axis, such as nn.Linear, train every seed in its own process: "
                    f"processes={S}."
                )
        grads = torch.autograd.grad(per_seed.sum(), parameters, materialize_grads=True)
        return grads, {name: value.detach() for name, value in metrics.items()}

    mode = Mode.of(mode)
    return compute if mode.plan == "off" else _compiled(compute, mode)


def fused_on_a_gpu(step: Callable, device: torch.device, mode: str | Mode) -> Callable:
    """Returns `step(gradients)`, which moves parameters of `device`, compiled into few kernels on a GPU.

    Torch's own fused Adam works on pieces of 65,536 numbers there, too few to fill the card. On a CPU it is
    the fastest code there is, and stays.
    """
    mode = Mode.of(mode)
    return step if mode.plan == "off" or device.type != "cuda" else _compiled(step, mode)


def _compiled(function: Callable, mode: Mode) -> Callable:
    dynamo = torch._dynamo.config
    # Off, torch splits the graph at autograd.grad without a word and runs slower than eager.
    dynamo.trace_autograd_ops = True
    # Every loss of every size counts as another version of `compute`.
    dynamo.recompile_limit = max(MOST_GRAPHS, dynamo.recompile_limit)
    dynamo.accumulated_recompile_limit = max(MOST_GRAPHS, dynamo.accumulated_recompile_limit)
    return _Fallback(torch.compile(function, fullgraph=True, dynamic=False), function, mode)


class _Fallback:
    """Calls the compiled function. Where compiling fails, runs eagerly and warns once a process.

    On a GPU not every failure is torch's own exception: Triton calls a C compiler when it first launches.
    So what the eager function can do and the compiled one cannot is the compiler's fault.
    """

    said = False

    def __init__(self, compiled: Callable, eager: Callable, mode: Mode):
        self._function, self._eager, self._mode = compiled, eager, mode
        self._proven = False

    def __call__(self, *inputs):
        if self._proven:
            return self._function(*inputs)
        self._mode.tell(COMPILING)
        try:
            result = self._function(*inputs)
        except Exception as error:
            result = self._eager(*inputs)  # raises what is the loss's own error
            reason = first_line(error)
            if not _Fallback.said:
                print(
                    f"corerl: compiling failed, so the update runs in eager mode ({reason})",
                    file=sys.stderr,
                )
            _Fallback.said = True
            ran = "graph of eager operations" if self._mode.plan == "graph" else "off"
            self._mode.fall_back(ran, f"compiling failed: {reason}")
            self._function = self._eager
        self._proven = True
        self._mode.tell("")
        return result


def captured(update: Callable, mode: str | Mode) -> Callable:
    """Returns `update` itself, or with mode `graph` its replay as one CUDA graph."""
    mode = Mode.of(mode)
    return _Captured(update, mode) if mode.plan == "graph" else update


class CudaGraph:
    """One call, recorded on a stream of its own and played again. `device`: the GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graph = torch.cuda.CUDAGraph()

    def rehearse(self, call: Callable[[], Any]) -> Any:
        """Runs `call` on the stream on which it will be recorded and returns its outputs."""
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            outputs = call()
        before.wait_stream(self._stream)
        return outputs

    def record(self, call: Callable[[], Any]) -> Any:
        """Returns the tensors that every `replay` will overwrite. `call` is recorded, not run."""
        before = torch.cuda.current_stream(self._device)
        try:
            with _no_collection(), torch.cuda.graph(self._graph, stream=self._stream):
                return call()
        finally:
            torch.cuda.set_stream(before)  # torch leaves its own one set where recording fails

    def replay(self) -> None:
        """Runs what was recorded, on the current stream."""
        self._graph.replay()


@contextmanager
def _no_collection() -> Iterator[None]:
    """A block without garbage collection, which comes before it.

    An old graph, or a compiled kernel, that is collected while another graph is recorded ends the recording.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Captured:
    """Runs the first calls as they are (they compile and allocate), then records and replays.

    From the first call on, `update` reads tensors of this object, into which each call copies its
    inputs: compiled code is made for their strides, and compiling anew while a graph is recorded is
    forbidden. The returned tensors are overwritten by the next call.
    """

    WARM_UP = 3
    Graph = CudaGraph

    def __init__(self, update: Callable, mode: Mode):
        self._update, self._mode = update, mode
        self._calls, self._recorded = 0, False

    def __call__(self, *inputs):
        self._calls += 1
        if self._calls == 1:
            self._begin(inputs)
        else:
            self._copy(inputs)
        if self._calls <= self.WARM_UP:
            return self._graph.rehearse(self._run)
        if self._calls == self.WARM_UP + 1:
            self._record()
        if not self._recorded:
            return self._run()
        self._graph.replay()
        return self._outputs

    def _run(self) -> Any:
        return self._update(*self._inputs)

    def _begin(self, inputs) -> None:
        dense = torch.contiguous_format
        self._inputs = pytree.tree_map_only(Tensor, lambda x: x.clone(memory_format=dense), inputs)
        self._signature = _signature(inputs)
        self._fixed = _tensors(self._inputs)
        device = self._fixed[0].device if self._fixed else torch.device("cuda")
        self._graph = self.Graph(device)

    def _copy(self, inputs) -> None:
        if _signature(inputs) != self._signature:
            raise ValueError(
                f"the update was recorded with inputs {self._signature}, but now gets {_signature(inputs)}"
            )
        torch._foreach_copy_(self._fixed, _tensors(inputs))

    def _record(self) -> None:
        try:
            self._outputs = self._graph.record(self._run)
        except RuntimeError as error:
            reason = first_line(_first(error))
            if self._mode.demanded:
                raise CorerlError(
                    f"compile=graph could not record the update ({reason}). Use compile=auto, which then "
                    "continues without a graph."
                ) from error
            print(
                f"corerl: CUDA graph capture failed, so the run continues without a graph ({reason})",
                file=sys.stderr,
            )
            ran = "off" if self._mode.problem else "compile"
            self._mode.fall_back(ran, f"CUDA graph capture failed: {reason}")
            self._mode.tell("")
            return
        self._recorded = True


def _first(error: BaseException) -> BaseException:
    """Returns the first error of a chain: the end of a failed capture raises again, and says less."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _tensors(inputs) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _signature(inputs) -> list:
    """Lists what a recording fixes: shape and type of each tensor, and every input that is no tensor."""
    leaves = pytree.tree_leaves(inputs)
    return [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
