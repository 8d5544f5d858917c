"""The Minari reader on datasets written by minari itself (from buffers, which needs no jax)."""

import json
import multiprocessing
import shutil
import threading
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from wording import refused, says

from corerl import cli
from corerl.data import export, simulators, tasks
from corerl.data import minari as reader

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")
WHO = {"algorithm_name": "test", "author": "t", "author_email": "t@t", "code_permalink": "t"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def episode(rng, steps, terminates, obs=None):
    flag = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        observations=rng.normal(size=(steps + 1, 3)).astype(np.float32) if obs is None else obs,
        actions=rng.uniform(-2, 2, (steps, 1)).astype(np.float32),
        rewards=rng.normal(size=steps),
        terminations=flag & terminates,
        truncations=flag & (not terminates),
        infos={"extra": np.zeros((steps + 1, 4))},
    )


@pytest.fixture
def buffers():
    rng = np.random.default_rng(0)
    return [episode(rng, 7, True), episode(rng, 4, False), episode(rng, 1, True)]


@pytest.fixture
def pendulum(buffers):
    return minari.create_dataset_from_buffers(
        "corerl/pendulum/test-v0",
        buffers,
        env=gymnasium.make("Pendulum-v1"),
        ref_min_score=-1200.0,
        ref_max_score=-200.0,
        **WHO,
    )


def test_rows_are_minari_s_own(pendulum):
    d = tasks.resolve("minari/corerl/pendulum/test-v0").load()
    assert d.episode_lengths().tolist() == [7, 4, 1]
    for start, end, theirs in zip(
        d.episode_starts, d.episode_ends, pendulum.iterate_episodes(), strict=True
    ):
        assert (d.observations[start:end] == theirs.observations[:-1]).all()
        assert (d.next_observations[start:end] == theirs.observations[1:]).all()
        np.testing.assert_allclose(d.actions[start:end], theirs.actions / 2, rtol=1e-6)
        np.testing.assert_allclose(d.rewards[start:end], theirs.rewards, rtol=1e-6)
        assert (d.terminated[start:end] == theirs.terminations).all()
        assert (d.truncated[start:end] == theirs.truncations).all()
    assert d.has_next.all()


def test_the_environment_takes_the_scaled_actions(pendulum):
    env = tasks.resolve("minari/corerl/pendulum/test-v0").make_env()
    assert (env.action_space.low, env.action_space.high) == (-1, 1)
    env.reset(seed=0)
    env.step(np.array([0.5], np.float32))
    assert env.unwrapped.last_u == 1.0


def test_scores_come_from_the_metadata_times_100(pendulum):
    task = tasks.resolve("minari/corerl/pendulum/test-v0")
    assert task.reference == (-1200, -200)
    assert task.normalize(-700) == pytest.approx(50)
    assert minari.get_normalized_score(pendulum, -700) == pytest.approx(0.5)


def test_without_references_there_is_no_score(folder, pendulum):
    path = folder / "corerl/pendulum/test-v0/data/metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["ref_min_score"]
    path.write_text(json.dumps(metadata))
    task = tasks.resolve("minari/corerl/pendulum/test-v0")
    assert task.reference is None
    assert task.normalize(1.0) is None


def test_goal_observations_are_flattened_as_the_environment_s_are(folder):
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    space = spaces.Dict(
        {
            "observation": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "achieved_goal": box,
            "desired_goal": box,
        }
    )
    rng = np.random.default_rng(0)
    obs = {key: rng.normal(size=(6, *part.shape)) for key, part in space.spaces.items()}
    minari.create_dataset_from_buffers(
        "corerl/goal-v0",
        [episode(rng, 5, False, obs)],
        observation_space=space,
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        **WHO,
    )
    d = reader.load("corerl/goal-v0")
    for i in range(5):
        flat = spaces.flatten(space, {key: value[i] for key, value in obs.items()})
        np.testing.assert_allclose(d.observations[i], flat, rtol=1e-6)
    with refused("environment"):
        tasks.resolve("minari/corerl/goal-v0").make_env()


class Unsorted(gymnasium.Env):
    """Says its parts by keywords, which gymnasium does not sort, while minari's spaces are."""

    observation_space = spaces.Dict(
        velocity=spaces.Box(-9, 9, (1,)),
        arm=spaces.Dict(b=spaces.Box(-9, 9, ()), a=spaces.Box(-9, 9, (2, 2))),
    )
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        a = np.array([[1, 2], [3, 4]], np.float32)
        return {
            "velocity": np.ones(1, np.float32),
            "arm": {"b": np.array(5, np.float32), "a": a},
        }, {}


gymnasium.register("Unsorted-v0", entry_point="test_minari:Unsorted")


def test_an_environment_is_read_in_the_order_of_the_data(folder):
    env = gymnasium.make("Unsorted-v0")
    shown, _ = env.reset()
    obs = {
        "velocity": np.stack([shown["velocity"]] * 6),
        "arm": {name: np.stack([part] * 6) for name, part in shown["arm"].items()},
    }
    steps = episode(np.random.default_rng(0), 5, False, obs)
    steps = EpisodeBuffer(**{**vars(steps), "actions": np.zeros((5, 1), np.float32)})
    minari.create_dataset_from_buffers("test/unsorted-v0", [steps], env=env, **WHO)
    task = tasks.resolve("minari/test/unsorted-v0")
    rows = task.load().observations
    assert rows[0].tolist() == [1, 2, 3, 4, 5, 1]
    assert task.make_env().reset()[0].tolist() == rows[0].tolist()
    sent = export.to_minari(task.load(), "test/again-v0", task.make_env(), WHO)
    again = tasks.resolve("minari/test/again-v0")
    assert sent == 0 and (again.load().observations == rows).all()


def test_an_episode_that_nothing_ended_is_cut_off_at_its_last_step(pendulum, folder):
    with h5py.File(folder / "corerl/pendulum/test-v0/data/main_data.hdf5", "a") as file:
        file["episode_1/truncations"][-1] = False
    d = reader.load("corerl/pendulum/test-v0")
    assert np.flatnonzero(d.truncated).tolist() == [10]
    assert np.flatnonzero(d.terminated).tolist() == [6, 11]


def test_a_number_beside_boxes_counts_from_its_own_start(folder):
    space = spaces.Dict(at=spaces.Box(-9, 9, (1,)), room=spaces.Discrete(3, start=5))
    rng = np.random.default_rng(0)
    obs = {"at": np.zeros((4, 1), np.float32), "room": np.array([5, 7, 6, 5])}
    minari.create_dataset_from_buffers(
        "corerl/rooms-v0",
        [episode(rng, 3, True, obs)],
        observation_space=space,
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        **WHO,
    )
    rows = reader.load("corerl/rooms-v0").observations
    assert rows.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


OTHER_SPACES = {
    "bits": (spaces.MultiBinary(3), np.array([[1, 0, 1], [0, 0, 0]], np.int8)),
    "digits": (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [0, 1]])),
    "number": (spaces.Discrete(3, start=5), np.array([5, 7])),
    "tuple": (
        spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(2)]),
        (np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1])),
    ),
}


@pytest.mark.parametrize("kind", OTHER_SPACES)
def test_observations_of_other_spaces_are_vectors_as_gymnasium_flattens_them(folder, kind):
    space, values = OTHER_SPACES[kind]
    minari.create_dataset_from_buffers(
        "corerl/other-v0",
        [episode(np.random.default_rng(0), 1, True, values)],
        observation_space=space,
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        **WHO,
    )
    rows = reader.load("corerl/other-v0")
    each = zip(*values, strict=True) if kind == "tuple" else values
    expected = [spaces.flatten(space, x).tolist() for x in each]
    assert [*rows.observations.tolist(), *rows.next_observations.tolist()] == expected
    flat = simulators._flat(Showing(space))
    assert flat.observation_space.shape == (len(expected[0]),)
    assert flat.observation(space.sample()).shape == flat.observation_space.shape


class Showing(gymnasium.Env):
    """Has this space of observations."""

    def __init__(self, space: spaces.Space):
        self.observation_space, self.action_space = space, spaces.Box(-1, 1, (1,))


def test_observations_that_are_no_vector_are_refused(folder):
    minari.create_dataset_from_buffers(
        "corerl/text-v0",
        [episode(np.random.default_rng(0), 1, True, ["a", "b"])],
        observation_space=spaces.Text(4),
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        **WHO,
    )
    with refused("Text Box Discrete"):
        reader.load("corerl/text-v0")


@pytest.mark.parametrize("wrong", [4, 8])
def test_a_number_that_its_space_has_not_is_refused(folder, wrong):
    dataset = minari.create_dataset_from_buffers(
        "corerl/rooms-v0",
        [episode(np.random.default_rng(0), 3, True, {"room": np.array([5, 7, 6, 5])})],
        observation_space=spaces.Dict(room=spaces.Discrete(3, start=5)),
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        **WHO,
    )
    with h5py.File(Path(dataset.spec.data_path) / "main_data.hdf5", "r+") as file:
        file["episode_0/observations/room"][1] = wrong
    with refused("Discrete(3)"):
        reader.load("corerl/rooms-v0")


def test_each_part_of_an_action_is_scaled_by_its_own_limits(folder):
    limits = np.array([[-2, -1, 0], [4, 0, 8]], np.float32)
    steps = episode(np.random.default_rng(0), 3, True)
    actions = np.array([limits[0], limits[1], [1, -0.25, 6]], np.float32)
    minari.create_dataset_from_buffers(
        "corerl/arm-v0",
        [EpisodeBuffer(**{**vars(steps), "actions": actions})],
        observation_space=spaces.Box(-9, 9, (3,)),
        action_space=spaces.Box(*limits),
        **WHO,
    )
    scaled = reader.load("corerl/arm-v0").actions
    np.testing.assert_allclose(scaled, [[-1, -1, -1], [1, 1, 1], [0, 0.5, 0.5]], atol=1e-6)


def test_several_numbers_at_once_are_no_damaged_file(folder):
    rng = np.random.default_rng(0)
    steps = episode(rng, 3, True, rng.random((4, 2), np.float32))
    steps = EpisodeBuffer(**{**vars(steps), "actions": np.ones((3, 2), np.int64)})
    minari.create_dataset_from_buffers(
        "corerl/several-v0",
        [steps],
        observation_space=spaces.Box(0, 1, (2,)),
        action_space=spaces.MultiDiscrete([2, 2]),
        **WHO,
    )
    with refused("MultiDiscrete([2"):
        reader.load("corerl/several-v0")


def test_discrete_actions_and_images(folder):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    steps = episode(rng, 3, True, images)
    steps = EpisodeBuffer(**{**vars(steps), "actions": np.array([2, 0, 1])})
    minari.create_dataset_from_buffers(
        "corerl/image-v0",
        [steps],
        observation_space=spaces.Box(0, 255, (32, 32, 3), np.uint8),
        action_space=spaces.Discrete(3),
        jpeg_encoding=False,
        **WHO,
    )
    d = reader.load("corerl/image-v0")
    assert d.actions.tolist() == [2, 0, 1]
    assert d.observations.dtype == np.uint8
    assert (d.next_observations == images[1:]).all()


def test_arrays_of_floats_are_no_images(folder):
    obs = np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 3, 2, 2)
    minari.create_dataset_from_buffers(
        "corerl/fields-v0",
        [episode(np.random.default_rng(0), 3, True, obs)],
        observation_space=spaces.Box(0, 1, (3, 2, 2)),
        action_space=spaces.Box(-2, 2, (1,)),
        **WHO,
    )
    d = reader.load("corerl/fields-v0")
    assert np.array_equal(d.observations, obs[:-1].reshape(3, 12))


def test_a_file_that_is_cut_off(folder, pendulum):
    path = folder / "corerl/pendulum/test-v0/data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:3000])
    with refused("test-v0/data"):
        reader.load("corerl/pendulum/test-v0")


def test_known_and_local_ids(pendulum):
    assert reader.local() == ["corerl/pendulum/test-v0"]
    assert "corerl/pendulum/test-v0" in reader.names()
    assert "D4RL/door/human-v2" in reader.names()


def test_offline_it_says_where_to_put_the_folder(folder, monkeypatch):
    monkeypatch.setenv("CORERL_OFFLINE", "1")
    with refused(f"CORERL_OFFLINE {folder}/D4RL/door"):
        reader.load("D4RL/door/human-v2")


def test_a_failed_download_says_what_stands_in_the_way(folder, monkeypatch):
    def refuse(id):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(minari, "download_dataset", refuse)
    with refused("RuntimeError D4RL/door/human-v2"):
        reader.load("D4RL/door/humn-v2")


ID = "corerl/pendulum/test-v0"


class Remote:
    """Minari's remote storage: a folder on this machine; metadata come before data.

    With `dies_after`, the process is killed when so many files have come.
    """

    def __init__(self, folder):
        self.folder, self.dies_after, self.brought = folder, None, 0

    def list_datasets(self, prefix=None):
        return [path.parents[1].relative_to(self.folder).as_posix() for path in self._metadata()]

    def _metadata(self):
        return self.folder.glob("**/data/metadata.json")

    def get_dataset_metadata(self, id):
        return json.loads((self.folder / id / "data/metadata.json").read_text())

    def list_namespaces(self):
        found = self.folder.glob("**/namespace_metadata.json")
        return [path.parent.relative_to(self.folder).as_posix() for path in found]

    def download_namespace_metadata(self, namespace, path):
        self._bring(self.folder / namespace / "namespace_metadata.json", path)

    def download_dataset(self, id, path):
        for file in sorted((self.folder / id / "data").iterdir(), reverse=True):
            self._bring(file, path)

    def _bring(self, file, path):
        if self.brought == self.dies_after:
            raise KeyboardInterrupt
        copy = path / file.relative_to(self.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        self.brought += 1


@pytest.fixture
def remote(pendulum, folder, tmp_path_factory, monkeypatch):
    """A remote that has the dataset `ID`, and nothing is on this machine."""
    there = tmp_path_factory.mktemp("remote")
    for path in folder.iterdir():
        path.rename(there / path.name)
    remote = Remote(there)
    for module in ("minari.storage.hosting", "minari.namespace"):
        monkeypatch.setattr(f"{module}.get_cloud_storage", lambda *_, **__: remote)
    monkeypatch.setenv("CORERL_DATA", str(tmp_path_factory.mktemp("data")))
    return remote


def bring(capsys):
    status = cli.main(["data", "download", f"minari/{ID}"])
    return status, *capsys.readouterr()


def test_a_download_is_there_once_it_is_whole(remote, folder, capsys, monkeypatch):
    remote.dies_after = 3  # both namespaces and metadata.json
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(reader.shutil, "rmtree", lambda *_, **__: None)  # no time to tidy up
        reader.fetch(ID)
    hidden = [f".corerl.pendulum.test-v0.{kind}" for kind in ("lock", "part")]
    assert sorted(path.name for path in folder.iterdir()) == hidden
    assert reader.local() == [] and reader.find(ID) is None
    remote.dies_after = None
    status, out, err = bring(capsys)
    assert (status, reader.local()) == (0, [ID]), err
    assert f"{folder}/{ID}/data/metadata.json" in out
    assert sorted(path.name for path in folder.iterdir()) == [hidden[0], "corerl"]
    assert minari.namespace.list_local_namespaces() == ["corerl", "corerl/pendulum"]
    assert list(minari.list_local_datasets()) == [ID]
    assert len(reader.load(ID)) == 12


@pytest.mark.parametrize("there", [["metadata.json"], ["main_data.hdf5"], []])
def test_a_part_that_minari_left_is_replaced(remote, folder, capsys, there):
    """In a namespace that was there, whose description and other dataset stay."""
    place = folder / ID / "data"
    place.mkdir(parents=True)
    for name in there:
        shutil.copy(remote.folder / ID / "data" / name, place)
    described = folder / "corerl/namespace_metadata.json"
    described.write_text('{"description": "mine"}')
    shutil.copytree(remote.folder / ID, folder / "corerl/other-v0")
    assert reader.local() == ["corerl/other-v0"]
    status, _, err = bring(capsys)
    assert (status, reader.local()) == (0, ["corerl/other-v0", ID]), err
    assert len(reader.load(ID)) == 12 and "mine" in described.read_text()


def test_a_whole_dataset_is_never_replaced(remote, folder):
    with pytest.raises(OSError, match="not empty"), reader.writing(ID):
        minari.download_dataset(ID)
        shutil.copytree(remote.folder / ID, folder / ID)  # by another process, meanwhile
    assert len(reader.load(ID)) == 12
    remote.dies_after = remote.brought
    assert reader.find(ID) == folder / ID / "data/metadata.json"


def test_a_process_waits_for_one_that_brings_the_same(remote, folder):
    """It would else delete that one's half."""
    fork = multiprocessing.get_context("fork")
    half, go_on = fork.Event(), fork.Event()

    def bring_slowly():
        with reader.writing(ID):
            minari.download_dataset(ID)
            half.set()
            go_on.wait(60)

    other = fork.Process(target=bring_slowly)
    other.start()
    assert half.wait(60)
    threading.Timer(0.3, go_on.set).start()
    assert reader.fetch(ID) == folder / ID / "data/metadata.json"
    other.join(60)
    assert (other.exitcode, remote.brought) == (0, 0)
    assert len(reader.load(ID)) == 12
    with refused(ID, FileExistsError), reader.writing(ID):
        pass


def test_what_stands_in_the_way_is_no_dataset(remote, folder, capsys):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ID.partition("/")[0]).touch()
    status, _, err = bring(capsys)
    assert status == 2
    says(err, "minari")


def test_a_download_without_data_is_told(remote, capsys):
    (remote.folder / ID / "data/main_data.hdf5").unlink()
    status, out, err = bring(capsys)
    assert status == 2
    says(err, f"{ID} FileNotFoundError")
    assert reader.local() == [] and "metadata.json" not in out


def test_sets_that_one_is_combined_of_come_with_it(remote, folder):
    part, whole = "corerl/pendulum/part-v0", remote.folder / ID / "data/metadata.json"
    shutil.copytree(remote.folder / ID, remote.folder / part)
    other = remote.folder / part / "data/metadata.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"dataset_id": part}))
    whole.write_text(json.dumps(json.loads(whole.read_text()) | {"combined_datasets": [part]}))
    reader.fetch(ID)
    assert sorted(reader.local()) == [part, ID]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_folder_per_episode_is_whole_once_all_are_there(folder, kind):
    """As minari stores episodes with pyarrow, which is not needed to see that."""
    place = folder / ID / "data"
    place.mkdir(parents=True)
    (place / "metadata.json").write_text(json.dumps({"total_episodes": 0}))
    for episode in range(2):
        assert reader.find(ID) is None
        (place / str(episode)).mkdir(parents=True)
        (place / "metadata.json").write_text(json.dumps({"total_episodes": 2}))
        (place / str(episode) / "metadata.json").write_text("{}")
        assert reader.find(ID) is None
        (place / str(episode) / f"part-0.{kind}").touch()
    assert reader.find(ID) == place / "metadata.json"
