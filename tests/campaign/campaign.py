"""The campaign of docs/reliability.md: damaged files, damaged runs and kills, by the thousand.

    python tests/campaign/campaign.py --inputs 100000 --runs 300 --kills 450 [--processes 2]

Prints the table, and exits with 1 where anything crashed, hung, took more than 1 GB, or was read as other
data than was written although its format has a checksum; what did is kept in --out.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from readers import Reader, all_readers, damaged, outcome  # noqa: E402
from small import config, group  # noqa: E402

from corerl.config import Eval  # noqa: E402
from corerl.errors import CorerlError  # noqa: E402
from corerl.experiments import launch  # noqa: E402
from corerl.runs.directory import cell_directory  # noqa: E402

GIGABYTE = 1 << 20  # in the kibibytes of ru_maxrss
PATIENCE = 20  # seconds for one input
BAD = ("traceback", "crash", "hang", "memory", "other data")
BATCH = 250


class Hang(BaseException):
    """An input took longer than PATIENCE."""


def judge(reader: Reader, content: bytes, expected: object) -> str:
    """What becomes of one input: refused | same | read (as other data) | one of BAD."""
    reader.file.write_bytes(content)
    try:
        found = outcome(reader.read())
    except CorerlError as error:
        return "refused" if "\n" not in str(error) else "traceback: a message of several lines"
    except Hang:
        return "hang"
    except Exception as error:
        return f"traceback: {traceback.format_exception_only(error)[-1].strip()}"
    if found == expected:
        return "same"
    return "other data" if reader.checked else "read"


# Damaged files, in processes that may die.


def _read_batch(number: int, first: int, count: int, at, results) -> None:
    """Inputs `first` to `first + count` of reader `number`, each of a seed of its own."""
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115

    def too_long(*_) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as folder:
        reader = all_readers(Path(folder))[number]
        whole = reader.file.read_bytes()
        expected = outcome(reader.read())
        for i in range(first, first + count):
            at.value = i
            content = damaged(whole, random.Random(f"{number}/{i}"))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            signal.alarm(PATIENCE)
            told = judge(reader, content, expected)
            signal.alarm(0)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            results.send((reader.name, i, "memory" if grown > GIGABYTE else told))


def read_damaged(inputs: int, processes: int, report, only: str = "") -> None:
    """`inputs` damaged files of the readers whose name holds `only`; `report(kind, number, told)` each."""
    with tempfile.TemporaryDirectory() as folder:
        names = [reader.name for reader in all_readers(Path(folder))]
    chosen = [number for number, name in enumerate(names) if only in name]
    each = -(-inputs // max(1, len(chosen)))
    batches = [
        (number, first, min(BATCH, each - first))
        for first in range(0, each, BATCH)
        for number in chosen
    ]
    running: list[dict] = []
    while batches or running:
        while batches and len(running) < processes:
            running.append(_start(*batches.pop(0)))
        for job in list(running):
            _drain(job, report)
            if job["process"].exitcode is None and time.monotonic() - job["heard"] > 3 * PATIENCE:
                job["process"].kill()
                job["process"].join()
                job["died"] = "hang"
            if job["process"].exitcode is not None:
                _drain(job, report)
                running.remove(job)
                if job["process"].exitcode != 0:
                    i = job["at"].value
                    code = job["process"].exitcode
                    report(names[job["number"]], i, job.get("died", f"crash: exit status {code}"))
                    left = job["first"] + job["count"] - i - 1
                    if left > 0:
                        batches.insert(0, (job["number"], i + 1, left))
        time.sleep(0.05)


def _start(number: int, first: int, count: int) -> dict:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    at = context.Value("q", first, lock=False)
    process = context.Process(target=_read_batch, args=(number, first, count, at, there))
    process.start()
    there.close()
    job = {"number": number, "first": first, "count": count, "at": at, "pipe": here}
    return job | {"process": process, "heard": time.monotonic()}


def _drain(job: dict, report) -> None:
    try:
        while job["pipe"].poll():
            report(*job["pipe"].recv())
            job["heard"] = time.monotonic()
    except EOFError:
        pass


# Runs that are killed, and runs whose files are damaged before they go on.

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


def kill_runs(kills: int, report) -> None:
    """Runs that are killed at random moments, one to four times each, and then finished."""
    with tempfile.TemporaryDirectory() as folder:
        whole = {name: _whole(name, Path(folder) / name) for name in JOBS}
        draw, hits = random.Random(0), 0
        for number in itertools.count():
            if hits >= kills:
                return
            name = list(JOBS)[number % len(JOBS)]
            (expected, seconds), root = whole[name], Path(folder) / f"trial-{number}"
            hit = 0
            for _ in range(draw.randint(1, 4)):
                process = _start_training(name, root)
                process.join(draw.uniform(0, seconds))
                if process.exitcode is None:
                    process.kill()
                    hit += 1
                process.join()
            hits += hit
            told = _finish(name, root, expected)
            for _ in range(max(hit, 1)):
                report(f"SIGKILL, then the same command ({name})", number, told)
            shutil.rmtree(root)


FILES = (
    *("checkpoint.safetensors", "checkpoint-previous.safetensors", "metrics.jsonl", "scores.csv"),
    *("returns.jsonl", "status.json", "env.json", "../config.yaml"),
)


def damage_runs(runs: int, report) -> None:
    """Stopped runs of which one file is damaged or removed, finished by the same command."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in JOBS:
            expected, seconds = _whole(name, place / name)
            stopped = _stopped(name, place / f"{name}-stopped", seconds)
            for number in range(runs // len(JOBS)):
                draw, root = random.Random(f"{name}/{number}"), place / f"{name}-{number}"
                shutil.copytree(stopped, root)
                path = cell_directory(job(name, root)) / "seeds-0" / draw.choice(FILES)
                content = damaged(path.read_bytes(), draw)
                path.unlink() if draw.random() < 0.1 else path.write_bytes(content)
                told = _finish(name, root, expected)
                # A log that is gone is a named gap: the checkpoint is the same, the history is shorter.
                if told == "other data" and not path.exists() | (path.name in FILES[:2]):
                    told = "read"
                if told == "other data" and _gap(name, root, expected, path.name):
                    told = "read"
                report(f"a damaged file beside a stopped run ({name})", number, told)
                shutil.rmtree(root)


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


def table(counts: dict[str, Counter]) -> str:
    """One row per kind of fault, in Markdown."""
    columns = ("refused", "same", "read", *BAD)
    lines = [
        "| what was done | times | refused in a sentence | no difference | read | traceback | crash "
        "| hang | over 1 GB | other data in silence |",
        "|---|" + "---:|" * (len(columns) + 1),
    ]
    for kind, count in counts.items():
        numbers = [sum(count.values()), *(count[column] for column in columns)]
        lines.append(f"| {kind} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged files")
    parser.add_argument("--only", default="", help="of the files those whose name holds this")
    parser.add_argument("--runs", type=int, default=300, help="runs with a damaged file")
    parser.add_argument("--kills", type=int, default=450)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="a file for what went wrong: kind, number, what")
    args = parser.parse_args()
    counts: dict[str, Counter] = {}
    wrong: list[str] = []

    def report(kind: str, number: int, told: str) -> None:
        verdict = told.partition(":")[0]
        counts.setdefault(kind, Counter())[verdict] += 1
        if verdict in BAD:
            wrong.append(f"{kind}\t{number}\t{told}")

    torch.set_num_threads(1)
    if args.kills:
        kill_runs(args.kills, report)
    if args.runs:
        damage_runs(args.runs, report)
    if args.inputs:
        read_damaged(args.inputs, args.processes, report, args.only)
    print(table(counts))
    if args.out:
        args.out.write_text("\n".join(wrong) + "\n")
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
