"""The code that torch's compiler writes for an H100, without one: how many kernels a function is there.

A function is traced on the CPU's tensors. Then they are said to be on a GPU, and torch writes its code, which
is counted and never run. Triton must be there, since the compiler asks it for its version.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor, fx

from corerl.nn import fused_linear

GPU = torch.device("cuda", 0)
LAUNCH = re.compile(
    r"^\s+(?:buf\d+ = )?(?:triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.M
)
CARD = {
    "multi_processor_count": 132,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "warp_size": 32,
}


class _Stop(Exception):
    """The code is written; it need not run."""


def launches(function: Callable, *inputs) -> int:
    """Counts the kernels and library calls of `function(*inputs)`, compiled for a GPU."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    counts = []

    def stop(*_):
        raise _Stop

    def count(graph: fx.GraphModule, examples: list) -> Callable:
        counts.append(len(LAUNCH.findall(_code(graph, examples))))
        return make_boxed_func(stop)

    torch._dynamo.config.trace_autograd_ops = True
    backend = aot_autograd(fw_compiler=count, decompositions=select_decomp_table())
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        patch.object(fused_linear, "suits", lambda x: x.dtype == torch.float32),
        suppress(_Stop),
    ):
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return sum(counts)


def _code(graph: fx.GraphModule, examples: list) -> str:
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = torch._guards.detect_fake_mode(examples)
    compile_fx.view_to_reshape(graph)
    with V.set_fake_mode(mode):  # these passes compute on the CPU
        compile_fx._recursive_post_grad_passes(graph, is_inference=True)
    inputs = [_on_gpu(x, mode) if isinstance(x, Tensor) else x for x in examples]
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = node.kwargs | {"device": GPU}
    with _card(), V.set_fake_mode(mode):
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
        lowering = GraphLowering(
            graph, example_inputs=inputs, is_inference=True, shape_env=mode.shape_env
        )
        with DebugContext(), V.set_graph_handler(lowering):
            lowering.run(*inputs)
            code = lowering.codegen()[0]
    return getattr(code, "value", code)


def _on_gpu(x: Tensor, mode) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensor

    with torch.no_grad():
        meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return FakeTensor(mode, meta, GPU)


@contextmanager
def _card() -> Iterator[None]:
    """A block in which torch and Triton believe that there is an H100."""
    from torch._inductor import scheduler
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    known = DeviceProperties(type="cuda", index=0, cc=90, max_threads_per_block=1024, **CARD)
    card = SimpleNamespace(minor=0, total_memory=80 * 2**30, name="H100", gcnArchName="", **CARD)
    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: GPU,
    )
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_lazy_init": lambda: None,
        "get_device_properties": lambda *_: card,
        "get_device_capability": lambda *_: (9, 0),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(DeviceProperties, "create", lambda _: known))
        stack.enter_context(patch.object(scheduler, "has_triton", lambda *_: True))
        stack.enter_context(patch.object(_triton, "triton_hash_with_backend", lambda: "none"))
        stack.enter_context(patch.object(driver, "_active", target))
        yield
