"""Times an algorithm's own training loop, in this process or in several at once (see bench.py)."""

import gc
import importlib
import itertools
import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from corerl.config import Config
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError
from corerl.launch.process_setup import numerics
from corerl.training.devices import pick_device
from corerl.training.run import Run

OBSERVATIONS, ACTIONS = 17, 6
TASKS = {
    **dict.fromkeys(("dqn", "hra", "iqn", "md3qn", "qr_dqn"), "maze/v1-vector"),
    **dict.fromkeys(("bcq_discrete", "cql_discrete"), "corerl/cartpole"),
    "cvar": "risk/B",
    "cvar_pg": "risk/D2",
    "orpo_sac": "risk/pendulum-proxy",
    "reload_sac": "risk/HalfCheetah-velocity-v4",
}
"""Of algorithms that ask for something of their task. All others have `gym/HalfCheetah-v4`."""

NEEDED = {
    "bc_neorl2": {"validate_every": 0},  # the synthetic data has no second file
    "cvar": {"low": -10.0, "high": 10.0},
    "cpl_ranked": {"length": 64},  # as the default teacher's segments
    "dppo": {"length": 64},
}
"""Settings without which an algorithm does not begin on its task here."""

STEPS = 2_000_000
"""More than are ever made, so that no stage of training uses them up."""


class Case(NamedTuple):
    """A case to time. `settings` are the algorithm's that differ from its defaults."""

    algo: str
    settings: dict[str, Any]
    device: str = "cpu"
    compile: str = "off"
    seeds: int = 1
    threads: int = 1
    size: int = 100_000
    kernel: str = "auto"


class Measured(NamedTuple):
    """Updates per second of all seeds in each window, and how they ran.

    Attributes:
        ran: `off`, `compile` or `graph`. start: seconds until the first window.
        memory: the most bytes on the GPU at a time, of torch's tensors; 0 on a CPU.
        problem: why they did not run as asked for, or "".
    """

    rates: list[float]
    ran: str
    start: float
    memory: int
    problem: str = ""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Stopwatch(Run):
    """A stand-in for a run: the same training function, with windows of time instead of steps."""

    def __init__(
        self,
        cfg: Config,
        seeds: list[int],
        size: int,
        windows: Iterator[None],
        report: Callable[[float], None],
    ):
        super().__init__(cfg, seeds, lambda *_: None)
        self.mode.tell = lambda text: None  # there is no status to tell it in
        self._size, self._windows, self._report = size, windows, report
        self._made = time.perf_counter()
        self.start = 0.0

    def dataset(self) -> Dataset:
        return self.task.load() if self.task.has_file else synthetic(self._size)

    def steps(self, *, stride: int = 1, seconds: float = 1.0, **state) -> Iterator[int]:
        numbers = itertools.count(stride, stride)
        # The first updates compile and capture the graph; online, steps without any come before them.
        for _ in range(8 + self.cfg.algo.first_update()[0] // stride):
            yield next(numbers)
        self._wait()
        self.start = time.perf_counter() - self._made
        for _ in self._windows:
            self._wait()
            updates, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                yield next(numbers)
                updates += stride
            self._wait()
            self._report(updates * len(self.seeds) / (time.perf_counter() - start))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def evaluate(self, step, act, also=None) -> None:
        """Does nothing: only updates are timed."""

    def save(self, step) -> None:
        """Does nothing: only updates are timed."""


def synthetic(size: int) -> Dataset:
    """Returns `size` Gaussian transitions in episodes of 1000."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    truncated = np.arange(1, size + 1) % 1000 == 0
    observations = normal(size, OBSERVATIONS)
    return Dataset.from_steps(
        id="bench/synthetic",
        observations=observations,
        actions=np.tanh(normal(size, ACTIONS)),
        rewards=normal(size),
        next_observations=np.roll(observations, -1, 0),
        terminated=np.zeros(size, bool),
        truncated=truncated,
    )


def measure(
    case: Case, windows: Iterator[None], report: Callable[[float], None] = lambda rate: None
) -> Measured:
    """Times `case` in this process, a window for each of `windows`, each passed to `report`."""
    module = importlib.import_module(f"corerl.algos.{case.algo}")
    cfg = module.Config(**NEEDED.get(case.algo, {}) | case.settings)
    places = {"device": case.device, "compile": case.compile, "kernel": case.kernel}
    task = TASKS.get(case.algo, "gym/HalfCheetah-v4")
    job = Config(algo=cfg, task=task, steps=STEPS, log_every=10**9, **places)
    device = pick_device(case.device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        _forget_memory(device)
    rates: list[float] = []
    clock = Stopwatch(
        job, list(range(case.seeds)), case.size, windows, lambda x: (rates.append(x), report(x))
    )
    with numerics(job, case.threads):
        module.train(cfg, clock)
    memory = torch.cuda.max_memory_reserved(device) if on_gpu else 0
    return Measured(rates, clock.mode.ran, clock.start, memory, clock.mode.problem)


def _forget_memory(device: torch.device) -> None:
    """Gives back what an earlier case of this process has left, and counts the most bytes from zero."""
    torch.cuda.init()  # the counters of a GPU that is named by number are not there before
    gc.collect()  # agents are in cycles with the steps that they hold
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def _child(barrier, results, case: Case, windows: int) -> None:
    def together() -> Iterator[None]:
        for _ in range(windows):
            barrier.wait()
            yield

    results.put(measure(case, together()))


def measure_processes(processes: int, case: Case, windows: int) -> Measured:
    """Sums `measure` over processes that run their windows at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_child, args=(barrier, results, case, windows))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = _collect(workers, results)
    for worker in workers:
        worker.join()
    rates = [sum(each) for each in zip(*(one.rates for one in found), strict=True)]
    start, memory = max(one.start for one in found), sum(one.memory for one in found)
    return Measured(rates, found[0].ran, start, memory, found[0].problem)


def _collect(workers: list, results) -> list[Measured]:
    """Gathers every worker's result. Where one fails, the others would wait for it for ever."""
    found: list[Measured] = []
    while len(found) < len(workers):
        try:
            found.append(results.get(timeout=0.5))
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.terminate()
                raise CorerlError(
                    "A benchmark process failed. Its error is printed above."
                ) from None
    return found
