"""OGBench's files: trajectories cut at their ends, and rewards of one task from the package."""

import sys
import warnings
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from wording import refused

from corerl.data import ogbench
from corerl.data.tasks import resolve

NAME = "pointmaze-medium-navigate-singletask-task3-v0"
ENDS = np.array([0, 0, 1, 0, 0, 0, 1])


def write(path, ends=ENDS, **changed):
    n = len(ends)
    arrays = {
        "observations": np.arange(2.0 * n).reshape(n, 2),
        "actions": np.linspace(-1, 1, 2 * n).reshape(n, 2),
        "terminals": ends,
        "qpos": np.arange(n)[:, None] * np.ones((1, 2)),
    }
    arrays = {key: value for key, value in (arrays | changed).items() if value is not None}
    np.savez(path, **arrays)
    return path


@pytest.fixture
def solved_at_four(monkeypatch):
    """The package's relabelling, replaced: state 4 alone solves the task."""

    def relabel(env_name, env, labelled):
        hit = labelled["qpos"][:, 0] == 4
        labelled["rewards"], labelled["masks"] = hit - 1.0, 1.0 - hit

    package = ModuleType("ogbench.relabel_utils")
    package.relabel_dataset = relabel
    parent = ModuleType("ogbench")
    parent.relabel_utils = package
    monkeypatch.setitem(sys.modules, "ogbench", parent)
    monkeypatch.setitem(sys.modules, "ogbench.relabel_utils", package)
    monkeypatch.setattr(ogbench, "make_env", lambda name: resolve("gym/Pendulum-v1").make_env())


def test_a_trajectorys_last_row_is_only_a_next_observation(tmp_path, solved_at_four):
    data = ogbench.read(write(tmp_path / "a.npz"), NAME)
    rows = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(data.observations[:, 0], [2 * i for i in rows])
    np.testing.assert_array_equal(data.next_observations[:, 0], [2 * (i + 1) for i in rows])
    np.testing.assert_array_equal(data.rewards, [-1, -1, -1, 0, -1])
    np.testing.assert_array_equal(data.terminated, [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(data.truncated, [0, 1, 0, 0, 1])
    np.testing.assert_array_equal(data.episode_ends, [2, 4, 5])
    assert data.has_next.all() and data.id == f"ogbench/{NAME}"
    data = ogbench.read(write(tmp_path / "b.npz", np.array([0, 0, 0, 0, 0, 1])), NAME)
    assert data.terminated.tolist() == [False] * 4 + [True] and not data.truncated.any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qpos": None}, "qpos"),
        ({"ends": np.array([0, 1, 0])}, "trajectory"),
        ({"actions": np.zeros((6, 2))}, "actions 6 7"),
        ({"observations": np.zeros((9, 2))}, "observations 9 7"),
        ({"qpos": np.zeros((6, 2))}, "qpos 6 7"),
        ({"terminals": np.array([0, 0, 1, np.nan, 0, 0, 1])}, "terminals 3 nan"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, solved_at_four, changed, message):
    path = write(tmp_path / "bad.npz", **changed)
    with refused(f"bad.npz {message}"):
        ogbench.read(path, NAME)


def test_without_the_package_the_command_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with refused("corerl[ogbench]"):
        resolve(f"ogbench/{NAME}").load()


def test_all_tasks_of_a_dataset_share_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    (tmp_path / "ogbench").mkdir()
    path = write(tmp_path / "ogbench" / "scene-play-v0.npz")
    for task in ("singletask", "singletask-task5"):
        assert ogbench.find(f"scene-play-{task}-v0") == path
    assert ogbench.find("scene-noisy-singletask-v0") is None
    assert resolve("ogbench/scene-play-singletask-task5-v0").scored_by_success


@pytest.mark.parametrize(
    "name", ["pointmaze-medium-navigate-singletask-v0", "cube-single-play-singletask-task2-v0"]
)
def test_rewards_agree_with_the_environments_own(tmp_path, name):
    """A trajectory that we record ourselves: the file's rewards are those that stepping gave."""
    pytest.importorskip("ogbench")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*precision lowered.*")  # at each reset, were it told
        env, states, actions, rewards = ogbench.make_env(name), [], [], []
        env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.uniform(-1, 1, env.action_space.shape)
        _, reward, *_, info = env.step(action)
        states.append(info["prev_qpos"])
        actions.append(action)
        rewards.append(reward)
    ends = np.zeros(31, int)
    ends[-1] = 1
    path = write(
        tmp_path / "own.npz",
        ends,
        qpos=np.array([*states, info["qpos"]]),
        actions=np.array([*actions, action]),
    )
    data = ogbench.read(path, name)
    np.testing.assert_array_equal(data.rewards, np.array(rewards, np.float32))


def test_every_task_has_an_environment_of_the_package(monkeypatch):
    pytest.importorskip("ogbench")
    made = []
    monkeypatch.setattr(ogbench.simulators, "make", lambda id: made.append(id) or Env())
    for name in ogbench.names():
        ogbench.make_env(name)
    assert set(made) <= set(gymnasium.registry)


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))


def test_a_dataset_with_goals_has_neither_rewards_nor_ends(tmp_path):
    """And is read without the package, from a file that need not hold the simulator's states."""
    data = ogbench.read(write(tmp_path / "a.npz", qpos=None), "pointmaze-medium-navigate-v0")
    np.testing.assert_array_equal(data.observations[:, 0], [0, 2, 6, 8, 10])
    assert not data.rewards.any() and not data.terminated.any()
    assert data.truncated.tolist() == [False, True, False, False, True]
    task = resolve("ogbench/pointmaze-medium-navigate-v0")
    assert (task.goal_tasks, task.scored_by_success) == (5, True)
    assert resolve(f"ogbench/{NAME}").goal_tasks == 0


def test_starts_and_goals_follow_from_the_seed():
    """The package's mazes draw them from numpy's global generator, which is left as it was."""
    pytest.importorskip("ogbench")
    env = ogbench.make_env("pointmaze-medium-navigate-v0")
    first, _ = env.reset(seed=3, options={"task_id": 2})
    np.random.seed(9)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(9)  # noqa: NPY002
    again, info = env.reset(seed=3, options={"task_id": 2})
    other, _ = env.reset(seed=4, options={"task_id": 2})
    assert np.random.random() == expected  # noqa: NPY002
    np.testing.assert_array_equal(first, again)
    assert (first != other).all() and first.shape == (4,)
    np.testing.assert_allclose(again[2:], info["goal"])


@pytest.mark.parametrize("name", ["antmaze-medium-navigate-v0", "scene-play-v0"])
def test_robots_goals_and_later_episodes_follow_from_the_seed_too(name):
    """A robot's goal is where actions of a space lead, which the package seeds by chance."""
    pytest.importorskip("ogbench")
    envs = [ogbench.make_env(name) for _ in range(2)]
    made = [[env.reset(seed=7, options={"task_id": 2})[0], env.reset()[0]] for env in envs]
    np.testing.assert_array_equal(*(np.stack(both) for both in made))
    assert (made[0][0] != made[0][1]).any()
    for env in envs:
        env.close()
