"""Sweeps under Hydra's launchers: the same two cells, one of which fails, wherever they run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corerl.experiments import composition, status
from corerl.experiments.children import terminated_like_ctrl_c
from corerl.runs.directory import cell_directory

ARGUMENTS = [
    "-m",
    "algo=bc",
    "task=corerl/pendulum,d4rl/antmaze-umaze-v2",  # the second has no simulator
    "algo.hidden_width=16",
    "algo.batch_size=16",
    "compile=off",
    "device=cpu",
    "seeds=2",
    "processes=1",
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
SLOW = {"submitit", "ray"}


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
    assert "can be trained but not evaluated" in ended.stderr.splitlines()[-1]
    monkeypatch.chdir(tmp_path)
    pendulum, antmaze = composition.cells(ARGUMENTS)
    assert [(g.seeds, g.state) for g in status.of_cell(pendulum)] == [([0], "done"), ([1], "done")]
    (failed,) = status.of_cell(antmaze)
    assert (failed.seeds, failed.state) == ([0, 1], "failed")
    assert failed.message.startswith("d4rl/antmaze-umaze-v2 can be trained but not evaluated")
    if launcher == "basic":
        before = stamps(cell_directory(pendulum))
        ended = train(tmp_path, *ARGUMENTS, "seeds=3")
        assert "nothing to do" not in ended.stderr
        after = stamps(cell_directory(pendulum))
        assert before.items() < after.items()
        assert {Path(name).parent.name for name in after.keys() - before.keys()} == {"seeds-2"}


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
