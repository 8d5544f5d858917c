"""What a Minari dataset can hold of a Dataset, and the environment that it names."""

from dataclasses import replace

import numpy as np
import pytest
from small import random_dataset
from wording import refused

from corerl.data import export, tasks
from corerl.data.dataset import Dataset
from corerl.data.files.checks import leaps

DATA = random_dataset(100)


@pytest.mark.parametrize("broken", ["next_observations", "has_next"])
def test_rows_that_do_not_follow_each_other_are_no_minari_episode(tmp_path, monkeypatch, broken):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    other = getattr(DATA, broken).copy()
    other[[3, 4, 19]] = False if broken == "has_next" else 9
    with refused("2 test/random episode"):
        export.to_minari(replace(DATA, **{broken: other}), "test/broken-v0", None, {})
    assert not (tmp_path / "test").exists()


def test_a_leap_is_more_than_a_thousandth_of_a_features_own_size():
    states = np.array([[0, 0], [1, 1000], [2, 2000], [3, 3000]], np.float32)
    after = np.roll(states, -1, 0)
    after[[0, 1, 2], [0, 0, 1]] += 0.004, 0.002, 4
    data = Dataset.from_arrays(
        states, np.ones((4, 1)), np.ones(4), truncated=[0, 0, 0, 1], next_observations=after
    )
    assert leaps(data).tolist() == [0, 2]


def test_a_part_of_the_actions_range_is_no_part_of_the_environment_that_is_named(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    task = replace(tasks.resolve("gym/HalfCheetah-v4"), action_range=((-0.5,), (0.5,)))
    states = np.random.default_rng(0).standard_normal((6, 17), np.float32)
    played = Dataset.from_arrays(
        states[:5], np.ones((5, 6)), np.ones(5), np.zeros(5), next_observations=states[1:]
    )
    export.to_minari(played, "test/cheetah-v0", task.make_env(), {})
    named = tasks.resolve("minari/test/cheetah-v0").make_env()
    assert named.spec.id == "HalfCheetah-v4" and not named.spec.additional_wrappers
