"""Runs whose files are gone: what has recorded their checksums stands in for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import config, group
from wording import refused, says

from corerl.config import Columns, Config, Data, Eval
from corerl.errors import FileMissing
from corerl.launch import launch
from corerl.launch.composition import cells
from corerl.runs.directory import cell_directory
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Online

OWN = {"data": preprocessing.Preprocess(clip_actions=1 - 1e-5, normalize_states=True)}


@pytest.fixture
def file(tmp_path) -> Path:
    """A file of 40 steps in Pendulum's spaces, with observations in two parts."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations/b": rng.normal(size=(40, 1)),
        "observations/a": rng.normal(size=(40, 2)),
    }
    arrays |= {"actions": rng.uniform(-2, 2, (40, 1)), "rewards": rng.normal(size=40)}
    np.savez(tmp_path / "mine.npz", **arrays, terminated=np.arange(40) % 10 == 9)
    return tmp_path / "mine.npz"


def words(file: Path, *more: str) -> list[str]:
    return [f"task=file/{file}", f"root={file.parent}/runs", *more]


def labelled(file: Path) -> tuple[Path, list[str]]:
    """A file of labels, of which nothing but the checksum is read, and the settings of a run on it."""
    labels = file.with_name("labels.npz")
    labels.write_bytes(b"labels")
    of_file = ["algo.preferences.source=file", f"algo.preferences.path={labels}", "algo.crop=null"]
    return labels, words(file, "algo=pref_iql", *of_file)


def written(arguments: list[str]) -> Config:
    (cfg,) = cells(arguments)
    launch.write_settings(cfg)
    return cfg


def test_a_run_is_found_without_its_files(file):
    labels, compared = labelled(file)
    plain = words(file, "algo=iql", "data.action_low=-2", "data.action_high=2")
    before = [written(plain), written(compared)]
    assert before[0].data.columns.observations and before[1].algo.preferences.sha256
    file.unlink()
    assert cells(plain) + cells(compared) == before
    labels.unlink()
    assert cells(plain) + cells(compared) == before
    for other in ("data.action_low=-1", "steps=7", "data.columns.observations=x"):
        with refused(f"{file}", FileMissing):
            cells([*plain, other])


def test_where_one_of_two_files_is_gone_the_other_must_be_as_it_was(file):
    labels, compared = labelled(file)
    before = written(compared)
    labels.unlink()
    assert cells(compared) == [before]
    np.savez(file, **dict(np.load(file)), more=np.arange(40))
    with refused(f"{labels}", FileMissing):
        cells(compared)


def test_a_run_to_fine_tune_stands_in_for_its_file_alone(file):
    before = written(words(file, "algo=iql", "steps=3"))
    start = cell_directory(before)
    online = ["algo=iql", "algo.phase=online", f"algo.online.checkpoint={start}"]
    (with_file,) = cells(words(file, *online))
    file.unlink()
    assert cells(words(file, *online)) == [with_file]
    with refused("other.npz", FileMissing):
        cells([*online, f"task=file/{file.with_name('other.npz')}"])


def test_a_finished_run_says_so_without_its_file(tmp_path, file, capsys):
    bounds = Data(action_low=-2, action_high=2)
    job = {"task": f"file/{file}", "steps": 4, "eval": Eval(episodes=0), "data": bounds}
    cfg = config(tmp_path, "bc", **job)
    launch.launch(cfg)
    file.unlink()
    capsys.readouterr()
    launch.launch(cfg)
    says(capsys.readouterr().err, "nothing seeds done", lines=1)
    with refused(f"{file}"):
        launch.launch(replace(cfg, seeds=2))


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize("algo", ["iql", "cal_ql", "rebrac"])
def test_a_file_of_which_batches_hold_no_row_is_not_needed(tmp_path, file, monkeypatch, algo):
    """The numbers are those of a run that reads it."""
    parts = Data(columns=Columns(observations=["observations/b", "observations/a"]))
    job = {"task": f"file/{file}", "env": "gym/Pendulum-v1", "eval": Eval(every=40, episodes=1)}
    offline = config(tmp_path / "x", algo, own=OWN | {"phase": "offline"}, data=parts, **job)
    launch.launch(offline)
    online = Online(checkpoint=str(cell_directory(offline)), warmup_steps=4, offline_ratio=0.0)
    own = OWN | {"phase": "online", "online": online}

    def tuned(root: Path) -> dict:
        cfg = config(root, algo, own=own, data=parts, **job)
        launch.launch(cfg)
        found = group(cell_directory(cfg))
        saved = found["checkpoint"]
        return found | {"checkpoint": {k: v for k, v in saved.items() if "/buffer/" not in k}}

    with monkeypatch.context() as patched:
        patched.setattr(FineTuning, "learns_from_data", True)
        read = tuned(tmp_path / "y")
    file.unlink()
    assert tuned(tmp_path / "z") == read


@pytest.mark.parametrize(
    ("algo", "own", "reads"),
    [
        ("iql", {}, True),
        ("iql", {"phase": "online"}, True),
        ("iql", {"phase": "online", "online": Online(offline_ratio=0.0)}, False),
        ("iql", {"phase": "online", "online": Online(offline_ratio=0.0)} | OWN, True),
        (
            "iql",
            {"phase": "online", "online": Online(checkpoint="x", offline_ratio=0.0)} | OWN,
            False,
        ),
        ("arsq", {"phase": "online", "online": Online(offline_ratio=0.0, warmup_steps=1)}, True),
    ],
)
def test_what_reads_the_data(tmp_path, algo, own, reads):
    assert config(tmp_path, algo, own=own).algo.learns_from_data == reads
