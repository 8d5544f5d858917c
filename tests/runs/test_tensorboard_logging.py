"""TensorBoard's event files: only where they are asked for, and never in the way of a run."""

import json
import sys
from dataclasses import replace

from small import config, group, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wording import says

from corerl.launch.launch import launch
from corerl.runs.tensorboard_logging import TensorBoardLogger
from corerl.runs.trackers import Mirrors


def events(folder) -> dict[tuple[str, int], float]:
    """Every scalar of a folder's event files, as TensorBoard reads them."""
    read = EventAccumulator(str(folder))
    read.Reload()
    return {(tag, e.step): e.value for tag in read.Tags()["scalars"] for e in read.Scalars(tag)}


def test_event_files_hold_what_the_files_say(tmp_path):
    plain = group(train(config(tmp_path / "plain", "bc")))
    cell = train(replace(config(tmp_path, "bc"), tensorboard=True))
    assert group(cell) == plain
    shown = events(cell / "seeds-0/tensorboard")
    lines = [json.loads(line) for line in plain["metrics"].splitlines()]
    for line in lines:
        assert shown["policy_loss", line["step"]] == float_of(line["policy_loss"])
    rows = [row.split(",") for row in plain["scores"].splitlines()[1:]]
    for row in rows:
        assert shown["score", int(row[4])] == float_of(row[6])
    assert len(shown) == len(lines) + 2 * len(rows)


def test_a_longer_run_shows_what_it_goes_on_from(tmp_path):
    short = train(replace(config(tmp_path, "bc"), tensorboard=True))
    launch(replace(config(tmp_path, "bc"), tensorboard=True, steps=60))
    (longer,) = set(short.parent.iterdir()) - {short}
    shown = [events(cell / "seeds-0/tensorboard") for cell in (short, longer)]
    assert shown[0].items() < shown[1].items()
    assert max(step for _, step in shown[1]) == 60


def float_of(value) -> float:
    """As a single-precision number, which event files hold."""
    import numpy as np

    return float(np.float32(float(value)))


def test_nothing_is_written_unless_asked_for(tmp_path):
    mirrors = Mirrors(config(tmp_path, "bc"), [0], tmp_path)
    mirrors.send(1, [{"step": 1, "seed": 0, "loss": 1.0}])
    mirrors.catch_up()
    mirrors.close()
    assert not list(tmp_path.iterdir())


def test_what_came_after_the_checkpoint_is_forgotten(tmp_path):
    for first in (1, 3):
        mirror = TensorBoardLogger(tmp_path)
        for step in range(first, 6):
            mirror.send(step, {"loss": float(10 * first + step)})
        mirror.close()
    shown = events(tmp_path / "tensorboard")
    assert shown == {("loss", s): (11.0, 12.0, 33.0, 34.0, 35.0)[s - 1] for s in range(1, 6)}


def test_a_missing_package_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    mirror = TensorBoardLogger(tmp_path)
    mirror.send(1, {"loss": 1.0})
    mirror.send(2, {"loss": 1.0})
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    says(reported[0], "corerl[tensorboard]")
