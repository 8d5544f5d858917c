"""The campaign of docs/reliability.md: damaged files, damaged runs and kills, by the thousand.

    python tools/campaign/campaign.py --inputs 100000 --runs 300 --kills 450 [--processes 2] [--out FOLDER]

Prints the table and the rate, and exits with 1 where anything crashed, hung, took more than 1 GB, or was
read as other data than was written although its format has a checksum. What each piece of the work found is
a file in --out: a campaign that was stopped goes on with the same command, and several processes or machines
that share the folder share the work. `--only` and `--again KIND NUMBER` make a finding again.
"""

import argparse
import fcntl
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]

import torch  # noqa: E402
import trials  # noqa: E402
from damage import Reader, damaged, outcome  # noqa: E402
from readers import KINDS, make  # noqa: E402

from corerl.errors import CorerlError  # noqa: E402

GIGABYTE = 1 << 20  # in the kibibytes of ru_maxrss
PATIENCE = 20  # seconds of one input
BAD = ("traceback", "crash", "hang", "memory", "other data")
BATCH, TRIALS = 250, 10
Finding = tuple[str, int, str]
"""Of which kind, which number of it, and what became of it: `same`, `refused`, `read`, or one of BAD."""


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
    except (Exception, SystemExit) as error:
        return f"traceback: {traceback.format_exception_only(error)[-1].strip()}"
    if found == expected:
        return "same"
    return "other data" if reader.checked else "read"


# Damaged files, in processes that may die.


def _read_batch(kind: str, first: int, count: int, at, results) -> None:
    """Inputs `first` to `first + count` of a kind, each of a seed of its own."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def too_long(*_) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        reader = make(kind, Path(folder) / "files")
        whole = reader.file.read_bytes()
        expected = outcome(reader.read())
        for i in range(first, first + count):
            at.value = i
            content = damaged(whole, random.Random(f"{kind}/{i}"))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            signal.alarm(PATIENCE)
            reported = judge(reader, content, expected)
            signal.alarm(0)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            results.send((kind, i, "memory" if grown > GIGABYTE else reported))


def read_damaged(kind: str, first: int, count: int) -> Iterator[Finding]:
    """What becomes of these inputs; one that ends its process, or hangs in C, is a finding as well."""
    end, context = first + count, multiprocessing.get_context("fork")
    while first < end:
        here, there = context.Pipe(duplex=False)
        at = context.Value("q", first, lock=False)
        process = context.Process(target=_read_batch, args=(kind, first, end - first, at, there))
        process.start()
        there.close()
        hung = False
        try:
            while not (hung := not here.poll(3 * PATIENCE)):
                yield here.recv()
        except EOFError:
            pass
        if hung:
            process.kill()
        process.join()
        if process.exitcode == 0:
            return
        yield kind, at.value, "hang" if hung else f"crash: exit status {process.exitcode}"
        first = at.value + 1


# The work in pieces, each of which is done once.


class Piece(NamedTuple):
    """Numbers `first` to `first + count` of one kind of work."""

    what: str
    kind: str
    first: int
    count: int

    @property
    def file(self) -> str:
        words = "".join(c if c.isalnum() else "-" for c in f"{self.what} {self.kind}")
        return f"{words}-{self.first}-{self.count}.json"

    def findings(self) -> Iterator[Finding]:
        if self.what == "inputs":
            yield from read_damaged(self.kind, self.first, self.count)
            return
        trial = {"kills": trials.killed_run, "runs": trials.damaged_run}[self.what]
        for number in range(self.first, self.first + self.count):
            yield from trial(self.kind, number)


def pieces(inputs: int, runs: int, kills: int, only: str = "") -> list[Piece]:
    """The work, interleaved, so that what is done at any moment is some of everything.

    Half as many runs are killed as `kills` asks for: each is killed twice on average, or somewhat less.
    """
    chosen = {kind: _share(kind) for kind in KINDS if only in kind}
    each = inputs / max(1e-9, sum(chosen.values()))
    amounts = [
        ("inputs", kind, math.ceil(each * share), math.ceil(BATCH * share))
        for kind, share in chosen.items()
    ]
    for what, amount in (("kills", kills / 2), ("runs", runs)):
        names = [name for name in trials.JOBS if only in name or only == what]
        amounts += [(what, name, math.ceil(amount / len(names)), TRIALS) for name in names]
    found = [
        (first / amount, Piece(what, kind, first, min(size, amount - first)))
        for what, kind, amount, size in amounts
        for first in range(0, amount, size)
    ]
    return [piece for _, piece in sorted(found, key=lambda pair: pair[0])]


def _share(kind: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return make(kind, Path(folder)).share


def work(todo: list[Piece], out: Path, seconds: float = math.inf) -> None:
    """Does what no process has done or is doing, piece by piece; a piece's file is written at its end.

    After `seconds` no further piece is begun.
    """
    torch.set_num_threads(1)
    end = time.monotonic() + seconds
    for piece in todo:
        if time.monotonic() > end:
            return
        path = out / piece.file
        with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if path.exists():
                continue
            began, counts, wrong = time.monotonic(), {}, []
            for kind, number, reported in piece.findings():
                verdict = reported.partition(":")[0]
                counts.setdefault(kind, Counter())[verdict] += 1
                if verdict in BAD:
                    wrong.append((kind, number, reported))
            found = {"counts": counts, "wrong": wrong, "seconds": time.monotonic() - began}
            path.with_suffix(".part").write_text(json.dumps(found))
            path.with_suffix(".part").rename(path)


def gathered(todo: list[Piece], out: Path) -> tuple[dict[str, Counter], list[Finding], float]:
    """Counts by kind, what went wrong, and the seconds of one process that the pieces took."""
    counts: dict[str, Counter] = {}
    wrong, seconds = [], 0.0
    for piece in sorted(todo, key=lambda piece: piece.what, reverse=True):
        if (out / piece.file).exists():
            found = json.loads((out / piece.file).read_text())
            for kind, count in found["counts"].items():
                counts.setdefault(kind, Counter()).update(count)
            wrong += map(tuple, found["wrong"])
            seconds += found["seconds"]
    return counts, wrong, seconds


def table(counts: dict[str, Counter]) -> str:
    """One row per kind of fault, in Markdown."""
    columns = ("refused", "same", "read", *BAD)
    lines = [
        "| what was done | times | refused in a sentence | no difference | read | traceback | crash "
        "| hang | over 1 GB | other data in silence |",
        "|---|" + "---:|" * (len(columns) + 1),
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    for kind in sorted(counts, key=lambda kind: order.get(kind, -1)):
        numbers = [sum(counts[kind].values()), *(counts[kind][column] for column in columns)]
        lines.append(f"| {kind} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    return "\n".join(lines)


def again(kind: str, number: int) -> str:
    """One damaged file once more, in this process: its traceback is Python's own."""
    with tempfile.TemporaryDirectory() as folder:
        reader = make(kind, Path(folder))
        reader.file.write_bytes(
            damaged(reader.file.read_bytes(), random.Random(f"{kind}/{number}"))
        )
        return str(outcome(reader.read()))[:2000]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged files")
    parser.add_argument("--runs", type=int, default=300, help="runs with a damaged file")
    parser.add_argument("--kills", type=int, default=450, help="about so many")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument("--out", type=Path, help="a folder for what each piece found")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "NUMBER"), help="one damaged file")
    args = parser.parse_args()
    if args.again:
        print(again(args.again[0], int(args.again[1])))
        return 0
    todo = pieces(args.inputs, args.runs, args.kills, args.only)
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("fork")
        workers = [
            context.Process(target=work, args=(todo, out, 60 * args.minutes))
            for _ in range(args.processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        counts, wrong, seconds = gathered(todo, out)
        left = sum(not (out / piece.file).exists() for piece in todo)
    print(table(counts))
    total = sum(sum(count.values()) for count in counts.values())
    print(
        f"\n{total:,} in {seconds:,.0f} seconds of a process, {total / max(seconds, 1e-9):.1f} a second"
    )
    if left:
        print(f"{left} of {len(todo)} pieces of the work are left: the same command does them.")
    for finding in wrong[:50]:
        print(*finding, sep="\t", file=sys.stderr)
    return 1 if wrong or any(worker.exitcode for worker in workers) else 0


if __name__ == "__main__":
    sys.exit(main())
