"""A damaged, missing or foreign file of a run: a sentence or the file before it, never other numbers."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small import config, flatten, group, run, train
from wording import refused, says

from corerl.config import Eval
from corerl.errors import CorerlError
from corerl.launch import launch
from corerl.runs import checkpoint, files
from corerl.runs.directory import cell_directory, task_directory
from corerl.runs.log import Log
from corerl.runs.score_rows import STEP_OF
from corerl.training.run import Run

STATE = {"loop": {"step": 7}, "state": {"weights": torch.arange(50.0), "text": "a", "list": [1, 2]}}
SHORT = {"steps": 30, "save_every": 10, "log_every": 5, "eval": Eval(every=10, episodes=1)}

pytestmark = pytest.mark.usefixtures("load_once")


# Checkpoints.


def test_no_changed_byte_is_read_as_another_number(tmp_path):
    path = tmp_path / "c"
    checkpoint.save_checkpoint(path, STATE)
    whole = path.read_bytes()
    draw = random.Random(0)
    for place in [*range(0, len(whole), 7), *range(len(whole) - 8, len(whole))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with refused("damaged", checkpoint.Damaged):
            checkpoint.load_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(checkpoint.Damaged):
        checkpoint.load_checkpoint(path)


def test_a_changed_step_is_noticed(tmp_path):
    path = tmp_path / "c"
    checkpoint.save_checkpoint(path, STATE)
    changed = path.read_bytes().replace(rb"[\"step\", 7]", rb"[\"step\", 9]")
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    with refused("checksum", checkpoint.Damaged):
        checkpoint.load_checkpoint(path)


def as_of_format_1(path: Path) -> None:
    """Rewrites a checkpoint as it was before there were checksums."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    del metadata["checksum"]
    skeleton = json.loads(metadata["skeleton"])
    loop = dict(skeleton["dict"]).get("loop", {"dict": []})
    loop["dict"] = [item for item in loop["dict"] if item[0] != "logs"]
    metadata |= {"format": "1", "skeleton": json.dumps(skeleton)}
    path.write_bytes(safetensors.torch.save(tensors, metadata))


def test_a_checkpoint_without_a_checksum_is_read_only_where_it_never_had_one(tmp_path):
    path = tmp_path / "c"
    checkpoint.save_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes().replace(b'"checksum":', b'"checksun":'))
    with pytest.raises(checkpoint.Damaged):
        checkpoint.load_checkpoint(path)
    checkpoint.save_checkpoint(path, STATE)
    as_of_format_1(path)
    assert flatten(checkpoint.load_checkpoint(path)) == flatten(STATE)


def test_the_one_before_is_kept_and_takes_the_place_of_a_damaged_one(tmp_path, capsys):
    path = tmp_path / "checkpoint.safetensors"
    for step in (1, 2, 3):
        checkpoint.save_checkpoint(path, {"loop": {"step": step}})
    assert checkpoint.load_latest(path)["loop"]["step"] == 3 and not capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert checkpoint.load_latest(path)["loop"]["step"] == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"corerl: {path} is damaged")
    says(reported, "previous")
    # The damaged one is out of the way: it must not replace the good one at the next save.
    assert checkpoint.load_latest(path)["loop"]["step"] == 2 and not capsys.readouterr().err
    path.write_bytes(b"")
    with refused("damaged delete"):
        checkpoint.load_latest(path)


def stop_at(cfg, step: int) -> Path:
    """Trains as far as the last checkpoint before `step`; the directory of seed 0."""

    class Stopped(Exception):
        pass

    def save(run, at):
        original(run, at)
        if at == step:
            raise Stopped

    original = Run.save
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CorerlError):
        patch.setattr(Run, "save", save)
        launch.launch(cfg)
    return cell_directory(cfg) / "seeds-0"


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict:
    return group(train(config(tmp_path_factory.mktemp("whole"), "bc", **SHORT)))


def test_a_run_goes_on_from_the_one_before_to_the_same_numbers(tmp_path, expected, capsys):
    cfg = config(tmp_path, "bc", **SHORT)
    folder = stop_at(cfg, 25)
    latest = folder / "checkpoint.safetensors"
    content = bytearray(latest.read_bytes())
    content[-1] ^= 1
    latest.write_bytes(content)
    capsys.readouterr()
    assert group(train(cfg)) == expected
    reported = capsys.readouterr().err
    says(reported, f"{latest} checksum")
    assert not checkpoint.previous(latest).exists(), "a run that is done needs but one"


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path, expected):
    cfg = config(tmp_path, "bc", **SHORT)
    latest = stop_at(cfg, 25) / "checkpoint.safetensors"
    latest.rename(checkpoint.previous(latest))
    assert group(train(cfg)) == expected


def test_a_run_begun_before_there_were_checksums_goes_on(tmp_path, expected):
    cfg = config(tmp_path, "bc", **SHORT)
    folder = stop_at(cfg, 25)
    as_of_format_1(folder / "checkpoint.safetensors")
    assert group(train(cfg)) == expected


# Logs.


@pytest.mark.parametrize("name", ["metrics.jsonl", "returns.jsonl", "scores.csv"])
def test_a_changed_log_is_named_and_a_copy_mends_it(tmp_path, expected, capsys, name):
    cfg = config(tmp_path, "bc", **SHORT)
    path = stop_at(cfg, 25) / name
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in (whole.replace(b"1", b"2", 1), b"".join(lines[1:]), whole[:40]):
        path.write_bytes(damaged)
        capsys.readouterr()
        with refused("0"):
            launch.launch(cfg)
        reported = capsys.readouterr().err
        says(reported, "copy")
        says(reported, "copy")
    path.write_bytes(whole)
    assert group(train(cfg)) == expected


def test_a_log_that_is_gone_is_a_named_gap(tmp_path, expected, capsys):
    cfg = config(tmp_path, "bc", **SHORT)
    folder = stop_at(cfg, 25)
    (folder / "scores.csv").unlink()
    capsys.readouterr()
    ended = group(train(cfg))
    says(capsys.readouterr().err, f"{folder / 'scores.csv'}")
    assert ended["checkpoint"].keys() == expected["checkpoint"].keys()
    header, *rows = expected["scores"].splitlines()
    assert ended["scores"].splitlines() == [header, *(r for r in rows if ",30," in r)]


@pytest.mark.parametrize("line", ["{}", "[]", "no json", '{"step": "x"}'])
def test_a_broken_line_beside_an_old_checkpoint_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with refused("metrics.jsonl damaged"):
        Log(path).cut_after(3, STEP_OF["metrics.jsonl"])


def test_logs_reach_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    synced = []
    sync = files.os.fsync

    def recorded(number):
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name.split(".")[0])
        sync(number)

    monkeypatch.setattr(files.os, "fsync", recorded)
    train(config(tmp_path, "bc", **SHORT))
    last = len(synced) - synced[::-1].index("checkpoint")
    assert {"metrics", "scores", "returns"} <= set(synced[last - 5 : last])


def test_a_log_that_others_touch_while_it_grows_ends_the_run(tmp_path):
    log = Log(tmp_path / "l")
    log.append(["one"])
    (tmp_path / "l").write_text("another\n")
    with refused("command"):
        log.append(["two"])


@pytest.mark.parametrize("after", [5, 10, 17])
def test_a_folder_removed_while_running_ends_as_failed(tmp_path, monkeypatch, capsys, after):
    cfg = config(tmp_path, "bc", **SHORT)
    folder = cell_directory(cfg) / "seeds-0"
    original = Run.save

    def save(run, step):
        original(run, step)
        if step == after:
            shutil.rmtree(folder)

    monkeypatch.setattr(Run, "save", save)
    with refused("0"):
        launch.launch(cfg)
    reported = capsys.readouterr().err
    assert (
        re.search(r"seeds-0 failed: (Cannot write|.* removed)", reported)
        and "Traceback" not in reported
    )
    assert not (folder / "checkpoint.safetensors").exists()


# Half-written files, and names.


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("config.yaml.part", "config.yaml.new"):
        (tmp_path / name).symlink_to(victim)
    files.write_atomically(tmp_path / "config.yaml", b"new")
    assert victim.read_text() == "mine" and (tmp_path / "config.yaml").read_bytes() == b"new"
    assert not (tmp_path / "config.yaml").is_symlink()


def test_two_writers_at_one_moment_share_nothing(tmp_path, monkeypatch):
    path, inside = tmp_path / "config.yaml", []
    sync = files.os.fsync

    def other_first(number):
        if not inside:
            inside.append(True)
            files.write_atomically(path, b"other")
        sync(number)

    monkeypatch.setattr(files.os, "fsync", other_first)
    files.write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed(tmp_path):
    cfg = config(tmp_path, "bc", **SHORT)
    folder = cell_directory(cfg) / "seeds-0"
    folder.mkdir(parents=True)
    (folder / "checkpoint.safetensors.0a1b2c3d.part").write_bytes(b"half")
    train(cfg)
    assert not list(folder.glob("*.part"))


BAD = [
    *(
        "d4rl/../../../x",
        "/etc/x",
        "gym/x:../../y",
        "..",
        "a//b",
        "a/./b",
        "a/",
        "",
        "a/\0b",
        "a/b\nc",
    ),
    *("a\\b", "a/" + "x" * 5000, "a/ b", "a/" + "ä" * 200),
]


@pytest.mark.parametrize("task", BAD)
def test_a_task_that_is_no_path_below_the_root_is_refused(task):
    with refused("name folder") as caught:
        task_directory(Path("runs"), task)
    assert len(str(caught.value)) < 400


def test_a_task_is_a_path_below_the_root():
    for task in ("d4rl/hopper-medium-v2", "gym/my.module:Env-v0", "minari/D4RL/door/human-v2"):
        assert task_directory(Path("runs"), task) == Path("runs") / task


@pytest.mark.parametrize("task", ["gym/x:../../y", "/tmp/x", "d4rl/../../x"])
def test_nothing_is_written_outside_the_root(tmp_path, task):
    cfg = config(tmp_path / "a" / "b", "bc", task=task)
    launch.keep_failure(cfg, ValueError("x"))
    with pytest.raises(CorerlError):
        launch.launch(cfg)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", STEP_OF)
def test_a_folder_in_place_of_a_log_is_one_sentence(tmp_path, name):
    cfg = config(tmp_path, "bc")
    folder = run(cfg, (0,), stop=20)
    (folder / name).unlink()
    (folder / name).mkdir()
    with refused(f"{name}"):
        run(cfg, (0,))
