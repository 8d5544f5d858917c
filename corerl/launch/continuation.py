"""Longer training: `steps=20000` after `steps=10000` continues the shorter run where that is exact.

It is exact where no number of the first updates depends on how many come: no schedule is over the run, no
evaluation or line of metrics falls at its end alone, and updates run the same way. Then the longer run
begins with the shorter one's checkpoint and its lines, and ends bit-equal to one that was never shorter
(tests/launch/test_continuation.py). The shorter run stays where it is.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from corerl.config import Config, seed_list
from corerl.errors import CorerlError
from corerl.launch import worker
from corerl.nn import compile
from corerl.policies.load import settings
from corerl.runs import pending
from corerl.runs.checkpoint import exists, load_checkpoint, path_in, save_checkpoint
from corerl.runs.directory import cell_directory, config_hash, groups, read_status
from corerl.runs.files import make_directory, read_json, write_atomically, write_json
from corerl.training.devices import pick_device

OFFLINE = {"phase": "offline"}
WITHOUT_SCHEDULE: dict[str, dict[str, Any]] = {
    "a2pr": {},
    "awac": OFFLINE,
    "bc": {},
    "bc_neorl2": {},
    "bcq_discrete": {},
    "cfgrl": {},
    "cfgrl_goals": {},
    "cfgrl_ogbench": {},
    "cpl": {},
    "cql": OFFLINE,
    "cql_discrete": {},
    "cql_official": OFFLINE,
    "crl": {},
    "crr": {},
    "dt": {},
    "dvl": {"cosine": False},
    "edac": {},
    "fql": OFFLINE,
    "gcbc": {},
    "gciql": {},
    "gcivl": {},
    "goat": {},
    "hiql": {},
    "ifql": OFFLINE,
    "iql": OFFLINE | {"cosine": False},
    "iql_ogbench": OFFLINE,
    "laeo": {},
    "qrl": {},
    "rebrac": OFFLINE,
    "spot": OFFLINE,
    "td3_awr": {},
    "td3_bc": {},
    "td3_bc_neorl2": {},
}
"""Algorithms whose first updates do not depend on `steps`, and the settings under which that is so. Each is
trained both ways in the tests."""


def continue_shorter(cfg: Config) -> None:
    """Fills the directories of seeds that have not begun from the longest shorter run of these settings.

    Says what it does; where a shorter run cannot be gone on from, why. Seeds that another process holds are
    left to it.
    """
    found = _found(cfg)
    for directory, steps, seeds in found.shorter:
        with suppress(worker.Busy):  # reported where these seeds are trained
            _go_on(directory, cell_directory(cfg) / directory.name, cfg, steps, seeds)
    if found.refused and found.fresh and not found.begun:
        path, (steps, reason) = next(iter(found.refused.items()))
        print(
            f"corerl: the run of {steps:,} steps in {path} cannot be continued: {reason}. corerl "
            f"keeps that run as it is, and starts a new one of {cfg.steps:,} steps.",
            file=sys.stderr,
        )


def made(cfg: Config) -> dict[int, int]:
    """Returns the steps from which new seeds would continue a shorter run, of those that can."""
    return {seed: steps for _, steps, seeds in _found(cfg).shorter for seed in seeds}


class _Found(NamedTuple):
    """Groups of shorter runs to continue with their steps, or why not.

    Also the seeds asked for that have none to continue, and those that have begun.
    """

    shorter: list[tuple[Path, int, list[int]]]
    refused: dict[Path, tuple[int, str]]
    fresh: set[int]
    begun: set[int]


def _found(cfg: Config) -> _Found:
    cell = cell_directory(cfg)
    found = sorted(_others(cfg, cell), key=lambda pair: pair[1], reverse=True)
    begun = {seed for path, seeds in groups(cell) if _is_begun(path) for seed in seeds}
    wanted = set(seed_list(cfg.seeds)) - begun
    shorter, refused = [], {}
    for path, steps in found:
        if reason := _reason(cfg, path, steps):
            if reached := _reached(path):
                refused[path] = reached, reason
            continue
        unfinished: list[int] = []
        for directory, seeds in groups(path):
            if not _is_done(directory, steps):
                unfinished += sorted(wanted & set(seeds))
            elif set(seeds) <= wanted:
                shorter.append((directory, steps, seeds))
                wanted -= set(seeds)
            elif wanted & set(seeds):
                reason = f"the seeds of {directory.name} train together, but you ask for only some of them"
                refused[path] = steps, reason
        if unfinished and (reached := _reached(path)):
            many = len(unfinished) > 1
            named = f"seed{'s' if many else ''} {', '.join(map(str, unfinished))}"
            reason = f"{named} {'have' if many else 'has'} not finished there, or diverged"
            refused[path] = reached, reason
    return _Found(shorter, refused, wanted, begun)


def _others(cfg: Config, cell: Path):
    """Yields the cells, and their numbers of steps, that differ from this one in that number alone."""
    wanted = config_hash(cfg)
    named = cache(lambda steps: config_hash(replace(cfg, steps=steps)))
    for path in cell.parent.glob(f"{cfg.algo.name}-*/config.yaml"):
        with suppress(CorerlError, OSError):
            # Their names tell first: a task's folder may hold hundreds, whose settings take long to read.
            text = path.read_text(encoding="utf-8", errors="replace")
            written = re.search(r"^steps: (\d+)$", text, re.MULTILINE)
            if not written or not path.parent.name.endswith(named(int(written[1]))):
                continue
            saved = settings(path.parent)
            same = config_hash(replace(saved, steps=cfg.steps)) == wanted
            if saved.steps != cfg.steps and same:
                yield path.parent, saved.steps


def _reason(cfg: Config, shorter: Path, steps: int) -> str:
    """Returns why a run of so many steps is not the beginning of this one, or nothing where it is."""
    algo = vars(cfg.algo)
    needed = WITHOUT_SCHEDULE.get(cfg.algo.name)
    if steps > cfg.steps:
        return "it is longer than the new one"
    if needed is None:
        return (
            f"with {cfg.algo.label}, the first updates may depend on the total number of steps, as with a "
            "learning-rate schedule"
        )
    for name, value in needed.items():
        if algo[name] != value:
            return f"with algo.{name}={algo[name]}, the first updates depend on the total number of steps"
    for name, every in (("eval.every", cfg.eval.every), ("log_every", cfg.log_every)):
        if steps % every and (name != "eval.every" or cfg.eval.episodes):
            return (
                f"{steps} is not a multiple of {name}={every}, so the results of that run end with a row "
                "that a longer run does not have"
            )
    device = pick_device(cfg.device)
    if any(_on_gpu(path) != (device.type == "cuda") for path, _ in groups(shorter)):
        return "it ran on another kind of device (CPU or GPU), whose random numbers differ"
    before, now = (compile.resolve(cfg.compile, device, n).plan for n in (steps, cfg.steps))
    if before != now:
        return "compile=auto compiles the updates of the new run, but not those of the shorter one"
    return ""


def _on_gpu(directory: Path) -> bool:
    environment = read_json(directory / "env.json")
    return isinstance(environment, dict) and bool(environment.get("gpu"))


def _reached(cell: Path) -> int:
    """Returns the steps of the seeds that got furthest."""
    with suppress(CorerlError):
        return max((read_status(path).get("step", 0) for path, _ in groups(cell)), default=0)
    return 0


def _is_done(directory: Path, steps: int) -> bool:
    with suppress(CorerlError):
        status = read_status(directory)
        whole = status.get("state") == "done" and status.get("step") == steps
        return whole and not status.get("diverged") and path_in(directory).exists()
    return False


def _is_begun(directory: Path) -> bool:
    """Tells whether an attempt was made there. A copy that was cut short is none."""
    return (directory / "status.json").exists() or exists(path_in(directory))


def _go_on(old: Path, new: Path, cfg: Config, steps: int, seeds: list[int]) -> None:
    """Copies the shorter run and says so, unless another process has begun since this one looked."""
    with worker.locked(new):
        if _is_begun(new):
            return
        _copy(old, new, cfg, steps)
    print(
        f"corerl: seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} "
        f"continue{'' if len(seeds) > 1 else 's'} after the {steps:,} steps in {old}",
        file=sys.stderr,
    )


def _copy(old: Path, new: Path, cfg: Config, steps: int) -> None:
    """Copies what a continued run needs. Rows of scores get the new run's name."""
    for log in ("metrics.jsonl", "returns.jsonl", "scores.csv"):
        with suppress(FileNotFoundError):
            content = (old / log).read_bytes()
            if log == "scores.csv":
                name = old.parent.name.rpartition("-")[2]
                content = content.replace(f",{name},".encode(), f",{config_hash(cfg)},".encode())
            write_atomically(new / log, content)
    for step in pending.steps(old):
        make_directory(pending.path_of(new, step).parent)
        write_atomically(pending.path_of(new, step), pending.path_of(old, step).read_bytes())
    facts = read_json(old / "env.json") or {}
    write_json(new / "env.json", facts | {"continues": {"run": str(old), "steps": steps}})
    saved = load_checkpoint(path_in(old))
    saved["loop"].pop("logs", None)  # they vouch for rows of the other name
    save_checkpoint(path_in(new), saved)
