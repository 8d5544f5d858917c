"""The kinds of datasets that are read, a small valid one of each."""

import csv
import gzip
import shutil
import warnings
from pathlib import Path
from unittest import mock

import gymnasium
import h5py
import minari as farama
import numpy as np
import pandas as pd
import pytest
from damage import Reader
from minari.data_collector import EpisodeBuffer

from corerl.data import d4rl, embedded, minari, minari_episodes, neorl2, ogbench
from corerl.data.dataset import Dataset
from corerl.data.files import own_files

ROWS = 24


def _steps() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(ROWS) % 8 == 7
    return {
        "observations": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": ends & (np.arange(ROWS) > 12),
        "timeouts": ends & (np.arange(ROWS) < 12),
    }


def _hdf5(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip" if array.ndim > 1 else None)


def _d4rl(folder: Path) -> Reader:
    path = folder / "a.hdf5"
    _hdf5(path, _steps())
    return Reader(path, lambda: d4rl.read(path))


def _packaged(folder: Path) -> Reader:
    path = folder / "p.hdf5"
    _hdf5(path, _steps() | {"last_observations": np.zeros((3, 3), np.float32)})
    return Reader(path, lambda: embedded.read(path, "corerl/p"))


def _neorl2(folder: Path) -> Reader:
    path, steps = folder / "a.npz", _steps()
    flags = {"done": steps["terminals"], "truncated": steps["timeouts"]}
    arrays = {"obs": steps["observations"], "next_obs": steps["observations"] + 1}
    arrays |= {"action": steps["actions"], "reward": steps["rewards"]}
    np.savez_compressed(path, **arrays, **flags)
    return Reader(path, lambda: neorl2.read(path), True)


def _embedded(folder: Path) -> Reader:
    path, steps = folder / "e.npz", _steps()
    arrays = {key: steps[key] for key in ("observations", "actions", "rewards")}
    arrays |= {"next_observations": steps["observations"] + 1, "terminated": steps["terminals"]}
    np.savez(path, **arrays, truncated=steps["timeouts"])
    return Reader(path, lambda: embedded.read(path, "corerl/e"), True)


def dataset() -> Dataset:
    steps = _steps()
    arrays = [steps[key] for key in ("observations", "actions", "rewards")]
    return Dataset.from_steps(
        "test/a", *arrays, steps["observations"] + 1, steps["terminals"], steps["timeouts"]
    )


def _minari(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    episode = EpisodeBuffer(
        observations=rng.normal(size=(7, 3)).astype(np.float32),
        actions=rng.uniform(-2, 2, (6, 1)).astype(np.float32),
        rewards=rng.normal(size=6),
        terminations=np.arange(6) == 5,
        truncations=np.zeros(6, bool),
        infos={},
    )
    who = {"algorithm_name": "t", "author": "t", "author_email": "t@t", "code_permalink": "t"}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        warnings.simplefilter("ignore")
        farama.create_dataset_from_buffers(
            "corerl/small-v0", [episode], env=gymnasium.make("Pendulum-v1"), **who
        )
    return folder / "corerl/small-v0/data"


def _load_minari(folder: Path) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with minari.reading(folder, "a Minari dataset"):
            return minari_episodes.read(farama.MinariDataset(folder), "minari/small-v0")


def _minari_metadata(folder: Path) -> Reader:
    data = _minari(folder)
    return Reader(data / "metadata.json", lambda: _load_minari(data))


def _minari_data(folder: Path) -> Reader:
    data = _minari(folder)
    return Reader(data / "main_data.hdf5", lambda: _load_minari(data))


def _own_npz(folder: Path) -> Reader:
    path = folder / "own.npz"
    own_files.write(path, dataset())
    return Reader(path, lambda: own_files.load(str(path)), True)


def _own_csv(folder: Path) -> Reader:
    path, steps = folder / "own.csv", _steps()
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["observation_0", "observation_1", "action_0", "reward", "terminated", "truncated"]
        )
        for i in range(ROWS):
            numbers = [*steps["observations"][i, :2], steps["actions"][i, 0], steps["rewards"][i]]
            flags = [int(steps["terminals"][i]), int(steps["timeouts"][i])]
            table.writerow([*map(float, numbers), *flags])
    return Reader(path, lambda: own_files.load(str(path), LIMITS))


def _ogbench(folder: Path) -> Reader:
    """Its package, which computes the rewards, is replaced by a rule of ours."""
    path, steps = folder / "o.npz", _steps()
    ends = np.arange(ROWS) % 8 == 7
    arrays = {key: steps[key] for key in ("observations", "actions")}
    np.savez(path, **arrays, terminals=ends, qpos=steps["observations"][:, :2])

    def rewards(name: str, states: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        solved = states["qpos"][:, 0] > 1
        return solved - 1.0, solved

    def read() -> Dataset:
        with mock.patch.object(ogbench, "_rewards", rewards):
            return ogbench.read(path, "pointmaze-medium-navigate-singletask-v0")

    return Reader(path, read, True)


def _own_hdf5(folder: Path) -> Reader:
    """An array per field and episode, as d3rlpy 2 writes them."""
    path, steps = folder / "own.h5", _steps()
    with h5py.File(path, "w") as file:
        file["columns"], file["num_episodes"] = ["observations", "actions", "rewards"], 3
        for i in range(3):
            for key in ("observations", "actions", "rewards"):
                file[f"{key}_{i}"] = steps[key][8 * i : 8 * i + 8]
            file[f"terminated_{i}"] = i == 2
    return Reader(path, lambda: own_files.load(str(path), LIMITS))


def _own_gzip(folder: Path) -> Reader:
    path = folder / "own.csv.gz"
    with open(_own_csv(folder).file, "rb") as whole, gzip.GzipFile(path, "wb", mtime=0) as file:
        shutil.copyfileobj(whole, file)
    return Reader(path, lambda: own_files.load(str(path), LIMITS), True)


def _own_parquet(folder: Path) -> Reader:
    path, steps = folder / "own.parquet", _steps()
    vectors = {key: list(steps[key]) for key in ("observations", "actions")}
    flags = {"terminated": steps["terminals"], "truncated": steps["timeouts"]}
    pd.DataFrame(vectors | {"rewards": steps["rewards"]} | flags).to_parquet(path)
    return Reader(path, lambda: own_files.load(str(path), LIMITS))


LIMITS = own_files.Data(action_low=-1, action_high=1)
KINDS = {
    "D4RL's HDF5": _d4rl,
    "the packaged HDF5": _packaged,
    "NeoRL-2's npz": _neorl2,
    "OGBench's npz": _ogbench,
    "our own npz": _embedded,
    "Minari's metadata": _minari_metadata,
    "Minari's HDF5": _minari_data,
    "a file of one's own, npz": _own_npz,
    "a file of one's own, HDF5": _own_hdf5,
    "a file of one's own, CSV": _own_csv,
    "a file of one's own, CSV.gz": _own_gzip,
    "a file of one's own, Parquet": _own_parquet,
}
