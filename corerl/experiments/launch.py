"""The runs of one configuration: which seeds are missing, and in which processes they run.

On a GPU all seeds are one program. On a CPU stacking gains nothing, so each seed is a process of its
own with one thread, one per core at a time; a seed is an identity, so the numbers are the same.
"""

import fcntl
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import yaml

from corerl.config import Config, seed_list
from corerl.data import tasks
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.experiments import memory
from corerl.experiments.continuation import continue_shorter
from corerl.experiments.process import lasting_output, numerics
from corerl.nn import compile
from corerl.runs import checkpoint, files
from corerl.runs.directory import cell_directory, group_name, read_status, settings, strays
from corerl.runs.directory import groups as groups_of
from corerl.runs.progress import Display
from corerl.training.environments import close
from corerl.training.run import Interrupted, Run, pick_device


class SeedsFailed(CorerlError):
    """Some seeds of a cell failed; their directories say why."""


class Diverged(SeedsFailed):
    """Every seed of a cell diverged."""


class Busy(CorerlError):
    """Another process is training the same seeds."""


DONE, FAILED, BUSY = 0, 1, 75
"""How a group ended, as the exit status of its process; 75 is sysexits.h's EX_TEMPFAIL."""


def launch(cfg: Config, place: str = "") -> None:
    """Trains every seed of `cfg` that is missing or unfinished; returns when all are done.

    `place` is which cell of a sweep it is, for people.

    Raises:
        CorerlError: a setting, the data or the machine does not allow it.
        SeedsFailed: some seeds failed.
        Interrupted: stopped by a signal, after saving.
    """
    device = pick_device(cfg.device)
    compile.resolve(cfg.compile, device, cfg.steps)
    with numerics(cfg):
        _launch(cfg, device, place)


def _launch(cfg: Config, device: torch.device, place: str) -> None:
    task = tasks.of(cfg)
    if cfg.eval.episodes and task.has_env:
        _check_simulator(task)
    if task.collection == "file":
        task.load()  # its faults are told once, rather than by every seed
    on_gpu = device.type == "cuda"
    processes = cfg.processes or (1 if on_gpu else len(os.sched_getaffinity(0)))
    cell = cell_directory(cfg)
    continue_shorter(cfg)
    _write_settings(cfg)
    (cell / "error.txt").unlink(missing_ok=True)
    for stray in strays(cell):
        print(f"corerl: skipped {stray}: no group of seeds has this name", file=sys.stderr)
    groups = plan(cell, seed_list(cfg.seeds), together=on_gpu, processes=processes)
    if not groups:
        print(f"corerl: nothing to do, all seeds are in {cell}", file=sys.stderr)
        _refuse_diverged(cfg)
        return
    title = f"{cfg.label or cfg.algo.label} {cfg.task}"
    with Display(title, groups, processes, cfg.steps, place) as display:
        if min(processes, len(groups)) == 1:
            ended = [(_train(cfg, group, display.show), group) for group in groups]
        else:
            ended = _train_in_processes(cfg, groups, processes, display)
    _refuse_unfinished(cfg, ended)
    _refuse_diverged(cfg)


def _refuse_unfinished(cfg: Config, ended: list[tuple[int, list[int]]]) -> None:
    """Raises where a group failed, or was another process's: those that are not are done all the same."""
    cell, name = cell_directory(cfg), f"{cfg.label or cfg.algo.label} on {cfg.task}"
    busy = [group for status, group in ended if status == BUSY]
    failed = [group for status, group in ended if status not in (DONE, BUSY)]
    where = cell / group_name(busy[0]) if len(busy) == 1 else f"{cell} ({_listed(busy)})"
    told = f"Another process is training in {where}; wait for it or stop it."
    if failed:
        raise SeedsFailed(
            f"{name}: {_listed(failed)} failed, and error.txt in {cell}/seeds-* says why. The same "
            f"command runs only what is missing.{f' {told}' if busy else ''}"
        )
    if busy:
        raise Busy(told)


def _listed(groups: list[list[int]]) -> str:
    seeds = sorted(seed for group in groups for seed in group)
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _refuse_diverged(cfg: Config) -> None:
    """Raises where no seed of a cell has a result: no success, though nothing is left to run."""
    wanted, told = set(seed_list(cfg.seeds)), {}
    for directory, seeds in groups_of(cell_directory(cfg)):
        diverged = _status(directory).get("diverged", {})
        told |= {seed: diverged[str(seed)] for seed in seeds if str(seed) in diverged}
    if wanted <= told.keys():
        steps = ", ".join(f"seed {seed} by step {told[seed]}" for seed in sorted(wanted)[:10])
        raise Diverged(
            f"{cfg.label or cfg.algo.label} on {cfg.task}: every seed diverged (NaN or overflow, or its "
            f"environment crashed; {steps}), so there is no result."
        )


def _status(directory: Path) -> dict:
    """Reads a status; empty also where it is damaged: the checkpoint then tells what is unfinished."""
    try:
        return read_status(directory)
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        return {}


def _check_simulator(task: Task) -> None:
    """Notices a missing simulator before training, not at the first evaluation."""
    try:
        close([task.make_env()])
    except CorerlError as error:
        raise CorerlError(f"{error} To train without evaluating: eval.episodes=0") from error


def plan(cell: Path, seeds: list[int], together: bool, processes: int) -> list[list[int]]:
    """Plans the groups of seeds to train: unfinished ones as they were begun, then those not yet begun."""
    covered: set[int] = set()
    groups = []
    for directory, group in groups_of(cell):
        if not set(group) & set(seeds):
            continue
        if _status(directory).get("state") == "done":
            covered |= set(group)
        elif checkpoint.exists(directory / "checkpoint.safetensors"):
            covered |= set(group)
            groups.append(group)
    fresh = [seed for seed in seeds if seed not in covered]
    if together and fresh:
        chunks = [fresh[i::processes] for i in range(min(processes, len(fresh)))]
        return groups + [sorted(chunk) for chunk in chunks]
    return groups + [[seed] for seed in fresh]


def _train(cfg: Config, seeds: list[int], show: Callable[[str, dict], None]) -> int:
    """Trains one group here, and returns how it ended. A failure is written to its directory."""
    try:
        with _locked(cell_directory(cfg) / group_name(seeds)):
            return _train_locked(cfg, seeds, show)
    except Busy:
        return BUSY


def _train_locked(cfg: Config, seeds: list[int], show: Callable[[str, dict], None]) -> int:
    run = Run(cfg, seeds, show)
    try:
        importlib.import_module(f"corerl.algos.{cfg.algo.name}").train(cfg.algo, run)
    except KeyboardInterrupt:
        run.fail("interrupted", "stopped by a signal")
        raise Interrupted from None
    except (Exception, SystemExit) as error:
        _report_failure(run, error)
        return FAILED
    return DONE


def _report_failure(run: Run, error: BaseException) -> None:
    problem = told(error, run.cfg)
    try:
        run.fail("failed", problem)
        (run.directory / "error.txt").write_text("".join(traceback.format_exception(error)))
    except (CorerlError, OSError):
        pass  # the disk may be what failed; the message below still reaches the user
    print(f"corerl: {run.name} failed: {problem}", file=sys.stderr)


def told(error: BaseException, cfg: Config | None = None) -> str:
    """Returns one line: our own sentence, or the last line of the traceback.

    `cfg` is what was trained, for a sentence about a full memory.
    """
    if isinstance(error, CorerlError):
        return str(error)
    if memory.is_full(error):
        return memory.told(error, cfg)
    return traceback.format_exception_only(error)[-1].strip()


def keep_failure(cfg: Config, error: Exception) -> None:
    """Leaves in the cell's directory why it did not even begin, where `corerl status` finds it.

    Seeds that failed have said so in directories of their own.
    """
    if isinstance(error, SeedsFailed | Busy):
        return
    text = "".join(traceback.format_exception(error))
    with suppress(CorerlError):  # the disk may be what failed
        _write_settings(cfg)
        files.write_atomically(cell_directory(cfg) / "error.txt", text.encode())


def _write_settings(cfg: Config) -> None:
    content = yaml.safe_dump(settings(cfg) | {"seeds": cfg.seeds}, sort_keys=False)
    files.make_directory(cell_directory(cfg))
    files.write_atomically(cell_directory(cfg) / "config.yaml", content.encode())


@contextmanager
def _locked(directory: Path):
    """Holds the directory against a second process that would train the same seeds."""
    files.make_directory(directory)
    path = directory / ".lock"
    try:
        lock = open(path, "w")  # noqa: SIM115
    except OSError as error:
        raise CorerlError(f"Cannot write {path}: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(
                f"Another process is training in {directory}; wait for it or stop it."
            ) from error
        files.remove_half_written(directory)
        yield


def _train_in_processes(
    cfg: Config, groups: list[list[int]], processes: int, display: Display
) -> list[tuple[int, list[int]]]:
    """Trains one process per group, `processes` at a time, each with its share of the cores.

    Returns every group and the exit status of its process.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    context = multiprocessing.get_context("spawn")
    waiting, running, ended = list(groups), [], []
    cell = cell_directory(cfg)
    with _forwarded_signals(running) as stopped:
        while running or (waiting and not stopped):
            while waiting and len(running) < processes and not stopped:
                group = waiting.pop(0)
                worker = context.Process(target=_worker, args=(cfg, group, threads, os.getpid()))
                # Ctrl-C reaches the whole process group. Until a child trains it leaves that to its parent,
                # who passes it on: an interpreter that has not begun would end in a traceback.
                handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
                with _without_script():
                    worker.start()
                signal.signal(signal.SIGINT, handler)
                running.append((worker, group))
            time.sleep(0.2)
            for worker, group in list(running):
                _show_status(display, cfg, cell / group_name(group))
                if worker.exitcode is not None:
                    running.remove((worker, group))
                    ended.append((worker.exitcode, group))
                    if worker.exitcode < 0 and not stopped:
                        print(
                            f"corerl: {group_name(group)} was killed by signal "
                            f"{-worker.exitcode} (9 is also how a full memory ends a process)",
                            file=sys.stderr,
                        )
    if stopped:
        raise Interrupted
    return ended


@contextmanager
def _without_script():
    """Hides the calling script from children: imported again, it would train again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _show_status(display: Display, cfg: Config, directory: Path) -> None:
    with suppress(CorerlError):
        status = read_status(directory)
        if "steps" not in status:
            return
        label = cfg.label or cfg.algo.label
        display.show(f"{label} {cfg.task} {directory.name}", status)


def _worker(cfg: Config, seeds: list[int], threads: int, parent: int) -> None:
    """Trains one group in a child process, quietly; the parent reads `status.json`."""
    with numerics(cfg, threads), lasting_output():
        _work(cfg, seeds, parent)


def _work(cfg: Config, seeds: list[int], parent: int) -> None:
    # Otherwise a stop before the first update would leave a status of "running".
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def show(name: str, status: dict) -> None:
        # The parent was killed: save and stop rather than run on unseen.
        if os.getppid() != parent and status["state"] == "running":
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        sys.exit(_train(cfg, seeds, show))
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def _forwarded_signals(running: list):
    """Forwards stop signals of this process to its children, which save and end."""
    stopped: list[int] = []

    def forward(number, frame) -> None:
        stopped.append(number)
        for worker, _ in running:
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGTERM)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
