"""The NeoRL-2 reader on the published files, and on broken ones."""

import numpy as np
import pytest
from wording import refused

from corerl.data import download, neorl2, tasks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "neorl2").mkdir()
    return tmp_path / "neorl2"


def write(path, n=6, **changed):
    arrays = {
        "obs": np.zeros((n, 2), np.float32),
        "action": np.zeros((n, 1), np.float32),
        "next_obs": np.ones((n, 2), np.float32),
        "reward": np.ones(n, np.float32),
        "done": np.arange(n) == 2,
        "truncated": np.arange(n) == n - 1,
    }
    arrays = {k: v for k, v in {**arrays, **changed}.items() if v is not None}
    np.savez(path, **{k: np.asarray(v, np.float32) for k, v in arrays.items()})
    return path


# Episodes and mean returns as counted when the files were published.
@pytest.mark.parametrize(
    ("name", "steps", "episodes", "mean"),
    [("DMSD", 100_000, 1000, 494.45), ("Simglucose", 100_257, 280, 353.45)],
)
@pytest.mark.filterwarnings("error")
def test_released_files(shared, folder, name, steps, episodes, mean):
    folder.rmdir()
    folder.symlink_to(shared / "data" / "neorl2")
    d = tasks.resolve(f"neorl2/{name}").load()
    assert (len(d), d.n_episodes) == (steps, episodes)
    assert d.episode_returns().mean() == pytest.approx(mean, abs=0.01)
    inside = np.ones(len(d), bool)
    inside[d.episode_ends - 1] = False
    i = np.flatnonzero(inside)
    assert (d.next_observations[i] == d.observations[i + 1]).all()
    assert len(d.transitions().rewards) == len(d)  # truncated rows have their true next state


def test_an_earlier_version_that_a_user_put_there_is_read_with_a_warning(shared, folder):
    folder.rmdir()
    folder.symlink_to(shared / "data" / "neorl2")
    with pytest.warns(UserWarning, match="Pipeline-high-100000-train.npz"):
        d = neorl2.load("Pipeline")
    assert (len(d), d.n_episodes) == (100_000, 100)
    assert d.episode_returns().mean() == pytest.approx(-421.43, abs=0.01)


def test_a_download_with_another_checksum_is_refused(folder, monkeypatch):
    def transfer(url, part):
        assert url == "http://datasets.polixir.site/neorl2/Pipeline/Pipeline-train.npz"
        part.write_bytes(b"another version")

    monkeypatch.setattr(download, "_transfer", transfer)
    with refused("checksum md5:59902b333be6edb9252acfc2302cc1ed"):
        neorl2.load("Pipeline")
    assert list(folder.iterdir()) == []


def test_ends_are_done_or_truncated(folder):
    d = neorl2.read(write(folder / "a.npz"))
    assert d.episode_ends.tolist() == [3, 6]
    assert d.terminated.tolist() == [False, False, True, False, False, False]
    assert d.has_next.all()


@pytest.mark.filterwarnings("ignore:.*Fusion-:UserWarning")
def test_fusion_keeps_the_number_of_episodes_of_the_protocol(folder):
    write(folder / "Fusion-train.npz", n=60, done=np.ones(60))
    write(folder / "Fusion-val.npz", n=60, done=np.ones(60))
    assert neorl2.load("Fusion").n_episodes == 20
    assert neorl2.load("Fusion", split="val").n_episodes == 5
    assert neorl2.load("Fusion", episodes=None).n_episodes == 60


def test_broken_files(folder):
    with refused("a.npz reward obs action"):
        neorl2.read(write(folder / "a.npz", reward=None))
    path = write(folder / "b.npz")
    path.write_bytes(path.read_bytes()[:-100])
    with refused("b.npz"):
        neorl2.read(path)
    with refused("c.npz actions 3"):
        neorl2.read(write(folder / "c.npz", action=np.zeros((3, 1))))


def test_pickled_arrays_are_never_loaded(folder):
    np.savez(folder / "a.npz", **dict.fromkeys(neorl2.KEYS, np.array([{}], object)))
    with refused("a.npz allow_pickle=False"):
        neorl2.read(folder / "a.npz")


def test_scores():
    task = tasks.resolve("neorl2/Pipeline")
    assert task.normalize(751) == pytest.approx(100)
    assert task.normalize(-296) == pytest.approx(0)
