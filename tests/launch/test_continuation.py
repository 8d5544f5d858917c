"""Longer training goes on from a shorter run where it ends as one that was never shorter."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from small import config, group, run
from tiny import settings as tiny
from wording import lacking, says

from corerl.config import Eval
from corerl.launch import continuation, worker
from corerl.launch.continuation import WITHOUT_SCHEDULE
from corerl.launch.dry_run import row
from corerl.launch.launch import SeedsFailed, launch, write_settings
from corerl.runs.directory import cell_directory

pytestmark = pytest.mark.usefixtures("short_episodes")


def job(root: Path, name: str, steps: int, **others):
    """Sizes of the contract's tests; evaluated and logged at steps that 20 has."""
    own = replace(tiny(name).algo, **WITHOUT_SCHEDULE[name])
    common = {"eval": Eval(every=20, episodes=1), "log_every": 10, "save_every": 15}
    cfg = config(root, "bc", task=tiny(name).task, steps=steps, **(common | others))
    return replace(cfg, algo=own)


def written(cfg) -> dict:
    launch(cfg)
    return group(cell_directory(cfg))


@pytest.mark.parametrize("name", WITHOUT_SCHEDULE)
def test_forty_steps_after_twenty_are_forty_steps(name, tmp_path, capsys):
    whole = written(job(tmp_path / "whole", name, 40))
    assert "20 steps" not in capsys.readouterr().err
    short = job(tmp_path / "twice", name, 20)
    before = written(short)
    longer = job(tmp_path / "twice", name, 40)
    after = written(longer)
    reported = capsys.readouterr().err
    says(reported, f"20 steps {cell_directory(short)}")
    vouched = {key for key in after["checkpoint"] if key.startswith("/loop/logs")}
    assert vouched and {key: after["checkpoint"][key] for key in vouched}
    assert after == whole
    facts = json.loads((cell_directory(longer) / "seeds-0/env.json").read_text())
    assert facts["continues"]["steps"] == 20
    assert group(cell_directory(short)) == before


def test_only_seeds_that_are_done_go_on(tmp_path, capsys):
    launch(job(tmp_path, "bc", 20, seeds=2))
    shutil.rmtree(cell_directory(job(tmp_path, "bc", 20)) / "seeds-1")
    launch(job(tmp_path, "bc", 40, seeds=2))
    reported = capsys.readouterr().err
    (line,) = [line for line in reported.splitlines() if "20 steps" in line]
    says(line, "seed 0 20 steps")
    assert "seed 1" not in line


@pytest.mark.parametrize("seeds", [1, 2])
def test_seeds_that_were_trained_together_go_on_together_or_say_why_not(seeds, tmp_path, capsys):
    short = job(tmp_path, "bc", 20, seeds=2)
    write_settings(short)
    run(short)  # seeds 0 and 1 in one program, as on a GPU
    launch(job(tmp_path, "bc", 40, seeds=seeds))
    reported = capsys.readouterr().err
    assert lacking(reported, "seeds-0-1" if seeds == 1 else "seeds 0 1 20 steps") == []


def test_a_dry_run_counts_what_is_made(tmp_path):
    launch(job(tmp_path, "bc", 20, seeds=2))
    before = row(job(tmp_path, "bc", 40, seeds=3), None)
    assert (before.updates, before.episodes) == (20 + 20 + 40, 1 + 1 + 2)
    assert (before.seeds, before.done) == (3, 0)
    assert row(job(tmp_path, "bc", 10, seeds=2), None).updates == 20


def test_a_setting_that_came_later_stands_at_its_default_and_no_other_value(tmp_path, capsys):
    short = job(tmp_path, "cpl", 20)
    launch(short)
    file = cell_directory(short) / "config.yaml"
    saved = yaml.safe_load(file.read_text())
    saved["algo"]["preferences"].pop("judge")
    saved.pop("history")
    file.write_text(yaml.safe_dump(saved))
    launch(job(tmp_path, "cpl", 40))
    says(capsys.readouterr().err, "seed 0 20 steps")
    launch(job(tmp_path, "cpl", 40, precision="high"))
    assert "20 steps" not in capsys.readouterr().err


def test_a_run_whose_settings_were_edited_is_not_gone_on_from(tmp_path, capsys):
    short = job(tmp_path, "td3_bc", 20)
    launch(short)
    file = cell_directory(short) / "config.yaml"
    file.write_text(file.read_text().replace("alpha: 2.5", "alpha: 7.5"))
    longer = job(tmp_path, "td3_bc", 40)
    launch(replace(longer, algo=replace(longer.algo, alpha=7.5)))
    assert "20 steps" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"name": "iql", "own": {}}, {}, "algo.cosine=True"),
        ({"name": "td3_bc", "steps": 30}, {}, "30 eval.every=20"),
        ({"name": "td3_bc", "log_every": 10}, {"log_every": 15}, "log_every=15"),
        ({"name": "td3_bc", "steps": 60}, {}, "60"),
        ({"name": "codac"}, {}, "CODAC"),
    ],
    ids=["schedule", "evaluation", "metrics", "shorter", "unknown"],
)
def test_what_begins_anew_says_why(first, second, words, tmp_path, capsys):
    settings = {"steps": 20, "eval": Eval(every=20, episodes=1), "log_every": 10} | first
    name = settings.pop("name")
    launch(config(tmp_path, name, **settings))
    launch(config(tmp_path, name, **(settings | {"steps": 40} | second)))
    reported = capsys.readouterr().err
    says(reported, words)
    assert "resumes from" not in reported


def test_a_shorter_run_that_has_not_finished_is_told(tmp_path, capsys):
    short = job(tmp_path, "bc", 20)
    launch(short)
    folder = cell_directory(short) / "seeds-0"
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"state": "interrupted", "step": 15}))
    launch(job(tmp_path, "bc", 40))
    reported = capsys.readouterr().err
    says(reported, f"15 steps {cell_directory(short)} seed 0")


def test_a_run_that_failed_at_once_has_no_steps_to_speak_of(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("obs,action,reward,done\n0,0.5,1,0\n")
    settings = {"task": f"file/{tmp_path}/x.csv", "eval": Eval(every=20, episodes=0)}
    for steps in (20, 40):
        with pytest.raises(SeedsFailed):
            launch(config(tmp_path, "iql", steps=steps, log_every=10, **settings))
    reported = capsys.readouterr().err
    assert reported.count("no transition to learn from") == 2 and "stay as they are" not in reported


def test_what_another_process_went_on_with_is_not_copied_again(tmp_path, monkeypatch, capsys):
    launch(job(tmp_path, "bc", 20))
    longer, real = job(tmp_path, "bc", 40), continuation._is_done
    after = {}

    def other_process(*of):
        """One with the same command, which is quicker."""
        monkeypatch.setattr(continuation, "_is_done", real)
        after.update(written(longer))
        return real(*of)

    monkeypatch.setattr(continuation, "_is_done", other_process)
    continuation.continue_shorter(longer)
    assert group(cell_directory(longer)) == after
    assert capsys.readouterr().err.count("20 steps") == 1


def test_nothing_is_copied_to_where_another_process_copies(tmp_path, capsys):
    launch(job(tmp_path, "bc", 20))
    longer = job(tmp_path, "bc", 40)
    folder = cell_directory(longer) / "seeds-0"
    with worker.locked(folder):
        (folder / "metrics.jsonl").touch()
        with pytest.raises(worker.Busy):
            launch(longer)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "metrics.jsonl"]
    launch(longer)  # the other one was killed
    says(capsys.readouterr().err, "seed 0 20 steps")


def test_seeds_that_another_process_holds_stop_no_others(tmp_path, capsys):
    launch(job(tmp_path, "bc", 20, seeds=2))
    longer = job(tmp_path, "bc", 40, seeds=2)
    cell = cell_directory(longer)
    with worker.locked(cell / "seeds-0"), pytest.raises(worker.Busy):
        launch(longer)
    assert json.loads((cell / "seeds-1/status.json").read_text())["state"] == "done"
    says(capsys.readouterr().err, "seed 1 20 steps")


def test_a_run_of_another_kind_of_device_is_not_gone_on_from(tmp_path, capsys):
    launch(job(tmp_path, "bc", 20))
    file = cell_directory(job(tmp_path, "bc", 20)) / "seeds-0/env.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"gpu": "NVIDIA"}))
    launch(job(tmp_path, "bc", 40))
    says(capsys.readouterr().err, "device")
