"""A replay on the disk: each step is written once, and a checkpoint of it is the replay bit for bit."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from small import config, flatten, group
from wording import refused, says

from corerl.algos import sac
from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.buffers.prioritized import PrioritizedReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.config import Eval
from corerl.runs import checkpoint, files, replay_files, tensorfile
from corerl.runs.directory import cell_directory
from corerl.training.run import Run
from corerl.training.stopping import Interrupted

CAPACITY, SEEDS = 20, [0, 1]


def vectors(kind=ReplayBuffer):
    return kind(3, 2, CAPACITY, SEEDS, 4)


def frames():
    return FrameReplay((2, 4), torch.uint8, 1, CAPACITY, SEEDS, 4, discount=0.9, n_step=2, stack=2)


def add(replay, draw: np.random.Generator, count: int = 1) -> None:
    for _ in range(count):
        if isinstance(replay, FrameReplay):
            seen = draw.integers(0, 255, (2, 2, 2, 4), dtype=np.uint8)
            ends = draw.random((2, 2)) < 0.2
            rewards = draw.random((2, 1))
            step = DiscreteStep(seen[0], np.ones(2, int), rewards[:, 0], seen[1], *ends, rewards)
            replay.add(step, rewards)
        else:
            shapes = ((2, 3), (2, 2), (2,), (2, 3), (2,), (2,))
            replay.add([draw.random(shape, np.float32) for shape in shapes])


MAKERS = {
    "vectors": vectors,
    "frames": frames,
    "prioritised": lambda: vectors(partial(PrioritizedReplay, horizon=3)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_replay_in_parts_is_the_replay_that_was_saved_whole(tmp_path, name):
    """Over three laps of the ring, saved at odd moments, resumed in the middle of each."""
    draw, replay = np.random.default_rng(0), MAKERS[name]()
    path, kept = tmp_path / "c.safetensors", checkpoint.replay_files_of(tmp_path / "c.safetensors")
    for count in (0, 3, 1, 13, 3, 4, 7, 29, 2, 20, 1):
        add(replay, draw, count)
        checkpoint.save_checkpoint(tmp_path / "whole", {"replay": replay.state_dict()})
        checkpoint.save_checkpoint(path, {"replay": replay.state_dict()}, kept)
        assert (tmp_path / "whole").stat().st_size > path.stat().st_size or not replay._added
        expected = checkpoint.load_checkpoint(tmp_path / "whole")
        kept = checkpoint.replay_files_of(path)
        loaded = checkpoint.load_checkpoint(path, kept)
        assert flatten(loaded) == flatten(expected)
        replay = MAKERS[name]()
        replay.load_state_dict(loaded["replay"])
        assert flatten(replay.state_dict()) == flatten(expected["replay"])


def test_parts_are_cut_at_their_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_files, "PART_BYTES", 300)
    draw, replay = np.random.default_rng(0), vectors()
    add(replay, draw, 30)
    path = tmp_path / "c.safetensors"
    checkpoint.save_checkpoint(path, replay.state_dict(), checkpoint.replay_files_of(path))
    starts = sorted(int(p.name[:10]) for p in tmp_path.glob("replay/*"))
    assert starts == [10, 13, 16, 19, 20, 23, 26, 29]  # the lap ends at 20
    assert flatten(checkpoint.load_checkpoint(path)["rows"]) == flatten(replay.state_dict()["rows"])


def written(monkeypatch) -> list[int]:
    """Bytes of every file that is written from here on."""
    sizes: list[int] = []

    def spy(path, pieces, **others):
        pieces = list(map(bytes, pieces))
        sizes.append(sum(map(len, pieces)))
        original(path, iter(pieces), **others)

    original = files.write_pieces
    monkeypatch.setattr(tensorfile, "write_pieces", spy)
    return sizes


def test_a_save_writes_what_is_new(tmp_path, monkeypatch):
    replay = ReplayBuffer(17, 6, 100_000, [0], 4)
    replay._rows.normal_()
    replay._added = 90_000
    path = tmp_path / "c.safetensors"
    kept = checkpoint.replay_files_of(path)
    sizes = written(monkeypatch)
    checkpoint.save_checkpoint(path, replay.state_dict(), kept)
    assert sum(sizes) > 90_000 * 43 * 4
    sizes.clear()
    replay._added += 1000
    checkpoint.save_checkpoint(path, replay.state_dict(), kept)
    assert 1000 * 43 * 4 < sum(sizes) < 1000 * 43 * 4 + 20_000
    sizes.clear()
    checkpoint.save_checkpoint(path, replay.state_dict(), kept)
    assert sum(sizes) < 20_000


def test_files_go_when_no_checkpoint_names_them(tmp_path):
    draw, replay = np.random.default_rng(0), vectors()
    path = tmp_path / "c.safetensors"
    kept = checkpoint.replay_files_of(path)
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "half.part").touch()
    for _ in range(20):
        add(replay, draw, 5)
        checkpoint.save_checkpoint(path, replay.state_dict(), kept)
    # The last one's four laps of five, and the one that only the checkpoint before names.
    assert len(list(tmp_path.glob("replay/*"))) == 5
    for file in (path, checkpoint.previous(path)):
        checkpoint.load_checkpoint(file)
    path.write_bytes(b"no checkpoint")
    kept.prune()
    assert len(list(tmp_path.glob("replay/*"))) == 5, "what cannot be read may name any of them"


# Runs.

JOB = {"task": "gym/Pendulum-v1", "steps": 60, "eval": Eval(every=30, episodes=1), "seeds": 2}
JOB |= {"own": {"random_steps": 10, "capacity": 25, "batch_size": 8, "hidden_width": 8}}


def job(root: Path):
    return config(root, "sac", **JOB, save_every=7, processes=1)


def sac_run(root: Path, *, stop: int = 0) -> Path:
    """Trains in this process, up to the checkpoint after step `stop`; the directory."""
    run = Run(job(root), [0, 1], lambda *_: None)
    if stop:
        save = run.save

        def until(step: int) -> None:
            save(step)
            run._stop = False
            if step == stop:
                raise Interrupted

        run.save = until
    try:
        sac.train(run.cfg.algo, run)
    except Interrupted:
        assert stop
    return run.directory


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict:
    folder = sac_run(tmp_path_factory.mktemp("unbroken"))
    return group(folder.parent, folder.name)


@pytest.mark.parametrize("stop", [6, 7, 15, 29, 43, 57])
def test_a_run_goes_on_exactly_from_parts(tmp_path, unbroken, stop):
    folder = sac_run(tmp_path, stop=stop)
    sac_run(tmp_path)
    assert group(folder.parent, folder.name) == unbroken


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "another's"])
def test_a_damaged_part_leaves_the_checkpoint_before(tmp_path, unbroken, damage, capsys):
    folder = sac_run(tmp_path, stop=44)
    *_, before, part = sorted(folder.glob("replay/*"))
    content = part.read_bytes()
    part.unlink()
    if damage != "gone":
        other = {
            "cut": content[:-9],
            "changed": content[:-1] + b"?",
            "another's": before.read_bytes(),
        }
        part.write_bytes(other[damage])
    capsys.readouterr()
    sac_run(tmp_path)
    reported = capsys.readouterr().err
    says(reported, f"damaged replay/{part.name}")
    assert group(folder.parent, folder.name) == unbroken


def test_a_part_that_both_checkpoints_name_is_said_to_be_lost(tmp_path):
    folder = sac_run(tmp_path, stop=44)
    next(iter(sorted(folder.glob("replay/*"))[2:])).unlink()
    with refused("replay/"):
        sac_run(tmp_path)


def test_a_run_folder_from_before_there_were_parts_goes_on(tmp_path, unbroken, monkeypatch):
    monkeypatch.setattr("corerl.training.run.save_checkpoint", as_before)
    folder = sac_run(tmp_path, stop=44)
    assert not (folder / "replay").exists()
    monkeypatch.undo()
    sac_run(tmp_path)
    assert group(folder.parent, folder.name) == unbroken


def as_before(path, state, _) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        checkpoint.save_checkpoint(path, state)


def killed_at(moment: int, tmp_path: Path) -> None:
    """Trains, and dies at this call of those that write."""
    calls = itertools.count(1)

    def at(function):
        def call(*args, **others):
            if next(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **others)

        return call

    files.os.replace, files.os.fsync = at(os.replace), at(os.fsync)
    Path.unlink = at(Path.unlink)
    sac_run(tmp_path)


@pytest.mark.parametrize("moment", [18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_a_kill_at_any_write_of_a_save_loses_nothing(tmp_path, unbroken, moment):
    child = multiprocessing.get_context("fork").Process(target=killed_at, args=(moment, tmp_path))
    child.start()
    child.join(timeout=100)
    assert child.exitcode == -signal.SIGKILL
    folder = cell_directory(job(tmp_path)) / "seeds-0-1"
    assert checkpoint.exists(folder / "checkpoint.safetensors"), "it was to be killed later"
    sac_run(tmp_path)
    assert group(folder.parent, folder.name) == unbroken


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from corerl.buffers.replay import ReplayBuffer
from corerl.runs import checkpoint
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
path, seeds = Path(sys.argv[1]) / "c.safetensors", [0, 1]
replay = ReplayBuffer(17, 6, 500_000, seeds, 4)
if sys.argv[2] == "save":
    replay._rows.fill_(1.0)
    replay._added = 500_000
    before = peak()
    checkpoint.save_checkpoint(path, {"replay": replay.state_dict()}, checkpoint.replay_files_of(path))
else:
    before = peak()
    replay.load_state_dict(checkpoint.load_checkpoint(path)["replay"])
print(peak() - before, replay.nbytes)
"""


def test_a_save_takes_no_memory_and_a_load_two_copies(tmp_path):
    for what, copies in (("save", 0.0), ("load", 2.0)):
        command = [sys.executable, "-c", MEMORY, str(tmp_path), what]
        path = os.pathsep.join(p for p in sys.path if p)
        reported = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
        )
        assert reported.returncode == 0, reported.stderr
        grown, replay = map(int, reported.stdout.split())
        assert replay == 2 * 500_000 * 43 * 4
        assert grown < copies * replay + 2 * replay_files.PART_BYTES, (
            f"{what}: {grown / replay} copies"
        )
