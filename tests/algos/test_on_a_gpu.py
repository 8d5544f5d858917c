"""Every algorithm's training on a GPU that is not there (tests/pretend.py) is that on the CPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pretend
import pytest
import tiny
import torch
from small import flatten

from corerl.config import Eval
from corerl.launch.launch import launch
from corerl.policies.load import load

GPU = "cuda:0"
KINDS = ("bc", "hra")
"""A learner of data and one that acts with numbers; all others are slow."""
OTHERS = [name for name in tiny.LEARNERS if name not in KINDS]
ROUNDED = {"dtr"}
"""The gradient of Mish is another formula there, and rounds otherwise."""
WAITS = {"mrq": 1, "pref_transformer": 1}
"""How often a run asks a number of the device: once, before its updates."""


def the_same(name: str) -> None:
    plain = tiny.Short(tiny.settings(name))
    with pretend.gpu():
        there = tiny.Short(tiny.settings(name), device=GPU)
        state = there.state()
    metrics = pretend.on_cpu(there.metrics)
    if name in ROUNDED:
        torch.testing.assert_close(metrics, plain.metrics, rtol=1e-4, atol=1e-5)
    else:
        assert flatten(metrics) == flatten(plain.metrics)
        assert flatten(pretend.on_cpu(state)) == flatten(plain.state())
    assert pretend.Machine.waits.total() == WAITS.get(name, 0)


@pytest.mark.parametrize("name", KINDS)
def test_training_is_that_on_the_cpu(name):
    the_same(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_training_is_that_on_the_cpu_for_every_other_algorithm(name):
    the_same(name)


def whole_run(name: str, root: Path) -> None:
    cfg = tiny.settings(name)
    often = {"log_every": 10, "save_every": 20, "eval": Eval(every=20, episodes=2)}
    cfg = replace(cfg, root=str(root), seeds=2, device=GPU, compile="off", **often)
    with pretend.gpu():
        launch(cfg)
        (cell,) = root.glob(f"{cfg.task}/*/")
        there = load(cell, device=GPU)
        seen = np.zeros((3, *there.shapes.observation), np.float32)
        actions = acted(there, seen)
    assert len((cell / "seeds-0-1" / "scores.csv").read_text().splitlines()) > 2
    np.testing.assert_allclose(actions, acted(load(cell), seen), atol=1e-5)


def acted(policies, seen: np.ndarray) -> np.ndarray:
    if policies.remembers:
        policies.reset(len(seen))
    return policies.act(seen)


def test_a_run_is_evaluated_saved_and_loaded(tmp_path):
    whole_run("hra", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in tiny.LEARNERS if name != "hra"])
def test_a_run_of_every_other_algorithm_is_evaluated_saved_and_loaded(tmp_path, name):
    whole_run(name, tmp_path)


# The GPU itself: what a real one refuses, it refuses too.


def test_what_a_gpu_refuses_is_noticed():
    with pretend.gpu():
        x = torch.ones(3, device=GPU)
        with pytest.raises(RuntimeError, match="of the GPU and of the CPU"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="of the GPU and of the CPU"):
            torch.stack([x[0], torch.ones(())])
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        with pytest.raises(RuntimeError, match="generator of the other device"):
            torch.rand(2, generator=torch.Generator(), device=GPU)
        with pytest.raises(RuntimeError, match="of the GPU and of the CPU"):
            x * torch.tensor(2.0)
        assert (x * 2).cpu().tolist() == [2.0] * 3
        assert x.device == torch.device(GPU)
        assert pretend.Machine.waits.total() == 0 and x.sum().item() == 3.0
        assert pretend.Machine.waits.total() == 1
