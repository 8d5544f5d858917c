"""The agents of a finished run as the start of another one, seed by seed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.config import Config, Data
from corerl.errors import CorerlError
from corerl.runs import checkpoint
from corerl.runs.directory import groups, read_settings, read_status
from corerl.runs.files import read_json
from corerl.training.run import Run

SHARED = "normalizer"
"""Parts of an agent's state that have no seed axis, even if their first axis is as long."""
Saved = tuple[Any, tuple[int, int]]
"""A part of a group's state, a seed's place in the group and the number of its seeds."""
READ_BY = ("observations", "actions")
"""Columns of a file whose order is that of a network's inputs and outputs."""
COUNTER = {"count"}
"""The state of a schedule of the learning rate, which may have ended with pre-training."""
FUNCTION = {
    *("hidden_layers", "hidden_width", "policy_layers", "critic_layers", "critics", "features"),
    *("activation", "layer_norm", "critic_layer_norm"),
    *("policy", "policy_std", "log_std_min", "log_std_max", "std_min", "std_max"),
    "tuning",  # a temperature is the exponential of its weight or the softplus
    *("encoding", "encoding_base"),
    *("levels", "bins", "atoms", "low", "high", "act_with", "arsq.alpha"),
}
"""Settings, of all algorithms or `<algorithm>.<setting>` of one, that decide which function the weights are.
No tensor's shape tells most of them. Settings of learning may be others than in pre-training."""


def restore(agent: Any, cell: str, run: Run, algorithms: Sequence[str]) -> None:
    """Gives every seed of `agent` the whole state that the same seed had at the end of another run.

    Networks, targets, temperature and the optimisers' moments are restored; whether seeds were trained
    together there does not matter.

    Args:
        cell: the folder `<algorithm>-<hash>` of the other run.
        algorithms: those whose agents fit.

    Raises:
        CorerlError: the first thing in which the other run differs (task, algorithm, preprocessing,
            `FUNCTION`, the parts of its networks and their shapes), or that it has not finished.
    """
    folder = Path(cell)
    settings = _compare(folder, run, algorithms)
    saved = [_state_of(folder, seed) for seed in run.seeds]
    agent.load_state_dict(_stack(agent.state_dict(), saved, "", folder))
    run.record.facts["pretrained"] = {
        "run": cell,
        "steps": settings["steps"] + _before(folder, run.seeds[0]),
    }


def _compare(folder: Path, run: Run, algorithms: Sequence[str]) -> dict[str, Any]:
    """Returns the other run's settings, which must be alike."""
    try:
        settings = read_settings(folder)
        saved = settings["algo"]
        name = saved["name"]
        task, theirs = settings["task"], dict(saved["data"])
        acts_in = settings.get("action_range")
    except (CorerlError, KeyError, TypeError, ValueError) as error:
        raise CorerlError(
            f"algo.online.checkpoint={folder} must be the folder of a run, "
            "<root>/<task>/<algorithm>-<hash>, but its config.yaml cannot be read."
        ) from error
    wanted = asdict(run.cfg.algo)
    pairs = [("task", task, run.task.id), ("action_range", acts_in, run.cfg.action_range)]
    pairs += _read_alike(settings.get("data") or {}, run.cfg)
    added = asdict(type(run.cfg.algo)())  # what an older run does not name had its default
    own = [k for k in wanted if FUNCTION & {k, f"{wanted['name']}.{k}"}]
    pairs += [(f"algo.{k}", saved.get(k, added[k]), wanted[k]) for k in own]
    added = added["data"]
    pairs += [(f"algo.data.{k}", theirs.get(k, added[k]), v) for k, v in wanted["data"].items()]
    if name not in algorithms:
        known = " or ".join(algorithms)
        problem = f"its algorithm is {name}, but {wanted['name']} can fine-tune only {known}"
        raise _refusal(folder, problem)
    for setting, there, mine in pairs:
        if there != mine:
            raise _refusal(folder, f"{setting} is {there} in that run, but {mine} in this one")
    return settings


def _read_alike(theirs: dict[str, Any], cfg: Config) -> list[tuple[str, Any, Any]]:
    """Pairs what a file's observations and actions mean: their order, units and, where states or returns
    are normalised by it, its content."""
    added = asdict(Data())  # what an older run does not name had its default
    theirs, mine = added | theirs, asdict(cfg.data)
    columns = added["columns"] | theirs["columns"]
    pairs = [(f"data.columns.{k}", columns[k], mine["columns"][k]) for k in READ_BY]
    own = ("action_low", "action_high")
    if cfg.algo.data.normalize_states or cfg.algo.data.return_range:
        own += ("sha256",)
    return pairs + [(f"data.{k}", theirs[k], mine[k]) for k in own]


def _before(folder: Path, seed: int) -> int:
    """Counts the steps of the run, if any, that the other one itself began from."""
    group = next(directory for directory, seeds in groups(folder) if seed in seeds)
    return (read_json(group / "env.json") or {}).get("pretrained", {}).get("steps", 0)


def _state_of(folder: Path, seed: int) -> tuple[dict, tuple[int, int]]:
    """Returns the agents of the group that holds the seed, the seed's place among them and their number."""
    for directory, group in groups(folder):
        if seed in group:
            status = read_status(directory)
            if status.get("state") != "done":
                problem = f"{directory.name} has not finished (step {status.get('step')})"
                raise _refusal(folder, problem)
            saved = checkpoint.load_checkpoint(checkpoint.path_in(directory))
            return saved["state"]["agent"], (group.index(seed), len(group))
    raise _refusal(folder, f"it has no seed {seed}")


def _stack(mine: Any, saved: list[Saved], name: str, folder: Path) -> Any:
    """Returns the seeds' slices in the layout of `mine` and raises at the first thing that does not fit."""
    if isinstance(mine, Tensor):
        return _stack_tensor(mine, saved, name, folder)
    if not isinstance(mine, dict | list | tuple):
        return saved[0][0]
    wanted, found = _named(mine), [(_named(state), place) for state, place in saved]
    parts = {}
    for key in wanted | found[0][0]:
        full = f"{name}.{key}" if name else str(key)
        if any(key not in state for state, _ in found):
            raise _refusal(folder, f"it has no {full}")
        if key in wanted:
            inside = [(state[key], place) for state, place in found]
            parts[key] = _stack(wanted[key], inside, full, folder)
        elif _named(found[0][0][key]).keys() != COUNTER:
            raise _refusal(folder, f"it has {full}, but this run does not")
    return parts if isinstance(mine, dict) else list(parts.values())


def _named(state: Any) -> dict:
    """Returns a state's parts by name or number, or nothing where it has none, as a tensor."""
    if isinstance(state, list | tuple):
        return dict(enumerate(state))
    return state if isinstance(state, dict) else {}


def _stack_tensor(mine: Tensor, saved: list[Saved], name: str, folder: Path) -> Tensor:
    whole = mine.shape[:1] != (len(saved),) or name.startswith(SHARED)
    whole |= any(tensor.shape[:1] != (seeds,) for tensor, (_, seeds) in saved)
    slices = [tensor if whole else tensor[place] for tensor, (place, _) in saved]
    expected = mine.shape if whole else mine.shape[1:]
    for piece in slices:
        if piece.shape != expected:
            shapes = f"{tuple(piece.shape)} there and {tuple(expected)} here"
            raise _refusal(folder, f"{name} has the shape {shapes}")
    return slices[0] if whole else torch.stack(slices)


def _refusal(folder: Path, difference: str) -> CorerlError:
    return CorerlError(
        f"algo.online.checkpoint={folder} cannot be fine-tuned with these settings: {difference}."
    )
