"""Runs that are killed, and runs whose files are damaged before they go on."""

import functools
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from damage import damaged
from small import config, group

from corerl.config import Eval
from corerl.errors import CorerlError
from corerl.launch import launch
from corerl.runs.directory import cell_directory

JOBS = {
    "BC": ("bc", {"steps": 60, "save_every": 7, "log_every": 5, "eval": Eval(20, 1)}, {}),
    "SAC": (
        "sac",
        {
            "task": "gym/Pendulum-v1",
            "steps": 90,
            "save_every": 11,
            "log_every": 6,
            "eval": Eval(40, 1),
        },
        {"random_steps": 20},
    ),
}


def job(name: str, root: Path):
    algo, settings, own = JOBS[name]
    return config(root, algo, own=own, **settings)


def _train(name: str, root: Path) -> None:
    """In a process of its own: exit status 2 for a refusal in a sentence, 3 for anything else."""
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        launch.launch(job(name, root))
    except CorerlError:
        status = 3 if _has_traceback(root) else 2
    except BaseException:
        status = 3
    else:
        status = 0
    os._exit(status)


def _has_traceback(root: Path) -> bool:
    """Whether a seed failed by anything but a sentence of ours."""
    texts = [path.read_text() for path in root.rglob("seeds-*/error.txt")]
    return any("corerl.errors." not in text and "Damaged" not in text for text in texts)


def _start_training(name: str, root: Path) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=_train, args=(name, root))
    process.start()
    return process


def _finish(name: str, root: Path, expected: dict) -> str:
    process = _start_training(name, root)
    process.join(120)
    if process.exitcode is None:
        process.kill()
        return "hang"
    if process.exitcode != 0:
        return {2: "refused", 3: "traceback: of a run"}.get(process.exitcode, "crash")
    return "same" if group(cell_directory(job(name, root))) == expected else "other data"


def _whole(name: str, folder: Path) -> tuple[dict, float]:
    """What the undisturbed run writes, and its seconds."""
    for number in range(2):  # the second is not slowed by first imports
        started = time.monotonic()
        process = _start_training(name, folder / str(number))
        process.join()
    return group(cell_directory(job(name, folder / "1"))), time.monotonic() - started


@functools.cache
def _undisturbed(name: str) -> tuple[dict, float]:
    """What the undisturbed run writes, and its seconds; measured once a process."""
    with tempfile.TemporaryDirectory() as folder:
        return _whole(name, Path(folder))


def killed_run(name: str, number: int) -> Iterator[tuple[str, int, str]]:
    """A run that is killed at random moments, one to four times, and then finished: a finding a kill."""
    expected, seconds = _undisturbed(name)
    draw, hits = random.Random(f"{name}/{number}"), 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(draw.randint(1, 4)):
            process = _start_training(name, Path(folder))
            process.join(draw.uniform(0, seconds))
            if process.exitcode is None:
                process.kill()
                hits += 1
            process.join()
        reported = _finish(name, Path(folder), expected)
    for _ in range(max(hits, reported != "same")):
        yield f"SIGKILL, then the same command ({name})", number, reported


FILES = (
    *("checkpoint.safetensors", "checkpoint-previous.safetensors", "metrics.jsonl", "scores.csv"),
    *("returns.jsonl", "status.json", "env.json", "../config.yaml"),
)


@functools.cache
def _half_done(name: str) -> tuple[tempfile.TemporaryDirectory, Path]:
    """A stopped run, and the object that keeps its folder."""
    kept = tempfile.TemporaryDirectory()
    return kept, _stopped(name, Path(kept.name) / "stopped", _undisturbed(name)[1])


def damaged_run(name: str, number: int) -> Iterator[tuple[str, int, str]]:
    """A stopped run of which one file is damaged or removed, finished by the same command."""
    expected, stopped = _undisturbed(name)[0], _half_done(name)[1]
    draw = random.Random(f"{name}/{number}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        shutil.copytree(stopped, root)
        path = cell_directory(job(name, root)) / "seeds-0" / draw.choice(FILES)
        content = damaged(path.read_bytes(), draw)
        path.unlink() if draw.random() < 0.1 else path.write_bytes(content)
        reported = _finish(name, root, expected)
        # A log that is gone is a named gap: the checkpoint is the same, the history is shorter.
        if reported == "other data" and not path.exists() | (path.name in FILES[:2]):
            reported = "read"
        if reported == "other data" and _gap(name, root, expected, path.name):
            reported = "read"
    yield f"a damaged file beside a stopped run ({name})", number, reported


def _gap(name: str, root: Path, expected: dict, damaged_file: str) -> bool:
    found = group(cell_directory(job(name, root)))
    logs = {"metrics.jsonl": "metrics", "scores.csv": "scores", "returns.jsonl": "returns"}
    if damaged_file not in logs:
        return False
    key = logs[damaged_file]
    same = all(
        found[k] == expected[k] for k in ("state", "scores", "metrics", "returns") if k != key
    )
    return same and set(found[key].splitlines()) <= set(expected[key].splitlines())


def _stopped(name: str, root: Path, seconds: float) -> Path:
    """A run that was killed after two checkpoints."""
    while True:
        process = _start_training(name, root)
        process.join(0.6 * seconds)
        process.kill()
        process.join()
        cell = cell_directory(job(name, root)) / "seeds-0"
        if (cell / "checkpoint-previous.safetensors").exists() and (cell / "scores.csv").exists():
            return root
        shutil.rmtree(root, ignore_errors=True)
