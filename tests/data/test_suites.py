"""`corerl data make corerl/mujoco`: small, whole, resumed, refused, and read by minari itself."""

import dataclasses
import importlib.util
import json
from types import SimpleNamespace
from typing import ClassVar

import minari
import numpy as np
import pytest
from gymnasium import spaces
from wording import refused, says

from corerl.algos import sac
from corerl.config import Eval
from corerl.data import d4rl, embedded, suites, tasks
from corerl.recipes import collecting, mujoco, pointmaze
from corerl.runs import files
from corerl.training.stopping import Interrupted

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
HOPPER = "mujoco/hopper-{}-regenerated"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path / "corerl"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A SAC run of seconds, whose first evaluation after its random steps counts as medium."""
    real = mujoco.settings

    def settings(environment, seed, steps):
        algo = sac.Config(batch_size=8, hidden_width=8, random_steps=50)
        cfg = dataclasses.replace(real(environment, seed, steps), algo=algo, log_every=50)
        return dataclasses.replace(cfg, eval=Eval(every=150, episodes=1), save_every=100)

    monkeypatch.setattr(mujoco, "settings", settings)
    monkeypatch.setattr(mujoco, "MEDIUM", -1000.0)
    monkeypatch.setattr(mujoco, "AT_ONCE", 3)


def load(quality):
    return tasks.resolve(f"corerl/{HOPPER.format(quality)}").load()


def test_the_suite_of_one_robot(data, folder):
    shown = data("make", "corerl/mujoco/hopper", "--size", "250", "--steps", "400", "--seed", "3")
    assert shown.count("made: corerl/mujoco/hopper") == 5
    sets = {quality: load(quality) for quality in suites.QUALITIES}
    sizes = {quality: len(dataset) for quality, dataset in sets.items()}
    assert sizes == {
        "random": 250,
        "medium-replay": 150,
        "medium": 250,
        "medium-expert": 500,
        "expert": 250,
    }
    for quality, dataset in sets.items():
        assert "regenerated" in dataset.id
        assert dataset.has_next.all()
        inside = np.ones(len(dataset), bool)
        inside[dataset.episode_ends - 1] = False
        rows = np.flatnonzero(inside)
        assert (dataset.next_observations[rows] == dataset.observations[rows + 1]).all()
        theirs = minari.load_dataset(f"corerl/{HOPPER.format(quality)}-v0")
        assert theirs.total_steps == len(dataset)
        assert theirs.storage.metadata["ref_max_score"] == d4rl.reference("hopper-medium-v2")[1]
    both = sets["medium-expert"]
    assert (both.observations[:250] == sets["medium"].observations).all()
    assert (both.observations[250:] == sets["expert"].observations).all()
    assert (
        data(
            "make", "corerl/mujoco/hopper", "--size", "250", "--steps", "400", "--seed", "3"
        ).count("was here already")
        == 5
    )


def test_a_run_that_ends_at_medium_says_so(data, monkeypatch):
    titles, real = [], mujoco.Display
    monkeypatch.setattr(mujoco, "Display", lambda *of: titles.append(of[0]) or real(*of))
    data("make", "corerl/mujoco/hopper-medium-expert", "--size", "60", "--steps", "400")
    assert titles == ["SAC gym/Hopper-v4, until it scores -1000.0", "SAC gym/Hopper-v4"]


def test_recorded_steps_replay_in_the_task_s_environment(data):
    data("make", "corerl/mujoco/hopper-random", "--size", "60")
    dataset = load("random")
    env = tasks.resolve(f"corerl/{HOPPER.format('random')}").make_env()
    env.reset(seed=0)
    data_ = env.unwrapped.data
    for i in np.flatnonzero(~dataset.terminated)[:40]:
        state = dataset.observations[i].astype(np.float64)
        env.unwrapped.set_state(np.concatenate([[0.0], state[:5]]), state[5:])
        data_.qacc_warmstart[:] = 0
        observation, reward, *_ = env.step(dataset.actions[i])
        np.testing.assert_allclose(observation, dataset.next_observations[i], atol=2e-3)
        assert reward == pytest.approx(dataset.rewards[i], abs=2e-3)


def test_a_kill_costs_one_chunk_and_changes_no_number(data, monkeypatch, folder):
    words = ("make", "corerl/mujoco/hopper-random", "--size", "300")
    data(*words)
    whole, sha = load("random"), suites.facts(HOPPER.format("random"))["sha256"]
    for file in sorted((folder / "minari").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()

    played = []

    def dies_on_the_second(envs, act, seed, purpose):
        played.append(purpose)
        if len(played) == 2:
            raise KeyboardInterrupt
        return play(envs, act, seed, purpose)

    play = collecting.play
    monkeypatch.setattr(collecting, "play", dies_on_the_second)
    says(data(*words, status=130), "command")
    assert suites.find(HOPPER.format("random")) is None
    with refused("seed 0 1"):
        data(*words, "--seed", "1")
    data(*words)
    assert played[1] == played[2]
    assert suites.facts(HOPPER.format("random"))["sha256"] == sha
    assert (load("random").observations == whole.observations).all()


def test_a_kill_while_the_minari_file_is_written(data, monkeypatch, folder):
    words = ("make", "corerl/mujoco/hopper-random", "--size", "100")

    def half(*args, **kwargs):
        create(*args, **kwargs)
        assert not (folder / "minari" / suites.minari_id(HOPPER.format("random"))).exists()
        raise KeyboardInterrupt

    create = minari.create_dataset_from_buffers
    monkeypatch.setattr(minari, "create_dataset_from_buffers", half)
    says(data(*words, status=130), "command")
    with refused("corerl data make"):
        load("random")
    monkeypatch.setattr(minari, "create_dataset_from_buffers", create)
    data(*words)
    assert len(load("random")) == 100


def test_two_makers_of_one_set_do_not_undo_each_other(folder):
    name, recipe, played = HOPPER.format("random"), {"environment": "Hopper-v4"}, []
    rest = {"size": 5, "policy": "none", "facts": {}}

    def chunk(number):
        if not played:  # another process asks for the set meanwhile
            with refused(f"corerl/{name}", files.Busy):
                collecting.collect(name, recipe, chunk, **rest)
        played.append(number)
        steps = (np.zeros((6, 11)), np.zeros((5, 3)), np.ones(5))
        return [collecting.Episode(*(np.float32(x) for x in steps), False)]

    collecting.collect(name, recipe, chunk, **rest)
    written = suites.find(name).stat().st_mtime_ns
    collecting.collect(name, recipe, chunk, **rest)  # by one that asked before the set was there
    assert played == [0] and suites.find(name).stat().st_mtime_ns == written


def test_other_contents_under_the_same_id_are_refused(data):
    data("make", "corerl/mujoco/hopper-random", "--size", "100")
    with refused("seed 0 1 size 100 90"):
        data("make", "corerl/mujoco/hopper-random", "--size", "90", "--seed", "1")


def test_someone_else_s_dataset_under_our_id_is_refused(data):
    data("make", "corerl/mujoco/hopper-random", "--size", "100")
    path = suites.folder(HOPPER.format("random")) / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["corerl_recipe"]
    path.write_text(json.dumps(metadata))
    with refused("exists"):
        data("make", "corerl/mujoco/hopper-random", "--size", "100")


def test_a_stop_during_training_is_saved_and_goes_on(data, monkeypatch):
    words = ("make", "corerl/mujoco/hopper-medium-replay", "--steps", "400")
    data(*words)
    whole = load("medium-replay")
    for root in (suites.minari.root(), suites.minari.root().parent / "corerl"):
        for file in sorted(root.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()

    save = mujoco.UntilMedium.save

    def stop_at_120(self, step):
        self._stop = self._stop or step == 120
        save(self, step)

    monkeypatch.setattr(mujoco.UntilMedium, "save", stop_at_120)
    says(data(*words, status=130), "command")
    monkeypatch.setattr(mujoco.UntilMedium, "save", save)
    data(*words)
    again = load("medium-replay")
    assert again.observations.tobytes() == whole.observations.tobytes()
    assert again.actions.tobytes() == whole.actions.tobytes()


def test_a_run_that_never_reaches_medium_says_so(monkeypatch, data):
    monkeypatch.setattr(mujoco, "MEDIUM", 1000.0)
    with refused("1000.0 200 steps"):
        data("make", "corerl/mujoco/hopper-medium", "--steps", "200")


def test_names_and_scales():
    task = tasks.resolve("corerl/mujoco/walker2d-expert-regenerated")
    assert task.reference == tasks.resolve("d4rl/walker2d-expert-v2").reference
    assert task.make_env().spec.id == "Walker2d-v4"
    with refused("corerl/mujoco/hopper-medium-regenerated"):
        tasks.resolve("corerl/mujoco/hopper-medium")


def test_episodes_are_cut_where_rows_say():
    steps = np.arange(7, dtype=np.float32)[:, None]
    terminated, truncated = np.zeros(7, bool), np.zeros(7, bool)
    terminated[1] = truncated[4] = True
    episodes = collecting.cut_episodes(steps, steps, steps[:, 0], steps + 10, terminated, truncated)
    assert [len(e.rewards) for e in episodes] == [2, 3, 2]
    assert [e.terminated for e in episodes] == [True, False, False]
    assert [e.observations[-1, 0] for e in episodes] == [11, 14, 16]


def test_interrupted_is_not_swallowed(monkeypatch):
    def stopped(cfg, run):
        raise Interrupted

    monkeypatch.setattr(sac, "train", stopped)
    with pytest.raises(Interrupted):
        mujoco.make([HOPPER.format("medium")], 0, 10, 300)


def test_the_packaged_set():
    name = "halfcheetah-replay-regenerated"
    path = embedded.find(name)
    assert path.stat().st_size < 5e6
    task = tasks.resolve(f"corerl/{name}")
    dataset = task.load()
    assert task.make_env().spec.id == "HalfCheetah-v4"
    assert len(dataset) == 60_000
    scores = task.normalize(dataset.episode_returns())
    assert scores.min() < 0 < 33 < scores.max()
    assert abs(dataset.actions).max() <= 1
    env = task.make_env().unwrapped
    env.reset(seed=0)
    ends = np.flatnonzero(dataset.truncated)
    for i in [*ends, *np.random.default_rng(0).choice(len(dataset), 140)]:
        # HalfCheetah's position is not observed, and nothing depends on it.
        state = dataset.observations[i].astype(np.float64)
        env.set_state(np.concatenate([[0.0], state[:8]]), state[8:])
        env.data.qacc_warmstart[:] = 0
        observation, reward, *_ = env.step(dataset.actions[i])
        np.testing.assert_allclose(observation, dataset.next_observations[i], rtol=1e-2, atol=1e-2)
        assert reward == pytest.approx(dataset.rewards[i], abs=1e-2)


class Maze:
    """The part of gymnasium-robotics' maze that the controller asks."""

    maze_map: ClassVar = [
        [1, 1, 1, 1, 1],
        [1, 0, 0, 0, 1],
        [1, 1, 1, 0, 1],
        [1, 0, 0, 0, 1],
        [1, 1, 1, 1, 1],
    ]

    def cell_xy_to_rowcol(self, xy):
        return np.array([int(2.5 - xy[1]), int(xy[0] + 2.5)])

    def cell_rowcol_to_xy(self, cell):
        return np.array([cell[1] - 2.0, 2.0 - cell[0]])


def test_the_shortest_way():
    walls = np.array(Maze.maze_map) == 1
    way = pointmaze.shortest_way(walls, (1, 1), (3, 1))
    assert way == [(1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
    assert pointmaze.shortest_way(walls, (1, 1), (1, 1)) == [(1, 1)]


def test_the_controller_drives_round_the_wall_and_takes_new_goals():
    maze = Maze()
    env = SimpleNamespace(unwrapped=SimpleNamespace(maze=maze))
    control, rng = pointmaze.Controller([env], noise=0.1), np.random.default_rng(0)
    position, velocity = np.array([-1.0, 1.0]), np.zeros(2)
    for goal in (np.array([-1.1, -1.0]), np.array([0.1, 1.1])):
        for _ in range(400):
            row = np.concatenate([position, goal, position, velocity])[None]
            velocity = 0.6 * velocity + 0.2 * control(row, rng, 2)[0]  # as viscous as the real one
            position = position + 0.1 * velocity
            assert (
                maze.maze_map[maze.cell_xy_to_rowcol(position)[0]][
                    maze.cell_xy_to_rowcol(position)[1]
                ]
                == 0
            )
            if np.linalg.norm(position - goal) < 0.3:
                break
        else:
            pytest.fail(f"{goal} was not reached")


def test_goal_observations_are_stored_as_the_environment_gives_them():
    box = spaces.Box(-9, 9, (2,))
    space = spaces.Dict(
        {"observation": spaces.Box(-9, 9, (3,)), "achieved_goal": box, "desired_goal": box}
    )
    parts = {key: part.sample() for key, part in space.items()}
    stored = collecting._as_shown(space, spaces.flatten(space, parts)[None])
    assert {key: value[0].tolist() for key, value in stored.items()} == {
        key: value.tolist() for key, value in parts.items()
    }


def test_pointmaze(data):
    if importlib.util.find_spec("gymnasium_robotics") is None:
        with refused("corerl[robotics]"):
            data("make", "corerl/pointmaze/umaze")
        pytest.skip("no gymnasium-robotics")
    data("make", "corerl/pointmaze/umaze", "--size", "3000")
    task = tasks.resolve("corerl/pointmaze/umaze")
    dataset = task.load()
    assert task.make_env().observation_space.shape == dataset.observations.shape[1:] == (8,)
    assert dataset.rewards.mean() > 0.005


def test_a_packaged_set_is_not_made():
    with refused("package"):
        embedded.make("halfcheetah-replay-regenerated")


def test_scores_of_pointmaze_are_measured():
    pytest.importorskip("gymnasium_robotics")
    low, high = pointmaze.reference_returns("PointMaze_UMaze-v3", episodes=40)
    assert suites.MAZE_REFERENCE["pointmaze/umaze"] == pytest.approx((low, high), rel=0.15, abs=9)
