"""The copy on Weights & Biases: only where it is asked for, and never in the way of a run."""

import json
import math
import shutil
import sys
import time
from types import SimpleNamespace

import pytest
from small import config, group, train
from wording import says

from corerl.config import Wandb
from corerl.launch.launch import launch
from corerl.runs.directory import cell_directory
from corerl.runs.trackers import Mirrors

pytestmark = pytest.mark.usefixtures("load_once")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a run without a mirror writes."""
    return group(train(config(tmp_path_factory.mktemp("alone"), "bc")))


class Fake:
    """Stands for the wandb module and for its run."""

    def __init__(self, breaks: str = ""):
        self.breaks, self.logged, self.finished, self.step = breaks, [], False, 0
        self.Settings = SimpleNamespace

    def _call(self, name: str) -> None:
        if name == self.breaks:
            raise ConnectionError(f"{name} does not answer\nsecond line")

    def init(self, **options):
        self._call("init")
        self.options = options
        return self

    def log(self, values, step):
        self._call("log")
        self.logged.append((step, values))

    def finish(self):
        self._call("finish")
        self.finished = True


def mirrored(tmp_path, monkeypatch, fake, mode="online"):
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return group(train(config(tmp_path, "bc", wandb=Wandb(mode=mode, project="mine"))))


def test_wandb_is_not_imported_where_it_is_disabled(tmp_path, monkeypatch, capsys, alone):
    assert mirrored(tmp_path, monkeypatch, None, mode="disabled") == alone
    assert "wandb" not in capsys.readouterr().err


def test_the_mirror_shows_what_the_files_say(tmp_path, monkeypatch, alone):
    fake = Fake()
    assert mirrored(tmp_path, monkeypatch, fake) == alone
    assert fake.finished and fake.options["mode"] == "online" and fake.options["project"] == "mine"
    assert fake.options["config"]["algo"]["hidden_width"] == 16
    assert fake.options["config"]["seed"] == 0
    lines = [json.loads(line) for line in alone["metrics"].splitlines()]
    sent = {(step, name): value for step, values in fake.logged for name, value in values.items()}
    for line in lines:
        assert sent[line["step"], "policy_loss"] == line["policy_loss"]
    rows = [row.split(",") for row in alone["scores"].splitlines()[1:]]
    for row in rows:
        step = int(row[4])
        assert sent[step, "return"] == float(row[5])
        assert sent[step, "score"] == float(row[6])
    assert len(sent) == len(lines) + 2 * len(rows)
    steps = [step for step, _ in fake.logged]
    assert steps == sorted(steps)


@pytest.mark.parametrize("there", [0, 21])
def test_a_run_that_goes_on_sends_what_the_mirror_lacks(tmp_path, monkeypatch, there):
    first, second = Fake(), Fake()
    mirrored(tmp_path, monkeypatch, first)
    second.step = there  # of a run that was on the server already
    monkeypatch.setitem(sys.modules, "wandb", second)
    train_longer = config(tmp_path, "bc", wandb=Wandb(mode="online", project="mine"), steps=60)
    launch(train_longer)
    sent, before = ([(s, v) for s, v in sorted_by_step(fake)] for fake in (second, first))
    assert [step for step, _ in sent] == [s for s in range(10, 61, 10) if s >= there]
    assert [x for x in sent if x[0] <= 40] == [x for x in before if x[0] >= there]


def test_a_run_is_resumed_under_its_own_id_and_one_that_begins_anew_has_another(
    tmp_path, monkeypatch
):
    ids, cfg = [], config(tmp_path, "bc", wandb=Wandb(mode="online"))
    for again in (False, True, True):
        fake = Fake()
        monkeypatch.setitem(sys.modules, "wandb", fake)
        folder = cell_directory(cfg) / "seeds-0"
        launch(cfg)
        ids.append(fake.options["id"])
        assert fake.options["name"] == f"{fake.options['group']}/seeds-0"
        if again:
            shutil.rmtree(folder)
        else:  # as a kill before the last status leaves it
            (folder / "status.json").unlink()
    assert ids[0] == ids[1] != ids[2]


def sorted_by_step(fake: Fake) -> list[tuple[int, dict]]:
    """What a server shows: the numbers of a step, sent together or one after the other."""
    steps: dict[int, dict] = {}
    for step, values in fake.logged:
        steps.setdefault(step, {}).update(values)
    return list(steps.items())


def test_several_seeds_of_one_program_have_their_mean_and_their_own(tmp_path, monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    mirrors = Mirrors(config(tmp_path, "bc", wandb=Wandb(mode="online")), [3, 7], tmp_path)
    mirrors.send(5, [{"seed": 3, "loss": 1.0, "r": None}, {"seed": 7, "loss": 2.0, "r": 4.0}])
    mirrors.send(6, [{"seed": 7, "loss": math.nan}])
    assert fake.logged[0][1] == {
        "loss": 1.5,
        "loss/seed3": 1,
        "loss/seed7": 2,
        "r": 4,
        "r/seed7": 4,
    }
    assert math.isnan(fake.logged[1][1]["loss"]) and fake.options["config"]["seed"] == [3, 7]


@pytest.mark.parametrize("breaks", ["init", "log", "finish"])
def test_a_mirror_that_fails_is_said_once_and_stops_nothing(
    tmp_path, monkeypatch, capsys, alone, breaks
):
    assert mirrored(tmp_path, monkeypatch, Fake(breaks)) == alone
    reported = [line for line in capsys.readouterr().err.splitlines() if "wandb" in line]
    (line,) = reported
    says(line, f"corerl: {breaks} does not answer")


def test_the_real_wandb_works_offline(tmp_path, capsys, alone):
    pytest.importorskip("wandb")
    cell = train(config(tmp_path, "bc", wandb=Wandb(mode="offline")))
    assert group(cell) == alone
    assert "corerl: this run logs nothing" not in capsys.readouterr().err
    (record,) = cell.glob("seeds-0/wandb/offline-run-*/*.wandb")
    wanted = (b"policy_loss", b"score", b"hidden_width")
    deadline = time.monotonic() + 30  # wandb's own process writes the file
    while not all(name in record.read_bytes() for name in wanted):
        assert time.monotonic() < deadline
        time.sleep(0.1)
