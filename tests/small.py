"""Jobs so small that they take well under a second, and what tests read from their directories."""

import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from corerl.config import Config, Eval
from corerl.data.dataset import Dataset
from corerl.launch.composition import cells
from corerl.launch.launch import launch
from corerl.runs.checkpoint import load_checkpoint
from corerl.training.run import Run
from corerl.training.stopping import Interrupted

torch.set_num_threads(1)

OFFLINE = ("bc", "td3_bc", "iql", "rebrac", "cql", "awac", "edac")
AVERSE = ("oraac", "codac", "cvar_offline")
FIXED = ["algo.hidden_width=16", "algo.batch_size=16", "compile=off", "eval.episodes=2"]
"""The settings of `config` as they are spelled on the command line."""
LINES = (".csv", ".jsonl")
EVALUATED = ("scores.csv", "returns.jsonl")


def config(root: Path, algo: str = "iql", *, own: dict | None = None, **settings) -> Config:
    """A job of 40 updates of one seed; `own` are settings of the algorithm."""
    module = importlib.import_module(f"corerl.algos.{algo}")
    defaults = {
        "task": "corerl/pendulum",
        "seeds": 1,
        "steps": 40,
        "eval": Eval(every=20, episodes=2),
        "log_every": 10,
        "save_every": 10,
        "device": "cpu",
        "compile": "off",
        "processes": 1,
    }
    cfg = module.Config(**({"hidden_width": 16, "batch_size": 16} | (own or {})))
    return Config(algo=cfg, root=str(root), **(defaults | settings))


@cache
def cell(algo: str, task: str) -> Config:
    """What `algo=... task=...` trains, with the settings of tables."""
    (found,) = cells([f"algo={algo}", f"task={task}"])
    return found


def train(cfg: Config) -> Path:
    """Runs the job; the folder of all its seeds."""
    launch(cfg)
    (cell,) = Path(cfg.root).glob(f"{cfg.task}/*/")
    return cell


def run(cfg: Config, seeds: Sequence[int] = (0, 1), stop: int | None = None) -> Path:
    """Runs the job in this process, to its end or until it is stopped after `stop`; the seeds' folder."""
    job = Run(cfg, list(seeds), lambda *_: None)
    save = job.save
    job.save = lambda step: (save(step), setattr(job, "_stop", step == stop))
    with contextlib.suppress(Interrupted):
        sys.modules[type(cfg.algo).__module__].train(cfg.algo, job)
    return job.directory


def goes_on(cfg: Config, root: Path, stops: Sequence[int], seeds: Sequence[int] = (0, 1)) -> dict:
    """Holds a run that is stopped after each of `stops` and resumed to an unbroken one; its last state."""
    whole = run(replace(cfg, root=str(root / "whole")), seeds)
    for stop in (*stops, None):
        broken = run(replace(cfg, root=str(root / "broken")), seeds, stop)
        step = json.loads((broken / "status.json").read_text())["step"]
        assert (step < cfg.steps) == (stop is not None)
    one, two = (
        {file.name: file.read_text() for file in folder.iterdir() if file.suffix in LINES}
        for folder in (whole, broken)
    )
    assert one == two and {"metrics.jsonl", *(EVALUATED if cfg.eval.episodes else ())} <= one.keys()
    one, two = (load_checkpoint(d / "checkpoint.safetensors") for d in (whole, broken))
    assert flatten(one) == flatten(two)
    return one["state"]


def state_of(folder: Path) -> dict:
    """What the last checkpoint of a group of seeds holds of its parts."""
    return load_checkpoint(folder / "checkpoint.safetensors")["state"]


def group(cell: Path, name: str = "seeds-0") -> dict:
    """What a finished group of seeds wrote, less times and file stamps."""
    folder = cell / name
    return {
        "scores": (folder / "scores.csv").read_text(),
        "metrics": (folder / "metrics.jsonl").read_text(),
        "returns": (folder / "returns.jsonl").read_text(),
        "state": json.loads((folder / "status.json").read_text())["state"],
        "checkpoint": flatten(load_checkpoint(folder / "checkpoint.safetensors")),
    }


def flatten(state, prefix: str = "") -> dict:
    """Nested state as one dict; tensors as (shape, bytes), so that == is equality bit for bit."""
    if isinstance(state, torch.Tensor):
        return {prefix: (tuple(state.shape), state.contiguous().numpy().tobytes())}
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        return {prefix: state}
    return {k: v for name, part in items for k, v in flatten(part, f"{prefix}/{name}").items()}


def random_dataset(size: int = 300, seed: int = 0) -> Dataset:
    """Gaussian transitions of 3 observations and 2 actions in episodes of 20; some terminate."""
    rng = np.random.default_rng(seed)
    ends = np.arange(1, size + 1) % 20 == 0
    terminated = ends & (rng.random(size) < 0.5)
    observations = rng.standard_normal((size, 3), dtype=np.float32)
    return Dataset.from_steps(
        id="test/random",
        observations=observations,
        actions=np.tanh(rng.standard_normal((size, 2), dtype=np.float32)),
        rewards=rng.standard_normal(size, dtype=np.float32),
        next_observations=np.roll(observations, -1, 0),
        terminated=terminated,
        truncated=ends & ~terminated,
    )


def parameters(agent) -> dict[str, torch.Tensor]:
    """Every float tensor of the agent that has the seed axis in front: weights, targets, moments."""
    found = {}

    def walk(state, name: str) -> None:
        if isinstance(state, torch.Tensor):
            if state.ndim > 1:
                found[name] = state
        elif isinstance(state, dict | list | tuple):
            items = state.items() if isinstance(state, dict) else enumerate(state)
            for key, part in items:
                walk(part, f"{name}/{key}")

    walk(agent.state_dict(), "")
    return found
