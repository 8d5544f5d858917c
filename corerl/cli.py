"""The command line: `corerl train ...`, `corerl evaluate RUN` and the others in `USAGE`."""

import argparse
import importlib
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import corerl
from corerl.errors import CorerlError, nearest

USAGE = """usage: corerl COMMAND ...

  corerl train algo=iql task=neorl2/DMSD seeds=10 algo.expectile=0.8
                       train. Settings follow Hydra's grammar. With -m, values
                       that commas separate make a sweep. sweep=NAME runs a
                       paper's sweep. --dry-run prints what would run and for
                       how long.
  corerl queue FILE    train a list of runs, several at a time, within a time
                       limit (--minutes 50 --at-once 4)
  corerl evaluate RUN  play a run's policies in a simulator, or estimate their
                       returns from data alone (--method fqe)
  corerl play RUN      show a policy in a window
  corerl record RUN    film a policy (--out film.mp4)
  corerl export RUN    save a policy as ONNX or torch.export, to use it without
                       corerl
  corerl data ...      list, describe, check, download, make or export datasets
  corerl label TASK    compare segments of a dataset in a browser, so that an
                       algorithm can learn from your preferences
  corerl report RUNS   make tables, figures and one HTML page
  corerl tuning RUNS   plot how good the chosen settings are against the number
                       of settings tried, or of episodes played to choose
  corerl status WHAT   list which runs of a sweep, or in a folder, are done,
                       running, failed or missing
  corerl bench         measure updates per second on this machine

corerl COMMAND --help shows the options of a command."""

COMMANDS = {
    "queue": "corerl.launch.queue",
    "evaluate": "corerl.ope.cli",
    "play": "corerl.policies.play",
    "record": "corerl.policies.record",
    "export": "corerl.policies.export",
    "data": "corerl.commands.data",
    "label": "corerl.commands.label",
    "report": "corerl.report.cli",
    "tuning": "corerl.report.tuning",
    "status": "corerl.launch.status",
    "bench": "corerl.bench.bench",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Problems that the user can mend are one sentence and exit status 2."""
    argv = sys.argv[1:] if argv is None else argv
    _open_output()
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except CorerlError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `corerl status | head`
        _drop_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        from corerl.launch import out_of_memory

        if not out_of_memory.is_full(error):
            raise
        return _refuse(out_of_memory.reported(error))
    except OSError as error:
        if error.filename:
            return _refuse(f"{error.filename}: {error.strerror}.")
        _drop_output()
        return _refuse(f"Cannot write the output: {error.strerror or error}.")


def _refuse(problem: str) -> int:
    with suppress(OSError):
        print(f"corerl: {problem}", file=sys.stderr)
    return 2


def _open_output() -> None:
    """Streams that were closed before we began lead nowhere. What an encoding lacks is spelled out."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Sends output nowhere: Python flushes at its end what could not be written, and would fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    """Returns the exit status of one command."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"corerl {corerl.__version__}")
        return 0
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # see launch/matmul_library.py
    command, rest = argv[0], argv[1:]
    if command == "train":
        if sys.stderr.isatty():  # the imports take seconds, and a blank screen looks like a hang
            print("corerl: loading", file=sys.stderr, flush=True)
        from corerl.launch.train import main as train

        return train(rest)
    if command not in COMMANDS:
        known = [*COMMANDS, "train"]
        raise CorerlError(
            f"corerl has no command {command!r}.{nearest(command, known)} See corerl --help."
        )
    module = importlib.import_module(COMMANDS[command])
    parser = argparse.ArgumentParser(f"corerl {command}", description=module.__doc__)
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


def run_file(path: str) -> None:
    """Runs `corerl train algo=iql ...` for `python algos/iql.py ...`. `algo=PATH` for a file elsewhere."""
    file = Path(path).resolve()
    ours = Path(find_spec("corerl.algos").origin).resolve().parent
    name = file.stem if file.parent == ours else str(file)
    sys.exit(main(["train", f"algo={name}", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
