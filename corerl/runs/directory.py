"""What a run is called: the directory of a group of seeds.

`<root>/<task>/<algorithm>-<hash>/seeds-<first>[-<last>]/` is named by content: the hash is over every
setting that can change a number, so the same command finds the same directory, and more seeds of the
same settings stand beside each other.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from corerl.config import Config
from corerl.errors import CorerlError

LONGEST = 255  # bytes in the name of a file or folder, on nearly every file system
NOT_IN_HASH = (
    *("seeds", "root", "device", "compile", "processes", "save_every", "log_every", "wandb"),
    *("table", "trust", "kernel", "save_minutes"),
)
"""Settings that change where or how fast a run goes, not what it computes (beyond rounding), and the
name of the table, whose values are in the settings already."""


def settings(cfg: Config) -> dict[str, Any]:
    """The settings that name a cell, as plain types."""
    values = asdict(cfg)
    return {name: value for name, value in values.items() if name not in NOT_IN_HASH}


def config_hash(cfg: Config) -> str:
    """Eight hex digits that name the settings."""
    values = _without_added(cfg)
    named = {name: value for name, value in values.items() if name not in NOT_IN_HASH}
    text = json.dumps(named, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _without_added(cfg: Any) -> dict[str, Any]:
    """`asdict`, less the settings marked `config.added` that have their default."""
    values = {}
    for setting in fields(cfg):
        value = getattr(cfg, setting.name)
        if setting.metadata.get("added") and value == _default(setting):
            continue
        values[setting.name] = _without_added(value) if is_dataclass(value) else value
    return values


def _default(setting: Field) -> Any:
    return setting.default if setting.default is not MISSING else setting.default_factory()


def cell_directory(cfg: Config) -> Path:
    """Where all seeds of these settings live.

    Raises:
        CorerlError: the task's name is no path, as in `task_directory`.
    """
    return task_directory(Path(cfg.root), _below(cfg.task)) / f"{cfg.algo.name}-{config_hash(cfg)}"


def _below(task: str) -> str:
    """A task's id; of a path of one's own without its root and its ways up, which would leave the runs'."""
    if not task.startswith("file/"):
        return task
    return str(PurePosixPath(*(p for p in PurePosixPath(task).parts if p not in ("..", "~"))))


def task_directory(root: Path, task: str) -> Path:
    """`root/<task>`, the one place where a task's name becomes a path, and always one below `root`.

    Raises:
        CorerlError: the name leads out of `root`, or holds what no file's name may.
    """
    shown = task if len(task) <= LONGEST else f"{task[:40]}... ({len(task)} characters)"
    for part in task.split("/"):
        if part in ("", ".", "..") or part != part.strip():
            raise CorerlError(f"Task {shown!r} is no name for a folder: it has a part {part!r}.")
        if len(part.encode(errors="replace")) > LONGEST:
            raise CorerlError(
                f"Task {shown!r} is no name for a folder: a part may have {LONGEST} bytes."
            )
        if not part.isprintable() or "\\" in part:
            raise CorerlError(
                f"Task {shown!r} is no name for a folder: it holds \\ or unprintables."
            )
    return root / task


def group_name(seeds: Sequence[int]) -> str:
    """`seeds-3`, `seeds-0-9`, or every number where there are gaps."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) == 1:
        return f"seeds-{first}"
    if list(seeds) == list(range(first, last + 1)):
        return f"seeds-{first}-{last}"
    return "seeds-" + "_".join(map(str, seeds))


def seeds_of_group(name: str) -> list[int]:
    """The inverse of `group_name`."""
    numbers = name.removeprefix("seeds-")
    if "_" in numbers:
        return [int(n) for n in numbers.split("_")]
    first, _, last = numbers.partition("-")
    return list(range(int(first), int(last or first) + 1))
