"""Saves a policy as one file that needs no corerl: `corerl export RUN --seed 3 policy.onnx` (or .pt2).

The file takes raw observations: float32 `(n, O)`, or uint8 `(n, channels, height, width)` where the policy
learned from images in bytes. It returns greedy actions, without the share of random actions that some
evaluations have. Continuous actions are `(n, A)` in [-1, 1], or in the environment's units with `--units
env`. Discrete actions are numbers `(n,)`. The file holds the normaliser and the weights of one seed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corerl.config import Config, require
from corerl.data.action_range import in_units
from corerl.data.files.io import replacing
from corerl.data.observations import kept_as
from corerl.data.simulators import unscaled
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.policies.load import find, load, restored, settings
from corerl.runs.directory import seeds_of_group
from corerl.training.experience import EpsilonGreedy

KINDS = (".onnx", ".pt2")
TOLERANCE = 1e-5
ONNX = 'pip install "corerl[onnx]"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder, <root>/<task>/<algorithm>-<hash>")
    add("out", type=Path, help="file to write, such as policy.onnx or policy.pt2")
    add("--seed", type=int, help="one of the run's seeds (default: its first)")
    add(
        "--units",
        choices=("unit", "env"),
        default="unit",
        help="units of continuous actions: unit ([-1, 1], the default) or env (the environment's)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the file, holds it against the policy that it was made from, and says what it takes."""
    facts = export(args.run, args.out, args.seed, units=args.units)
    print(f"{args.out}: {facts['algorithm']} on {facts['task']}, seed {facts['seed']}")
    shape = ", ".join(map(str, facts["observation_shape"]))
    print(
        f"  takes observation, {facts['observation_dtype']} (n, {shape}), and returns action, "
        f"{facts['actions']}"
    )
    for name in ("greedy", "observation_parts", "history"):
        if name in facts:
            print(f"  {name}: {facts[name]}")
    print(
        f"  largest difference from the policy on {facts['compared']} observations: {facts['difference']:.1e}"
    )
    return 0


def export(
    path: str | Path, out: Path, seed: int | None = None, *, units: str = "unit"
) -> dict[str, Any]:
    """Writes one seed's policy to `out`. What it is, and its largest difference from the original.

    Args:
        path: the run. out: `.onnx` or `.pt2` (`torch.export.load`). seed: None is the run's first.
        units: of continuous actions, `unit` for [-1, 1] or `env` for the environment's bounds.

    Raises:
        CorerlError: the policy depends on what went before, a package is missing, or the file's actions
            differ from the policy's by more than 1e-5 in units of [-1, 1].
    """
    require(out.suffix in KINDS, f"The file {out} must end in .onnx or .pt2")
    if out.suffix == ".onnx":
        _need_onnx()
    agent = load(path, seed)
    agent = agent if seed is not None else agent.only(agent.seeds[0])
    require(
        not agent.remembers,
        f"{agent.label} acts on the whole episode so far, not on one observation. Use corerl.load, and call "
        "reset() at the start of every episode",
    )
    require(
        not agent.samples,
        f"{agent.label} turns random noise into actions, so its policy is not a function of the "
        "observation alone. Use corerl.load",
    )
    shape = agent.shapes.observation
    probe = _observations(agent.task, shape)
    cfg = settings(agent.path)
    policy = Policy(_alone(cfg, agent.path, agent.seeds[0]), *_box(agent.task, units))
    made = policy(probe)
    acts, random = agent.greedy(probe[None])
    expected = policy.scaled(acts[0])
    discrete = made.dtype == torch.int64
    facts = {
        "algorithm": agent.label,
        "task": agent.task.id,
        "seed": agent.seeds[0],
        "step": agent.steps[0],
        "observation_shape": list(shape),
        "observation_dtype": f"{probe.dtype}".removeprefix("torch."),
        "actions": "numbers (n,)" if discrete else f"(n, {made.shape[1]}) in {policy.range}",
    }
    if random:
        facts["greedy"] = (
            f"the file never acts at random, but evaluation does with probability {random:g}"
        )
    if agent.task.history > 1:
        facts["history"] = f"{agent.task.history} observations side by side, oldest first"
    if agent.parts:
        facts["observation_parts"] = list(agent.parts)
    with replacing(out) as part:
        _write(policy, probe, part)
        sure = ~policy.tied(probe, written := torch.stack((made, _of_file(part, probe))), expected)
        difference = policy.difference(written[:, sure], expected[sure])
        if not (difference <= TOLERANCE and sure.float().mean() > 0.9):
            raise CorerlError(
                f"The exported policy differs from {agent.label}'s by {difference:.2g}, so corerl deleted "
                "it. This is a fault of corerl or of the exporter. Please report it."
            )
        if out.suffix == ".onnx":
            _describe(part, facts)
    return facts | {"difference": difference, "compared": int(sure.sum())}


class Policy(nn.Module):
    """`(n, O)` to `(n, A)`, for one seed. Continuous actions from [-1, 1] to [low, high] where given."""

    def __init__(
        self, act: Callable[[Tensor], Tensor], low: np.ndarray | None, high: np.ndarray | None
    ):
        super().__init__()
        self._act = act
        self.range = "[-1, 1]" if low is None else f"[{low.tolist()}, {high.tolist()}]"
        self._scale = None if low is None else torch.as_tensor((high - low) / 2)
        self._middle = None if low is None else torch.as_tensor((high + low) / 2)

    def forward(self, observation: Tensor) -> Tensor:
        return self.scaled(self._act(observation[None])[0])

    def scaled(self, actions: Tensor) -> Tensor:
        """Scales actions from [-1, 1] to the bounds."""
        return actions if self._scale is None else actions * self._scale + self._middle

    def difference(self, actions: Tensor, expected: Tensor) -> float:
        """Returns the largest difference in units of [-1, 1], beyond what float32 rounds at such actions."""
        return float(self._apart(actions, expected).max())

    def tied(self, probe: Tensor, actions: Tensor, expected: Tensor) -> Tensor:
        """Tells at which observations rounding decides between two actions, and did so otherwise: `(n,)`.

        There the policy itself jumps as far if an observation moves by a millionth.
        """
        apart = self._apart(actions, expected)
        moved = torch.stack([self(probe * (1 + by)) for by in (-1e-6, 1e-6)])
        jumps = self._apart(moved, expected)
        return (apart > TOLERANCE) & (jumps >= apart / 2)

    def _apart(self, actions: Tensor, expected: Tensor) -> Tensor:
        """Returns the largest difference of several answers `(k, n, ...)`, by observation `(n,)`."""
        apart = (actions.double() - expected.double()).abs()
        if self._scale is not None:
            rounded = torch.finfo(torch.float32).eps * expected.abs()
            apart = (apart - rounded).clamp(min=0) / self._scale
        return apart.reshape(-1, len(expected), expected[0].numel()).amax((0, 2))


def _alone(cfg: Config, cell: Path, seed: int) -> Callable[[Tensor], Tensor]:
    """Returns the policy of one seed alone, `(1, n, O) -> (1, n, A)`, in a form that can be traced."""
    cfg.device, cfg.compile = "cpu", "off"
    (group,) = (group for group in find(cell)[1] if seed in seeds_of_group(group.name))
    agent = restored(cfg, group, seed)
    act = agent.act._act if isinstance(agent.act, EpsilonGreedy) else agent.act
    for part in agent.state.values():
        for value in vars(part).values() if hasattr(part, "__dict__") else ():
            if isinstance(value, nn.Module):
                value.requires_grad_(False)  # weights become constants of the file
    return act


def _box(task: Task, units: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns what the policy's -1 and 1 are in the environment's units, where these are asked for."""
    return (None, None) if units == "unit" else in_units(task.action_range, *_units(task))


def _units(task: Task) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the bounds that the environment scales [-1, 1] to."""
    if task.data is not None and task.data.action_low is not None and task.env is None:
        return tuple(
            np.atleast_1d(np.asarray(x, np.float32))
            for x in (task.data.action_low, task.data.action_high)
        )
    env = task.make_env()
    inner = unscaled(env)
    env.close()
    return (None, None) if inner is None else (inner.action_space.low, inner.action_space.high)


def _observations(task: Task, shape: tuple[int, ...], count: int = 256) -> Tensor:
    """Returns observations to compare on: the data's where it is on this machine, or else the environment's
    under random actions. Without either, Gaussian numbers."""
    if not (task.is_here or task.has_env):
        return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    if task.is_here:
        rows = task.load().observations
        chosen = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    else:
        env = task.make_env()
        env.action_space.seed(0)
        chosen = [env.reset(seed=0)[0]]
        while len(chosen) < count:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            chosen.append(env.reset()[0] if terminated or truncated else observation)
        env.close()
    chosen = np.asarray(chosen)
    return torch.from_numpy(chosen.astype(kept_as(shape, chosen.dtype)))


def _need_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise CorerlError(
                f"Writing .onnx files needs {name}, which is not installed. Run {ONNX}"
            ) from error


def _write(policy: Policy, probe: Tensor, out: Path) -> None:
    batch = {"observation": {0: torch.export.Dim("n", min=1)}}
    # Gradients are off already: else the file turns them off, and for its user too where it is called amiss.
    with _quiet(), torch.no_grad():
        program = torch.export.export(
            policy.eval(), (probe[:2],), dynamic_shapes=batch, strict=False
        )
        if out.suffix == ".pt2":
            buffer = BytesIO()  # torch itself ends the process where the disk is full
            torch.export.save(program, buffer)
            out.write_bytes(buffer.getbuffer())
        else:
            torch.onnx.export(
                program,
                dynamo=True,
                external_data=False,
                input_names=["observation"],
                output_names=["action"],
            ).save(out)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses what the exporters print."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _of_file(out: Path, probe: Tensor) -> Tensor:
    """Runs the written file on `probe`."""
    if out.suffix == ".pt2":
        return torch.export.load(out).module()(probe)
    import onnxruntime

    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"observation": probe.numpy()})[0])


def _describe(out: Path, facts: dict[str, Any]) -> None:
    """Writes into the file what it is."""
    import onnx

    model = onnx.load(out)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    onnx.helper.set_model_props(model, texts)
    onnx.save(model, out)
