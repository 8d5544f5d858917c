"""`corerl.train`: what the command line does, for a notebook or a script.

    data = corerl.Dataset.from_arrays(observations, actions, rewards, terminated, truncated)
    trained = corerl.train("iql", dataset=data, env="gym/Pendulum-v1", seeds=10, steps=10_000)
    trained.scores()                       # a row per seed
    trained.load().act(observation)        # an action of every seed

It is the same program: the same command, run from a terminal, finds the run and has nothing left to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corerl.config import Config, require, seed_list
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.errors import CorerlError
from corerl.launch import last_scores, launch
from corerl.launch.composition import cells
from corerl.launch.task_arguments import quoted
from corerl.runs.directory import cell_directory

if TYPE_CHECKING:
    from corerl.policies.loaded_policy import Loaded

COMMON = {field.name for field in fields(Config)}


@dataclass(frozen=True)
class Trained:
    """A cell that is trained: where it is, and its seeds."""

    path: Path
    seeds: tuple[int, ...]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def scores(self) -> list[dict[str, Any]]:
        """Reads the last evaluation of every seed, as rows of `scores.csv`. `pandas.DataFrame` takes them."""
        return last_scores.last(self.path, self.seeds)

    def load(self, seed: int | None = None) -> Loaded:
        """Loads the policies of all the run's seeds, earlier calls' too, or of one, as `corerl.load`."""
        from corerl.policies.load import load

        return load(self.path, seed)


def train(
    algo: str,
    *,
    task: str | None = None,
    dataset: Dataset | str | os.PathLike | None = None,
    env: str | None = None,
    seeds: int | Sequence[int] = 5,
    **settings: Any,
) -> Trained:
    """Trains every seed that is missing or unfinished and returns where they are.

    Args:
        algo: an algorithm or a table of it, as `algo=` on the command line.
        task: an id such as `corerl/pendulum`; or
        dataset: data of one's own, a `Dataset` or a file. A `Dataset` is kept below `root`, named by content.
        env: the environment that scores it, `gym/Id` or `gym/module:Id`; None trains without scores.
        seeds: a count or a list.
        settings: those of the command line; one that not every algorithm has is the algorithm's
            (`expectile=0.8` is `algo.expectile=0.8`); groups are dictionaries (`eval={"every": 1000}`),
            and a name with dots is spelled out (`**{"algo.data.normalize_states": True}`).

    Raises:
        CorerlError: as the command line says; some seeds failed.
        KeyboardInterrupt: stopped, after saving; the same call goes on.
    """
    require(
        (task is None) != (dataset is None),
        "corerl.train needs either task=... or dataset=..., and not both",
    )
    of_file = [name for name in settings if name.split(".")[0] == "data"]
    require(
        not (of_file and isinstance(dataset, Dataset)),
        f"{' '.join(of_file)} is for files, not for a Dataset. Give a Dataset's action bounds to "
        "Dataset.from_arrays as low and high. Give an algorithm's settings as "
        '**{"algo.data.normalize_states": True}',
    )
    root = Path(settings.get("root", Config.root)).expanduser()  # no shell has done it
    seeds = seeds if np.isscalar(seeds) or seeds is None else list(seeds)
    given = {"task": task, "env": env, "seeds": seeds, **settings, "root": root}
    if dataset is not None:
        given |= _own(dataset, root)
    (cfg,) = cells([f"algo={algo}", *_overrides(given)])
    if isinstance(dataset, Dataset) and dataset.as_given and cfg.env is not None:
        _remark_bounds(dataset.id, tasks.of(cfg))
    launch.launch(cfg)
    return Trained(cell_directory(cfg), tuple(seed_list(cfg.seeds)))


def _own(dataset: Dataset | str | os.PathLike, root: Path) -> dict[str, Any]:
    """Returns the settings of a user's own data. Arrays are written once, named by their content."""
    if not isinstance(dataset, Dataset):
        require(
            isinstance(dataset, str | os.PathLike),
            f"dataset has type {type(dataset).__name__}, but must be a Dataset or the path of a file. Make a "
            "Dataset from arrays: corerl.Dataset.from_arrays(observations, actions, rewards, "
            "terminated, truncated)",
        )
        return {"task": f"file/{os.fspath(dataset)}"}
    sha = hashlib.sha256()
    for field, array in own_files.fields_of(dataset).items():
        sha.update(f"{field} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    name = re.sub(r"[^\w.-]+", "-", dataset.id.removeprefix("file/")) or "arrays"
    path = root / "datasets" / f"{name}-{sha.hexdigest()[:16]}.npz"
    if not path.exists():
        own_files.write(path, dataset)
    data = {} if dataset.discrete else {"action_low": -1, "action_high": 1}
    if dataset.parts:
        data["columns"] = {"observations": [f"observations/{name}" for name, _ in dataset.parts]}
    return {"task": f"file/{path}"} | ({"data": data} if data else {})


def _remark_bounds(id: str, task: tasks.Task) -> None:
    """Says on stderr what actions that were given without bounds become, where that is not themselves."""
    with suppress(CorerlError):  # of an environment that cannot be made, which launching tells
        low, high = task.box or (-1, 1)
        if np.any(low != -1) or np.any(high != 1):
            print(
                f"corerl: {id} has no action bounds, so corerl assumes actions in [-1, 1]. "
                f"{task.env} will receive {np.unique(low)} for -1 and {np.unique(high)} for 1. If your "
                "actions are in the environment's units, give Dataset.from_arrays the environment's "
                "low and high.",
                file=sys.stderr,
            )


def _overrides(given: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Spells settings as the command line does."""
    for name, value in given.items():
        key = name if prefix or name in COMMON or "." in name else f"algo.{name}"
        if isinstance(value, dict):
            yield from _overrides(value, f"{prefix}{key}.")
        elif value is not None or name not in ("task", "env"):
            yield f"{prefix}{key}={_spelled(key, value)}"


def _plain(value: Any) -> Any:
    """Returns a path as text, a number or an array of numpy or torch as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _spelled(key: str, value: Any) -> str:
    value = _plain(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_spelled(key, part) for part in value)}]"
    try:
        return json.dumps(value)
    except TypeError as error:
        raise CorerlError(
            f"{key}={value!r} must be a number, a text, or a list of numbers or texts."
        ) from error
