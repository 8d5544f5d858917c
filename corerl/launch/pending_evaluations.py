"""Pending evaluations of runs with `eval.later=true`, played by `corerl evaluate RUN --pending`.

They are played in order of steps, and leave the files of a run that evaluated itself. A policy's file is
deleted after its rows are written, and rows of a policy whose file is still there are written again: so a
kill leaves no row out and none twice.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch.process_setup import numerics
from corerl.policies import simulation
from corerl.policies.load import rebuilt, settings
from corerl.runs import files, pending
from corerl.runs.checkpoint import Damaged, load_checkpoint
from corerl.runs.directory import groups, read_status, seeds_of_group
from corerl.runs.record import Record
from corerl.runs.score_rows import KEPT
from corerl.training.evaluation import Evaluator


def play(path: Path, device: str = "cpu") -> int:
    """Plays what is pending in a group of seeds, a run, or all runs below a folder. Returns the exit status.

    A group that another process holds is left to it, with a message.

    Raises:
        CorerlError: there is no run at `path`, a file is damaged, or an environment fails.
    """
    played, busy = 0, False
    for directory in _groups(path):
        try:
            played += _play_group(directory, device)
        except files.Busy as error:
            print(f"corerl: {error}", file=sys.stderr)
            busy = True
    many = "" if played == 1 else "s"
    print(f"{played} pending evaluation{many} played in {path}")
    return 2 if busy else 0


def _groups(path: Path) -> list[Path]:
    """Lists the groups of seeds at or below a path."""
    if path.name.startswith("seeds-") and (path.parent / "config.yaml").exists():
        return [path]
    cells = [file.parent for file in files.below(path, "config.yaml")]
    if not cells:
        raise CorerlError(
            f"{path} is not the folder of a run, because it has no config.yaml. The folder of a run is "
            "<root>/<task>/<algorithm>-<hash>."
        )
    return [directory for cell in cells for directory, _ in groups(cell)]


def _play_group(directory: Path, device: str) -> int:
    """Plays the pending evaluations of one group and returns how many."""
    if not pending.steps(directory):
        return 0
    cfg, seeds = settings(directory.parent), seeds_of_group(directory.name)
    cfg = replace(cfg, device=device, compile="off")
    busy = f"Another process is training or playing in {directory}. Wait for it or stop it."
    # On a CPU a seed trains alone and with one thread, and with another number would round otherwise.
    threads = 1 if len(seeds) == 1 else None
    with files.held(directory / ".lock", busy), numerics(cfg, threads):
        record = Record(cfg, seeds, tasks.of(cfg), directory, lambda *_: None)
        evaluator = Evaluator(record.task.make_env, seeds, cfg.eval.episodes, device)
        steps = pending.steps(directory)
        try:
            for step in steps:
                _play_step(record, evaluator, step)
                print(f"{record.name}: step {step:,}, {_score(record)}", flush=True)
        finally:
            evaluator.close()
        pending.discard(directory)
    return len(steps)


def _play_step(record: Record, evaluator: Evaluator, step: int) -> None:
    """Plays one evaluation, writes its rows and deletes its policies."""
    path, status = pending.path_of(record.directory, step), read_status(record.directory)
    saved = _loaded(path)
    agent = rebuilt(record.cfg, saved, path, record.seeds)
    crashed = {int(seed): at for seed, at in status.get("diverged", {}).items() if at <= step}
    record.diverged = crashed | saved["loop"]["diverged"]
    playing = partial(simulation.evaluated, evaluator, record.seeds, record.task.id)
    episodes = playing(agent.act)
    others = {name: playing(policy).returns for name, policy in agent.also.items()}
    record.cut_scores(step)
    record.write_scores(step, episodes)
    for lines in record.lines_beside_scores(step, episodes, others):
        _insert(record.directory / "metrics.jsonl", step, lines)
    diverged = {str(seed): at for seed, at in record.diverged.items()}
    status |= {name: record.status[name] for name in KEPT}
    status["diverged"] = status.get("diverged", {}) | diverged
    files.write_json(record.directory / "status.json", status)
    path.unlink()


def _loaded(path: Path) -> dict[str, Any]:
    try:
        return load_checkpoint(path)
    except Damaged as error:
        raise CorerlError(
            f"{error.problem}. To play the other evaluations, delete this file. Its step will have no scores."
        ) from error


def _score(record: Record) -> str:
    name = "return" if record.status["score"] is None else "score"
    value = record.status[name]
    return "every seed diverged" if value is None else f"{name} {value:.1f}"


def _insert(path: Path, step: int, lines: list[dict[str, Any]]) -> None:
    """Puts lines of metrics behind those of their step, in place of equal ones that a kill left there."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = [line for line in text.splitlines() if not _repeats(line, step, lines)]
    place = sum(json.loads(line)["step"] <= step for line in kept)
    kept[place:place] = map(json.dumps, lines)
    files.write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def _repeats(line: str, step: int, lines: list[dict[str, Any]]) -> bool:
    """Tells whether a line of metrics holds what one of `lines`, of this step, does."""
    found = json.loads(line)
    return found["step"] == step and found.keys() == lines[0].keys()
