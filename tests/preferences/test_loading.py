"""Comparisons as the dataset beside them is: clipped, normalised, of the same task."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from wording import refused, says

from corerl.data.tasks import resolve
from corerl.launch.composition import cells
from corerl.nn.networks import Normalizer
from corerl.preferences import loading, readers, sources, teachers
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.sources import Preferences
from corerl.runs.directory import _without_added, cell_directory
from corerl.training import preprocessing

LENGTH = 8


def discrete() -> Comparisons:
    """Whole segments whose observations are the number of the step, and whose actions are 1."""
    steps = np.arange(LENGTH, dtype=np.float32)
    observations = np.broadcast_to(steps[:, None], (4, 2, LENGTH, 1))
    actions = np.ones_like(observations)
    return Comparisons.by_value("test/steps", "a test", observations, actions, np.ones(4))


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sources, "load", lambda run, settings: discrete())
    return SimpleNamespace(device="cpu", task=resolve("corerl/pendulum"))


def prepared(run, normalize: bool, normalizer: Normalizer | None = None):
    compared = loading.comparisons(run, Preferences(), 0.5)
    return loading.prepared(
        run, compared, preprocessing.Preprocess(normalize_states=normalize), normalizer
    )


@pytest.mark.parametrize("normalize", [False, True])
def test_alone_they_are_prepared_by_their_own_statistics(run, normalize):
    compared, normalizer = prepared(run, normalize)
    assert (compared.actions == 0.5).all()
    steps = np.arange(LENGTH)
    mean, std = (steps.mean(), steps.std() + 1e-3) if normalize else (0, 1)
    np.testing.assert_allclose(compared.observations[:LENGTH, 0], (steps - mean) / std, rtol=1e-5)
    np.testing.assert_allclose(
        compared.next_observations[: LENGTH - 1, 0], (steps[1:] - mean) / std, rtol=1e-5
    )
    np.testing.assert_allclose(normalizer(torch.tensor([3.0])), [(3 - mean) / std], rtol=1e-5)


def test_beside_a_dataset_they_are_prepared_by_its_statistics(run):
    given = Normalizer.of(np.array([2.0]), np.array([4.0]))
    compared, normalizer = prepared(run, True, given)
    assert normalizer is given
    np.testing.assert_allclose(compared.observations[:LENGTH, 0], (np.arange(LENGTH) - 2) / 4)


def test_a_run_says_that_answers_contradict_each_other(run, monkeypatch, capsys):
    dataset = run.task.load()
    both = Comparisons.of_dataset(dataset, [[0, 9], [9, 0], [0, 18]], 4, [0, 0, 0], source="anna")
    monkeypatch.setattr(sources, "load", lambda run, settings: both)
    loading.comparisons(run, Preferences(), 0.5)
    says(capsys.readouterr().err, "2 anna contradict reward")
    monkeypatch.setattr(sources, "load", lambda run, settings: both.first(1))
    loading.comparisons(run, Preferences(), 0.5)
    assert capsys.readouterr().err == ""


def test_segments_of_another_task_are_refused(run):
    given = Normalizer.of(np.zeros(3), np.ones(3))
    with refused("test/steps 1 3"):
        prepared(run, False, given)


def test_for_a_reward_states_stay_raw(run):
    compared = loading.comparisons(run, Preferences(), 0.25)
    assert (compared.actions == 0.25).all()
    np.testing.assert_array_equal(compared.observations, discrete().observations)


def test_segments_of_one_step_have_no_transition(run, monkeypatch):
    step = Comparisons.by_value("test/step", "x", *[np.zeros((2, 2, 1, 3))] * 2, np.ones(2))
    monkeypatch.setattr(sources, "load", lambda run, settings: step)
    cfg = SimpleNamespace(preferences=None, data=preprocessing.Preprocess(), replay=False)
    with refused("test/step 1"):
        loading.load(cfg, run)


def test_missing_labels_show_before_the_dataset_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing, "load", lambda *_: pytest.fail("read"))
    labels = Preferences(source="pt", path=str(tmp_path))
    cfg = SimpleNamespace(
        preferences=labels, data=preprocessing.Preprocess(), replay=True, batch_size=2
    )
    run = SimpleNamespace(
        task=resolve("d4rl/hopper-medium-v2"), dataset=lambda: pytest.fail("read")
    )
    with refused("hopper-medium-v2"):
        loading.load(cfg, run)


# What a run is called.


def test_other_labels_in_a_file_are_another_run(tmp_path):
    task, path = resolve("corerl/pendulum"), tmp_path / "labels.npz"
    data, found = task.load(), []
    words = ["algo=cpl", f"task={task.id}", "algo.preferences.source=file"]
    for seed in (0, 0, 1):
        readers.write(path, teachers.teach(data, Preferences(pairs=5, seed=seed)), data)
        found += cells([*words, f"algo.preferences.path={path}"])
    first, again, other = found
    assert first == again and cell_directory(first) != cell_directory(other)
    assert len(sources.find(task, lambda: data, other.algo.preferences)) == 5
    with refused("labels"):
        sources.find(task, lambda: data, first.algo.preferences)
    with refused("none.npz"):
        cells([*words, f"algo.preferences.path={tmp_path}/none.npz"])


def test_a_crop_that_a_files_segments_have_not_is_told_before_a_run_begins(tmp_path):
    task, path = resolve("corerl/pendulum"), tmp_path / "labels.npz"
    data = task.load()
    readers.write(path, teachers.teach(data, Preferences(pairs=5, length=20)), data)
    words = [f"task={task.id}", "algo.preferences.source=file", f"algo.preferences.path={path}"]
    for algo in ("ipl", "pref_iql"):
        with refused("crop=64 20 crop=null"):
            cells([f"algo={algo}", *words])
        for crop in ("null", "20"):
            cells([f"algo={algo}", *words, f"algo.crop={crop}"])


def test_labels_from_no_file_of_ones_own_leave_the_name(tmp_path):
    (teacher,) = cells(["algo=cpl", "task=corerl/pendulum"])
    published = ["algo.preferences.source=ipl", f"algo.preferences.path={tmp_path}"]
    (folder,) = cells(["algo=cpl", "task=corerl/pendulum", *published])
    for cfg in (teacher, folder):
        assert cfg.algo.preferences.sha256 is None
        assert "sha256" not in _without_added(cfg)["algo"]["preferences"]
