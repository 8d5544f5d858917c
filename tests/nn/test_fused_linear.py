"""The layer of a GPU is the layer of a CPU: its operations, its kernel, and who computes a shape."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gpu_code
import pytest
import torch

from corerl import seeding
from corerl.nn import compile, fastest, fused_linear, networks

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no Triton")


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_the_operation_are_those_of_its_numbers(relu):
    """Also a second time, as penalties on gradients need them."""
    inputs = numbers(2, 3, 4), numbers(2, 4, 2), numbers(2, 1, 2)
    assert torch.equal(fused_linear._layer(*inputs, relu), fused_linear.plain(*inputs, relu))
    assert torch.autograd.gradcheck(lambda *x: fused_linear._layer(*x, relu), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: fused_linear._layer(*x, relu), inputs)


def test_a_network_is_the_same_with_the_operation(monkeypatch):
    """In a compiled loss, where gradients of inputs that need none are left out."""
    net = networks.MLP([3, 8, 1], (2,), seeding.generators([0, 1], "init"))
    x = torch.ones(2, 5, 3)

    def loss(x):
        per_seed = net(x).square().mean((1, 2))
        return per_seed, {"loss": per_seed}

    expected, _ = compile.gradients(loss, list(net.parameters()), "off")(x)
    with monkeypatch.context() as patched:
        patched.setattr(fused_linear, "suits", lambda x: True)
        patched.setattr(torch._dynamo.config, "trace_autograd_ops", True)
        eager = compile.gradients(loss, list(net.parameters()), "off")
        found, _ = torch.compile(eager, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, expected)


@needs_triton
def test_the_kernel_is_torchs_layer():
    script = Path(__file__).with_name("interpreted_linear.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True
    )
    assert ended.stdout.split() == ["equal"], ended.stderr


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_the_kernel_compiles_for_an_h100_and_fits_its_memory(precision):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from corerl.nn import triton_matmul

    kernel = triton_matmul.kernel
    fixed = {"BIAS": True, "RELU": True, "MASKED": 2, "SUMS": True, "PRECISION": precision}
    for block in triton_matmul.BLOCKS:
        own = fixed | dict(zip(("ROWS", "COLUMNS", "DEPTH"), block, strict=True))
        own |= {"a_column": 1, "b_column": 1}
        types = ["constexpr" if n in own else "i32" for n in kernel.arg_names]
        pointers = dict.fromkeys(kernel.arg_names[:6], "*fp32")
        source = ASTSource(
            kernel, dict(zip(kernel.arg_names, types, strict=True)) | pointers, constexprs=own
        )
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert made.metadata.shared < 227 * 1024


@needs_triton
def test_a_network_is_a_kernel_a_layer_and_two_back_on_a_gpu():
    """The first layer's input needs no gradient; the head's comes out of the loss's kernel."""
    net = networks.MLP([3, 32, 32, 8], (2,), seeding.generators([0, 1], "init"))

    def loss(x):
        per_seed = net(x).square().mean((1, 2))
        return per_seed, {"loss": per_seed}

    gradients = compile.gradients(loss, list(net.parameters()), "off")
    assert gpu_code.launches(gradients, torch.ones(2, 16, 3)) == 3 + 5 + 1


# Who computes a shape.


def double(x, relu):
    return 2 * x


def exact(x, relu, *, block):
    return 2 * x


def coarse(x, relu, *, block):
    return 2 * x + 0.1


def broken(x, relu, *, block):
    raise RuntimeError("no such instruction")


@pytest.fixture
def raced(monkeypatch, tmp_path):
    monkeypatch.setattr(fastest, "_known", {})
    monkeypatch.setattr(fastest, "_path", lambda: tmp_path / "new" / "fastest.json")
    monkeypatch.setattr(fastest, "_name", lambda torchs, relu, tensors: str(tensors[0].shape))
    # The block of (32, 32, 32) is the fastest, then torch.
    monkeypatch.setattr(
        fastest, "seconds", lambda call: 40 if call.func is double else call.keywords["block"][0]
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    pytest.importorskip("triton")


X = torch.ones(3, 2)


@pytest.mark.parametrize("tritons", [coarse, broken])
def test_what_is_less_exact_or_does_not_run_is_not_taken(raced, tritons):
    assert fastest.of(double, tritons, False, X) is double


def test_the_fastest_is_kept_for_the_next_process(raced, monkeypatch):
    for _ in range(2):
        assert fastest.of(double, exact, False, X).keywords == {"block": (32, 32, 32)}
        monkeypatch.setattr(fastest, "_known", {})
        monkeypatch.setattr(fastest, "_race", lambda *_: pytest.fail("it was raced again"))


def test_nothing_is_timed_while_a_graph_is_recorded(raced, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(fastest, "_race", lambda *_: pytest.fail("it was raced"))
    assert fastest.of(double, exact, False, X) is double and not fastest._known
