"""Benchmarks several algorithms, one at a time, while the start-up of others overlaps."""

import fcntl
import multiprocessing
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from corerl.bench.stopwatch import Case, Measured, measure


def measured(
    jobs: list[list[Case]], windows: int, until: float, workers: int, turn: Path
) -> Iterator[tuple[Case, Measured | str]]:
    """Measures the cases of each job in a process of their own, until the time is over.

    Up to `workers` of them are there at a time. One that starts shares the file `turn` with others that do,
    and one that measures a window has it alone: warming up is work for the GPU too, and halves a rate.
    """
    results: queue.Queue = queue.Queue()

    def work(job: list[Case]) -> None:
        left = list(job)
        try:
            for result in _in_process(job, windows, until, turn):
                results.put((left.pop(0), result))
        except Exception as error:
            for case in left:
                results.put((case, f"{type(error).__name__}: {error}"))

    with ThreadPoolExecutor(workers) as pool:
        for job in jobs:
            pool.submit(work, job)
        for _ in range(sum(map(len, jobs))):
            yield results.get()


def _in_process(
    cases: list[Case], windows: int, until: float, turn: Path
) -> Iterator[Measured | str]:
    """Returns what a process found for each of its cases, or why it found nothing."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    worker = context.Process(target=_child, args=(found, cases, windows, turn), daemon=True)
    if time.monotonic() < until:
        worker.start()
    for _ in cases:
        result: Measured | str = "out of time"
        while time.monotonic() < until:
            try:
                result = found.get(timeout=0.5)
                break
            except queue.Empty:
                if worker.exitcode is not None and found.empty():
                    result = f"its process ended with status {worker.exitcode}"
                    break
        yield result
    if worker.pid is not None:
        worker.terminate()
        worker.join()


def _child(results, cases: list[Case], windows: int, turn: Path) -> None:
    import torch

    for case in cases:
        torch._dynamo.reset()
        with open(turn, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            try:
                results.put(measure(case, turns(windows, file)))
            except Exception as error:  # one that cannot run here must not keep the others from it
                results.put(f"{type(error).__name__}: {error}"[:300])


def turns(windows: int, turn: TextIO) -> Iterator[None]:
    """Yields windows in which this process alone works. Where it dies, the system gives the turn on."""
    for _ in range(windows):
        fcntl.flock(turn, fcntl.LOCK_EX)  # in place of a share in it
        yield
        fcntl.flock(turn, fcntl.LOCK_UN)
