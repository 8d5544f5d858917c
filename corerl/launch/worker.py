"""One group of seeds, trained in this process, and how that ended."""

import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from corerl import seeding
from corerl.config import Config
from corerl.errors import CorerlError
from corerl.launch import out_of_memory
from corerl.runs import files
from corerl.runs.directory import cell_directory, group_name, read_status
from corerl.runs.files import Busy
from corerl.training.run import Run

DONE, FAILED, BUSY = 0, 1, 75
"""How a group ended, as the exit status of its process; 75 is sysexits.h's EX_TEMPFAIL."""


def train(cfg: Config, seeds: list[int], show: Callable[[str, dict], None]) -> int:
    """Trains one group here, and returns how it ended. A failure is written to its directory.

    Raises:
        Interrupted: stopped by a signal, after saving.
        KeyboardInterrupt: stopped before the first update, or by a second signal, without saving.
    """
    try:
        directory = cell_directory(cfg) / group_name(seeds)
        with locked(directory):
            if _is_done(directory):  # by another process, since this one planned
                return DONE
            return _train_locked(cfg, seeds, show)
    except Busy:
        return BUSY


def _is_done(directory: Path) -> bool:
    with suppress(CorerlError):  # a damaged status: the checkpoint tells
        return read_status(directory).get("state") == "done"
    return False


def _train_locked(cfg: Config, seeds: list[int], show: Callable[[str, dict], None]) -> int:
    run = Run(cfg, seeds, show)
    try:
        with _seeded(run):
            importlib.import_module(f"corerl.algos.{cfg.algo.name}").train(cfg.algo, run)
    except KeyboardInterrupt:
        run.fail("interrupted", "stopped by a signal")
        raise
    except (Exception, SystemExit) as error:
        _report_failure(run, error)
        return FAILED
    finally:
        # An agent's parts hold each other, and the next cell needs their room.
        if run.device.type == "cuda":
            gc.collect()
            with suppress(RuntimeError):  # after an error of the GPU, which has been printed
                torch.cuda.empty_cache()
    return DONE


@contextmanager
def _seeded(run: Run) -> Iterator[None]:
    """Seeds torch's own generators, which a user's file may draw from, and leaves the CPU's as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.derive(run.seeds[0], "torch"))
        yield


def _report_failure(run: Run, error: BaseException) -> None:
    problem = reported(error, run.cfg)
    try:
        run.fail("failed", problem)
        text = "".join(traceback.format_exception(error))
        (run.directory / "error.txt").write_text(text, encoding="utf-8")
    except (CorerlError, OSError):
        pass  # the disk may be what failed; the message below still reaches the user
    print(f"corerl: {run.name} failed: {problem}", file=sys.stderr)


def reported(error: BaseException, cfg: Config | None = None) -> str:
    """Returns one line: our own sentence, or the last line of the traceback.

    `cfg` is what was trained, for a sentence about a full memory.
    """
    if isinstance(error, CorerlError):
        return str(error)
    if out_of_memory.is_full(error):
        return out_of_memory.reported(error, cfg)
    return traceback.format_exception_only(error)[-1].strip()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory against a second process that would train the same seeds.

    Raises:
        Busy: another process holds it.
        CorerlError: the lock cannot be written.
    """
    busy = f"Another process is training in {directory}. Wait for it or stop it."
    with files.held(directory / ".lock", busy):
        files.remove_half_written(directory)
        yield
