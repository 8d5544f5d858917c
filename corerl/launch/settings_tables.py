"""What `algo=` takes: algorithms, and the tables of `configs/` with what a paper changes per dataset.

A row is `task-glob: {setting: value}`, the setting spelled as on the command line; of the rows that
match a task, later ones win. Two keys are no rows: `algo` names the algorithm that a variant belongs to
(where its file's name does not begin with it), `base` a table whose rows come before this one's.
"""

import fnmatch
import importlib
import inspect
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl import algos
from corerl.config import Config, require
from corerl.errors import CorerlError, nearest


def table(name: str, task: str) -> dict[str, Any]:
    """Returns the settings that a table changes for `task`. None for an algorithm without a file.

    Raises:
        CorerlError: there is neither a file nor an algorithm of that name.
    """
    if name not in _files() and name not in algos.names():
        raise CorerlError(
            f"There is no table {name!r} of settings in configs/.{nearest(name, _files())}"
        )
    values: dict[str, Any] = {}
    for row in _matching(name, task):
        values |= row
    return values


def _all_rows(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns a table's rows, after those of the tables that it is based on."""
    rows = rows_of(name)
    own = [(pattern, row) for pattern, row in rows.items() if pattern not in ("algo", "base")]
    return (_all_rows(rows["base"]) if "base" in rows else []) + own


def _matching(name: str, task: str, prefix: str = "") -> list[dict[str, Any]]:
    """Returns the rows whose patterns match a task, and begin with `prefix`."""
    rows = _all_rows(name)
    return [row for p, row in rows if p.startswith(prefix) and fnmatch.fnmatchcase(task, p)]


def of_d4rl(name: str, task: str) -> dict[str, Any]:
    """Returns what a table changes for D4RL's sets of the family that Minari's `task` was made after.

    It does not apply by itself: `minari/D4RL/antmaze/umaze-v1` is other data than D4RL's, also in what its
    rewards and ends are. Nothing, where the table has a row for the task, or the task is no such set.
    """
    family, _, rest = task.removeprefix("minari/D4RL/").partition("/")
    values: dict[str, Any] = {}
    if task.startswith("minari/D4RL/") and not _matching(name, task, "minari/"):
        for row in _matching(name, f"d4rl/{family}-{rest}", f"d4rl/{family}-"):
            values |= row
    return values


def budget(name: str, algorithm: str, task: str) -> dict[str, Any]:
    """Returns the settings that `configs/budgets.yaml` gives an embedded task without a number of steps.

    Nothing, where the table `name` has a number for this very task; its number for all tasks, a paper's,
    counts less. An algorithm's row changes the budget of a task that has one, and gives none to others.
    """
    has_steps = any("steps" in row for row in _matching(name, task, "corerl/"))
    if has_steps or not _matching("budgets", task):
        return {}
    values: dict[str, Any] = {}
    for pattern, row in rows_of("budgets").items():
        whole = pattern if ":" in pattern else f"*:{pattern}"
        if fnmatch.fnmatchcase(f"{algorithm}:{task}", whole):
            values |= row
    return values


@cache
def rows_of(name: str) -> dict[str, Any]:
    """Returns the content of `configs/<name>.yaml`, or empty where there is no such file.

    Raises:
        CorerlError: the file, a user's own, is no table.
    """
    if name not in _files():
        return {}
    file = _files()[name]
    try:
        rows = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise CorerlError(f"Cannot read {file}: {reason}. Repair the file.") from error
    whole = isinstance(rows, dict)
    if not whole or any(type(rows[k]) is not dict for k in rows if k not in ("algo", "base")):
        raise CorerlError(
            f"{file} is not a table of settings. A row looks like 'd4rl/hopper-*: "
            "{algo.alpha: 7}'."
        )
    return rows


def file_of(name: str) -> str:
    """Names a table's file, for people: `configs/iql.yaml`, or the path of a user's own."""
    own = algos.own().get(name)
    return str(own.with_suffix(".yaml")) if own else f"configs/{name}.yaml"


@cache
def variants() -> dict[str, str]:
    """Returns the tables that `algo=` takes beside the algorithms' own names, each with its algorithm."""
    found = {name: _algorithm(name) for name in _files() if name not in algos.names()}
    return {name: algo for name, algo in sorted(found.items()) if algo}


def _algorithm(name: str) -> str:
    rows = rows_of(name)
    if "algo" in rows or name in algos.names():
        return rows.get("algo", name)
    if "base" in rows:
        return _algorithm(rows["base"])
    return max((a for a in algos.names() if name.startswith(f"{a}_")), key=len, default="")


def _files() -> dict[str, Any]:
    beside = {name: path.with_suffix(".yaml") for name, path in algos.own().items()}
    return _shipped() | {name: path for name, path in beside.items() if path.is_file()}


@cache
def _shipped() -> dict[str, Any]:
    return {
        file.name.removesuffix(".yaml"): file
        for file in files("corerl.configs").iterdir()
        if file.name.endswith(".yaml") and file.name != "config.yaml"
    }


class Algorithms(dict[str, ConfigNode | None]):
    """Hydra's group `algo`, where a node is made when it is first asked for: all seventy take a second.

    Copies share it, since Hydra copies its whole store for every cell, and then what it takes from the copy.
    """

    def __getitem__(self, file: str) -> ConfigNode:
        found = super().__getitem__(file)
        if found is None:
            found = self[file] = _node(file)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Algorithms":
        return self


def _node(file: str) -> ConfigNode:
    name = file.removesuffix(".yaml")
    algorithm = variants().get(name, name)
    settings = _settings(algorithm)
    if name == algorithm:
        return ConfigNode(file, settings, group="algo", package=None, provider=None)
    node = OmegaConf.create({"table": name, "algo": settings})
    return ConfigNode(file, node, group="algo", package="_global_", provider=None)


def _settings(algorithm: str) -> DictConfig:
    config = importlib.import_module(f"corerl.algos.{algorithm}").Config
    file = inspect.getfile(config)
    for name, what in {"name": "its file's", "label": "its name in tables"}.items():
        require(
            name in config.__dataclass_fields__,
            f"The Config in {file} has no field `{name}` ({what}). Add this field",
        )
    try:
        return OmegaConf.structured(config)
    except (OmegaConfBaseException, AssertionError, ValueError) as error:
        raise CorerlError(
            f"The Config in {file} cannot be used: {' '.join(str(error).split())}. "
            "The types of its fields are int, float, bool, str, list or a dataclass."
        ) from error


@cache
def register() -> None:
    """Tells Hydra the schema and what `algo=` takes: every algorithm, and every variant's table."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    names = [*algos.names(), *variants()]
    store.repo["algo"] = Algorithms.fromkeys(f"{name}.yaml" for name in names)
