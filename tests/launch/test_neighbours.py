"""Stray and damaged files beside a run, and output that nobody takes: neither costs a run or a table."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from small import FIXED, config, group, train
from wording import refused, says

from corerl import algos, cli
from corerl.config import MOST_SEEDS, Config, seed_list
from corerl.data import tasks
from corerl.launch import dry_run, launch, rates, status
from corerl.runs import files
from corerl.runs.directory import cell_directory, groups, seeds_of_group, settings
from corerl.training.run import Run

STRAYS = (
    *("seeds-0.bak", "seeds-0 (copy)", "seeds-x", "seeds-", "seeds-True", "seeds-0-", "seeds--1"),
    *(
        "seeds-00",
        "seeds-3-1",
        "seeds-1_2",
        "seeds-0-99999999999",
        "seeds-٣",
        "seeds-0_",
        "seeds-0\n",
    ),
)
DAMAGED = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b'{"state": 3}',
    b'{"state": "done", "step": "x"}',
)
FOREIGN = (
    *("", "a: [", "- 1", "a: 1", "\x00", "seeds: 1", "a: &a [*a]", "x: " + "[" * 3000),
    "{label: 1, task: a, seeds: 1, steps: 1, algo: {label: a, name: a}}",
    "{label: null, task: a, seeds: true, steps: 1, algo: {label: a, name: a}}",
)


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks.Task, "load", cache(tasks.Task.load))
    rates._of_runs.cache_clear()


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A finished run of seeds 0 and 1."""
    root = tmp_path_factory.mktemp("done") / "runs"
    train(config(root, "bc", seeds=2))
    return root


@pytest.fixture
def cell(done) -> Path:
    shutil.copytree(done, "runs")
    return cell_directory(config(Path("runs"), "bc", seeds=2))


def asked(capsys, *arguments) -> str:
    capsys.readouterr()
    assert cli.main(["status", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", STRAYS)
def test_a_name_that_is_no_group_is_none(name):
    with refused("seeds"):
        seeds_of_group(name)


def test_strays_are_skipped_and_named(cell, capsys):
    for name in STRAYS:
        (cell / name).mkdir()
    assert [seeds for _, seeds in groups(cell)] == [[0], [1]]
    launch.launch(config(Path("runs"), "bc", seeds=3))
    reported = capsys.readouterr().err
    says(reported, f"{cell / 'seeds-0.bak'} seeds")
    assert [seeds for _, seeds in groups(cell)] == [[0], [1], [2]]
    text = asked(capsys)
    assert "3 seeds done" in text
    says(text, "seeds-0 (copy)")
    assert dry_run.show([config(Path("runs"), "bc", seeds=3)]) == 0


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_status_costs_neither_the_table_nor_the_run(cell, capsys, content):
    cfg = config(Path("runs"), "bc", seeds=2)
    before = group(cell, "seeds-1")
    (cell / "seeds-1" / "status.json").write_bytes(content)
    text = asked(capsys)
    assert "1 seeds damaged, 1 seeds done" in text and "status.json" in text
    assert dry_run.show([cfg]) == 0
    launch.launch(cfg)
    assert group(cell, "seeds-1") == before  # read from its checkpoint, nothing was trained anew


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_configuration_is_skipped_and_named(cell, capsys, content):
    other = Path("runs/other")
    other.mkdir()
    (other / "config.yaml").write_text(content)
    text = asked(capsys)
    assert "2 seeds done" in text
    says(text, "runs/other/config.yaml")
    assert "2 seeds done" in asked(capsys, "runs/corerl")
    assert cli.main(["status", "runs/other"]) == 2
    says(capsys.readouterr().err, "runs/other")


def test_binary_tracebacks_and_facts_are_no_obstacle(cell, capsys):
    (cell / "error.txt").write_bytes(b"\xff\xfe last\n")
    (cell / "seeds-0" / "env.json").write_text("{")
    cfg = config(Path("runs"), "bc", seeds=3)
    assert "last" in "".join(g.message for g in status.of_cell(cfg))
    rates.known(cfg, None)
    assert dry_run.show([cfg]) == 0


@pytest.mark.parametrize(
    "message", ["[red]alarm[/red]", "[/nothing]", "list[int] [bold", "\x1b[31mred"]
)
def test_brackets_in_messages_are_no_markup(cell, capsys, message):
    facts = {"state": "failed", "step": 3, "message": message}
    files.write_json(cell / "seeds-1" / "status.json", facts)
    text = asked(capsys)
    assert message.replace("\x1b", "\\x1b") in text and "\x1b" not in text


def test_a_label_may_hold_brackets(capsys):
    cfg = config(Path("runs"), "bc", label="[red]", seeds=1)
    files.make_directory(cell_directory(cfg))
    content = yaml.safe_dump(settings(cfg) | {"seeds": 1}).encode()
    files.write_atomically(cell_directory(cfg) / "config.yaml", content)
    assert "[red]" in asked(capsys)
    dry_run.show([cfg])
    assert "[red]" in capsys.readouterr().out


# Settings.


@pytest.mark.parametrize(
    "seeds",
    [
        *(True, [True], [True, 0], [], [1.0], ["1"], 0, -1, "3", None, 200_000_000, MOST_SEEDS + 1),
        *([2**63], [-1], [0, 0], list(range(MOST_SEEDS + 1)), {"a": 1}),
    ],
)
def test_seeds_are_a_count_or_a_list_of_numbers(seeds):
    with refused("count") as caught:
        seed_list(seeds)
    assert len(str(caught.value)) < 300


def test_a_run_whose_every_seed_diverged_is_no_success(capsys, monkeypatch):
    import torch

    log = Run.log

    def diverging(run, step, metrics):
        bad = torch.tensor([seed == 1 for seed in run.seeds])
        log(run, step, {name: torch.where(bad, torch.nan, v) for name, v in metrics.items()})

    monkeypatch.setattr(Run, "log", diverging)
    cfg = config(Path("runs"), "bc", seeds=[1])
    for _ in range(2):  # also where nothing is left to do
        with refused("1 10", launch.Diverged):
            launch.launch(cfg)
    launch.launch(config(Path("runs"), "bc", seeds=[0, 1]))  # one has a result


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seeds", "-1"], ["--processes", "0"]])
def test_bench_refuses_counts_that_are_none(capsys, arguments):
    assert cli.main(["bench", "--algo", "bc", *arguments]) == 2
    says(capsys.readouterr().err, arguments[0])


def test_trust_changes_no_name():
    trusting = config(Path("runs"), "bc", trust=True)
    assert cell_directory(trusting) == cell_directory(config(Path("runs"), "bc"))
    assert isinstance(trusting, Config)


# Output that nobody takes.

BC = Path(algos.__path__[0]) / "bc.py"
JOB = [*FIXED, "task=corerl/pendulum", "seeds=1", "steps=200", "save_every=50", "eval.every=20"]


def shell(command: str, **more) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | more
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=250,
    )


CORERL = f"{sys.executable} -P -m corerl.cli"


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_closed_pipe_does_not_stop_training(processes):
    job = " ".join(f"'{a}'" for a in JOB)
    ended = shell(f"{sys.executable} {BC} {job} processes={processes} seeds=2 2>&1 | head -n 1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    states = [g.state for g in status.groups(Path("runs"))]
    assert states == ["done", "done"]


def test_status_with_output_that_is_full_closed_or_ascii(cell):
    files.write_json(
        cell / "seeds-1" / "status.json", {"state": "failed", "step": 1, "message": "→ größer"}
    )
    full = shell(f"{CORERL} status > /dev/full")
    assert full.returncode == 2
    says(full.stderr, "output")
    closed = shell(f"{CORERL} status >&-")
    ascii_only = shell(f"{CORERL} status", PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0 and "\\u2192 gr\\xf6\\xdfer" in ascii_only.stdout
    headed = shell(f"{CORERL} status | head -n 1; exit ${{PIPESTATUS[0]}}")
    assert closed.returncode == headed.returncode == 0
    for ended in (full, closed, ascii_only, headed):
        assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
