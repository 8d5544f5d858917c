"""The D4RL reader against a plain loop over the rules of `qlearning_dataset`, and broken files."""

import os

import h5py
import numpy as np
import pytest
from wording import refused

from corerl.data import d4rl, tasks


def write(path, terminals, timeouts=None, **changed):
    n = len(terminals)
    arrays = {
        "observations": np.stack([np.arange(n), -np.arange(n)], axis=1).astype(np.float64),
        "actions": np.linspace(-1, 1, n, dtype=np.float32)[:, None],
        "rewards": np.arange(n, dtype=np.float32),
        "terminals": np.asarray(terminals, bool),
    }
    if timeouts is not None:
        arrays["timeouts"] = np.asarray(timeouts, bool)
    with h5py.File(path, "w") as file:
        for name, array in {**arrays, **changed}.items():
            if array is not None:
                file[name] = array
    return path


def flags(n, *rows):
    return np.isin(np.arange(n), rows)


def test_a_timed_out_episode_of_1000_rows_gives_999_transitions(tmp_path):
    n = 2500  # a time limit at 999, a fall at 1699, the rest cut off by the end of the file
    path = write(tmp_path / "a.hdf5", flags(n, 1699), flags(n, 999))
    d = d4rl.read(path)
    assert d.episode_lengths().tolist() == [1000, 700, 800]
    kept = [i for i in range(n - 1) if i != 999]
    t = d.transitions()
    assert t.rows.tolist() == kept
    assert (t.rows < 1000).sum() == 999
    assert t.next_observations[:, 0].tolist() == [i + 1 for i in kept]
    assert np.flatnonzero(t.terminated).tolist() == [kept.index(1699)]
    assert d.observations.dtype == np.float32


def test_next_actions_of_its_neighbours_come_from_the_raw_rows(tmp_path):
    n = 2500
    path = write(tmp_path / "a.hdf5", flags(n, 1699), flags(n, 999))
    d = d4rl.read(path)
    t = d.transitions(next_actions=True)
    following = dict(zip(t.rows.tolist(), t.next_actions[:, 0].tolist(), strict=True))
    assert following[998] == d.actions[999, 0]  # the row that qlearning_dataset drops
    assert 999 not in following
    assert following[1000] == d.actions[1001, 0]
    assert following[1699] == 0
    assert following[2498] == d.actions[2499, 0]
    assert len(following) == n - 2


def test_an_end_that_is_terminal_and_timeout_is_dropped_like_in_d4rl(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(6, 2), flags(6, 2, 5))
    assert d4rl.read(path).transitions().rows.tolist() == [0, 1, 3, 4]


def test_a_terminal_in_the_last_row_is_dropped_like_in_d4rl(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(6, 2, 5), flags(6))
    assert d4rl.read(path).transitions().rows.tolist() == [0, 1, 2, 3, 4]


def test_without_timeouts_the_limit_is_counted_from_each_start(tmp_path):
    path = write(tmp_path / "hopper_medium.hdf5", flags(3100, 499))
    d = d4rl.read(path, "d4rl/hopper-medium-v0", time_limit=1000)
    assert d.episode_ends.tolist() == [500, 1500, 2500, 3100]
    assert not d.has_next[[1499, 2499, 3099]].any()
    assert d.has_next.sum() == 3097
    with refused("hopper_medium.hdf5 timeouts"):
        d4rl.read(path)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("hopper-medium-v0", 1000), ("pen-human-v0", 100), ("antmaze-umaze-diverse-v0", 700)],
)
def test_the_task_knows_its_time_limit(name, steps):
    assert d4rl.time_limit(name) == steps


def test_a_task_reads_a_file_without_timeouts_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    write(tmp_path / "d4rl" / "pen-human-v0.hdf5", flags(250))
    d = tasks.resolve("d4rl/pen-human-v0").load()
    assert d.id == "d4rl/pen-human-v0"
    assert d.episode_lengths().tolist() == [100, 100, 50]


def test_a_file_that_is_cut_off(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(5000), flags(5000))
    path.write_bytes(path.read_bytes()[:20000])
    with refused("a.hdf5"):
        d4rl.read(path)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_never_give_anything_but_one_sentence(tmp_path, seed):
    path = write(tmp_path / "a.hdf5", flags(50), flags(50))
    damaged = bytearray(path.read_bytes())
    for i in np.random.default_rng(seed).integers(0, 3000, 40):  # where HDF5 keeps its structure
        damaged[i] ^= 255
    path.write_bytes(damaged)
    with refused("a.hdf5"):
        d4rl.read(path)


def test_a_file_that_is_not_hdf5(tmp_path):
    path = tmp_path / "page.hdf5"
    path.write_text("<html>not found</html>")
    with refused("HDF5"):
        d4rl.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with refused("none.hdf5"):
        d4rl.read(tmp_path / "none.hdf5")


def test_a_missing_key(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(5), flags(5), rewards=None, actions=None)
    with refused("a.hdf5 actions rewards observations"):
        d4rl.read(path)


def test_rows_that_do_not_agree(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(5), flags(5), actions=np.zeros((4, 1)))
    with refused("a.hdf5 actions shape 4 1"):
        d4rl.read(path)


def test_nan_in_rewards(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(5), flags(5), rewards=np.array([0, 1, np.nan, 1, 1]))
    with refused("a.hdf5 d4rl/a rewards 2 nan"):
        d4rl.read(path)


def test_actions_beyond_the_unit_box_are_clipped(tmp_path):
    path = write(tmp_path / "a.hdf5", flags(3), flags(3), actions=np.array([[-3.0], [0.5], [1.1]]))
    assert d4rl.read(path).actions[:, 0].tolist() == [-1, 0.5, 1]


def test_the_door_demonstrations(shared, tmp_path, monkeypatch):
    path = shared / "data" / "d4rl" / "door-human-dapg-demos.hdf5"
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "door-human-v1.hdf5").symlink_to(path)
    task = tasks.resolve("d4rl/door-human-v1")
    d = task.load()
    assert (len(d), d.n_episodes) == (6729, 25)
    assert len(d.transitions().rewards) == 6729 - 25
    assert task.normalize(d.episode_returns().mean()) == pytest.approx(29.0, abs=0.05)


def test_offline_it_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CORERL_OFFLINE", "1")
    with refused("hopper_medium-v2.hdf5 /d4rl"):
        tasks.resolve("d4rl/hopper-medium-v2").load()


def test_a_named_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.hdf5")
    with refused("pipe.hdf5 not a regular file"):
        d4rl.read(tmp_path / "pipe.hdf5")


def test_a_named_pipe_in_the_data_folder_is_not_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    os.mkfifo(tmp_path / "d4rl" / "hopper-medium-v2.hdf5")
    with refused("not a regular file"):
        d4rl.find("hopper-medium-v2")
