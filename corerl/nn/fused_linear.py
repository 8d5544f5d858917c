"""The batched linear layer: one Triton kernel with bias and ReLU on a GPU, where that is the faster code.

Layer, gradient of its input and gradient of its parameters are an operation each, which torch's compiler
leaves alone. Each runs as torch's matrix multiplication or as `triton_matmul`, whichever is faster for a
shape. That is measured at the first call on a machine and kept on its disk, so that a resumed run
computes the same numbers.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.nn import fastest

TRITON = find_spec("triton") is not None


def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """Returns `x @ weight + bias`, `(copies, B, in)` to `(copies, B, out)`, and with `relu` its ReLU."""
    return (_layer if suits(x) else plain)(x, weight, bias, relu)


def suits(x: Tensor) -> bool:
    """Tells whether Triton may compute with `x`.

    In compiled code alone: outside of it the host would take longer for the operation than the GPU.
    """
    return TRITON and x.is_cuda and x.dtype == torch.float32 and torch.compiler.is_compiling()


# With torch's matrix multiplication. Of a gradient, `out` is what the layer returned.


def plain(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Computes the layer."""
    # Not baddbmm: it first copies the bias to the whole output, which a compiler cannot fuse away.
    out = torch.bmm(x, weight) + bias
    return F.relu(out) if relu else out


def plain_of_input(grad: Tensor, out: Tensor, weight: Tensor, relu: bool) -> Tensor:
    """Computes the gradient of the layer's input."""
    return torch.bmm(_passed(grad, out, relu), weight.mT)


def plain_of_parameters(grad: Tensor, out: Tensor, x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """Computes the gradients of weight and bias."""
    grad = _passed(grad, out, relu)
    return torch.bmm(x.mT, grad), grad.sum(1, keepdim=True)


def _passed(grad: Tensor, out: Tensor, relu: bool) -> Tensor:
    return torch.where(out > 0, grad, 0.0) if relu else grad


# With one kernel each, in tiles of the size `block`.


def fused(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, *, block) -> Tensor:
    """Computes the layer."""
    from corerl.nn.triton_matmul import multiply

    return multiply(x, weight, block, bias=bias, relu=relu)[0]


def fused_of_input(grad: Tensor, out: Tensor, weight: Tensor, relu: bool, *, block) -> Tensor:
    """Computes the gradient of the layer's input."""
    from corerl.nn.triton_matmul import LEFT, NO, multiply

    return multiply(grad, weight.mT, block, active=out, masked=LEFT if relu else NO)[0]


def fused_of_parameters(
    grad: Tensor, out: Tensor, x: Tensor, relu: bool, *, block
) -> tuple[Tensor, Tensor]:
    """Computes the gradients of weight and bias."""
    from corerl.nn.triton_matmul import NO, RIGHT, multiply

    return multiply(x.mT, grad, block, active=out, masked=RIGHT if relu else NO, sums=True)


# The operations, their shapes, and their gradients.


def _run(torchs: Callable, tritons: Callable, relu: bool, *tensors: Tensor):
    if not tensors[0].is_cuda:
        return torchs(*tensors, relu)
    tensors = tuple(x.contiguous() for x in tensors)
    return fastest.of(torchs, tritons, relu, *tensors)(*tensors, relu)


@torch.library.custom_op("corerl::linear", mutates_args=())
def _layer(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return _run(plain, fused, relu, x, weight, bias)


@torch.library.custom_op("corerl::linear_of_input", mutates_args=())
def _of_input(grad: Tensor, out: Tensor, weight: Tensor, relu: bool) -> Tensor:
    return _run(plain_of_input, fused_of_input, relu, grad, out, weight)


@torch.library.custom_op("corerl::linear_of_parameters", mutates_args=())
def _of_parameters(grad: Tensor, out: Tensor, x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return _run(plain_of_parameters, fused_of_parameters, relu, grad, out, x)


@_layer.register_fake
def _(x, weight, bias, relu):
    return x.new_empty(*x.shape[:2], weight.shape[2])


@_of_input.register_fake
def _(grad, out, weight, relu):
    return grad.new_empty(*grad.shape[:2], weight.shape[1])


@_of_parameters.register_fake
def _(grad, out, x, relu):
    copies, outputs = len(x), grad.shape[2]
    return x.new_empty(copies, x.shape[2], outputs), x.new_empty(copies, 1, outputs)


def _keep(ctx, inputs, output) -> None:
    x, weight, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, output)


def _keep_inputs(ctx, inputs, output) -> None:
    *tensors, ctx.relu = inputs
    ctx.save_for_backward(*tensors)


def _back(ctx, grad):
    x, weight, out = ctx.saved_tensors
    inputs, parameters, *_ = ctx.needs_input_grad
    of_x = _of_input(grad, out, weight, ctx.relu) if inputs else None
    of_weight = _of_parameters(grad, out, x, ctx.relu) if parameters else (None, None)
    return of_x, *of_weight, None


def _back_of_input(ctx, upstream):
    """Differentiates a gradient, as penalties on gradients do."""
    grad, out, weight = ctx.saved_tensors
    of_grad = _passed(torch.bmm(upstream, weight), out, ctx.relu)
    return of_grad, None, torch.bmm(upstream.mT, _passed(grad, out, ctx.relu)), None


def _back_of_parameters(ctx, of_weight, of_bias):
    grad, out, x = ctx.saved_tensors
    of_grad = _passed(torch.bmm(x, of_weight) + of_bias, out, ctx.relu)
    return of_grad, None, torch.bmm(_passed(grad, out, ctx.relu), of_weight.mT), None


_layer.register_autograd(_back, setup_context=_keep)
_of_input.register_autograd(_back_of_input, setup_context=_keep_inputs)
_of_parameters.register_autograd(_back_of_parameters, setup_context=_keep_inputs)
