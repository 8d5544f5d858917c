"""The matrix product that is chosen is a fast one, and float32 in any case."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import config, train
from wording import refused, says

from corerl.launch import matmul_library
from corerl.launch.process_setup import numerics
from corerl.runs.directory import config_hash


@pytest.fixture(autouse=True)
def as_before():
    flags = torch.backends.mkldnn.matmul
    before = flags.fp32_precision, torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision("highest")
    flags.fp32_precision, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A machine on which nothing was measured yet."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    matmul_library._remembered.cache_clear()
    yield tmp_path
    matmul_library._remembered.cache_clear()


def in_bfloat16(a, b):
    return torch.bmm(a.bfloat16(), b.bfloat16()).float()


def in_tf32(a, b):
    return torch.bmm(
        *((x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    )


def in_another_order(a, b):
    """float32, rounded elsewhere: as another library does it."""
    half = a.shape[-1] // 2
    return torch.bmm(a[..., :half], b[:, :half]) + torch.bmm(a[..., half:], b[:, half:])


def seconds(**of_kernel: float):
    """A clock by which a product of each kernel takes so long; and the products, which move it."""
    now = [0.0]

    def timed(name, product):
        def multiply(a, b):
            now[0] += of_kernel[name]
            return product(a, b)

        return multiply

    return timed, lambda: now[0]


@pytest.mark.parametrize(
    ("other", "mkl", "onednn", "chosen"),
    [
        (in_another_order, 2.0, 1.0, "onednn"),
        (in_another_order, 1.0, 2.0, "mkl"),
        (in_another_order, 1.05, 1.0, "mkl"),  # too close to be measured twice alike
        (in_bfloat16, 2.0, 1.0, "mkl"),
        (in_tf32, 2.0, 1.0, "mkl"),
        (torch.bmm, 2.0, 1.0, "mkl"),  # bit for bit the same: torch has not changed libraries
    ],
)
def test_the_faster_one_is_chosen_if_it_is_exact(other, mkl, onednn, chosen):
    timed, clock = seconds(mkl=mkl, onednn=onednn)
    assert matmul_library.faster(timed("mkl", torch.bmm), timed("onednn", other), clock) == chosen


def test_the_error_tells_float32_from_less():
    assert matmul_library.error(torch.bmm) < 1e-6 and matmul_library.error(in_another_order) < 1e-6
    assert (
        matmul_library.error(in_tf32) > 20 * matmul_library.EXACT
        and matmul_library.error(in_bfloat16) > 100 * matmul_library.EXACT
    )


def test_what_is_chosen_here_is_float32_and_measured_once(home, monkeypatch):
    chosen = matmul_library.choose("auto")
    assert chosen in ("mkl", "onednn")
    matmul_library.use(chosen)
    assert matmul_library.error(torch.bmm) < 1e-6
    (remembered,) = json.loads((home / ".cache/corerl/kernels.json").read_text()).values()
    assert remembered == chosen
    matmul_library._remembered.cache_clear()
    monkeypatch.setattr(matmul_library, "faster", lambda *_: pytest.fail("measured again"))
    assert matmul_library.choose("auto") == chosen


def test_a_home_that_cannot_be_written_only_means_measuring_again(home):
    (home / ".cache").write_text("a file")
    assert matmul_library.choose("auto") in ("mkl", "onednn")


def test_onednn_by_name_is_refused_where_it_is_not_float32(monkeypatch):
    monkeypatch.setattr(matmul_library, "_product", lambda name: in_bfloat16)
    with refused("kernel=onednn float32 CPU"):
        matmul_library.choose("onednn")


def test_the_environment_says_which_and_the_name_of_a_run_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(matmul_library, "EXACT", 1)  # this CPU's oneDNN may round to bfloat16
    for name in ("mkl", "onednn"):
        cell = train(config(tmp_path / name, kernel=name, steps=5))
        facts = json.loads((cell / "seeds-0" / "env.json").read_text())
        assert (facts["kernel"], facts["precision"]) == (name, "highest")
    names = {config_hash(config(tmp_path, kernel=name)) for name in ("auto", "mkl", "onednn")}
    assert len(names) == 1


def test_precision_is_float32_unless_asked_and_then_part_of_the_name(tmp_path):
    cfg = config(tmp_path)
    with numerics(cfg):
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert not torch.backends.cudnn.allow_tf32  # torch's default would be True
    with numerics(replace(cfg, precision="high")):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.allow_tf32
    assert config_hash(replace(cfg, precision="high")) != config_hash(cfg)


def test_torchs_advice_to_use_less_than_float32_is_not_shown_in_training(tmp_path):
    advice = (
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled"
    )
    with pytest.warns(UserWarning) as shown, numerics(config(tmp_path)):
        warnings.warn(advice, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["something else"]


def test_a_callers_own_numerics_return_after_training(tmp_path):
    """`corerl.train` in a notebook: what is computed there afterwards is not ours to round."""

    def numbers():
        flags = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cudnn.allow_tf32
        denormal = float(torch.tensor(torch.finfo(torch.float32).tiny).div(2))
        return flags, denormal, torch.get_float32_matmul_precision(), torch.get_num_threads()

    before = numbers()
    assert before[1] > 0
    with numerics(replace(config(tmp_path), precision="high"), threads=before[3] + 1):
        assert numbers()[1] == 0 and numbers()[2:] == ("high", before[3] + 1)
    assert numbers() == before
    train(config(tmp_path))
    assert numbers() == before


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("kernel=openblas", "kernel=openblas"),
        ("precision=low", "precision=low"),
        ("save_minutes=-1", "save_minutes=-1.0"),
    ],
)
def test_a_value_that_is_none_is_a_sentence(capfd, setting, problem):
    from corerl.cli import main

    assert main(["train", "algo=bc", "task=corerl/pendulum", setting]) == 2
    says(capfd.readouterr().err, problem)


def test_the_command_line_keeps_onednn_from_bfloat16_before_torch_is_loaded():
    look = (
        "import os, sys; from corerl.cli import main; assert 'torch' not in sys.modules; "
        "main(['data', 'list']); print(os.environ['ONEDNN_MAX_CPU_ISA'])"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "AVX512_CORE", ended.stderr
