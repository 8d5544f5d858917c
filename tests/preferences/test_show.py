"""`corerl data preferences`: what it counts, and the file it writes."""

import re
from functools import partial

import numpy as np
import pytest
from wording import refused, says

from corerl.data import tasks
from corerl.preferences import readers, show, sources
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.sources import Preferences


@pytest.fixture
def data(data):
    return partial(data, "preferences")


def test_a_teacher_s_comparisons_are_shown_and_written(data, tmp_path):
    path = tmp_path / "x.npz"
    words = ("--pairs", "300", "--length", "20", "--teacher", "mistake", "--out", str(path))
    shown = data("corerl/pendulum", *words)
    says(shown, "300 20 steps")
    assert "teacher(epsilon=0.1)" in shown
    right = float(re.search(r"([\d.]+) % of 300 answers prefer", shown)[1])
    assert abs(right - 90) < 4 * 100 * np.sqrt(0.09 / 300)
    task = tasks.resolve("corerl/pendulum")
    cfg = Preferences(source="file", path=str(path))
    compared = sources.find(task, task.load, cfg)
    direct = Preferences(pairs=300, length=20, epsilon=0.1)
    direct = sources.find(task, task.load, direct)
    assert (compared.starts == direct.starts).all() and (compared.labels == direct.labels).all()
    again = data("corerl/pendulum", "--source", "file", "--path", str(path))
    assert again.splitlines()[2:] == shown.splitlines()[2:-1]


@pytest.mark.parametrize(
    ("starts", "labels", "circular"),
    [
        ([[0, 9], [9, 18], [18, 0]], [1, 1, 1], 3),
        ([[0, 9], [9, 18], [0, 18]], [1, 1, 1], 0),
        ([[0, 9], [0, 9], [9, 18]], [1, 0, 0], 2),
        ([[0, 9], [9, 18], [18, 0]], [1, 1, 0.5], 0),
    ],
)
def test_answers_that_no_reward_fits_are_counted(starts, labels, circular):
    dataset = tasks.resolve("corerl/pendulum").load()
    compared = Comparisons.of_dataset(dataset, starts, 4, labels, source="anna")
    assert compared.in_circles() == circular
    assert ("contradictory" in show.facts(compared)) == bool(circular)


def test_rankings_that_contradict_each_other_are_counted_by_their_pairs():
    """Of both orders, 9 over 18 and 18 over 9 cannot hold. 0 is first in either."""
    dataset = tasks.resolve("corerl/pendulum").load()
    starts = [[0, 9, 18], [0, 18, 9]]
    compared = Comparisons.of_dataset(dataset, starts, 4, [0, 0], source="anna")
    assert compared.in_circles() == 2 and "contradictory" in show.facts(compared)
    alone = compared.of(np.array([0]))
    assert alone.in_circles() == 0 and "contradictory" not in show.facts(alone)


def test_brackets_in_a_source_are_no_markup(data, tmp_path):
    task = tasks.resolve("corerl/pendulum").load()
    found = Comparisons.of_dataset(task, [[0, 9]], 4, [1], source="[red]anna[/]")
    readers.write(tmp_path / "[b].npz", found, task)
    shown = data("corerl/pendulum", "--source", "file", "--path", str(tmp_path / "[b].npz"))
    assert "[red]anna[/]" in shown


def test_labels_that_are_there_are_not_written_over(data, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"somebody's answers")
    with refused("x.npz --out"):
        data("corerl/pendulum", "--pairs", "3", "--out", str(path))
    assert path.read_bytes() == b"somebody's answers"


def test_a_folder_that_is_missing_is_made_and_a_full_disk_leaves_nothing(
    data, tmp_path, monkeypatch
):
    path = tmp_path / "new" / "x.npz"
    data("corerl/pendulum", "--pairs", "3", "--out", str(path))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("corerl.runs.files.os.fsync", full)
    task = tasks.resolve("corerl/pendulum").load()
    found = sources.find(None, lambda: task, Preferences(pairs=2))
    with refused("disk"):
        readers.write(path, found, task)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["x.npz"]


def test_every_teacher_of_b_pref_is_a_setting():
    named = {name: Preferences(**settings) for name, settings in show.TEACHERS.items()}
    assert sum(cfg.judge == "return" for cfg in named.values()) == 6
    assert named["oracle"] == Preferences()
    assert {name for name, cfg in named.items() if cfg.judge == name} == {"regret", "advantage"}


def test_people_are_not_held_against_the_rewards():
    rows = np.zeros((6, 1), np.float32)
    people, teacher = (
        Comparisons(
            *("x", source, rows, rows, rows, rows[:, 0] > 0, np.arange(6.0), np.array([6])),
            *(np.array([[0, 3], [3, 0], [1, 2]]), 2, np.array([1, 1, 0.5])),
        )
        for source in ("pt", "teacher")
    )
    assert "right" not in show.facts(people)
    assert show.facts(teacher)["right"].startswith("50.0 % of 2 ")
    counted = show.facts(people)["comparisons"]
    assert counted.endswith("0 first preferred, 2 second preferred, 1 neither")
    says(show.facts(people)["example"], "0 1 3 7", lines=0)


def test_segments_that_are_no_rows_are_not_written(data, tmp_path):
    words = ("d4rl/hopper-medium-v2", "--source", "ipl", "--out", str(tmp_path / "x.npz"))
    with refused("--out"):
        data(*words)


def test_a_file_is_named_with_its_settings(data, tmp_path):
    rng = np.random.default_rng(0)
    steps = {"observations": rng.normal(size=(40, 2)), "actions": rng.uniform(-2, 2, (40, 1))}
    steps |= {"rewards": rng.normal(size=40), "terminated": np.arange(1, 41) % 10 == 0}
    np.savez(tmp_path / "own.npz", **steps)
    file, out = f"file/{tmp_path}/own.npz", tmp_path / "labels.npz"
    asked = ("--pairs", "6", "--length", "4", "--out", str(out))
    with refused("data.action_low"):
        data(file, *asked)
    data(file, "data.action_low=-2", "data.action_high=2", *asked)
    read = ("--source", "file", "--path", str(out))
    says(data(file, "data.action_low=-5", "data.action_high=5", *read), "6 4 steps")
