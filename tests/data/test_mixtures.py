"""Mixtures of the suites' sets: shares, whole episodes, and names."""

import numpy as np
from small import random_dataset
from wording import refused

from corerl.data import embedded, mixtures
from corerl.data.tasks import resolve


def test_a_mixture_has_the_share_and_whole_episodes():
    poor, good = random_dataset(2000, 1), random_dataset(1000, 2)
    both = mixtures.mixed("test/mixed", poor, good, 0.1)
    assert len(both) == 2000 and both.id == "test/mixed"
    of_good = (both.observations[:, None, 0] == good.observations[None, :, 0]).any(1)
    assert of_good.sum() == 200 and (np.diff(of_good.astype(int)) == 1).sum() == 1
    assert set(both.episode_lengths().tolist()) == {20}
    again = mixtures.mixed("test/mixed", poor, good, 0.1)
    assert again.observations.tobytes() == both.observations.tobytes()


def test_a_share_that_the_better_set_cannot_give_is_refused():
    with refused("1,000 steps test/random 400"):
        mixtures.mixed("test/mixed", random_dataset(2000, 1), random_dataset(400, 2), 0.5)


def test_names_and_parts(monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name = "mujoco/hopper-random-expert-05"
    assert mixtures.parts(name) == (
        "mujoco/hopper-random-regenerated",
        "mujoco/hopper-expert-regenerated",
        0.05,
    )
    task = resolve(f"corerl/{name}")
    assert task.reference == resolve("corerl/mujoco/hopper-expert-regenerated").reference
    assert embedded.find(name) is None
    with refused("corerl/mujoco/hopper-random"):
        task.load()
