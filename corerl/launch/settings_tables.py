"""The tables of `configs/`: what a paper, or somebody's code, changes per dataset.

A row is `task-glob: {setting: value}`, the setting spelled as on the command line; of the rows that
match a task, later ones win. Two keys are no rows: `algo` names the algorithm that a variant belongs to
(where its file's name does not begin with it), `base` a table whose rows come before this one's.
"""

import fnmatch
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from corerl import algos
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
