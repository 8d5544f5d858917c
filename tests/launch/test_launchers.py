"""Sweeps under Hydra's launchers: the same two cells, one of which fails, wherever they run."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from wording import refused, says

from corerl.launch import composition, status
from corerl.launch import train as train_module
from corerl.launch.arguments import read
from corerl.runs import files
from corerl.runs.directory import cell_directory
from corerl.training.stopping import Interrupted, stopped_by_sigterm, terminated_like_ctrl_c

ARGUMENTS = [
    "-m",
    "algo=bc",
    "task=corerl/pendulum,d4rl/antmaze-umaze-v2",  # the second has no simulator
    "algo.hidden_width=16",
    "algo.batch_size=16",
    "compile=off",
    "device=cpu",
    "seeds=2",
    "steps=20",
    "eval.episodes=1",
]
LAUNCHERS = {
    "basic": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["hydra/launcher=submitit_local"],
    "ray": [
        "hydra/launcher=ray",
        "hydra.launcher.ray.init.address=local",
        "+hydra.launcher.ray.init.num_cpus=2",
        "+hydra.launcher.ray.init.include_dashboard=false",
    ],
}
SLOW = {"ray"}  # a minute


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "corerl.cli", "train", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=250,
    )


def stamps(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("seeds-*/*") if p.is_file()}


@pytest.mark.parametrize(
    "launcher", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in LAUNCHERS]
)
def test_one_failing_cell_stops_no_other_and_a_rerun_does_only_what_is_missing(
    tmp_path, monkeypatch, launcher
):
    if launcher != "basic":
        pytest.importorskip(f"hydra_plugins.hydra_{launcher}_launcher")
    ended = train(tmp_path, *ARGUMENTS, *LAUNCHERS[launcher])
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    says(ended.stderr.splitlines()[-1], "d4rl/antmaze-umaze-v2")
    monkeypatch.chdir(tmp_path)
    pendulum, antmaze = composition.cells(ARGUMENTS)
    assert [(g.seeds, g.state) for g in status.of_cell(pendulum)] == [([0], "done"), ([1], "done")]
    (failed,) = status.of_cell(antmaze)
    assert (failed.seeds, failed.state) == ([0, 1], "failed")
    says(failed.message, "d4rl/antmaze-umaze-v2 gymnasium-robotics")
    if launcher == "basic":
        before = stamps(cell_directory(pendulum))
        ended = train(tmp_path, *ARGUMENTS, "seeds=3")
        assert "nothing to do" not in ended.stderr
        after = stamps(cell_directory(pendulum))
        assert before.items() < after.items()
        assert {Path(name).parent.name for name in after.keys() - before.keys()} == {"seeds-2"}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("sys.exit('no licence')", "no licence"),
        ("os._exit(7)", "ended with exit status 7 and no message"),
        ("os.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
def test_the_last_lines_of_a_sweep_have_the_reason_of_a_dead_process(tmp_path, end, reason):
    (tmp_path / "mine.py").write_text(
        "import os, sys\nfrom dataclasses import dataclass\nfrom corerl.config import Settings\n"
        "@dataclass\nclass Config(Settings):\n    name: str = 'mine'\n    label: str = 'Mine'\n"
        f"def train(cfg, run):\n    run.record.started = True\n    {end}\n"
    )
    arguments = ["-m", "algo=mine.py", "task=corerl/pendulum", "seeds=2", "steps=1", "device=cpu"]
    ended = train(tmp_path, *arguments, *LAUNCHERS["joblib"])
    assert ended.returncode == 2
    assert reason in ended.stderr.splitlines()[-1]
    written = [file.read_text() for file in tmp_path.rglob("seeds-*/error.txt")]
    assert len(written) == 2 and all(reason in text for text in written)


def test_a_cell_that_diverged_elsewhere_is_no_success(tmp_path):
    arguments = [*ARGUMENTS, "task=corerl/pendulum", f"root={tmp_path}"]
    (cell,) = composition.cells(arguments)
    for seed in (0, 1):
        facts = {"state": "done", "seeds": [seed], "step": 20, "diverged": {str(seed): 7}}
        files.make_directory(cell_directory(cell) / f"seeds-{seed}")
        files.write_json(cell_directory(cell) / f"seeds-{seed}" / "status.json", facts)
    (problem,) = train_module._unfinished(read(arguments))
    says(problem, "BC corerl/pendulum")


@pytest.mark.parametrize(
    ("stop", "reported"),
    [(Interrupted(), "stopped and saved"), (KeyboardInterrupt(), "saved results are kept")],
)
def test_a_stopped_sweep_says_how_to_go_on(monkeypatch, capsys, stop, reported):
    monkeypatch.setattr(train_module, "_hydra_run", Mock(side_effect=stop))
    assert train_module.main(["-m", "algo=bc", "task=a,b"]) == 130
    command = "Resume with the same command: corerl train -m algo=bc task=a,b"
    says(capsys.readouterr().err, f"{reported} {command}")


def test_a_folder_that_cannot_be_written_is_not_the_launchers_fault(monkeypatch):
    read_only = OSError(errno.EROFS, "Read-only file system", "ro/new")
    monkeypatch.setattr(train_module.hydra, "main", Mock(side_effect=read_only))
    with refused("ro/new", OSError):
        train_module.main(["-m", "algo=bc", "task=corerl/pendulum"])


def test_a_worker_is_stopped_though_its_launcher_has_sigterm_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), stopped_by_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_is_ctrl_c_to_a_launcher_and_its_workers():
    before = signal.getsignal(signal.SIGTERM)
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    worker, other = (
        subprocess.Popen(sleep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=group)
        for group in (None, 0)  # a terminal's Ctrl-C does not reach the second
    )
    for process in (worker, other):
        process.stdout.readline()
    with pytest.raises(KeyboardInterrupt), terminated_like_ctrl_c():
        os.kill(os.getpid(), signal.SIGTERM)
    assert worker.wait(10) == -signal.SIGTERM
    assert other.poll() is None and signal.getsignal(signal.SIGTERM) == before
    other.kill()
