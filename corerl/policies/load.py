"""The agents of a run, to act, to judge or to resume.

    agent = load("runs/corerl/pendulum/iql-1a2b3c4d")
    action = agent.act(observation)

An algorithm's file builds its agent by `build(cfg, spec)`, most often the agent's class. The checkpoint holds
what `spec` needs, so loading reads no data and makes no update. Two more functions are optional:

parts(agent, spec)     the policy to evaluate as `policy`, where it is not `agent.act`, further policies to
                       evaluate by name as `also`, and further parts of the run that act or are judged, by
                       their names in the checkpoint
facts(cfg, dataset)    what acting needs of the data, for checkpoints of earlier versions
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from corerl import seeding
from corerl.config import Config, require
from corerl.data import tasks
from corerl.data.tasks import Task
from corerl.errors import CorerlError, first_line
from corerl.nn.learner import Spec
from corerl.nn.networks import Normalizer
from corerl.older_settings import renamed
from corerl.policies.loaded_policy import Loaded
from corerl.policies.restored import Restored, shapes_of
from corerl.runs import code
from corerl.runs.checkpoint import exists, load_checkpoint, path_in, previous
from corerl.runs.directory import groups as groups_of
from corerl.runs.directory import seeds_of_group
from corerl.runs.files import below, read_json, read_yaml
from corerl.training.devices import pick_device


def load(
    path: str | os.PathLike,
    seed: int | None = None,
    *,
    device: torch.device | str = "cpu",
    tau: float | None = None,
    acting: Mapping[str, Any] | None = None,
) -> Loaded:
    """Loads the agents of the run at `path`, with normaliser and all.

    Args:
        path: the run's folder `<root>/<task>/<algorithm>-<hash>`, one of its `seeds-*`, or what
            `corerl.train` returned.
        seed: one of the run's seeds; None for all that have a checkpoint.
        device: where they compute.
        tau: the level of CVaR to play for, of agents that serve every level; None is the run's own.
        acting: settings of the algorithm to act with instead of the run's, such as `{"guidance": 3.0}`.

    Raises:
        CorerlError: there is no run, no checkpoint or no such seed, the agents serve one level, or a
            setting is one that training reads.
    """
    _check_numbers(seed, tau)
    cell, groups = find(Path(path))
    if seed is not None:
        groups = [group for group in groups if seed in seeds_of_group(group.name)]
        if not groups:
            raise CorerlError(f"{path} has no checkpoint of seed {seed}.")
    cfg = settings(cell)
    cfg.algo = _acting_otherwise(cfg.algo, acting or {})
    _tell_other_code(cfg, cell, groups)
    cfg.device, cfg.compile = str(device), "off"
    loaded = Loaded(cfg, cell, [restored(cfg, group) for group in groups], acting=acting)
    if tau is not None:
        loaded.play_for(tau)
    return loaded if seed is None else loaded.only(seed)


def _check_numbers(seed: int | None, tau: float | None) -> None:
    require(
        seed is None or isinstance(seed, Integral),
        f"seed={seed!r} must be a whole number, one of the run's seeds. Leave seed out for all of them",
    )
    require(tau is None or isinstance(tau, Real), f"tau={tau!r} must be a number in (0, 1]")


def _acting_otherwise(algo: Any, chosen: Mapping[str, Any]) -> Any:
    """Returns an algorithm's settings with those to act with in their place.

    Raises:
        CorerlError: one is unknown, has another type, is out of its range, or is read in training.
    """
    allowed = [f.name for f in fields(algo) if f.metadata.get("acting")]
    for name in chosen:
        require(
            name in allowed,
            f"algo.{name} cannot be changed after training. With {algo.label}, "
            + (
                f"only {', '.join(f'algo.{known}' for known in allowed)} can be changed"
                if allowed
                else "no setting can be changed"
            ),
        )
    if not chosen:
        return algo
    schema = OmegaConf.structured(type(algo))
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, asdict(algo), dict(chosen)))
    except OmegaConfBaseException as error:
        given = ", ".join(f"algo.{name}={value}" for name, value in chosen.items())
        raise CorerlError(f"{given}: {first_line(error)}.") from error


def find(path: Path) -> tuple[Path, list[Path]]:
    """Finds a run's folder, and those of its groups of seeds that can be loaded.

    Raises:
        CorerlError: there is none, or there are several.
    """
    if not path.is_dir():
        raise CorerlError(
            f"There is no run at {path}, because it is not a folder. The command `corerl status` lists "
            "your runs"
        )
    if path.name.startswith("seeds-") and (path.parent / "config.yaml").exists():
        cell, groups = path.parent, [path]
    else:
        cells = [path] if (path / "config.yaml").exists() else _cells(path)
        if len(cells) != 1:
            some = ", ".join(str(c.relative_to(path)) for c in cells[:3])
            raise CorerlError(
                f"There are {len(cells)} runs below {path}. Name one of them: {some}"
                f"{', ...' if len(cells) > 3 else ''}"
                if cells
                else f"{path} is not the folder of a run, because it has no config.yaml. The command "
                "`corerl status` lists your runs"
            )
        cell = cells[0]
        groups = [group for group, _ in groups_of(cell)]
    saved = [group for group in groups if exists(path_in(group)) or _needs_none(group)]
    if not saved:
        raise CorerlError(
            f"{cell} has no checkpoint yet. Wait for the first, or train the run again."
        )
    return cell, saved


def _tell_other_code(cfg: Config, cell: Path, groups: list[Path]) -> None:
    """Warns of agents that were trained with other code than that which is to act now."""
    folders = [(group, seeds_of_group(group.name)) for group in groups]
    if old := code.of_another(folders, cfg.algo.name):
        print(
            f"corerl: {cell} trained seed{'s' if len(old) > 1 else ''} {', '.join(map(str, old))} "
            f"with different code of {cfg.algo.name}.py. The policy acts with today's code.",
            file=sys.stderr,
        )


def _needs_none(group: Path) -> bool:
    """Tells whether the group finished without ever saving, as an exact solver does."""
    return (read_json(group / "status.json") or {}).get("state") == "done"


def _cells(root: Path) -> list[Path]:
    return [path.parent for path in below(root, "config.yaml")]


def settings(cell: Path) -> Config:
    """Returns the settings in a run's `config.yaml`. What has been added since has its default.

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
                f"{cell / 'config.yaml'} names {name}, which is not an algorithm of corerl. For your "
                f"own algorithm, set CORERL_ALGOS=path/to/{name}.py before the command, or in os.environ."
            ) from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise CorerlError(f"{cell / 'config.yaml'} cannot be read: {reason}.") from error


def restored(cfg: Config, directory: Path, seed: int | None = None) -> Restored:
    """Builds the agent of a group of seeds and gives it the state that the group has saved.

    Args:
        directory: the group's folder. seed: one of the group's; None for all.

    Raises:
        CorerlError: the algorithm's file has no `build`, or the checkpoint is of other code.
    """
    path = path_in(directory)
    path = path if path.exists() else previous(path)  # alone where a save was cut short
    saved = load_checkpoint(path) if path.exists() else {"state": {}}
    return rebuilt(cfg, saved, path, seeds_of_group(directory.name), seed)


def rebuilt(
    cfg: Config, saved: dict[str, Any], path: Path, group: list[int], seed: int | None = None
) -> Restored:
    """Builds the agent whose state was `saved` at `path`, of all seeds of its group or of one.

    Raises:
        CorerlError: as `restored`.
    """
    module = importlib.import_module(f"corerl.algos.{cfg.algo.name}")
    require(
        hasattr(module, "build"),
        f"{cfg.algo.name}.py has no `build`, which makes its agent from (cfg, spec). Add a line below the "
        "agent's class: build = MyAgent",
    )
    seeds = group if seed is None else [seed]
    try:
        spec = _spec(cfg, module, saved, seeds)
        agent = module.build(cfg.algo, spec)
        parts = module.parts(agent, spec) if hasattr(module, "parts") else {"policy": agent.act}
        for name, part in ({"agent": agent} | parts).items():
            if name in saved["state"]:
                state = saved["state"][name]
                if left_out := saved.get("left_out", {}).get(name):
                    fresh = part.state_dict()
                    state = state | {key: fresh[key] for key in left_out}
                _put_back(part, state, group, seed)
    except (KeyError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise CorerlError(
            f"{path} was saved by different code ({reason}). Load it with the code that saved it."
        ) from error
    policy, also = parts.pop("policy"), parts.pop("also", {})
    step = saved["loop"]["step"] if "loop" in saved else cfg.steps
    return Restored(seeds, step, {"agent": agent} | parts, policy, spec, also)


def _put_back(part: Any, saved: Any, group: list[int], seed: int | None) -> None:
    if seed is not None and len(group) > 1:
        saved = _of_seed(saved, part.state_dict(), group.index(seed), len(group))
    with suppress(seeding.OtherDevice):  # a policy acts without the random numbers of training
        part.load_state_dict(saved)


def _of_seed(saved: Any, like: Any, place: int, count: int) -> Any:
    """Returns the part of `saved`, of `count` > 1 seeds, that belongs to one, in the shapes of `like`."""
    if isinstance(saved, Tensor):
        return saved if saved.shape == like.shape else saved.unflatten(0, (count, -1))[place]
    if isinstance(saved, dict):
        return {k: _of_seed(v, like[k], place, count) if k in like else v for k, v in saved.items()}
    if isinstance(saved, list | tuple):
        if len(saved) != len(like):
            return saved[place * len(like) : (place + 1) * len(like)]
        return [_of_seed(v, w, place, count) for v, w in zip(saved, like, strict=True)]
    return saved


def _spec(cfg: Config, module: ModuleType, saved: dict[str, Any], seeds: list[int]) -> Spec:
    """Returns the specification of the agent that was saved, for these of its seeds."""
    task = tasks.of(cfg)
    kept = saved.get("spec") or _spec_of_before(cfg, module, task, saved)
    shape, device = kept["observation_dim"], pick_device(cfg.device)
    shape = tuple(shape) if isinstance(shape, list) else shape
    normalizer: nn.Module = nn.Identity()
    if kept["normalized"]:
        normalizer = Normalizer(torch.zeros(shape), torch.ones(shape)).to(device)
    return Spec(
        shape,
        kept["action_dim"],
        seeding.generators(seeds, "init"),
        normalizer=normalizer,
        device=device,
        steps=kept["steps"],
        discrete=kept["discrete"],
        sources=kept["sources"],
        identities=seeds,
        facts={k: v.to(device) if isinstance(v, Tensor) else v for k, v in kept["facts"].items()},
        make_env=task.make_env,
    )


def _spec_of_before(
    cfg: Config, module: ModuleType, task: Task, saved: dict[str, Any]
) -> dict[str, Any]:
    """Returns what a checkpoint of an earlier version does not hold, from the environment and the data."""
    shapes, _ = shapes_of(task)
    images = cfg.algo.needed_actions()[0] == "discrete"  # whose networks take a shape
    facts = {}
    if hasattr(module, "facts"):
        facts = module.facts(cfg.algo, task.load())
    by_source = getattr(cfg.algo, "sources", "total") == "all"
    return {
        "observation_dim": shapes.observation if images else shapes.observation[0],
        "action_dim": shapes.count or shapes.features,
        "discrete": shapes.count is not None,
        "steps": cfg.steps,
        "sources": _sources(task) if by_source else 1,
        "facts": facts,
        "normalized": bool(saved["state"].get("agent", {}).get("normalizer")),
    }


def _sources(task: Task) -> int:
    env = task.make_env()
    env.close()
    return env.unwrapped.reward_space.shape[0]
