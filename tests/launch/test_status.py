"""What `corerl status` says of a sweep and of a folder, and what the dry run makes of it."""

import fcntl
import itertools
import os
import threading
from pathlib import Path

import pytest
from rich.console import Console
from small import config, train
from wording import says

from corerl import cli
from corerl.algos import bc, dqn
from corerl.config import Config, Eval
from corerl.errors import CorerlError
from corerl.launch import dry_run, launch, rates, status, worker
from corerl.runs import files, provenance, terminal
from corerl.runs.checkpoint import path_in, save_checkpoint
from corerl.runs.directory import cell_directory


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def begun(cell, name: str, state: str, step: int = 0, message: str = "", **more) -> None:
    facts = {"state": state, "step": step, "message": message, "updates_per_s": 10.0}
    files.make_directory(cell / name)
    files.write_json(cell / name / "status.json", facts | {"seeds": [0]} | more)


def states(cfg) -> list[tuple[list[int], str]]:
    return [(group.seeds, group.state) for group in status.of_cell(cfg)]


def test_seeds_never_begun_are_missing():
    cfg = config(Path("runs"), "bc", seeds=3)
    assert states(cfg) == [([0, 1, 2], "missing")]
    begun(cell_directory(cfg), "seeds-1", "done", 40)
    begun(cell_directory(cfg), "seeds-7", "done", 40)  # nobody asks for it
    assert states(cfg) == [([1], "done"), ([0, 2], "missing")]


def test_a_folder_lists_runs_behind_links():
    cfg = config(Path("disk"), "bc")
    begun(cell_directory(cfg), "seeds-0", "done")
    launch.write_settings(cfg)
    Path("runs").mkdir()
    Path("runs/link").symlink_to(Path("disk").resolve())
    (found,) = status.groups(Path("runs"))
    assert found.task == cfg.task and found.state == "done"


def test_running_is_told_from_killed():
    cfg = config(Path("runs"), "bc", seeds=1)
    folder = cell_directory(cfg) / "seeds-0"
    begun(cell_directory(cfg), "seeds-0", "running", 10)
    assert states(cfg) == [([0], "stopped")]
    with worker.locked(folder):
        assert states(cfg) == [([0], "running")]
    assert states(cfg) == [([0], "stopped")]


def test_a_group_that_ended_before_it_saved_does_not_count_beside_those_that_have_its_seeds():
    cfg = config(Path("runs"), "bc", seeds=2)
    begun(cell_directory(cfg), "seeds-0-1", "running", 3)
    begun(cell_directory(cfg), "seeds-0", "done", 40)
    assert states(cfg) == [([0], "done"), ([0, 1], "stopped")]  # no other has seed 1
    begun(cell_directory(cfg), "seeds-1", "failed", 3)
    assert ([0, 1], "stopped") in states(cfg)  # one of both will be gone on with, or neither
    begun(cell_directory(cfg), "seeds-1", "done", 40)
    assert states(cfg) == [([0], "done"), ([1], "done")]
    path_in(cell_directory(cfg) / "seeds-0-1").touch()  # the same command goes on with it
    assert ([0, 1], "stopped") in states(cfg)


def test_who_looks_whether_seeds_are_trained_keeps_nobody_from_training_them():
    folder = Path("seeds-0")
    with worker.locked(folder):
        pass
    with open(folder / ".lock", encoding="utf-8") as looked:
        fcntl.flock(looked, fcntl.LOCK_EX)
        letting_go = threading.Timer(0.05, fcntl.flock, [looked, fcntl.LOCK_UN])
        letting_go.start()
        with worker.locked(folder):
            pass
        letting_go.join()
    with worker.locked(folder), pytest.raises(files.Busy), worker.locked(folder):
        pass


def test_a_failed_seed_shows_the_last_line_of_its_traceback(monkeypatch, capsys):
    def broken(cfg, run):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(bc, "train", broken)
    with pytest.raises(launch.SeedsFailed):
        train(config(Path("runs"), "bc"))
    (group,) = status.groups(Path("runs"))
    assert (group.state, group.message) == ("failed", "ZeroDivisionError: by nothing")
    capsys.readouterr()
    assert cli.main(["status"]) == 0
    assert "ZeroDivisionError: by nothing" in capsys.readouterr().out


def test_a_cell_that_did_not_begin_says_why_until_it_does():
    cfg = config(Path("runs"), "bc")
    launch.keep_failure(cfg, CorerlError("No simulator fits."))
    for (group,) in (status.of_cell(cfg), status.groups(Path("runs"))):
        assert (group.seeds, group.state, group.message) == ([0], "failed", "No simulator fits.")
    launch.launch(cfg)
    assert states(cfg) == [([0], "done")]


def test_seeds_that_another_process_trains_are_no_failure_of_the_cell():
    cfg = config(Path("runs"), "bc")
    launch.keep_failure(cfg, worker.Busy("Another process is training."))
    assert states(cfg) == [([0], "missing")]


def test_a_sweep_by_name_lists_every_cell(capsys):
    assert cli.main(["status", "demo", "seeds=2"]) == 0
    out = capsys.readouterr().out
    assert "12 seeds missing" in out
    assert out.count("corerl/pendulum") == 3


def test_neither_folder_nor_sweep_is_one_sentence(capsys):
    assert cli.main(["status", "iqlgym"]) == 2
    error = capsys.readouterr().err
    says(error, "iqlgym iql_gym")
    assert error.count("\n") == 1


# The dry run.

TERMINAL = {"width": 80, "force_terminal": True, "color_system": None}


def test_only_what_is_left_is_counted():
    cfg = config(Path("runs"), "bc", seeds=4, steps=9_000, eval=Eval(every=4_000, episodes=5))
    cell = cell_directory(cfg)
    begun(cell, "seeds-0", "done", 9_000)
    begun(cell, "seeds-1", "interrupted", 6_000)
    save_checkpoint(path_in(cell / "seeds-1"), {"loop": {"step": 6_000}})
    row = dry_run.row(cfg, None)
    assert (row.seeds, row.done) == (4, 1)
    assert row.updates == 3_000 + 2 * 9_000
    assert row.episodes == (2 * 3 + 2) * 5  # at 4000, 8000 and 9000; of seed 1 without the first


@pytest.mark.parametrize("state", ["running", "failed"])
def test_what_a_killed_run_had_not_saved_is_left_to_do(state):
    cfg = config(Path("runs"), "bc", seeds=1, steps=9_000, eval=Eval(every=2_000, episodes=1))
    folder = cell_directory(cfg) / "seeds-0"
    begun(cell_directory(cfg), "seeds-0", state, 5_000)
    assert dry_run.row(cfg, None).updates == 9_000
    for step in (1_000, 3_000):
        save_checkpoint(path_in(folder), {"loop": {"step": step}})
    row = dry_run.row(cfg, None)
    assert (row.updates, row.episodes) == (6_000, 4)
    path_in(folder).unlink()  # a kill between two renames leaves the one before it
    assert dry_run.row(cfg, None).updates == 8_000
    if state == "running":
        with worker.locked(folder):  # it is, and goes on from where it is
            assert dry_run.row(cfg, None).updates == 4_000


def test_a_rate_is_that_of_runs_of_the_same_size_on_this_machine(tmp_path):
    facts = provenance.environment()
    for root, width, gpu, rate in (
        ("here", 16, None, 50.0),
        ("wider", 32, None, 7.0),
        ("gpu", 16, "A100", 900.0),
    ):
        measured = config(tmp_path / "runs" / root, "bc", own={"hidden_width": width})
        cell = cell_directory(measured)
        launch.write_settings(measured)
        begun(cell, "seeds-0-1", "done", 5_000, updates_per_s=rate, seeds=[0, 1])
        files.write_json(cell / "seeds-0-1" / "env.json", facts | {"gpu": gpu})
    linked = tmp_path / "runs" / "gpu"  # as those on another disk are
    linked.rename(tmp_path / "gpu")
    linked.symlink_to(tmp_path / "gpu")
    cfg = config(tmp_path / "runs", "bc", steps=3600, seeds=1)
    on_cpu, on_gpu = rates.known(cfg, None), rates.known(cfg, "A100")
    assert (on_cpu.updates_per_s, on_cpu.on_gpu) == (100.0, False)  # both seeds
    assert (on_gpu.updates_per_s, on_gpu.on_gpu) == (1800.0, True)
    assert dry_run.row(cfg, None).hours == pytest.approx(3600 / 100 / 3600)
    assert rates.known(config(tmp_path / "runs", "bc", own={"hidden_width": 64}), None).estimated


def test_a_rate_on_vectors_says_nothing_of_images(tmp_path):
    tasks = ("maze/v1-vector", "maze/v1", "atari/Pong")
    cells = [Config(algo=dqn.Config(), task=task, root=str(tmp_path)) for task in tasks]
    assert [rates.known(cfg, None) is not None for cfg in cells] == [True, False, False]


@pytest.mark.parametrize("began_at", [0, 100_000])
def test_runs_too_short_to_time_are_left_out(tmp_path, began_at):
    cfg = config(tmp_path, "bc")
    launch.write_settings(cfg)
    begun(cell_directory(cfg), "seeds-0", "done", began_at + rates.ENOUGH - 1, began_at=began_at)
    files.write_json(cell_directory(cfg) / "seeds-0" / "env.json", provenance.environment())
    assert rates.known(cfg, None).estimated


def test_without_a_gpu_figure_the_core_hours_are_shown_and_said_to_be_that(capsys):
    arguments = ["algo=iql", "task=corerl/pendulum", "seeds=3", "device=cuda", "steps=1000000"]
    assert cli.main(["train", *arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    hours = 3 * 1_000_000 / 168 / 3600  # results/bench/README.md: 168 updates/s
    says(out, f"{hours:,.1f} CPU")
    assert "Sapphire Rapids" in out
    says(out, "GPU")
    assert not os.listdir(), "a dry run writes nothing"


@pytest.mark.parametrize(
    ("algo", "setting", "note"),
    [
        ("bc", "env=gym/x:Foo", "task=file/PATH"),
        ("td3_bc", "steps=11", "steps=11 algo.policy_delay=2"),
        ("cpl", "steps=20000", "algo.bc_steps=200000 steps=20000"),
    ],
)
def test_what_training_would_refuse_is_refused_in_its_row(capsys, algo, setting, note):
    assert cli.main(["train", f"algo={algo}", "task=corerl/pendulum", setting, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "refused 1" in out
    says(out, note)


def test_a_task_that_cannot_be_evaluated_says_so_in_its_row(capsys):
    arguments = ["-m", "algo=bc", "task=d4rl/antmaze-umaze-v2,corerl/pendulum"]
    assert cli.main(["train", *arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    antmaze = next(line for line in out.splitlines() if "antmaze-umaze" in line)
    pendulum = next(line for line in out.splitlines() if "corerl/pendulum" in line)
    assert "refused 1" in antmaze and "refused" not in pendulum
    says(out, "1")
    assert "eval.episodes=0" in out
    assert cli.main(["train", *arguments, "eval.episodes=0", "--dry-run"]) == 0
    assert "refused" not in capsys.readouterr().out
    assert cli.main(["train", "algo=rlpd", "task=d4rl/antmaze-umaze-v2", "--dry-run"]) == 0
    out = capsys.readouterr().out  # acts there
    assert "refused 1" in out and "eval.episodes=0" not in out


def test_hours_are_divided_by_the_cores_and_those_of_refused_cells_named(capsys, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    tasks = "task=d4rl/antmaze-umaze-v2,corerl/pendulum"
    words = ["algo=bc", tasks, "seeds=30", "steps=1000000", "device=cpu"]
    assert cli.main(["train", "-m", *words, "--dry-run"]) == 0
    each = 30 * 1_000_000 / 756 / 3600  # results/bench/README.md: 756 updates/s
    reported = f"about {2 * each:.1f} CPU core-hours, {2 * each / 4:.1f} hours on the 4 cores here"
    says(capsys.readouterr().out, f"{reported} {each:.1f}")


def test_cells_of_one_task_are_told_apart_by_their_settings(capsys):
    arguments = ["-m", "algo=oraac", "task=risk/D1,risk/pointmass", "algo.tau=0.1,0.4"]
    assert cli.main(["train", *arguments, "--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "risk/" in line]
    assert sum("O-RAAC tau=0.1 " in line for line in lines) == 2
    assert sum("O-RAAC tau=0.4 " in line for line in lines) == 2
    assert not any("fetch" in line for line in lines), "their data is made in memory"


@pytest.mark.parametrize("command", ["train", "status"])
def test_a_run_that_two_cells_name_is_counted_once(capsys, command):
    """`td3_bc_corl` is TD3+BC for this task, and the seeds of `seeds=2` are among those of 3."""
    Path("mine.yaml").write_text("defaults: [config, _self_]\n", encoding="utf-8")
    cells = ["sweep=mine.yaml", "algo=td3_bc,td3_bc_corl", "task=corerl/pendulum", "seeds=2,3"]
    if command == "train":
        assert cli.main(["train", *cells, "steps=1000", "--dry-run"]) == 0
        says(capsys.readouterr().out, "1 cell 3 seeds 0 3,000 updates")
    else:
        assert cli.main(["status", "mine.yaml", *cells[1:]]) == 0
        assert "\n3 seeds missing" in capsys.readouterr().out


def test_the_plan_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "console", lambda: Console(**TERMINAL))
    arguments = ["-m", "algo=iql,arsq", "task=d4rl/hopper-medium-v2,neorl2/DMSD"]
    assert cli.main(["train", *arguments, "seeds=10", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    (iql,) = (line.split() for line in lines if "IQL" in line and "DMSD" in line)
    assert iql[2:5] == ["0/10", "10M", "16.5"]


def test_a_sweeper_that_searches_cannot_be_listed(capsys):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    arguments = ["-m", "hydra/sweeper=optuna", "algo=bc", "task=corerl/pendulum"]
    assert cli.main(["train", *arguments, "--dry-run"]) == 2
    says(capsys.readouterr().err, "optuna")


def test_a_row_tells_runs_of_one_name_apart_and_returns_from_scores(capsys):
    """A raw return and a normalised score in one column are not the same thing."""
    first, second = config(Path("runs"), "bc"), config(Path("runs"), "bc", steps=8)
    begun(cell_directory(first), "seeds-0", "done", score=12.5)
    begun(cell_directory(second), "seeds-0", "done", **{"return": -900.0})
    for cfg in (first, second):
        launch.write_settings(cfg)
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    for cfg, score in ((first, " 12.5"), (second, "return -900.0")):
        (row,) = (line for line in shown.splitlines() if f"BC steps={cfg.steps} " in line)
        assert score in row


def test_cells_of_a_sweep_that_never_began_are_named_by_their_settings(capsys):
    assert cli.main(["status", "neorl2_bc", "task=neorl2/DMSD"]) == 0
    shown = capsys.readouterr().out
    for layers, lr in itertools.product((2, 3), (0.0001, 0.0005, 0.001)):
        assert f"BC hidden_layers={layers} lr={lr} " in shown
