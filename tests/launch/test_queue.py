"""A queue trains what fits into its time, and travels to a machine without a network and back."""

import itertools
import json
import signal
import tarfile
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small
import tiny
from wording import refused, says

from corerl import cli
from corerl.config import Eval
from corerl.data import packed, tasks
from corerl.errors import CorerlError
from corerl.launch import launch, queue, queue_files, seed_processes, tiny_cells, worker
from corerl.launch.memory_estimate import Size
from corerl.launch.rates import Rate
from corerl.launch.seed_processes import Job
from corerl.runs.directory import cell_directory
from corerl.training.offline_to_online import Online

pytestmark = pytest.mark.usefixtures("short_episodes", "load_once")

SMALL = "task=corerl/pendulum steps=20 eval.every=20 eval.episodes=1 device=cpu " + " ".join(
    small.FIXED[:3]
)


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_process(monkeypatch):
    """Jobs run one after the other in this process."""

    def run(jobs, processes, show, choose, end):
        while jobs and (job := choose(jobs)):
            jobs.remove(job)
            show(job, worker.train(*job, lambda *_: None), float(len(jobs)))

    monkeypatch.setattr(seed_processes, "run", run)


# The list.

ENTRIES = """
- algo=bc task=corerl/pendulum seeds=[3,7]
- [algo=iql, task=corerl/pendulum]
"""
SWEEP = """
defaults: [config, _self_]
seeds: 2
hydra: {sweeper: {params: {algo: "bc,iql", task: corerl/pendulum}}}
"""


@pytest.mark.parametrize("text, seeds", [(ENTRIES, [[3, 7], 5]), (SWEEP, [2, 2])])
def test_a_list_and_a_sweep_are_queues(text, seeds):
    Path("mine.yaml").write_text(text, encoding="utf-8")
    found = queue.read("mine.yaml", ["eval.later=true", "steps=9"])
    assert [(c.algo.name, c.seeds) for c in found] == list(zip(["bc", "iql"], seeds, strict=True))
    assert all(c.eval.later and c.steps == 9 for c in found)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("- 5", "1 5"),
        ("- algo=bc task=corerl/pendulum\n- {algo: bc}", "2 algo bc"),
        ("[]", "mine.yaml algo=iql"),
        ("- algo=bd task=corerl/pendulum", "bd"),
        ("- [", "YAML"),
        (None, "mine.yaml"),
    ],
)
def test_what_is_no_list_of_cells_is_one_sentence(text, problem, capsys):
    if text is not None:
        Path("mine.yaml").write_text(text, encoding="utf-8")
    assert cli.main(["queue", "mine.yaml"]) == 2
    error = capsys.readouterr().err
    says(error, problem, lines=1)


@pytest.mark.parametrize("given", [["--minutes", "0"], ["--at-once", "0"]])
def test_numbers_are_positive(given, capsys):
    assert cli.main(["queue", "demo", *given]) == 2
    says(capsys.readouterr().err, f"{given[0]} 0")


# Training in time.


def test_the_end_tells_what_is_complete_resumable_failed_and_not_begun(
    in_process, capsys, monkeypatch
):
    lines = [
        f"algo=bc {SMALL} seeds=1",
        f"algo=iql {SMALL} seeds=1",
        f"algo=td3_bc {SMALL} seeds=1",
    ]
    Path("mine.yaml").write_text(
        "".join(f"- {line}\n" for line in [*lines, "algo=dt task=gym/Pendulum-v1"]),
        encoding="utf-8",
    )
    cfg = queue.read("mine.yaml", [])[1]
    small.run(cfg, [0], stop=10)
    monkeypatch.setattr(
        queue._Choice, "__call__", lambda self, jobs: jobs[0] if len(jobs) == 3 else None
    )
    assert cli.main(["queue", "mine.yaml"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "complete: BC on corerl/pendulum",
        "resumable: IQL on corerl/pendulum, 10 of 20 updates",
        "not begun: TD3+BC on corerl/pendulum",
    ]
    assert out[3].startswith("failed: DT on gym/Pendulum-v1: ")
    assert out[4].startswith(
        "4 cells: 1 complete, 1 resumable, 1 not begun, 1 failed. Run the same command"
    )


def test_the_same_command_trains_the_rest(in_process, capsys):
    Path("mine.yaml").write_text(
        f"- algo=bc {SMALL} seeds=2\n- algo=td3_bc {SMALL} seeds=1\n", encoding="utf-8"
    )
    assert cli.main(["queue", "mine.yaml", "eval.later=true"]) == 0
    reported = capsys.readouterr()
    assert reported.out.splitlines()[-1] == "2 cells: 2 complete."
    says(reported.out, "corerl evaluate")
    assert reported.err.count("started: ") == reported.err.count("done: ") == 3
    assert cli.main(["queue", "mine.yaml", "eval.later=true"]) == 0
    assert "started" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "left, archived, size, rate, chosen",
    [
        (100, False, 10**9, 1.0, "long"),  # what is trained stays, whatever its size
        (100, True, 10**9, 1.0, "short"),
        (100, True, 10**3, 1.0, "long"),  # its checkpoint fits into --out
        (10, True, 10**9, 1.0, None),
        (10, True, 10**9, None, "long"),  # nobody knows
        (0, False, 10**3, 1.0, None),
    ],
)
def test_what_starts_next(left, archived, size, rate, chosen, monkeypatch):
    jobs = [
        Job(small.config(Path(), label=n, steps=s), [0]) for n, s in (("long", 400), ("short", 40))
    ]
    monkeypatch.setattr(queue.memory_estimate, "of_seed", lambda cfg: Size(size, 0))
    known = rate and Rate(rate, "cpu", False, "a test")
    monkeypatch.setattr(queue.rates, "known", lambda cfg, gpu: known)
    monkeypatch.setattr(queue.time, "monotonic", lambda: 0.0)
    job = queue._Choice(left, archived)(jobs)
    assert (job and job.cfg.label) == chosen


def test_a_rate_of_another_kind_of_device_is_none(monkeypatch):
    monkeypatch.setattr(queue.rates, "known", lambda cfg, gpu: Rate(1.0, "H100", True, "a test"))
    assert queue.seconds_of(Job(small.config(Path()), [0])) is None


def test_running_jobs_are_told_to_stop_at_the_end_and_nothing_starts_after_it(monkeypatch):
    reported = []

    class Process:
        pid = 4321
        exitcode = property(lambda self: 130 if reported else None)
        is_alive = start = lambda self: True

    context = SimpleNamespace(Process=lambda **_: Process())
    monkeypatch.setattr(seed_processes.multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(
        seed_processes.os, "kill", lambda pid, number: reported.append((pid, number))
    )
    ticks = itertools.count()
    monkeypatch.setattr(seed_processes.time, "monotonic", lambda: float(next(ticks)))
    jobs = [Job(small.config(Path()), [seed]) for seed in (0, 1)]
    ended = seed_processes.run(jobs, 1, lambda *_: None, end=2.0)
    assert ended == [(130, jobs[0])] and reported == [(4321, signal.SIGTERM)]
    assert seed_processes.run(jobs, 1, lambda *_: None, lambda waiting: None) == []


BOTH = {"phase": "both", "online": Online(pretrain_steps=500, warmup_steps=50)}


@pytest.mark.parametrize(
    "algo, own",
    [
        ("iql", BOTH),
        *((name, {}) for name in ("td3_bc", "dt", "qr_dqn", "sac", "mrq", "pref_iql", "rlpd")),
    ],
)
def test_a_cell_is_tried_by_two_updates(algo, own, tmp_path):
    cfg = tiny.settings(algo, **own)
    cfg = tiny_cells.shrunk(replace(cfg, steps=10**6, seeds=3, eval=Eval(10**5, 10)), str(tmp_path))
    launch.launch(cfg)
    metrics = (cell_directory(cfg) / "seeds-0" / "metrics.jsonl").read_text().splitlines()
    assert cfg.steps < 40 and any("loss" in key for line in metrics for key in json.loads(line))


def test_a_dry_run_leaves_nothing(in_process, capsys):
    Path("mine.yaml").write_text(f"- algo=bc {SMALL} seeds=2\n", encoding="utf-8")
    assert cli.main(["queue", "mine.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "complete: BC on corerl/pendulum",
        "1 cells: 1 complete.",
    ]
    assert not Path("runs").exists()


# To another machine and back.


def equal(one, two) -> bool:
    for field in fields(one):
        np.testing.assert_equal(getattr(one, field.name), getattr(two, field.name))
    return True


@pytest.mark.parametrize("change", ["none", "gaps", "discrete", "parts"])
def test_a_packed_dataset_is_the_dataset_again(change, monkeypatch):
    dataset = small.random_dataset()
    if change == "gaps":
        dataset = replace(dataset, next_observations=dataset.next_observations + 1)
    if change == "discrete":
        dataset = replace(dataset, actions=np.arange(len(dataset)) % 4)
    if change == "parts":
        dataset = replace(dataset, parts=(("x", 1), ("y", 2)), as_given=True)
    packed.write(dataset, packed.path_in(Path("data"), "corerl/pendulum"))
    with np.load("data/corerl/pendulum.npz") as file:
        assert ("next_observations" in file) == (change == "gaps")
    monkeypatch.setenv(packed.VARIABLE, "data")
    task = tasks.resolve("corerl/pendulum")
    assert task.is_here and equal(task._read("train"), replace(dataset, id="corerl/pendulum"))
    assert equal(replace(task, history=2)._read("train"), task._read("train"))


def test_a_packed_queue_needs_no_data_there(in_process, capsys, monkeypatch):
    Path("mine.yaml").write_text(f"- algo=bc {SMALL} seeds=1\n", encoding="utf-8")
    assert cli.main(["queue", "mine.yaml", "eval.later=true", "--pack", "there"]) == 0
    out = capsys.readouterr().out
    assert "packed/corerl/pendulum.npz: " in out
    says(out, "there/queue.yaml eval.later=true")

    def gone(name):
        raise CorerlError("It is gone.")

    monkeypatch.setattr(tasks.READERS["corerl"], "load", gone)
    monkeypatch.setattr(tasks.Task, "load", tasks.Task.load.__wrapped__)
    assert cli.main(["queue", "mine.yaml", "eval.later=true"]) == 2
    assert cli.main(["queue", "there/queue.yaml", "eval.later=true"]) == 0


@pytest.mark.parametrize(
    "task, problem",
    [
        ("corerl/pendulum", "pendulum.npz"),
        ("file/mine.npz", "file/mine.npz"),
    ],
)
def test_what_is_too_big_or_has_no_name_is_not_packed(task, problem, monkeypatch):
    monkeypatch.setattr(queue_files, "PACK", 1000)
    Path("mine.yaml").write_text("", encoding="utf-8")
    with refused(problem):
        queue_files.pack([small.config(Path(), "bc", task=task)], "mine.yaml", Path("there"))


@pytest.mark.parametrize("every", [True, False])
def test_results_fit_into_a_few_files_and_logs_come_first(every, monkeypatch):
    cells = [small.config(Path("runs"), "bc", label=name) for name in ("one", "two")]
    for cfg in cells:
        launch.launch(cfg)
    units = [
        unit for unit in queue_files._units(cells) if every or unit[0].suffix != ".safetensors"
    ]
    size = sum(2048 + path.stat().st_size for unit in units for path in unit)
    monkeypatch.setattr(queue_files, "LEFT_FREE", 20_000)
    monkeypatch.setattr(queue_files, "PIECES", 4)
    monkeypatch.setattr(queue_files, "PIECE", -(-(size + 20_000) // 4))
    left_out = queue_files.write_results(cells, Path("out"))
    assert [path.name for path in left_out] == ["checkpoint.safetensors"] * (0 if every else 2)
    pieces = sorted(Path("out").iterdir())
    assert len(pieces) <= 4 and all(p.stat().st_size <= queue_files.PIECE for p in pieces)
    Path("all.tar").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    with tarfile.open("all.tar") as archive:
        names = archive.getnames()
        archive.extractall("back", filter="data")
    assert names == [str(path) for unit in units for path in unit]
    assert all((Path("back") / name).read_bytes() == Path(name).read_bytes() for name in names)
    expected = {
        "config.yaml",
        "scores.csv",
        "returns.jsonl",
        "metrics.jsonl",
        "status.json",
        "env.json",
    }
    assert expected <= {Path(name).name for name in names}
