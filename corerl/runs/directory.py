"""The directory of a group of seeds, which names a run by its content.

`<root>/<task>/<algorithm>-<hash>/seeds-<first>[-<last>]/` is named by content: the hash is over every
setting that can change a number, so the same command finds the same directory, and more seeds of the
same settings stand beside each other.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from corerl.config import MOST_SEEDS, Config, seed_list
from corerl.errors import CorerlError
from corerl.older_settings import LEFT, RENAMED, renamed
from corerl.runs import files

NOT_READ = (OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError)
LONGEST = 255  # bytes in the name of a file or folder, on nearly every file system
NOT_IN_HASH = (
    *("seeds", "root", "device", "compile", "processes", "save_every", "log_every", "wandb"),
    "tensorboard",
    *("table", "trust", "kernel", "save_minutes", "eval.later"),
)
"""Settings that change where or how fast a run goes, not what it computes (beyond rounding), and the
name of the table, whose values are in the settings already."""


def settings(cfg: Config) -> dict[str, Any]:
    """Returns the settings that name a cell, as plain types."""
    values = asdict(cfg)
    values["eval"].pop("later")
    return {name: value for name, value in values.items() if name not in NOT_IN_HASH}


def config_hash(cfg: Config) -> str:
    """Returns eight hex digits that name the settings."""
    text = json.dumps(_without_added(cfg), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _without_added(cfg: Any) -> dict[str, Any]:
    """Returns `asdict` by settings' first names, less `NOT_IN_HASH` and those `config.added` at their
    default, and with what has left an algorithm's file since."""
    first = {new: old for old, new in RENAMED.items()}
    prefix, values = getattr(cfg, "prefix", ""), {}
    for setting in fields(cfg):
        value = getattr(cfg, setting.name)
        added = setting.metadata.get("added") and value == _default(setting)
        if added or prefix + setting.name in NOT_IN_HASH:
            continue
        name = first.get(prefix + setting.name, prefix + setting.name).removeprefix(prefix)
        values[name] = _without_added(value) if is_dataclass(value) else value
    left = LEFT.get(values.get("name", ""))
    return values | (left.defaults if left and left.hashed else {})


def _default(setting: Field) -> Any:
    return setting.default if setting.default is not MISSING else setting.default_factory()


def cell_directory(cfg: Config) -> Path:
    """Returns the directory of all seeds of these settings.

    Raises:
        CorerlError: the task's name is no path, as in `task_directory`.
    """
    return task_directory(Path(cfg.root), _below(cfg.task)) / f"{cfg.algo.name}-{config_hash(cfg)}"


def _below(task: str) -> str:
    """Returns a task's id, or a user's path without its root and `..`, which would leave the runs' root."""
    if not task.startswith("file/"):
        return task
    return str(PurePosixPath(*(p for p in PurePosixPath(task).parts if p not in ("..", "~"))))


def task_directory(root: Path, task: str) -> Path:
    """Returns `root/<task>`, the one place where a task's name becomes a path, and always one below `root`.

    Raises:
        CorerlError: the name leads out of `root`, or holds what no file's name may.
    """
    shown = task if len(task) <= LONGEST else f"{task[:40]}... ({len(task)} characters)"
    for part in task.split("/"):
        if part in ("", ".", "..") or part != part.strip():
            raise CorerlError(
                f"Task {shown!r} cannot be the name of a folder, because it has a part {part!r}. Rename "
                "the task or file."
            )
        if len(part.encode(errors="replace")) > LONGEST:
            raise CorerlError(
                f"Task {shown!r} cannot be the name of a folder, because a part has more than {LONGEST} "
                "bytes. Rename the file."
            )
        if not part.isprintable() or "\\" in part:
            raise CorerlError(
                f"Task {shown!r} cannot be the name of a folder, because it has \\ or unprintable "
                "characters. Rename the file."
            )
    return root / task


def group_name(seeds: Sequence[int]) -> str:
    """Names a group of seeds: `seeds-3`, `seeds-0-9`, or every number where there are gaps."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) == 1:
        return f"seeds-{first}"
    if list(seeds) == list(range(first, last + 1)):
        return f"seeds-{first}-{last}"
    return "seeds-" + "_".join(map(str, seeds))


def seeds_of_group(name: str) -> list[int]:
    """Returns the inverse of `group_name`.

    Raises:
        CorerlError: `group_name` makes no such name, as of a copy (`seeds-0.bak`).
    """
    found = re.fullmatch(r"seeds-(\d+)(?:-(\d+)|((?:_\d+)+))?", name, re.ASCII)
    if found is None:
        raise CorerlError(f"{name} must be the name of a folder of seeds, such as seeds-0-4.")
    first, last, others = found.groups()
    if others:
        seeds = [int(n) for n in name.removeprefix("seeds-").split("_")]
    elif int(last or first) - int(first) < MOST_SEEDS:
        seeds = list(range(int(first), int(last or first) + 1))
    else:
        seeds = []
    if not seeds or group_name(seeds) != name:
        raise CorerlError(f"{name} must be the name of a folder of seeds, such as seeds-0-4.")
    return seeds


def groups(cell: Path) -> Iterator[tuple[Path, list[int]]]:
    """Yields the directories of a cell that are groups of seeds, and those seeds, by their numbers."""
    found = []
    for directory in cell.glob("seeds-*"):
        with suppress(CorerlError):
            found.append((seeds_of_group(directory.name), directory))
    yield from ((directory, seeds) for seeds, directory in sorted(found))


def counted(cell: Path) -> Iterator[tuple[Path, list[int]]]:
    """Yields the groups of a cell, less those that ended before they saved and whose seeds others have."""
    found = list(groups(cell))
    times = Counter(seed for _, seeds in found for seed in seeds)
    if max(times.values(), default=1) == 1:
        yield from found
        return
    kept = [group for group in found if _is_kept(group[0])]
    have = {seed for _, seeds in kept for seed in seeds}
    yield from (group for group in found if group in kept or not have.issuperset(group[1]))


def _is_kept(directory: Path) -> bool:
    """Tells whether a group is done, or has saved a checkpoint to resume."""
    from corerl.runs import checkpoint  # loads torch, for which few cells have a reason

    with suppress(CorerlError):  # a damaged status: the checkpoint tells
        if read_status(directory).get("state") == "done":
            return True
    return checkpoint.exists(checkpoint.path_in(directory))


def strays(cell: Path) -> list[Path]:
    """Returns paths named nearly like a group of seeds that are none, such as somebody's copy of one."""
    return sorted(set(cell.glob("seeds-*")) - {directory for directory, _ in groups(cell)})


def read_status(directory: Path) -> dict[str, Any]:
    """Reads the `status.json` of a group, or empty where there is none.

    Raises:
        CorerlError: it is damaged.
    """
    path = directory / "status.json"
    status = files.read_json(path)
    if status is None:
        return {}
    wanted = {
        "state": str,
        "step": int,
        "began_at": int,
        "message": str,
        "diverged": dict,
        "score": int | float | None,
        "return": int | float | None,
        "steps": int,
        "evaluated": int | None,
        "seeds": list,
        "seconds": int | float | None,
    }
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        raise CorerlError(
            f"{path} is damaged: it has no state. Delete {path.parent} to train these seeds again."
        )
    for name, kind in wanted.items():
        if name in status and not isinstance(status[name], kind):
            raise CorerlError(
                f"{path} is damaged: {name} is {str(status[name])[:40]!r}. Delete {path.parent} to train "
                "these seeds again."
            )
    numbers = [*status.get("seeds", []), *status.get("diverged", {}).values()]
    if any(type(number) is not int for number in numbers):
        raise CorerlError(
            f"{path} is damaged: its seeds, or the steps where they diverged, are not numbers. "
            f"Delete {path.parent} to train these seeds again."
        )
    return status


def read_settings(cell: Path) -> dict[str, Any]:
    """Reads the `config.yaml` of a cell, under the names that settings have today.

    Raises:
        CorerlError: it is damaged, or none of ours.
    """
    path = cell / "config.yaml"
    try:
        values = files.plain_yaml(path)
        seed_list(values["seeds"])
        names = (values["task"], values["algo"]["label"], values["algo"]["name"])
        label = values["label"]
        texts = all(isinstance(name, str) for name in (*names, "" if label is None else label))
        if not texts or type(values["steps"]) is not int:
            raise ValueError("settings in it have wrong types")
    except (*NOT_READ, CorerlError) as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        raise CorerlError(
            f"{path} does not hold the settings of a run ({reason[:200]}). "
            "Restore the file, or move the run's folder away and train again."
        ) from e
    return renamed(values)
