"""A full memory is a sentence that names the settings to lower."""

import re

import numpy as np
import pytest
import torch
from small import config
from wording import says

from corerl import cli
from corerl.algos import bc
from corerl.launch import launch, out_of_memory, worker

GPU = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.74 GiB.\n"
    "See documentation for Memory Management"
)


def raised(build) -> Exception:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        build()
    return caught.value


@pytest.mark.parametrize(
    ("error", "needs"),
    [
        (raised(lambda: torch.empty(10**15)), r"this machine for another 4,000,000\.0 GB"),
        (raised(lambda: torch.empty(2**40, 2**40)), "this machine"),
        (raised(lambda: np.empty(10**15)), r"this machine for another 7\.\d* PiB"),
        (raised(lambda: bytearray(10**15)), "this machine"),
        (GPU, r"the GPU for another 20\.00 GiB"),
    ],
)
def test_what_torch_and_numpy_say_is_told_in_settings(tmp_path, capfd, monkeypatch, error, needs):
    def train(cfg, run):
        raise error

    monkeypatch.setattr(bc, "train", train)
    cfg = config(tmp_path, "bc", own={"batch_size": 100_000, "hidden_width": 512}, seeds=2)
    with pytest.raises(launch.SeedsFailed):
        launch.launch(cfg)
    reported = capfd.readouterr().err
    lower = r"Lower algo\.batch_size=100000, algo\.hidden_width=512, seeds=2\."
    wanted = rf"There is not enough memory on {needs}\. {lower}"
    assert len(re.findall(wanted, reported)) == 2
    says(next(tmp_path.rglob("status.json")).read_text(), "memory")


def test_other_errors_are_none_of_memory():
    for error in (RuntimeError("shapes do not match"), ValueError("out of memory")):
        assert not out_of_memory.is_full(error) and str(error) in worker.reported(error)


def test_commands_that_train_nothing_say_it_too(monkeypatch, capsys):
    def full(argv):
        raise GPU

    monkeypatch.setattr(cli, "_run", full)
    assert cli.main(["evaluate", "runs"]) == 2
    reported = capsys.readouterr().err
    says(reported, "memory GPU 20.00 GiB")
    assert reported.count("\n") == 1
    monkeypatch.setattr(cli, "_run", lambda argv: [][0])
    with pytest.raises(IndexError):
        cli.main(["evaluate"])


def test_an_error_after_which_a_gpu_gives_no_memory_back_is_the_runs_and_not_the_sweeps(
    tmp_path, monkeypatch, capsys
):
    broken = RuntimeError("CUDA error: device-side assert triggered")

    def train(cfg, run):
        run.device = torch.device("cuda")
        raise broken

    def empty_cache():
        raise broken

    monkeypatch.setattr(bc, "train", train)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    assert worker.train(config(tmp_path, "bc"), [0], lambda *_: None) == worker.FAILED
    assert str(broken) in capsys.readouterr().err
