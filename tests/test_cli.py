"""The command line as a user types it: real processes, exit status, and what reaches the terminal."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wording import says

import corerl
from corerl import algos, cli

IQL = Path(algos.__path__[0]) / "iql.py"


def run(*command, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=250
    )


def test_the_file_of_an_algorithm_is_a_program(tmp_path):
    ended = run(IQL, "--help", cwd=tmp_path)
    assert ended.returncode == 0 and not ended.stderr
    assert "algo.expectile=0.7" in ended.stdout and "steps=1000000" in ended.stdout


def test_bad_input_is_one_sentence_and_status_2(tmp_path):
    ended = run(IQL, "task=corerl/pendulm", cwd=tmp_path)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith(
        "corerl: Unknown task corerl/pendulm. Did you mean corerl/pendulum"
    )
    assert ended.stderr.count("\n") == 1 and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_module_of_an_algorithm_is_the_same_program(tmp_path):
    ended = run("-m", "corerl.algos.bc", "steps=ten", "task=corerl/pendulum", cwd=tmp_path)
    assert ended.returncode == 2
    says(ended.stderr, "steps=ten 1000", lines=1)


def test_the_package_is_the_same_program(tmp_path):
    ended = run("-m", "corerl", "--version", cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        f"corerl {corerl.__version__}\n",
        "",
    )


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_usage_names_every_command(capsys, arguments):
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"corerl {command}" in text for command in ("train", *cli.COMMANDS))


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"corerl {corerl.__version__}\n"


def test_an_unknown_command_is_one_sentence(capsys):
    assert cli.main(["trane", "algo=iql"]) == 2
    error = capsys.readouterr().err
    says(error, "trane --help", lines=1)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(capsys, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    module = importlib.import_module(cli.COMMANDS[command])
    assert callable(module.run)
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: corerl {command}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_overview_fits_a_terminal():
    assert max(map(len, cli.USAGE.splitlines())) <= 80


def test_the_algorithms_are_the_files_of_algos():
    files = {path.stem for path in IQL.parent.glob("*.py")} - {"__init__"}
    assert set(algos.names()) == files >= {"bc", "iql", "rebrac", "td3_bc"}


def test_ctrl_c_is_no_traceback(monkeypatch):
    def stopped(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("corerl.bench.bench.run", stopped)
    assert cli.main(["bench"]) == 130


def test_a_terminal_shows_at_once_that_something_happens(tmp_path):
    """Before the imports, which take seconds."""
    import pty

    main, terminal = pty.openpty()
    command = [sys.executable, str(IQL), "task=corerl/pendulm"]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, cwd=tmp_path) as process:
        os.close(terminal)
        first = os.read(main, 1000).decode()
        assert first.strip() == "corerl: loading" and process.poll() is None
        os.read(main, 1000)
    os.close(main)
