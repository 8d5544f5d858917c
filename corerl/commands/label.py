"""Compares segments of a task's data by eye: `corerl label TASK --pairs 200`.

Opens a page on this machine. Keys: left, right, down (equal), s (skip),
z (undo), space (pause). With --ranked 3 you order three segments: press
their numbers, the best first. Every answer is saved at once. Ctrl-C ends, and
the same command resumes.

  corerl label corerl/pendulum --pairs 200 --out labels/anna.npz --labeller anna
  corerl label corerl/pendulum --agreement labels/anna.npz labels/ben.npz
  corerl label corerl/pendulum --groups labels/*.npz
"""

from __future__ import annotations

import argparse
import itertools
import os
import webbrowser
from pathlib import Path

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.launch import task_arguments
from corerl.preferences import groups, label_session
from corerl.preferences.label_pictures import Pictures
from corerl.preferences.label_server import Server
from corerl.preferences.label_session import Session
from corerl.preferences.sources import vectors
from corerl.runs import files

CROP = 64
"""Steps that IPL cuts out of each segment by default. It must take shorter segments whole."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("task", metavar="TASK", help="a task, such as corerl/pendulum or file/PATH")
    add("settings", nargs="*", help=f"settings for your own file, {task_arguments.SETTINGS}")
    add("--pairs", type=int, default=200, help="number of questions (default: 200)")
    add(
        "--ranked",
        type=int,
        default=2,
        choices=[2, 3, 4],
        help="segments in each question (default: 2)",
    )
    add("--length", type=int, default=64, help="steps in each segment (default: 64)")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of the random questions (give labellers the same seed to compare their answers)",
    )
    add("--out", type=Path, help="file for the answers (default: labels/TASK.npz)")
    add("--labeller", default="", help="name of the labeller, shown in tables")
    add("--port", type=int, default=0, help="port of the page (default: a free one)")
    add(
        "--no-browser",
        action="store_true",
        help="print the page's address instead of opening a browser",
    )
    add(
        "--agreement",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="compare the answers in these files with each other and with the true rewards",
    )
    add(
        "--groups",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="group labellers with similar answers (one file for each labeller)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C, or prints how files agree."""
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # pygame's window would swallow SIGTERM
    task = task_arguments.task_of(args.task, args.settings)
    if args.agreement:
        return _agree(task, args.agreement)
    if args.groups:
        return _group(task, args.groups)
    require(args.pairs > 0, f"--pairs {args.pairs} must be positive")
    require(args.length > 0, f"--length {args.length} must be positive")
    dataset = vectors(task.load())
    out = args.out or Path("labels") / f"{task.id.replace('/', '-')}.npz"
    require(out.suffix == ".npz", f"--out {out} must end in .npz")
    busy = f"Another `corerl label` is writing {out}. End it with Ctrl-C, or choose another --out."
    with files.held(out.with_name(f".{out.name}.lock"), busy):
        asked = args.pairs, args.length, args.seed, args.labeller, args.ranked
        session = Session(dataset, out, *asked)
        command = _training(task, args.settings, session)
        server = Server(session, lambda: Pictures(task, dataset), command, args.port)
        _serve(server, args.no_browser)
    state = session.state()
    print(f"\n{state['answered']} of {state['total']} answered, {state['skipped']} skipped: {out}")
    print(command)
    return 0


def _training(task: Task, settings: list[str], session: Session) -> str:
    """Returns the command that trains on the labels."""
    algo = "ipl" if session.size == 2 else "pref_iql"  # which learns from whole rankings
    words = [f"corerl train algo={algo}", task_arguments.in_shell(task, settings)]
    words += ["algo.preferences.source=file"]
    words += [task_arguments.override("algo.preferences.path", str(session.path))]
    words += ["algo.crop=null"] if session.length < CROP else []
    return " ".join(words)


def _serve(server: Server, no_browser: bool) -> None:
    """Serves the page until Ctrl-C."""
    out = server.session.path
    print(f"{server.address}\nEvery answer is saved to {out}. End with Ctrl-C.", flush=True)
    if not no_browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def _read(task: Task, paths: list[Path]) -> tuple[dict[str, dict], Dataset]:
    """Returns the labellers' files by name, and the data that they are on."""
    labellers, dataset = label_session.by_name(paths), task.load()
    for name, file in labellers.items():
        require(
            label_session.is_of(str(file["sha256"]), dataset),
            f"{name} labels a different version of {task.id} than the one on this machine. Get the labelled "
            f"version, or leave {name} out",
        )
    return labellers, dataset


def _group(task: Task, paths: list[Path]) -> int:
    """Prints how well each number of groups predicts held-out answers, and who is in which group."""
    labellers, dataset = _read(task, paths)
    lines = groups.describe(labellers, dataset)
    print("\n".join(lines))
    return 0


def _agree(task: Task, paths: list[Path]) -> int:
    """Prints a line per pair of labellers, and per labeller with the oracle of the true rewards."""
    labellers, dataset = _read(task, paths)
    rows = [
        (f"{one}, {other}", label_session.agreement(labellers[one], labellers[other]))
        for one, other in itertools.combinations(labellers, 2)
    ]
    rows += [
        (f"{name}, true rewards", label_session.with_teacher(file, dataset))
        for name, file in labellers.items()
    ]
    width = max(len(name) for name, _ in rows)
    print(f"{'':{width}}  pairs   same  kappa  opposed")
    for name, found in rows:
        print(
            f"{name:{width}}  {found['pairs']:5}  {found['same']:5.0%}  {found['kappa']:5.2f}  "
            f"{found['opposed']:6.0%}"
        )
    return 0
