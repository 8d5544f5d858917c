"""Estimates memory, disk and matmul operations of a run before it starts."""

import gc
import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from corerl.buffers import memory_check
from corerl.buffers.frame_replay import FrameReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.config import Config
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.training.run import Run

ROWS = 2_000
"""Size of the made-up data that takes the place of a dataset."""
UPDATES = 20
"""Steps within which an update has to come for its operations to be counted."""


class Size(NamedTuple):
    """Bytes of one seed: its networks and optimisers with all else that learns, and its full replay."""

    state: int
    replay: int

    @property
    def memory(self) -> int:
        """What a device holds of both. Data and an update's intermediate values come on top."""
        return self.state + self.replay

    @property
    def disk(self) -> int:
        """What the last two checkpoints take: a step of the replay stands in one file for both."""
        return 2 * self.state + self.replay


@cache
def _spaces(task: Task) -> tuple[spaces.Space, spaces.Space]:
    """Returns the spaces of a task, which a table has in many cells: Adroit's hands take a second to make."""
    env = task.make_env()
    env.close()
    return env.observation_space, env.action_space


class _Built(Exception):
    """The parts of a run, on the way out of its `train`."""


class _Unstarted(Run):
    """A run of one seed on made-up data that ends where training would begin."""

    def __init__(self, cfg: Config):
        super().__init__(replace(cfg, device="cpu", compile="off"), [0], lambda *_: None)

    def dataset(self) -> Dataset:
        seen, done = _spaces(self.task)
        rng = np.random.default_rng(0)
        observations = rng.standard_normal((ROWS, *seen.shape), np.float32)
        if isinstance(done, spaces.Discrete):
            actions = rng.integers(0, done.n, ROWS)
        else:
            actions = np.tanh(rng.standard_normal((ROWS, *done.shape), np.float32))
        ends = np.arange(1, ROWS + 1) % 200 == 0
        return Dataset.from_steps(
            id=self.task.id,
            observations=observations,
            actions=actions,
            rewards=rng.standard_normal(ROWS, np.float32),
            next_observations=np.roll(observations, -1, 0),
            terminated=np.zeros(ROWS, bool),
            truncated=ends,
        )

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        raise _Built({name: part for name, part in state.items() if part is not None})


class _Operations(TorchDispatchMode):
    """A count of what matrix products take, forward and backward. Torch's own counter trips over leaves."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


class _Counted(_Unstarted):
    """The same, ended by its second update, between whose operations and the first one's lies one update."""

    def __init__(self, cfg: Config):
        super().__init__(cfg)
        self._counts: list[int] = []

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        with _Operations() as self._counter:
            yield from range(stride, UPDATES * stride + 1, stride)

    def log(self, step: int, metrics: dict) -> None:
        self._counts.append(self._counter.total)
        if len(self._counts) == 2:
            raise _Built(self._counts[1] - self._counts[0])

    def evaluate(self, step: int, act: Any, also: Any = None) -> None:
        """Does nothing."""

    def save(self, step: int) -> None:
        """Does nothing."""


def operations(cfg: Config) -> int | None:
    """Operations of the matrix products in one update of one seed, or None where it is not known."""
    return _operations(_Cell(cfg, (cfg.task, cfg.history, cfg.algo)))


@cache
def _operations(cell: "_Cell") -> int | None:
    count = _built(cell.cfg, _Counted)
    gc.collect(1)  # agents hold themselves in cycles, and their few large tensors do not call it
    return count


def of_seed(cfg: Config) -> Size | None:
    """Returns the size of one seed, or None where it is not known."""
    return _of_seed(_Cell(cfg, (cfg.task, cfg.history, cfg.steps, cfg.algo)))


class _Cell:
    """Settings, equal where those in `key` are, which decide what they take."""

    def __init__(self, cfg: Config, key: tuple):
        self.cfg, self._key = cfg, repr(key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cell) and self._key == other._key


@cache
def _of_seed(cell: _Cell) -> Size | None:
    parts = _built(cell.cfg, _Unstarted)
    size = None if parts is None else _measured(parts)
    del parts
    gc.collect(1)
    return size


def _built(cfg: Config, kind: type[_Unstarted]) -> Any:
    """Returns what a run of this kind ends with, or None where it cannot even begin."""
    try:
        with memory_check.on_trial():
            importlib.import_module(f"corerl.algos.{cfg.algo.name}").train(cfg.algo, kind(cfg))
    except _Built as built:
        return built.args[0]
    except Exception:  # an estimate must not end a dry run; what is wrong, the run itself will say
        return None
    return None


def _measured(parts: dict[str, Any]) -> Size:
    inner = [part for whole in parts.values() for part in vars(whole).values()]
    replays = {
        id(x): x for x in (*parts.values(), *inner) if isinstance(x, ReplayBuffer | FrameReplay)
    }
    full = sum(replay.nbytes for replay in replays.values())
    return Size(sum(_bytes(part.state_dict()) for part in parts.values()), full)


def _bytes(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, dict | list | tuple):
        return sum(map(_bytes, state.values() if isinstance(state, dict) else state))
    return 0


def reported(size: float) -> str:
    """Writes a size as `1.2 GB` or `34 MB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
