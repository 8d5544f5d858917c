"""Measures this code on a GPU, in one command: `make gpu`. Writes results/bench/gpu.md.

    python tools/gpu/gpu.py                          all stages, at most 25 minutes
    python tools/gpu/gpu.py --stages bench --minutes 9
    python tools/gpu/gpu.py --dry                    all stages, tiny and on the CPU

Stages, in this order: `tests` (the three modes agree for every algorithm), `bench` (updates per second of
every algorithm, one and ten seeds, graph, eager and compiled), `train` (IQL, ten seeds, a million updates)
and `demo` (sweep=demo and its report). What a stage has found is on the disk as soon as it is known, in
gpu.json beside the page; a stage that fails is told there and keeps no other from its turn. A later call on
the same machine and code adds to it: it measures what no call has measured, and goes on with what was being
trained. No network is needed.
"""

import argparse
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import gpu_page
import parallel_bench

from corerl import algos
from corerl.bench.stopwatch import Case, Measured
from corerl.errors import CorerlError
from corerl.runs import files, provenance
from corerl.training.devices import pick_device

STAGES = ("tests", "bench", "train", "demo")
SHARES = {"tests": 0.25, "bench": 0.6, "train": 0.75, "demo": 1.0}
"""Largest share of the time left that a stage may take when it begins; the last one takes all."""
FIRST = ("iql", "rebrac", "td3_bc", "sac", "cql", "edac", "dt", "mrq")
"""Measured before all others, since the time may end."""
COMPILING_THREADS = 1
"""Of each process that compiles: in itself, without helpers that would take as long to start."""
SAVING = 60
"""Seconds in which a command that was asked to stop may save what it has."""
OUT_OF_TIME = 124
"""The exit status of a command that was asked to stop, as of `timeout`."""
SIZES = {
    "rebrac": {"batch_size": 256},
    "cvar": {"low": -15.0, "high": 20.0},
    "cpl_ranked": {"length": 64},
    "dppo": {"length": 64},
}
"""A batch that is not the paper's, so that all are compared at one; what has no default, or asks for more
than the data here has."""
PACKAGES = ("", ".algos", ".configs", ".envs", ".published", ".sweeps")
"""Of `corerl`: those that a wheel holds inside its folder and a checkout beside it."""
WITHOUT_NETWORKS = (
    *("cvar_tabular", "dr_rpo", "ela", "icvar", "orpo", "p2r"),
    *("pref_mixture", "pref_pessimistic", "r2pvi", "reload", "two_atom"),
)
TEST_FILE = "tests/nn/test_compile.py"


@dataclass
class Plan:
    """The stages and their sizes. The defaults are the full measurement."""

    out: Path
    runs: Path = Path("runs/gpu")
    device: str = "cuda"
    names: tuple[str, ...] = ()  # of the algorithms (none: all)
    modes: tuple[str, ...] = ("graph", "off", "compile")
    seeds: tuple[int, ...] = (10, 1)
    settings: dict[str, Any] | None = None  # of every algorithm
    windows: int = 2
    workers: int = max(2, (os.cpu_count() or 4) - 2)  # processes that compile, or test, at a time
    task: str = "corerl/halfcheetah-replay-regenerated"
    updates: int = 1_000_000
    train: tuple[str, ...] = ("algo=iql", "seeds=10", "eval.every=100000", "log_every=10000")
    demo: tuple[str, ...] = ()

    def __post_init__(self):
        known = [name for name in algos.names() if name not in WITHOUT_NETWORKS]
        first = [name for name in FIRST if name in known]
        self.names = self.names or (*first, *(name for name in known if name not in first))


def dry(out: Path) -> Plan:
    """Plans every stage in seconds, on the CPU."""
    tiny = ("algo.hidden_width=8", "algo.batch_size=8", "eval.episodes=1", "compile=off")
    return Plan(
        out,
        runs=out / "runs",
        device="cpu",
        names=("iql", "sac"),
        modes=("off",),
        seeds=(2, 1),
        settings={"hidden_width": 8, "batch_size": 8},
        windows=1,
        workers=1,
        task="corerl/pendulum",
        updates=40,
        train=("algo=iql", "seeds=2", *tiny),
        demo=("steps=20", "eval.every=10", "seeds=1", *tiny),
    )


def main(arguments: list[str]) -> int:
    """Runs the stages asked for. The exit status is that of the tests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--minutes", type=float, default=25.0, help="for all of them")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--task", help="task of the full-size run, whose data must be here")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args(arguments)
    plan = dry(args.out) if args.dry else Plan(args.out)
    plan = replace(plan, task=args.task or plan.task)
    try:
        return run(plan, args.stages, time.monotonic() + 60 * args.minutes)
    except CorerlError as error:
        print(f"corerl: {error}", file=sys.stderr)
        return 2


def run(plan: Plan, stages: list[str], end: float) -> int:
    """Runs `stages` until `end` (of the monotonic clock) and writes what they find after each."""
    pick_device(plan.device)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(COMPILING_THREADS))
    found = Found(plan)
    ordered = [stage for stage in STAGES if stage in stages]
    for stage in ordered:
        start = time.monotonic()
        share = 1.0 if stage == ordered[-1] else SHARES[stage]
        until = start + share * (end - start)
        print(f"corerl: {stage}, at most {(until - start) / 60:.1f} minutes", flush=True)
        broken = ""
        try:
            for result in globals()[f"_{stage}"](plan, until, found):
                found.add(stage, result)
        except Exception:  # the other stages have their own worth
            broken = traceback.format_exc()
            print(broken, file=sys.stderr)
        found.note("broken", {stage: broken[-3000:]})
        found.note("seconds", {stage: round(time.monotonic() - start)})
    failed = any(test["failed"] for test in found.content.get("tests", []))
    return int(failed or any(found.content.get("broken", {}).values()))


class Found:
    """The results so far, in gpu.json and as the page gpu.md."""

    def __init__(self, plan: Plan):
        self._plan, self._path = plan, plan.out / "gpu.json"
        files.make_directory(plan.out)
        facts = provenance.environment(plan.device) | {"device": plan.device, "code": _code()}
        before = files.read_json(self._path)
        same = before and _machine_and_code(before["machine"]) == _machine_and_code(facts)
        self.content = before if same else {"machine": facts}

    def rated(self, what: str) -> bool:
        """Tells whether a rate of this name is known."""
        return any(one["what"] == what and "rate" in one for one in self.content.get("bench", []))

    def passed(self, what: str) -> bool:
        """Tells whether the test of this name has passed."""
        tests = [one for one in self.content.get("tests", []) if one["what"] == what]
        return any(not (one["failed"] or "problem" in one) for one in tests)

    def add(self, stage: str, result: dict[str, Any]) -> None:
        """Keeps a result in place of an earlier one of the same `what`."""
        print(f"  {gpu_page.line(result)}", flush=True)
        others = [one for one in self.content.get(stage, []) if one["what"] != result["what"]]
        self.content[stage] = [*others, result]
        self._write()

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Keeps facts about stages beside those of other stages."""
        self.content[name] = self.content.get(name, {}) | facts
        self._write()

    def _write(self) -> None:
        files.write_json(self._path, self.content)
        page = gpu_page.page(self.content)
        files.write_atomically(self._plan.out / "gpu.md", page.encode())


def _machine_and_code(facts: dict[str, Any]) -> tuple:
    """Returns what rates depend on."""
    return tuple(facts.get(name) for name in ("gpu", "torch", "code"))


def _code() -> str:
    """Returns a digest of all modules, equal in a checkout and in a wheel, which has no revision of git."""
    contents = {}
    for package in PACKAGES:
        folder = Path(str(resources.files(f"corerl{package}")))
        for file in folder.rglob("*.py"):
            contents[Path(package[1:], file.relative_to(folder)).as_posix()] = file.read_bytes()
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(name.encode() + content)
    return digest.hexdigest()[:16]


# Stages: each yields what it finds, a dict with `what`.


def _tests(plan: Plan, until: float, found: Found) -> Iterator[dict[str, Any]]:
    """Runs the GPU tests that have not passed yet, several at a time: each compiles a long time.

    Each has a process of its own: an error of the GPU would fail all that follow in the same one.
    """
    tests = {name: f"test_the_three_modes_agree_on_a_gpu[{name}]" for name in plan.names}
    tests["a recording"] = "test_a_captured_update_reads_new_inputs_and_advances_state"
    tests["a second GPU"] = "test_a_graph_is_recorded_on_the_second_gpu"
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--timeout=1200"]
    with ThreadPoolExecutor(plan.workers) as pool:
        calls = {
            pool.submit(_call, [*command, f"{TEST_FILE}::{test}"], until): f"test of {name}"
            for name, test in tests.items()
            if not found.passed(f"test of {name}")
        }
        for done in as_completed(calls):
            code, text = done.result()
            failed = code not in (0, OUT_OF_TIME)
            lines = text.strip().splitlines() or [""]
            reported = "\n".join(lines[-25:] if failed else lines[-1:])
            result = {"what": calls[done], "failed": failed, "reported": reported}
            if code == OUT_OF_TIME or (not failed and "passed" not in reported):
                result["problem"] = "out of time" if code == OUT_OF_TIME else "skipped"
            yield result


def _call(command: list[str], until: float) -> tuple[int, str]:
    """Runs a command and returns its exit status and output.

    Out of time it is asked to stop, so that a run saves and a later call goes on with it.
    """
    if time.monotonic() >= until:
        return OUT_OF_TIME, "out of time"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(command, encoding="utf-8", errors="replace", **pipes) as process:
        try:
            reported, _ = process.communicate(timeout=until - time.monotonic())
            return process.returncode, reported
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAVING)
        finally:  # its children too: they would keep the pipe open
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        reported, _ = process.communicate()
    return OUT_OF_TIME, f"{reported}\nout of time"


def _bench(plan: Plan, until: float, found: Found) -> Iterator[dict[str, Any]]:
    """Rates that no earlier call found: graphs of all algorithms first, then eager, then compiled."""
    for mode in plan.modes:
        jobs = [
            [
                Case(name, _quick(name, plan.settings or {}), plan.device, mode, seeds)
                for seeds in plan.seeds
                if not found.rated(_name(name, mode, seeds))
            ]
            for name in plan.names
        ]
        jobs = [job for job in jobs if job]
        for case, result in parallel_bench.measured(
            jobs, plan.windows, until, plan.workers, plan.out / ".turn"
        ):
            what = {"what": _name(case.algo, case.compile, case.seeds), "case": _facts(case)}
            if isinstance(result, Measured):
                yield what | result._asdict() | {"rate": result.rate}
            else:
                yield what | {"problem": result}


def _name(algo: str, mode: str, seeds: int) -> str:
    return f"{algo} {mode} {seeds}"


def _facts(case: Case) -> dict[str, Any]:
    """Returns what was measured in words that JSON has."""
    plain = {key: asdict(v) if is_dataclass(v) else v for key, v in case.settings.items()}
    return case._replace(settings=plain)._asdict()


def _quick(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with which an algorithm begins to learn after few steps of its environment."""
    defaults = importlib.import_module(f"corerl.algos.{name}").Config()
    own = {key: value for key, value in settings.items() if hasattr(defaults, key)}
    own = SIZES.get(name, {}) | own
    if hasattr(defaults, "random_steps"):
        own["random_steps"] = 500
    collected = getattr(defaults, "data", None)
    if hasattr(collected, "learning_starts"):
        own["data"] = replace(collected, learning_starts=500, capacity=100_000)
    return own


def _train(plan: Plan, until: float, _: Found) -> Iterator[dict[str, Any]]:
    """Trains one run of full size, through the command line."""
    root = plan.runs
    places = (f"device={plan.device}", f"root={root}", f"task={plan.task}", f"steps={plan.updates}")
    command = ["train", *places, "save_minutes=5", *plan.train]
    yield _trained(command, root / plan.task, until, "a run of full size")


def _demo(plan: Plan, until: float, _: Found) -> Iterator[dict[str, Any]]:
    root = plan.runs / "demo"
    command = ["train", "sweep=demo", f"device={plan.device}", f"root={root}", *plan.demo]
    yield _trained(command, root, until, "sweep=demo")
    report = ["report", str(root), "--out", str(plan.runs / "report")]
    code, text = _call([sys.executable, "-P", "-m", "corerl.cli", *report], until)
    yield {"what": "report of the demo", "status": code, "reported": text[-3000:]}


def _trained(command: list[str], below: Path, until: float, what: str) -> dict[str, Any]:
    start = time.monotonic()
    code, text = _call([sys.executable, "-P", "-m", "corerl.cli", *command], until)
    statuses = [files.read_json(path) for path in files.below(below, "status.json")]
    kept = ("state", "step", "steps", "seeds", "updates_per_s", "compile", "return", "score")
    return {
        "what": what,
        "command": "corerl " + " ".join(command),
        "status": code,
        "seconds": round(time.monotonic() - start),
        "runs": [{key: status.get(key) for key in kept} for status in statuses],
        "reported": "" if code == 0 else text[-1500:],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
