"""corerl/pendulum: gymnasium's dynamics, the same numbers for the same seed, honest references."""

import gymnasium
import numpy as np
import pytest
from wording import refused

from corerl.data import embedded, tasks
from corerl.envs import pendulum


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def arrays():
    return pendulum.make(seed=0)


def test_the_simulation_is_gymnasium_s():
    env = gymnasium.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    for seed in range(5):
        env.reset(seed=seed)
        theta, speed = (np.array([x]) for x in env.unwrapped.state)
        for action in rng.uniform(-1.2, 1.2, 200).astype(np.float32):
            obs, expected, _, _, _ = env.step(np.array([2 * action], np.float32))
            theta, speed, reward = pendulum.step(theta, speed, np.array([action]))
            np.testing.assert_allclose(pendulum.observe(theta, speed)[0], obs, atol=1e-7)
            assert reward[0] == pytest.approx(float(expected), abs=1e-9)


def test_the_recorded_steps_replay_in_the_task_s_environment(arrays):
    env = tasks.resolve("corerl/pendulum").make_env()
    assert (env.action_space.low, env.action_space.high) == (-1, 1)
    for episode in (0, 250, 499):
        rows = range(200 * episode, 200 * episode + 200)
        env.reset(seed=0)
        cos, sin, speed = arrays["observations"][rows[0]].astype(np.float64)
        env.unwrapped.state = np.array([np.arctan2(sin, cos), speed])
        for i in rows[:20]:  # float32 starts drift apart later, near the top
            obs, reward, *_ = env.step(arrays["actions"][i])
            np.testing.assert_allclose(obs, arrays["next_observations"][i], atol=2e-3)
            assert reward == pytest.approx(arrays["rewards"][i], abs=5e-3)


def test_a_seed_fixes_every_array(arrays):
    again, other = pendulum.make(seed=0), pendulum.make(seed=1)
    for name, array in arrays.items():
        assert array.tobytes() == again[name].tobytes()
    assert (arrays["actions"] != other["actions"]).mean() > 0.9


def test_quality_is_mixed(arrays):
    assert len(arrays["rewards"]) == 100_000
    returns = arrays["rewards"].reshape(-1, 200).sum(1)
    assert np.bincount(arrays["controller"]).tolist() == [200, 200, 100]
    random, mediocre, good = (returns[arrays["controller"] == i].mean() for i in range(3))
    assert random < -1000 < mediocre - 200
    assert mediocre < -400 < good - 150


def test_the_stored_references_are_what_the_recipe_measures():
    low, high = pendulum.reference_returns(episodes=2000, seed=1)
    assert embedded.REFERENCE["pendulum"][0] == pytest.approx(low, abs=25)
    assert embedded.REFERENCE["pendulum"][1] == pytest.approx(high, abs=10)


def test_the_first_load_makes_a_file_that_the_second_reads(folder, monkeypatch):
    made = tasks.resolve("corerl/pendulum").load()
    files = list(folder.rglob("*.npz"))
    assert len(files) == 1
    monkeypatch.setitem(embedded.RECIPES, "pendulum", None)
    read = tasks.resolve("corerl/pendulum").load()
    assert (read.observations == made.observations).all()
    assert read.episode_lengths().tolist() == [200] * 500
    assert read.truncated.sum() == 500
    assert not read.terminated.any()
    files[0].write_bytes(b"half a file")
    with refused("pendulum-v1-seed0.npz"):
        embedded.load("pendulum")


def test_a_folder_that_cannot_be_written_only_warns(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("CORERL_DATA", str(folder / "file"))
    with pytest.warns(UserWarning, match=str(folder / "file")):
        assert len(embedded.load("pendulum")) == 100_000
