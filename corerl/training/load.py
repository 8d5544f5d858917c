"""The agents of a run, to act, to judge or to go on with.

    agent = load("runs/corerl/pendulum/iql-1a2b3c4d")
    action = agent.act(observation)

An agent is built by its algorithm's own `train`, which asks its run for the numbers of updates to make:
here the run restores the checkpoint, lets one step pass so that the policy is handed over for evaluation,
restores again and stops. So every algorithm can be loaded, and none has to say how.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from corerl import seeding
from corerl.buffers.packed import PackedRows
from corerl.config import Config, renamed, require
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError, first_line
from corerl.runs import code
from corerl.runs.checkpoint import exists, load_checkpoint, path_in, previous
from corerl.runs.directory import groups as groups_of
from corerl.runs.directory import seeds_of_group
from corerl.runs.files import below, read_json, read_yaml
from corerl.training.loaded import Loaded, Restored
from corerl.training.run import Run, pick_device


def load(
    path: str | Path,
    seed: int | None = None,
    *,
    device: torch.device | str = "cpu",
    tau: float | None = None,
) -> Loaded:
    """Loads the agents of the run at `path`, with normaliser and all.

    Args:
        path: the run's folder `<root>/<task>/<algorithm>-<hash>`, or one of its `seeds-*`.
        seed: one of the run's seeds; None for all that have a checkpoint.
        device: where they compute.
        tau: the level of CVaR to play for, of agents that serve every level; None is the run's own.

    Raises:
        CorerlError: there is no run, no checkpoint or no such seed, the task's data is missing, or the
            agents serve one level.
    """
    _check_numbers(seed, tau)
    cell, groups = find(Path(path))
    if seed is not None:
        groups = [group for group in groups if seed in seeds_of_group(group.name)]
        if not groups:
            raise CorerlError(f"{path} has no checkpoint of seed {seed}.")
    cfg = settings(cell)
    _tell_other_code(cfg, cell, groups)
    cfg.device, cfg.compile = str(device), "off"
    parts: dict[str, Any] = {}
    agents = [_restored(cfg, group, parts) for group in groups]
    loaded = Loaded(cfg, cell, agents)
    if tau is not None:
        loaded.play_for(tau)
    return loaded if seed is None else loaded.only(seed)


def _check_numbers(seed: int | None, tau: float | None) -> None:
    require(
        seed is None or isinstance(seed, Integral),
        f"seed={seed!r} is no whole number: name one of the run's seeds, or none for all of them",
    )
    require(tau is None or isinstance(tau, Real), f"tau={tau!r} is no number")


def find(path: Path) -> tuple[Path, list[Path]]:
    """Finds a run's folder, and those of its groups of seeds that can be loaded.

    Raises:
        CorerlError: there is none, or there are several.
    """
    if not path.is_dir():
        raise CorerlError(f"There is no run at {path}: it is not a folder.")
    if path.name.startswith("seeds-") and (path.parent / "config.yaml").exists():
        cell, groups = path.parent, [path]
    else:
        cells = [path] if (path / "config.yaml").exists() else _cells(path)
        if len(cells) != 1:
            some = ", ".join(str(c.relative_to(path)) for c in cells[:3])
            raise CorerlError(
                f"There are {len(cells)} runs below {path}; name one of them: {some}"
                f"{', ...' if len(cells) > 3 else ''}"
                if cells
                else f"There is no run at {path}: no config.yaml."
            )
        cell = cells[0]
        groups = [group for group, _ in groups_of(cell)]
    saved = [group for group in groups if exists(path_in(group)) or _needs_none(group)]
    if not saved:
        raise CorerlError(f"{cell} has no checkpoint yet: its seeds have not saved.")
    return cell, saved


def _tell_other_code(cfg: Config, cell: Path, groups: list[Path]) -> None:
    """Warns of agents that were trained with other code than that which is to act now."""
    folders = [(group, seeds_of_group(group.name)) for group in groups]
    if old := code.of_another(folders, cfg.algo.name):
        print(
            f"corerl: {cell}, seed{'s' if len(old) > 1 else ''} {', '.join(map(str, old))}: trained with "
            f"other code of {cfg.algo.name}.py than it has now, by which the policy acts.",
            file=sys.stderr,
        )


def _needs_none(group: Path) -> bool:
    """Tells whether the group finished without ever saving, as an exact solver does."""
    return (read_json(group / "status.json") or {}).get("state") == "done"


def _cells(root: Path) -> list[Path]:
    return [path.parent for path in below(root, "config.yaml")]


def settings(cell: Path) -> Config:
    """Returns the settings in a run's `config.yaml`; what has been added since has its default.

    Raises:
        CorerlError: the file is broken, or names an algorithm or a setting that is unknown here.
    """
    try:
        saved = OmegaConf.create(renamed(read_yaml(cell / "config.yaml")))
        algo = importlib.import_module(f"corerl.algos.{saved.algo.name}").Config
        schema = OmegaConf.structured(Config(algo=OmegaConf.structured(algo)))
        return OmegaConf.to_object(OmegaConf.merge(schema, saved))
    except (AttributeError, ImportError, TypeError, ValueError, OmegaConfBaseException) as error:
        if isinstance(error, ModuleNotFoundError) and f"{error.name}".startswith("corerl.algos."):
            name = saved.algo.name
            raise CorerlError(
                f"{cell / 'config.yaml'} cannot be read: {name} is no algorithm of corerl. If it is one of "
                f"your own, name its file, as in CORERL_ALGOS=path/to/{name}.py before the command, or in "
                "os.environ."
            ) from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise CorerlError(f"{cell / 'config.yaml'} cannot be read: {reason}.") from error


def _restored(cfg: Config, directory: Path, shared: dict[str, Any]) -> Restored:
    run = _Reloading(cfg, directory, shared)
    run.restore()
    if run.act is None:
        raise CorerlError(f"{directory} hands no policy over for evaluation, so it cannot act.")
    return Restored(run.seeds, run.step, run.state, run.act)


class _Done(Exception):
    """The policy has been handed over."""


class _Reloading(Run):
    """A stand-in for a run: one step, of which nothing but the handed-over policy is kept."""

    def __init__(self, cfg: Config, directory: Path, shared: dict[str, Any]):
        self.cfg, self.directory = cfg, directory
        self.seeds = seeds_of_group(directory.name)
        self.task = tasks.of(cfg)
        self.device, self.mode = pick_device(cfg.device), "off"
        self.act: Callable | None = None
        self.state: dict[str, Any] = {}
        self._shared = shared
        path = path_in(directory)
        self._path = path if path.exists() else previous(path)  # alone where a save was cut short
        self._saved = load_checkpoint(self._path) if self._path.exists() else {"state": {}}
        self.step = self._saved["loop"]["step"] if "loop" in self._saved else cfg.steps

    def restore(self) -> None:
        """Has the algorithm make its agent and hand its policy over; what only training needs begins anew."""
        before = seeding.to_act.set(True)
        try:
            importlib.import_module(f"corerl.algos.{self.cfg.algo.name}").train(self.cfg.algo, self)
        except _Done:
            pass
        finally:
            seeding.to_act.reset(before)

    @property
    def name(self) -> str:
        return f"{self.cfg.label or self.cfg.algo.label} {self.task.id} {self.directory.name}"

    def dataset(self) -> Dataset:
        """Reads the dataset once for all groups of seeds."""
        if "dataset" not in self._shared:
            self._shared["dataset"] = super().dataset()
        return self._shared["dataset"]

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        self.state = self._state = {name: part for name, part in state.items() if part is not None}
        self._put_back()
        last = self.cfg.steps - stride  # not the last, at which some have more to do
        for step in (min(self.step, last), last):  # first that for which the buffers were filled
            yield max(stride, step)

    def log(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Does nothing: the step is only made for what comes after it."""

    def evaluate(self, step: int, act: Callable, also: dict | None = None) -> None:
        self._put_back()
        self.act = act
        raise _Done

    def save(self, step: int) -> None:
        """Does nothing: what was saved stays."""

    def _put_back(self) -> None:
        try:
            for name, part in self._state.items():
                if name in self._saved["state"] or not isinstance(part, PackedRows):
                    part.load_state_dict(self._saved["state"][name])  # without batches it acts too
        except (KeyError, ValueError, RuntimeError) as error:
            reason = first_line(error)
            raise CorerlError(
                f"{self._path} was saved by other code than this ({reason}): load it with that code."
            ) from error
