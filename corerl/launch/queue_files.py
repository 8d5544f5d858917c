"""Files of a queue: the folder that `--pack` writes for another machine, and the archive of `--out`."""

import os
import tarfile
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import corerl
from corerl.config import Config
from corerl.data import packed, tasks
from corerl.data.tasks import READERS, Task
from corerl.errors import CorerlError
from corerl.runs.checkpoint import path_in
from corerl.runs.directory import cell_directory, counted, read_status
from corerl.runs.files import make_directory

MIB = 2**20
DATA = "packed"
"""The datasets' folder in a packed folder."""
PACK = 64 * MIB
"""Most bytes of a packed folder."""
PIECE, PIECES = 16 * MIB, 8
"""Bytes of a file of the archive, and how many there are at most."""
LEFT_FREE = MIB
"""Of the archive, for tar's own blocks."""


def data_folder(file: str) -> Path:
    """Returns the folder beside a queue's file in which `pack` puts its datasets."""
    return Path(file).absolute().parent / DATA


def pack(cells: list[Config], file: str, folder: Path) -> list[str]:
    """Writes a queue's file and its datasets into `folder` and returns a line for each file.

    Raises:
        CorerlError: the datasets take more than `PACK`, or a cell learns from a user's own file.
    """
    make_directory(folder)
    found = Path(file)
    source = found if found.is_file() else resources("corerl.sweeps") / f"{file}.yaml"
    (folder / "queue.yaml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    sizes: dict[str, int] = {}
    for task in dict.fromkeys(tasks.of(cfg) for cfg in cells):
        for split in _needed(task, cells):
            path = packed.path_in(folder / DATA, task.id, split)
            packed.write(replace(task, history=1, action_range=None).load(split), path)
            sizes[str(path.relative_to(folder))] = path.stat().st_size
            _check_total(sizes, folder)
    return [f"{name}: {size / MIB:.1f} MiB" for name, size in sizes.items()]


def _needed(task: Task, cells: list[Config]) -> list[str]:
    """Returns the splits to pack of a task's data. None of what is made each time or comes with corerl."""
    if task.collection == "file":
        raise CorerlError(
            f"--pack cannot pack {task.id}, because the file's path is part of the run's name. Remove its "
            "cells from the list. To train them on the other machine, copy the file to the same path there."
        )
    if not task.has_file:
        return []
    path = READERS[task.collection].find(task.name)
    if path is not None and Path(corerl.__file__).parent in Path(path).resolve().parents:
        return []
    validates = any(cfg.algo.validate_every for cfg in cells if cfg.task == task.id)
    return ["train", "val"] if validates else ["train"]


def _check_total(sizes: dict[str, int], folder: Path) -> None:
    total = sum(sizes.values())
    if total > PACK:
        name, size = max(sizes.items(), key=lambda item: item[1])
        raise CorerlError(
            f"{folder} would take {total / MIB:.1f} MiB, but at most {PACK // MIB} MiB are "
            f"allowed. The largest dataset is {name} with {size / MIB:.1f} MiB. Leave out cells that read it."
        )


def write_results(cells: list[Config], folder: Path) -> list[Path]:
    """Writes what the cells' runs left as `results.tar.0`, `.1`, ... and returns the files that do not fit.

    Logs come first, then pending evaluations, then checkpoints, of runs that are not done before others.
    """
    make_directory(folder)
    for old in folder.glob("results.tar.*"):
        old.unlink()
    left_out: list[Path] = []
    free = PIECES * PIECE - LEFT_FREE
    with _Pieces(folder) as pieces, tarfile.open(fileobj=pieces, mode="w|") as archive:
        for unit in _units(cells):
            size = sum(
                2048 + path.stat().st_size for path in unit
            )  # a header, a long name, padding
            if size > free:
                left_out += unit
                continue
            free -= size
            for path in unit:
                archive.add(path, arcname=str(path).lstrip(os.sep))
    return left_out


def _units(cells: list[Config]) -> list[list[Path]]:
    """Returns the files of all runs, most valuable first. Those of a list are of use together."""
    ranked: list[tuple[int, list[Path]]] = []
    for cfg in cells:
        cell = cell_directory(cfg)
        ranked += [
            (0, [path]) for path in (cell / "config.yaml", cell / "error.txt") if path.exists()
        ]
        for directory, _ in counted(cell):
            logs = [
                path
                for path in directory.iterdir()
                if path.suffix in (".csv", ".json", ".jsonl", ".txt")
            ]
            ranked.append((0, sorted(logs)))
            ranked += [(1, [path]) for path in sorted(directory.glob("pending/*.safetensors"))]
            done = read_status(directory).get("state") == "done"
            saved = [path_in(directory), *sorted(directory.glob("replay/*.safetensors"))]
            ranked.append((3 if done else 2, [path for path in saved if path.exists()]))
    return [unit for _, unit in sorted(ranked, key=lambda pair: pair[0])]


class _Pieces:
    """A stream written as files of at most `PIECE` bytes."""

    def __init__(self, folder: Path):
        self._folder, self._count, self._room = folder, 0, 0
        self._file = None

    def __enter__(self) -> "_Pieces":
        return self

    def write(self, content: bytes) -> int:
        rest = memoryview(content)
        while rest:
            if not self._room:
                self._next()
            part, rest = rest[: self._room], rest[self._room :]
            self._file.write(part)
            self._room -= len(part)
        return len(content)

    def _next(self) -> None:
        self.__exit__()
        self._file = open(self._folder / f"results.tar.{self._count}", "wb")  # noqa: SIM115
        self._count, self._room = self._count + 1, PIECE

    def __exit__(self, *_) -> None:
        if self._file is not None:
            self._file.close()
