"""Evaluations that are played after training leave the files of a run that evaluated itself."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import small
import tiny
from wording import refused, says

from corerl import cli
from corerl.algos import bc
from corerl.config import Config, Eval
from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch import launch, pending_evaluations, status
from corerl.launch.process_setup import numerics
from corerl.report.load import load as read_report
from corerl.runs import pending
from corerl.runs.checkpoint import path_in
from corerl.runs.directory import config_hash, read_status
from corerl.runs.directory import settings as settings_of

pytestmark = pytest.mark.usefixtures("short_episodes", "load_once")

OWN = {"dt": {"targets": [-200.0, -900.0]}}
LATER = Eval(every=20, episodes=12, later=True)  # of which ten are played at once
STATUS = ("state", "step", "score", "return", "evaluated", "diverged")


def job(root: Path, algo: str = "td3_bc", later: bool = True, **settings) -> Config:
    cfg = tiny.settings(algo, **OWN.get(algo, {}))
    cfg = replace(cfg, root=str(root), seeds=[3, 1], compile="off", device="cpu", processes=1)
    changes = {"log_every": 10, "save_every": 10, "eval": replace(LATER, later=later)}
    return replace(cfg, **changes | settings)


def unbroken(root: Path, algo: str = "td3_bc", **settings) -> dict:
    """The files of a run that evaluated itself."""
    return files(small.train(job(root / "itself", algo, later=False, **settings)))


def files(cell: Path) -> dict:
    """What a report reads of every group of seeds."""
    found = {}
    for folder in sorted(cell.glob("seeds-*")):
        for path in (folder / name for name in (*small.EVALUATED, "metrics.jsonl")):
            found[folder.name, path.name] = path.exists() and path.read_text()
        found[folder.name] = {name: read_status(folder).get(name) for name in STATUS}
    return found


def begun(cfg: Config, stop: int | None = None) -> Path:
    """Trains seeds 3 and 1 in one program, to the end or until it is stopped; the folder of both."""
    launch.write_settings(cfg)
    with numerics(cfg):  # multiplies with the library that pending evaluations take
        return small.run(cfg, [3, 1], stop)


@pytest.mark.parametrize("algo", ["td3_bc", "iql", "dt", "qr_dqn", "cvar", "cvar_tabular", "gcivl"])
def test_the_files_are_those_of_a_run_that_evaluated_itself(algo, tmp_path, capsys):
    cell = small.train(job(tmp_path / "later", algo))
    assert not list(cell.glob("seeds-*/scores.csv"))
    assert [pending.steps(folder) for folder in cell.glob("seeds-*")] == [[20, 40, 60]] * 2
    assert cli.main(["evaluate", str(tmp_path / "later"), "--pending"]) == 0
    says(capsys.readouterr().out, "6")
    assert files(cell) == unbroken(tmp_path, algo)
    assert not list(cell.glob("seeds-*/pending"))


def test_an_offline_algorithm_trains_without_the_simulator(tmp_path, monkeypatch):
    def missing(task, wrap=None):
        raise CorerlError("There is no simulator.")

    with monkeypatch.context() as patch:
        patch.setattr(tasks.Task, "make_env", missing)
        cell = small.train(job(tmp_path))
        with refused("eval.later=true"):
            launch.launch(job(tmp_path / "at once", later=False))
        with refused("QR-DQN"):
            launch.launch(job(tmp_path, "qr_dqn"))
        with refused("simulator"):
            pending_evaluations.play(cell)
    assert [pending.steps(folder) for folder in cell.glob("seeds-*")] == [[20, 40, 60]] * 2


def test_a_kill_leaves_no_row_twice_and_none_out(tmp_path, monkeypatch):
    trained = begun(job(tmp_path / "trained", "dt")).parent
    whole = files(begun(job(tmp_path / "whole", "dt", later=False)).parent)
    for name in ("rebuilt", "_insert", "write_json", "unlink"):
        owner = {"write_json": pending_evaluations.files, "unlink": Path}.get(
            name, pending_evaluations
        )
        for call in (1, 2):
            cell = Path(shutil.copytree(trained, tmp_path / name / str(call)))
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(owner, name, killed_at(call, getattr(owner, name)))
                pending_evaluations.play(cell)
            assert pending_evaluations.play(cell) == 0
            assert files(cell) == whole, f"killed at call {call} of {name}"


def killed_at(call: int, function: Callable) -> Callable:
    calls = []

    def killed(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return killed


def test_a_row_that_was_cut_is_written_again(tmp_path):
    cell = small.train(job(tmp_path))
    (cell / "seeds-1" / "scores.csv").write_text("task,algorithm,config,see")
    (cell / "seeds-3" / "returns.jsonl").write_text('{"step": 20, "seed": 3, "retu')
    pending_evaluations.play(cell)
    assert files(cell) == unbroken(tmp_path)


@pytest.mark.parametrize("algo", ["dt", "qr_dqn"])
@pytest.mark.parametrize("first, second", [(True, True), (True, False), (False, True)])
def test_a_run_resumes_whatever_was_played_between(algo, first, second, tmp_path):
    whole = files(begun(job(tmp_path / "whole", algo, later=False)).parent)
    folder = begun(job(tmp_path, algo, later=first), stop=44)
    pending_evaluations.play(folder)
    assert len((folder / "scores.csv").read_text().splitlines()) == 1 + 2 * 2
    begun(job(tmp_path, algo, later=second))
    pending_evaluations.play(folder)
    assert files(folder.parent) == whole


def test_policies_after_the_last_checkpoint_are_made_and_played_again(tmp_path):
    whole = files(begun(job(tmp_path / "whole", later=False)).parent)
    folder = begun(job(tmp_path), stop=10)
    shutil.copy(path_in(folder), tmp_path)
    begun(job(tmp_path), stop=50)
    pending_evaluations.play(folder)
    shutil.copy(tmp_path / path_in(folder).name, folder)  # as if killed before it saved again
    begun(job(tmp_path), stop=50)
    assert pending.steps(folder) == [20, 40]
    assert len((folder / "scores.csv").read_text().splitlines()) == 1
    shutil.copy(tmp_path / path_in(folder).name, folder)
    begun(job(tmp_path))
    pending_evaluations.play(folder)
    assert files(folder.parent) == whole


def test_a_longer_run_takes_pending_evaluations_with_it(tmp_path):
    small.train(job(tmp_path))
    launch.launch(job(tmp_path, steps=80))
    pending_evaluations.play(tmp_path)
    cells = {file.parent for file in tmp_path.rglob("config.yaml")}
    (longer,) = (cell for cell in cells if "steps: 80" in (cell / "config.yaml").read_text())
    assert len(cells) == 2 and files(longer) == unbroken(tmp_path, steps=80)


def test_a_seed_whose_environment_crashes_counts_no_more(tmp_path, monkeypatch):
    made = []
    make = tasks.Task.make_env

    def faulty(task, wrap=None):
        env, resets = make(task), []
        made.append(env)
        number, step, reset = len(made), env.unwrapped.step, env.unwrapped.reset

        def counted(**options):
            resets.append(options)
            return reset(**options)

        def sometimes(action):
            if number == 1 and len(resets) == 4:  # of its second evaluation: two rounds each
                raise ZeroDivisionError("by nothing")
            return step(action)

        monkeypatch.setattr(env.unwrapped, "reset", counted)
        monkeypatch.setattr(env.unwrapped, "step", sometimes)
        return env

    monkeypatch.setattr(tasks.Task, "make_env", faulty)
    itself = begun(job(tmp_path / "itself", later=False))
    folder = begun(job(tmp_path))
    made.clear()
    pending_evaluations.play(folder)
    assert files(folder.parent) == files(itself.parent)
    assert read_status(folder)["diverged"] == {"3": 40}


def test_status_and_report_say_that_evaluations_are_pending(tmp_path, capsys):
    cell = small.train(job(tmp_path))
    begun(job(tmp_path, "iql", later=False))
    command = f"corerl evaluate {cell} --pending"
    says(capsys.readouterr().err, command)
    (reported,) = {g.message for g in status.groups(tmp_path) if g.label == "TD3+BC"}
    says(reported, command)
    runs = read_report([tmp_path]).runs.query("algorithm == 'td3_bc'")
    assert set(runs["state"]) == {"pending"} and set(runs["message"]) == {reported}
    assert not runs["counted"].any()
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == 0
    assert reported in capsys.readouterr().err
    pending_evaluations.play(cell)
    assert {g.message for g in status.groups(tmp_path)} == {""}
    assert read_report([tmp_path]).runs["counted"].all()


def test_a_group_that_another_process_holds_is_left_to_it(tmp_path, capsys):
    cell = small.train(job(tmp_path))
    with pending_evaluations.files.held(cell / "seeds-1" / ".lock", ""):
        assert cli.main(["evaluate", str(cell), "--pending"]) == 2
    says(capsys.readouterr().err, f"{cell / 'seeds-1'}")
    assert pending.steps(cell / "seeds-1") and not pending.steps(cell / "seeds-3")


def test_when_it_is_played_is_no_part_of_a_runs_name(tmp_path):
    itself, later = (job(tmp_path, later=flag) for flag in (False, True))
    assert config_hash(itself) == config_hash(later)
    assert settings_of(itself) == settings_of(later)


def test_what_cannot_be_is_one_sentence(tmp_path, monkeypatch, capsys):
    with refused("eval.later=true eval.episodes=0"):
        Eval(episodes=0, later=True)
    folder = begun(job(tmp_path, seeds=[3, 1]), stop=50)
    with refused("eval.later=false"):
        launch.launch(job(tmp_path, later=False))
    path = pending.path_of(folder, 20)
    path.write_bytes(path.read_bytes()[:-9])
    with refused("20.safetensors"):
        pending_evaluations.play(folder)
    for given in (["--episodes", "3"], ["--rewards"], ["--seed", "3"]):
        assert cli.main(["evaluate", str(folder), "--pending", *given]) == 2
        assert f"Leave {given[0]} out" in capsys.readouterr().err
    with refused("run"):
        pending_evaluations.play(tmp_path / "nowhere")
    monkeypatch.delattr(bc, "build")
    with pytest.raises(launch.SeedsFailed):
        launch.launch(job(tmp_path, "bc"))
    assert "eval.later=true needs `build` in bc.py" in capsys.readouterr().err


def test_a_policy_that_cannot_be_made_again_is_refused_at_once(tmp_path, monkeypatch, capsys):
    def train(cfg, run, train=bc.train):
        evaluate = run.evaluate
        run.evaluate = lambda step, act: evaluate(step, act, {"softly": act})
        train(cfg, run)

    monkeypatch.setattr(bc, "train", train)
    with pytest.raises(launch.SeedsFailed):
        launch.launch(job(tmp_path, "bc"))
    says(capsys.readouterr().err, "parts bc.py")


def test_optimisers_are_not_kept(tmp_path):
    folder = begun(job(tmp_path, algo="iql"))
    saved = pending_evaluations.load_checkpoint(pending.path_of(folder, 60))
    assert saved["left_out"]["agent"] and not set(saved["left_out"]["agent"]) & set(
        saved["state"]["agent"]
    )
    assert saved["state"].keys() == {"agent"} and isinstance(saved["spec"]["steps"], int)
