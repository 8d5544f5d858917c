"""Eager, compiled and captured updates are the same numbers; what cannot be had is said in a line."""

import importlib.util
import os
import subprocess
import sys
from functools import partial

import gpu_code
import pytest
import tiny
import torch
from graphs import CpuGraph
from small import parameters
from torch import nn
from torch._dynamo.testing import CompileCounter
from wording import refused, says

from corerl.nn import compile, optim
from corerl.nn.compile import COMPILE_PAYS_FROM
from corerl.nn.learner import GradientStep

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no Triton")
needs_compiler = pytest.mark.skipif(not compile._has_compiler(), reason="no C++ compiler")


@pytest.mark.parametrize(
    ("mode", "device", "steps", "compiler", "expected"),
    [
        ("off", CPU, 10**6, True, "off"),
        ("off", CUDA, 10**6, True, "off"),
        ("compile", CPU, 1, True, "compile"),
        ("graph", CUDA, 1, True, "graph"),
        ("auto", CUDA, 1, True, "graph"),
        ("auto", CPU, COMPILE_PAYS_FROM, True, "compile"),
        ("auto", CPU, COMPILE_PAYS_FROM - 1, True, "off"),
        ("auto", CPU, 10**6, False, "off"),
    ],
)
def test_auto_compiles_where_it_pays(monkeypatch, mode, device, steps, compiler, expected):
    monkeypatch.setattr(compile.shutil, "which", lambda name: "/usr/bin/g++" if compiler else None)
    assert compile.resolve(mode, device, steps).plan == expected


def test_a_graph_without_a_gpu_is_refused():
    with refused("compile=graph GPU"):
        compile.resolve("graph", CPU, 10)


def test_an_unknown_mode_is_refused():
    with refused("compile=fast"):
        compile.resolve("fast", CPU, 10)


def test_gradients_are_of_each_seeds_own_loss():
    weight, unused = nn.Parameter(torch.tensor([[2.0], [3.0]])), nn.Parameter(torch.ones(2, 4))

    def loss(x):
        per_seed = (weight * x).square().mean(1)
        return per_seed, {"loss": per_seed}

    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    (grad, nothing), metrics = compile.gradients(loss, [weight, unused], "off")(x)
    torch.testing.assert_close(grad, 2 * weight.detach() * x.square().mean(1, keepdim=True))
    assert torch.equal(nothing, torch.zeros(2, 4))
    assert not metrics["loss"].requires_grad and metrics["loss"].tolist() == [10.0, 5.625]


@needs_compiler
def test_compiled_updates_agree_with_eager_ones(monkeypatch):
    monkeypatch.setattr(compile._Fallback, "said", False)  # whatever another test had
    eager, compiled = (
        tiny.Short(tiny.settings("iql"), mode=mode, updates=4) for mode in ("off", "compile")
    )
    assert isinstance(compiled.parts["agent"]._value_step.gradients, compile._Fallback)
    expected, actual = (parameters(probe.parts["agent"]) for probe in (eager, compiled))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=2e-6)
    for one, other in zip(eager.metrics, compiled.metrics, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
    assert not compile._Fallback.said, "the compiled update fell back to eager"


COMPILES = """
import torch
from torch import nn
from corerl.nn import compile
torch.manual_seed(0)
weight = nn.Parameter(torch.randn(2, 8, 8))
def loss(x):
    per_seed = (x @ weight).relu().square().mean((1, 2))
    return per_seed, {"loss": per_seed}
mode = compile.Mode("compile")
(grad,), _ = compile.gradients(loss, [weight], mode)(torch.ones(2, 4, 8))
counted = torch._dynamo.utils.counters["inductor"]
print(mode.reported(), counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"], grad.sum().item())
"""


@pytest.mark.slow
@needs_compiler
def test_what_one_process_has_compiled_the_next_one_loads(tmp_path):
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    reported = []
    for _ in range(2):
        command = [sys.executable, "-c", COMPILES]
        ended = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        reported.append(ended.stdout.split())
    assert [words[:3] for words in reported] == [["compile", "0", "1"], ["compile", "1", "0"]]
    assert reported[0][3] == reported[1][3]


def test_where_compiling_fails_it_says_so_once_and_runs_eager(monkeypatch, capsys):
    from torch._inductor import config as inductor

    monkeypatch.setattr(compile._Fallback, "said", False)
    # torch's own patch: pytest's would hide these settings from later tests.
    with inductor.patch({"cpp.cxx": ("/bin/false",), "fx_graph_cache": False}):
        probes = {
            mode: tiny.Short(tiny.settings("iql"), [0], mode, updates=3)
            for mode in ("compile", "off")
        }
    (line,) = capsys.readouterr().err.splitlines()
    says(line, "C++ compiler eager")
    expected, actual = (parameters(probes[mode].parts["agent"]) for mode in ("off", "compile"))
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_what_only_the_compiled_code_cannot_do_is_the_compilers_fault(monkeypatch, capsys):
    """Such as Triton's C compiler without Python's headers, of which torch makes no error of its own."""
    monkeypatch.setattr(compile._Fallback, "said", False)
    calls = []

    def compiled(x):
        calls.append(x)
        raise subprocess.CalledProcessError(1, ["gcc", "cuda_utils.c"])

    mode = compile.Mode("graph")
    function = compile._Fallback(compiled, lambda x: 2 * x, mode)
    assert [function(n) for n in (1, 2)] == [2, 4] and calls == [1]
    says(mode.reported(), "graph eager gcc")
    assert capsys.readouterr().err.count("Command '['gcc'") == 1


def test_a_process_compiles_as_many_losses_as_a_sweep_has(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=CompileCounter()))
    ran = []
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=2):
        for size in range(2, 6):
            weight, mode = nn.Parameter(torch.ones(2, size, 1)), compile.Mode("compile")

            def loss(x, weight=weight):
                per_seed = (x @ weight).square().mean((1, 2))
                return per_seed, {"loss": per_seed}

            compile.gradients(loss, [weight], mode)(torch.ones(2, 3, size))
            ran.append(mode.reported())
    assert ran == ["compile"] * 4


def test_an_error_of_the_loss_itself_is_not_taken_for_one_of_the_compiler(capsys):
    def loss(x):
        raise ValueError("the loss is wrong")

    with pytest.raises(ValueError, match="the loss is wrong"):
        compile._Fallback(loss, loss, compile.Mode("compile"))(torch.ones(2))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("mode", ["off", "compile"])
@pytest.mark.parametrize("shape", ["()", "(2, 3)"])
def test_a_loss_that_is_no_number_per_seed_is_refused(mode, shape):
    weight = nn.Parameter(torch.ones(2, 3))

    def loss(x):
        value = (weight * x).square()
        return (value.mean() if shape == "()" else value), {}

    with refused(f"{shape} (S,)"):
        compile.gradients(loss, [weight], mode)(torch.ones(3))


@pytest.mark.parametrize("mode", ["off", "compile"])
def test_a_network_that_seeds_would_share_is_refused(mode):
    layer = nn.Linear(3, 4)

    def loss(x):
        return layer(x).square().mean((1, 2)), {}

    gradients = compile.gradients(loss, list(layer.parameters()), mode)
    with refused("2 seeds"):
        gradients(torch.ones(2, 5, 3))
    compile.gradients(loss, list(layer.parameters()), "off")(torch.ones(1, 5, 3))


@pytest.mark.parametrize(
    ("device", "mode", "compiled"),
    [(CPU, "compile", False), (CUDA, "off", False), (CUDA, "compile", True), (CUDA, "graph", True)],
)
def test_steps_along_gradients_are_compiled_on_a_gpu(device, mode, compiled):
    def step(grads):
        """Nothing."""

    made = compile.fused_on_a_gpu(step, device, mode)
    assert isinstance(made, compile._Fallback) if compiled else made is step


@needs_triton
def test_a_step_of_all_parameters_is_two_kernels_on_a_gpu():
    """Adam of every parameter, and the numbers that all of them read: counts and rate."""
    layers = [nn.Parameter(torch.ones(2, 300, size)) for size in (1, 7, 300)]
    optimizer = optim.Adam(layers, 1e-3, weight_decay=0.1)
    own = GradientStep(lambda x: (x, {}), optimizer, "off")
    assert gpu_code.launches(own._step, [torch.ones_like(p) for p in layers]) == 2


@needs_triton
def test_a_loss_of_one_layer_is_its_two_products_and_a_kernel_on_a_gpu():
    weight, x = nn.Parameter(torch.ones(2, 32, 32)), torch.ones(2, 16, 32)

    def loss(x):
        per_seed = (x @ weight).relu().square().mean((1, 2))
        return per_seed, {"loss": per_seed}

    assert gpu_code.launches(compile.gradients(loss, [weight], "off"), x) == 3


@pytest.mark.parametrize("mode", ["off", "compile"])
def test_only_a_graph_wraps_the_update(mode):
    def update():
        return {}

    assert compile.captured(update, mode) is update


UPDATES = 12  # a graph is recorded at the fourth


@pytest.fixture
def early(monkeypatch):
    """What comes before an algorithm's own updates ends early, so that those are compared too."""
    for name in ("PRETRAIN", "FITTED"):
        monkeypatch.setattr(tiny, name, UPDATES // 2)
    for name in ("bc_steps", "vae_steps", "encoder_steps"):
        monkeypatch.setitem(tiny.SIZES, name, UPDATES // 2)


@pytest.fixture
def coarse(monkeypatch):
    """Makes Adam's step proportional to the gradient: else it takes a whole one along rounding."""
    made = optim.Adam.__init__

    def with_large_epsilon(self, *args, **others):
        made(self, *args, **others | {"eps": 1.0})

    monkeypatch.setattr(optim.Adam, "__init__", with_large_epsilon)


def run_of(name: str, mode: str, device: str) -> tiny.Short:
    """A tiny run whose mode is asked for by name, so that it may not fall back to another."""
    plan = compile.Mode(mode, demanded=True)
    run = tiny.Short(tiny.settings(name), mode=plan, device=device, updates=UPDATES)
    assert (plan.ran, plan.problem) == (mode, "")
    return run


def assert_they_agree(one: tiny.Short, other: tiny.Short) -> None:
    """Compares parameters, and the means of gradients that Adam keeps, on the scale of each tensor.

    An episode that has not ended has no return, NaN.
    """
    expected, actual = (parameters(run.parts["agent"]) for run in (one, other))
    for name, value in expected.items():
        scale = value.abs().max().item() if value.numel() else 0.0
        torch.testing.assert_close(
            actual[name], value, rtol=1e-3, atol=1e-3 * scale + 1e-6, msg=lambda m, n=name: n + m
        )
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        for name in mine:
            torch.testing.assert_close(
                theirs[name], mine[name], rtol=1e-2, atol=1e-3, equal_nan=True
            )


@pytest.mark.parametrize("algo", tiny.LEARNERS)
def test_every_update_of_an_algorithm_is_among_those_compared(early, monkeypatch, algo):
    made = []

    def captured(update, mode):
        made.append(compile._Captured(update, compile.Mode("graph")))
        return made[-1]

    monkeypatch.setattr(compile._Captured, "Graph", CpuGraph)
    monkeypatch.setattr(compile, "captured", captured)
    tiny.Short(tiny.settings(algo), updates=UPDATES)
    assert made and all(one._recorded for one in made)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("algo", tiny.LEARNERS)
def test_every_algorithm_is_the_same_compiled(early, coarse, algo):
    assert_they_agree(*(run_of(algo, mode, "cpu") for mode in ("off", "compile")))


@needs_gpu
@pytest.mark.parametrize("algo", tiny.LEARNERS)
def test_the_three_modes_agree_on_a_gpu(early, coarse, algo):
    eager, *others = (run_of(algo, mode, "cuda") for mode in ("off", "compile", "graph"))
    for run in others:
        assert_they_agree(eager, run)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_a_graph_is_recorded_on_the_second_gpu():
    assert_they_agree(*(run_of("iql", mode, "cuda:1") for mode in ("off", "graph")))


@needs_gpu
def test_a_captured_update_reads_new_inputs_and_advances_state():
    total = torch.zeros(2, device="cuda")

    def update(x):
        total.add_(x["a"])
        return {"total": total * 1.0}

    run = compile.captured(update, "graph")
    for n in range(1, 8):
        out = run({"a": torch.full((2,), float(n), device="cuda")})
        assert out["total"].tolist() == [n * (n + 1) / 2] * 2
