"""Which seeds run, where they run, and what happens to the rest when one of them fails."""

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import wrappers
from small import FIXED, config, group, run, train
from wording import lacking, refused, says

from corerl import algos
from corerl.algos import bc, iql, qr_dqn, rlpd, sac
from corerl.config import Config, Data, Eval
from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch import checks, launch, seed_processes, worker
from corerl.launch.launch import plan
from corerl.runs import code, files
from corerl.runs.checkpoint import path_in, saved_step
from corerl.runs.directory import cell_directory, group_name, read_status, settings
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online
from corerl.training.run import Run
from corerl.training.stopping import Interrupted, handled

pytestmark = pytest.mark.usefixtures("load_once")


# The plan.


def begun(cell: Path, name: str, state: str | None, checkpoint: bool = True) -> None:
    (cell / name).mkdir(parents=True)
    if state:
        files.write_json(cell / name / "status.json", {"state": state})
    if checkpoint:
        (cell / name / "checkpoint.safetensors").touch()


def test_on_a_cpu_every_fresh_seed_is_a_group(tmp_path):
    assert plan(tmp_path, [0, 3, 7], together=False, processes=2) == [[0], [3], [7]]


@pytest.mark.parametrize(
    ("processes", "groups"), [(1, [[0, 1, 2, 3]]), (2, [[0, 1], [2, 3]]), (9, [[0], [1], [2], [3]])]
)
def test_on_a_gpu_fresh_seeds_go_together(tmp_path, processes, groups):
    assert plan(tmp_path, [0, 1, 2, 3], together=True, processes=processes) == groups


def test_many_seeds_over_processes_have_short_names(tmp_path):
    names = [group_name(seeds) for seeds in plan(tmp_path, list(range(200)), True, processes=2)]
    assert names == ["seeds-0-99", "seeds-100-199"]
    begun(tmp_path, "seeds-0_2_4", "running")  # as an older version dealt them out
    begun(tmp_path, "seeds-1_3_5", "done")
    assert plan(tmp_path, list(range(9)), True, processes=2) == [[0, 2, 4], [6], [7, 8]]


def test_a_name_of_seeds_that_is_too_long_is_told(tmp_path):
    even = list(range(0, 400, 2))
    with refused("200 750 255 processes="):
        plan(tmp_path, even, together=True, processes=1)
    assert len(plan(tmp_path, even, together=True, processes=4)) == 4


@pytest.mark.parametrize("together", [True, False])
def test_done_seeds_are_not_run_again(tmp_path, together):
    begun(tmp_path, "seeds-0", "done")
    begun(tmp_path, "seeds-2-4", "done")
    expected = [[1, 5]] if together else [[1], [5]]
    assert plan(tmp_path, [0, 1, 2, 3, 4, 5], together, processes=1) == expected
    assert plan(tmp_path, [0, 3], together, processes=1) == []


@pytest.mark.parametrize("state", ["running", "interrupted", "failed", None])
def test_unfinished_groups_go_on_as_they_were_begun(tmp_path, state):
    begun(tmp_path, "seeds-1-3", state)
    begun(tmp_path, "seeds-8", state)  # of seeds that nobody asks for now
    assert plan(tmp_path, [0, 1, 2], together=False, processes=2) == [[1, 2, 3], [0]]


def test_without_a_checkpoint_a_seed_is_fresh(tmp_path):
    begun(tmp_path, "seeds-0-2", "running", checkpoint=False)
    assert plan(tmp_path, [0, 1, 2], together=False, processes=2) == [[0], [1], [2]]


# One process.


@pytest.mark.parametrize(("held", "seeds", "left"), [([0], 3, [1, 2]), ([0, 1, 2], 1, [])])
def test_seeds_of_another_process_are_in_no_second_group_before_they_save(
    tmp_path, held, seeds, left
):
    with worker.locked(tmp_path / group_name(held)):
        planned = plan(tmp_path, list(range(seeds)), together=True, processes=1)
    assert planned == [held, *([left] if left else [])]
    assert plan(tmp_path, list(range(seeds)), together=True, processes=1) == [list(range(seeds))]


def test_seeds_that_diverged_in_a_group_that_never_saved_have_a_result_elsewhere(tmp_path):
    cfg = config(tmp_path, "bc")
    cell = cell_directory(cfg)
    begun(cell, "seeds-0-1", None, checkpoint=False)
    facts = {"state": "interrupted", "diverged": {"0": 7, "1": 9}}
    files.write_json(cell / "seeds-0-1" / "status.json", facts)
    with pytest.raises(launch.Diverged):
        launch.refuse_diverged(cfg)
    for seed in (0, 1):
        begun(cell, f"seeds-{seed}", "done")
    launch.refuse_diverged(cfg)


def test_a_reason_is_promised_where_one_was_written(tmp_path):
    cfg = config(tmp_path, "bc")
    with refused("BC corerl/pendulum 0", launch.SeedsFailed):
        launch._refuse_unfinished(cfg, [(1, [0])])
    files.make_directory(cell_directory(cfg) / "seeds-0")
    (cell_directory(cfg) / "seeds-0" / "error.txt").write_text("why")
    with refused("seed 0 error.txt", launch.SeedsFailed):
        launch._refuse_unfinished(cfg, [(1, [0])])


def stamps(cell: Path) -> dict[str, int]:
    found = [path for path in cell.rglob("*") if path.is_file()]
    return {str(path): path.stat().st_mtime_ns for path in found}


def test_a_rerun_does_nothing_and_says_so(tmp_path, capsys):
    cell = train(config(tmp_path, "bc"))
    before = stamps(cell)
    capsys.readouterr()
    train(config(tmp_path, "bc"))
    says(capsys.readouterr().err, f"seeds {cell}", lines=1)
    assert stamps(cell) == before


def test_a_rerun_says_whose_seeds_are_of_older_code(tmp_path, monkeypatch, capsys):
    """Settings name a run: after a change of a loss the old numbers would else pass for the new ones."""
    cell = train(config(tmp_path, "bc", seeds=[2]))
    monkeypatch.setattr(code, "digest", lambda name: "changed")
    train(config(tmp_path, "bc", seeds=[2, 5]))
    reported = capsys.readouterr().err
    says(reported, f"2 {cell} bc.py")
    monkeypatch.setattr(code, "digest", lambda name: "again")
    (cell / "seeds-2" / "env.json").write_text("{")  # damaged: it tells nothing, and ends nothing
    train(config(tmp_path, "bc", seeds=[2, 5]))
    says(capsys.readouterr().err, f"seed 5 {cell}")


@pytest.mark.parametrize("seeds", [[2], [2, 5]])
def test_unfinished_seeds_go_on_with_the_code_of_now_and_say_so(
    tmp_path, monkeypatch, capsys, seeds
):
    cfg = config(tmp_path, "bc", seeds=seeds)
    cell = cell_directory(cfg)
    folder = cell / group_name(seeds)

    def cut_short(at, digest):
        """Trains to step `at`, with other code."""
        monkeypatch.setattr(code, "digest", lambda name: digest)
        run = Run(cfg, seeds, lambda name, status: None)
        log = run.log
        run.log = lambda step, metrics: (log(step, metrics), setattr(run, "_stop", step == at))
        with pytest.raises(Interrupted):
            bc.train(cfg.algo, run)

    def code_of():
        return json.loads((folder / "env.json").read_text())["code"]

    cut_short(10, "first")
    cut_short(20, "first")
    assert code_of() == "first" and "code" not in capsys.readouterr().err
    monkeypatch.setattr(code, "digest", lambda name: "second")
    train(cfg)
    reported = capsys.readouterr().err
    who = "seed 2" if len(seeds) == 1 else "seeds 2, 5"
    says(reported, f"{who} {cell} bc.py")
    says(reported, f"20 {folder}")
    assert "stay" not in reported and code_of() == ["first", "second"]
    train(cfg)
    says(capsys.readouterr().err, f"{who} {cell}")


def test_a_seed_that_begins_anew_is_not_told_to_stay(tmp_path, monkeypatch, capsys):
    cell = train(config(tmp_path, "bc", seeds=[2]))
    for file in ("checkpoint.safetensors", "status.json"):
        (cell / "seeds-2" / file).unlink()
    monkeypatch.setattr(code, "digest", lambda name: "changed")
    train(config(tmp_path, "bc", seeds=[2]))
    assert "bc.py" not in capsys.readouterr().err
    assert json.loads((cell / "seeds-2/env.json").read_text())["code"] == "changed"


def test_a_status_says_where_its_attempt_began(tmp_path):
    cfg = config(tmp_path, "bc", eval=Eval(episodes=0))
    assert [read_status(run(cfg, [0], stop))["began_at"] for stop in (20, None)] == [0, 20]


def test_torchs_own_generator_is_seeded_and_given_back(tmp_path, monkeypatch):
    """A file of one's own may draw from it: nn.Linear does."""

    def draws(cfg, run):
        for step in run.steps():
            run.log(step, {"drawn": torch.randn(1)})

    monkeypatch.setattr(bc, "train", draws)
    before = torch.get_rng_state()
    metrics = []
    for name in "ab":
        cell = train(config(tmp_path / name, "bc", seeds=2, eval=Eval(episodes=0)))
        metrics.append([(cell / f"seeds-{i}/metrics.jsonl").read_text() for i in (0, 1)])
        assert torch.equal(torch.get_rng_state(), before)
        torch.randn(3)
        before = torch.get_rng_state()
    one, other = ([json.loads(x)["drawn"] for x in text.splitlines()] for text in metrics[0])
    assert metrics[0] == metrics[1] and one != other


def test_more_seeds_are_added_beside_those_that_are_done(tmp_path):
    cell = train(config(tmp_path, "bc", seeds=[2]))
    before = stamps(cell / "seeds-2")
    train(config(tmp_path, "bc", seeds=[2, 5]))
    assert stamps(cell / "seeds-2") == before
    assert group(cell, "seeds-5")["state"] == "done"
    assert yaml.safe_load((cell / "config.yaml").read_text())["seeds"] == [2, 5]


def test_the_directory_says_what_ran(tmp_path):
    cfg = config(tmp_path, "bc", own={"best": 0.5})
    cell = train(cfg)
    written = yaml.safe_load((cell / "config.yaml").read_text())
    assert written == settings(cfg) | {"seeds": 1}
    assert written["algo"]["best"] == 0.5 and written["algo"]["data"]["normalize_states"] is True
    facts = json.loads((cell / "seeds-0" / "env.json").read_text())
    assert facts["torch"] and facts["python"]


def break_seed_one(monkeypatch, error: Exception):
    """bc.train fails for seed 1, after its checkpoint at step 30."""

    def broken(cfg, run):
        if run.seeds == [1]:

            def save(step):
                type(run).save(run, step)
                if step == 30:
                    raise error

            run.save = save
        original(cfg, run)

    original = bc.train
    monkeypatch.setattr(bc, "train", broken)


def test_a_seed_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    cfg = config(tmp_path, "bc", seeds=3)
    expected = train(config(tmp_path / "well", "bc", seeds=3))
    with monkeypatch.context() as patched:
        break_seed_one(patched, ZeroDivisionError("by nothing"))
        with refused("BC corerl/pendulum 1 error.txt"):
            launch.launch(cfg)
    cell = cell_directory(cfg)
    assert [group(cell, f"seeds-{s}")["state"] for s in (0, 1, 2)] == ["done", "failed", "done"]
    reported = "corerl: BC corerl/pendulum seeds-1 failed: ZeroDivisionError: by nothing"
    assert reported in capsys.readouterr().err.splitlines()
    status = json.loads((cell / "seeds-1" / "status.json").read_text())
    assert status["message"] == "ZeroDivisionError: by nothing" and status["step"] < 40
    text = (cell / "seeds-1" / "error.txt").read_text()
    assert text.startswith("Traceback") and "by nothing" in text
    before = stamps(cell / "seeds-0")
    launch.launch(cfg)  # the same again runs only what is missing, from its checkpoint
    assert stamps(cell / "seeds-0") == before
    assert group(cell, "seeds-1") == group(expected, "seeds-1")
    assert not (cell / "seeds-1" / "error.txt").exists()


def test_a_full_disk_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    error = CorerlError("The disk is full: x was not written")
    break_seed_one(monkeypatch, error)
    monkeypatch.setattr(
        Path, "write_text", lambda *a, **_: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with refused("seed 1"):
        launch.launch(config(tmp_path, "bc", seeds=[1]))
    says(capsys.readouterr().err, "seeds-1 x")


def test_a_second_process_on_the_same_directory_is_refused(tmp_path):
    cfg = config(tmp_path, "bc")
    folder = cell_directory(cfg) / "seeds-0"
    with (
        worker.locked(folder),
        refused(folder),
    ):
        launch.launch(cfg)
    launch.launch(cfg)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_seeds_of_another_process_are_left_to_it_in_one_sentence(tmp_path, capfd, processes):
    cfg = config(tmp_path, "bc", seeds=3, processes=processes)
    cell = cell_directory(cfg)
    with (
        worker.locked(cell / "seeds-0"),
        worker.locked(cell / "seeds-2"),
        refused(f"{cell} seeds 0 2", worker.Busy),
    ):
        launch.launch(cfg)
    reported = capfd.readouterr().err
    assert "failed" not in reported and "Traceback" not in reported
    assert group(cell, "seeds-1")["state"] == "done"
    assert not list(cell.rglob("error.txt")) and not (cell / "seeds-0/status.json").exists()
    launch.launch(cfg)
    assert all(group(cell, f"seeds-{seed}")["state"] == "done" for seed in range(3))


def test_what_another_process_finished_since_the_plan_is_not_opened_again(tmp_path):
    cfg = config(tmp_path, "bc")
    launch.launch(cfg)
    status = cell_directory(cfg) / "seeds-0/status.json"
    before = status.read_bytes()
    assert worker.train(cfg, [0], lambda *_: None) == worker.DONE
    assert status.read_bytes() == before
    status.write_text("{")  # damaged: its checkpoint tells what is left
    assert worker.train(cfg, [0], lambda *_: None) == worker.DONE
    assert group(cell_directory(cfg), "seeds-0")["state"] == "done"


def test_what_the_other_process_has_finished_is_done(tmp_path):
    cfg = config(tmp_path, "bc")
    launch.launch(cfg)
    launch._refuse_unfinished(cfg, [(worker.BUSY, [0])])
    with pytest.raises(worker.Busy):
        launch._refuse_unfinished(cfg, [(worker.BUSY, [0]), (worker.BUSY, [1])])


def test_a_failure_is_told_before_what_is_busy(tmp_path, monkeypatch):
    break_seed_one(monkeypatch, CorerlError("it broke"))
    cfg = config(tmp_path, "bc", seeds=2)
    folder = cell_directory(cfg) / "seeds-0"
    with worker.locked(folder), refused(f"1 error.txt {folder}", launch.SeedsFailed):
        launch.launch(cfg)


def test_a_damaged_checkpoint_is_told_and_deleting_it_mends_it(tmp_path, capsys):
    cfg = config(tmp_path, "bc", steps=20)
    cell = train(cfg)
    checkpoint = cell / "seeds-0" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    files.write_json(cell / "seeds-0" / "status.json", {"state": "interrupted"})
    with refused("seed 0"):
        launch.launch(cfg)
    says(capsys.readouterr().err, f"{checkpoint}")
    checkpoint.unlink()
    launch.launch(cfg)
    assert group(cell)["state"] == "done"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"task": "corerl/pendulm"}, "corerl/pendulm corerl/pendulum"),
        ({"task": "corerl/pendulm", "eval": Eval(episodes=0)}, "task"),
        ({"task": "gym/Pendulum-v1"}, "gym/Pendulum-v1"),
        ({"compile": "fast"}, "compile=fast"),
        ({"compile": "graph"}, "compile=graph GPU"),
        ({"device": "gpu"}, "device=gpu"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, changed, problem):
    with refused(problem):
        launch.launch(config(tmp_path, "bc", **changed))
    assert not list(tmp_path.iterdir())


def test_goals_are_refused_beside_several_latest_observations(tmp_path):
    with refused("corerl/goal-maze history=2 history=1"):
        launch.launch(config(tmp_path, "gcbc", task="corerl/goal-maze", history=2))
    assert not list(tmp_path.iterdir())


def test_other_actions_than_an_algorithm_takes_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {
        "observations": np.ones((8, 2)),
        "rewards": np.ones(8),
        "terminated": np.arange(8) % 4 == 3,
    }
    np.savez(path, **arrays, actions=np.linspace(-1, 1, 8)[:, None])
    job = {"task": f"file/{path}", "data": Data(action_low=-1, action_high=1)}
    with refused("actions continuous"):
        launch.launch(config(tmp_path, "cql_discrete", **job))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("algo", "reported"), [("sac", True), ("rlpd", False)])
def test_data_that_an_algorithm_does_not_learn_from_is_told(
    tmp_path, monkeypatch, capsys, algo, reported
):
    monkeypatch.setattr(launch.worker, "train", lambda *_: launch.DONE)
    path = tmp_path / "x.npz"
    spaces = {"observations": np.ones((8, 3)), "actions": np.linspace(-1, 1, 8)[:, None]}
    np.savez(path, **spaces, rewards=np.ones(8), terminated=np.arange(8) == 7)
    launch.launch(config(tmp_path, algo, task=f"file/{path}", env="gym/Pendulum-v1", seeds=[0]))
    assert (not lacking(capsys.readouterr().err, f"SAC file/{path}")) == reported


def test_an_environment_that_returns_no_reward_is_noticed_before_training(tmp_path, monkeypatch):
    make = tasks.Task.make_env
    monkeypatch.setattr(
        tasks.Task,
        "make_env",
        lambda task: gymnasium.wrappers.TransformReward(make(task), np.atleast_1d),
    )
    cfg = config(tmp_path, "bc")
    with refused("reward (1,)"):
        launch.launch(cfg)
    assert not cell_directory(cfg).exists()


def test_a_missing_simulator_is_noticed_before_training(tmp_path, monkeypatch):
    def missing(self):
        raise CorerlError("pip install corerl[robotics] brings the simulator.")

    monkeypatch.setattr(tasks.Task, "make_env", missing)
    with refused("eval.episodes=0"):
        launch.launch(config(tmp_path, "bc"))
    for algo, own in (("sac", {}), ("iql", {"phase": "online"})):  # which act in it
        with refused("simulator"):
            launch.launch(config(tmp_path, algo, own=own))
    train(config(tmp_path, "bc", eval=Eval(episodes=0)))


# Several processes.


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory) -> dict[int, dict]:
    """Three seeds in this process, one after the other."""
    cell = train(config(tmp_path_factory.mktemp("one"), seeds=[0, 3, 7], **LONG))
    return {seed: group(cell, f"seeds-{seed}") for seed in (0, 3, 7)}


LONG = {"steps": 600, "save_every": 30, "log_every": 100, "eval": Eval(every=1000, episodes=2)}
ARGUMENTS = [
    *FIXED,
    "task=corerl/pendulum",
    "seeds=[0,3,7]",
    "processes=2",
    "steps=600",
    "save_every=30",
    "log_every=100",
    "eval.every=1000",
]


def start(root: Path) -> subprocess.Popen:
    """A run over two processes in a process group of its own, as in a terminal; at its first checkpoint."""
    command = [sys.executable, Path(algos.__path__[0]) / "iql.py", *ARGUMENTS, f"root={root}"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    deadline = time.monotonic() + 250
    while not list(root.glob("corerl/pendulum/*/*/checkpoint.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    return process


def test_seeds_over_processes_are_those_of_one_process(tmp_path, one_by_one):
    process = start(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches parent and children
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "failed" not in errors, errors
    says(errors.splitlines()[-1], "command")
    cfg = config(tmp_path, seeds=[0, 3, 7], **LONG)
    launch.launch(replace(cfg, processes=2))
    cell = cell_directory(cfg)
    assert {seed: group(cell, f"seeds-{seed}") for seed in (0, 3, 7)} == one_by_one


def test_a_stop_that_reaches_a_child_at_its_end_is_nothing_to_it(monkeypatch):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(seed_processes.worker, "train", lambda *_: 0)
    try:
        with pytest.raises(SystemExit):
            seed_processes._work(None, [0], os.getppid())
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize(("times", "kind"), [(1, Interrupted), (2, KeyboardInterrupt)])
def test_a_second_stop_ends_a_run_that_has_not_saved(tmp_path, monkeypatch, times, kind):
    cfg = config(tmp_path, "bc", save_every=20)
    log = Run.log

    def stopped(self, step, metrics):
        log(self, step, metrics)
        for _ in range(times if step == 25 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "log", stopped)
    with (
        handled(signal.default_int_handler, signal.SIGINT),  # a background job ignores it
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        train(cfg)
    assert caught.type is kind
    folder = cell_directory(cfg) / "seeds-0"
    assert read_status(folder)["state"] == "interrupted"
    assert saved_step(path_in(folder)) == (25 if times == 1 else 20)


@pytest.mark.slow
def test_children_of_a_killed_parent_save_and_stop(tmp_path):
    process = start(tmp_path)
    process.kill()
    process.communicate(timeout=250)
    (cell,) = tmp_path.glob("corerl/pendulum/*/")
    for folder in cell.glob("seeds-*"):
        deadline = time.monotonic() + 60
        while json.loads((folder / "status.json").read_text())["state"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_child_that_never_saw_its_parent_says_that_it_stopped(tmp_path):
    cfg = config(tmp_path, "bc")
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=seed_processes._child, args=(cfg, [0], 1, -1))
    child.start()
    child.join(timeout=250)
    status = json.loads((cell_directory(cfg) / "seeds-0" / "status.json").read_text())
    assert (child.exitcode, status["state"], status["step"]) == (130, "interrupted", 0)


def dies(cfg, seeds, threads, parent) -> None:
    """In the place of a child: seed 1 ends as it would by a full memory."""
    if seeds == [1]:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_child_is_a_failed_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seed_processes, "_child", dies)
    with refused("seed 1"):
        launch.launch(config(tmp_path, "bc", seeds=2, processes=2))
    says(capsys.readouterr().err, "seeds-1 9")


def test_a_longer_training_says_that_it_begins_anew(tmp_path, capsys):
    train(config(tmp_path, "bc", steps=4))
    capsys.readouterr()
    longer = config(tmp_path, "bc", steps=6)
    launch.launch(longer)
    reported = "4 steps"
    assert reported in capsys.readouterr().err
    launch.launch(longer)  # once, when it begins
    launch.launch(config(tmp_path, "bc", steps=4, own={"lr": 1e-4}))  # and not of other settings
    assert reported not in capsys.readouterr().err


# Memory.


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_has_ended_holds_no_memory(tmp_path, monkeypatch, fails):
    """A GPU may not have room for the next cell's replay, trained in the same process, beside its own."""
    buffers = []
    load_data, log = preprocessing.load, Run.log

    def loaded(*args, **options):
        buffer, normalizer = load_data(*args, **options)
        buffers.append(weakref.ref(buffer))
        return buffer, normalizer

    def logged(self, step, metrics):
        log(self, step, metrics)
        if fails and step == 20:
            raise ValueError("the policy is lost")

    monkeypatch.setattr(preprocessing, "load", loaded)
    monkeypatch.setattr(Run, "log", logged)
    gc.collect()
    gc.disable()  # which comes in its own time, and knows nothing of a GPU's memory
    try:
        with contextlib.suppress(launch.SeedsFailed):
            train(config(tmp_path, "iql"))
        assert [ref() for ref in buffers] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("algo", "reported"),
    [
        (iql.Config(), ""),
        (sac.Config(random_steps=99), ""),
        (sac.Config(), "10,000 steps algo.random_steps"),
        (
            qr_dqn.Config(),
            "50,000 steps algo.data.learning_starts",
        ),
        (rlpd.Config(), "5,000 steps algo.online.warmup_steps"),
        (iql.Config(phase="both", online=Online(pretrain_steps=60, warmup_steps=39)), ""),
        (
            iql.Config(phase="both", online=Online(pretrain_steps=60, warmup_steps=40)),
            "100 steps",
        ),
    ],
)
def test_a_run_that_ends_within_its_random_beginning_says_so(algo, reported, capsys):
    launch._tell_idle(Config(algo=algo, task="gym/Pendulum-v1", steps=100))
    error = capsys.readouterr().err
    says(error, reported)
    assert bool(reported) == bool(error)


@pytest.mark.parametrize(
    ("wrap", "reported"),
    [
        (wrappers.NormalizeObservation, True),
        (wrappers.NormalizeReward, True),
        (lambda env: frozen(wrappers.NormalizeObservation(env)), False),
        (lambda env: env, False),
    ],
)
def test_an_environment_with_running_statistics_of_its_own_is_told(
    wrap, reported, monkeypatch, capsys
):
    make = tasks.Task.make_env
    monkeypatch.setattr(
        tasks.Task, "make_env", lambda self: wrappers.TimeLimit(wrap(make(self)), 9)
    )
    cfg = Config(algo=sac.Config(), task="gym/Pendulum-v1", steps=100)
    checks.check_simulator(cfg, tasks.of(cfg))
    assert bool(capsys.readouterr().err) == reported


def frozen(env):
    env.update_running_mean = False
    return env


@pytest.mark.parametrize(
    ("algo", "task", "steps", "every"),
    [
        ("qr_dqn", "gym/CartPole-v1", 130, "algo.data.train_every=4"),
        ("td3_bc", "corerl/pendulum", 11, "algo.policy_delay=2"),
    ],
)
def test_steps_that_do_not_end_with_an_update_are_refused_before_training(
    tmp_path, algo, task, steps, every
):
    with refused(f"steps={steps} {every}"):
        launch.launch(config(tmp_path, algo, task=task, steps=steps))
    assert not list(tmp_path.rglob("seeds-*"))
