"""Command lines: one argument in a line of a file, and the sweep's file that one names."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import yaml
from damage import Reader

from corerl import cli
from corerl.errors import CorerlError
from corerl.launch.composition import cells
from corerl.runs import files

TRAIN = ("algo=iql", "task=corerl/pendulum", "seeds=[0,3]", "algo.expectile=0.8", "eval.every=20")
SWEEP = ("-m", "algo=bc,iql", "task=corerl/pendulum,d4rl/hopper-medium-v2", "algo.lr=1e-3,3e-4")
RUN = {"task": "corerl/pendulum", "label": None, "seeds": 1, "steps": 20}
RUN["algo"] = {"name": "bc", "label": "BC"}
FILE = """defaults:
  - config
  - _self_
root: runs/mine
seeds: 3
eval: {every: 100, episodes: 2}
hydra:
  sweeper:
    params:
      algo: bc,iql
      task: corerl/pendulum
      algo.batch_size: 32
"""


def _composed(arguments: list[str]) -> list[dict]:
    """What `corerl train` would run, without running it."""
    return [asdict(cfg) | {"algo": repr(cfg.algo)} for cfg in cells(arguments)]


def _main(arguments: list[str]) -> str:
    """What a command that only reads prints; argparse ends the process with 2, after its own sentence."""
    out, reported = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(reported):
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = end.code
    if status not in (0, 2):
        raise RuntimeError(f"exit status {status}")
    if status == 2:
        raise CorerlError(reported.getvalue().strip().splitlines()[-1])
    return out.getvalue()


def _line(arguments: tuple[str, ...], read: Callable[[list[str]], object], share: float):
    def make(folder: Path) -> Reader:
        path = folder / "arguments"
        path.write_text("\n".join(arguments))
        files.make_directory(folder / "runs/corerl/pendulum/bc-0a1b2c3d/seeds-0")
        cell = folder / "runs/corerl/pendulum/bc-0a1b2c3d"
        (cell / "config.yaml").write_text(yaml.safe_dump(RUN))
        files.write_json(cell / "seeds-0/status.json", {"state": "done", "step": 20})

        def lines() -> list[str]:
            text = path.read_bytes().replace(b"\0", b"").decode(errors="surrogateescape")
            return text.split("\n")

        def inside() -> object:
            with contextlib.chdir(folder):
                return read(lines())

        return Reader(path, inside, share=share)

    return make


def _sweep(folder: Path) -> Reader:
    path = folder / "mine.yaml"
    path.write_text(FILE)
    flags = ["--config-dir", str(folder), "--config-name", "mine", "--multirun"]
    return Reader(path, lambda: _composed(flags), share=0.05)


KINDS = {
    "corerl train, command line": _line(TRAIN, _composed, 0.1),
    "corerl train -m, command line": _line(SWEEP, _composed, 0.05),
    "corerl status, command line": _line(("status", "runs"), _main, 0.5),
    "corerl data, command line": _line(("data", "info", "corerl/pendulum"), _main, 0.5),
    "a sweep's file": _sweep,
}
