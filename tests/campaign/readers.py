"""Every file that corerl reads, as a small valid one, and how damaged bytes are made of it."""

import csv
import json
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import minari as farama
import numpy as np
import pytest
import torch
import yaml
from minari.data_collector import EpisodeBuffer

from corerl.data import d4rl, embedded, minari, neorl2, own_files
from corerl.data.dataset import Dataset
from corerl.preferences import pickles, readers
from corerl.preferences.comparisons import Comparisons
from corerl.report.scorefiles import read_scores
from corerl.runs import checkpoint, files
from corerl.runs.directory import read_settings, read_status
from corerl.runs.record import SCORE_COLUMNS

RNG = np.random.default_rng(0)
ROWS = 24


class Reader(NamedTuple):
    """One kind of file. `checked`: its format has a checksum, so other bytes are never other data."""

    name: str
    file: Path
    read: Callable[[], Any]
    checked: bool = False


def all_readers(folder: Path) -> list[Reader]:
    """A valid file of every kind below `folder`, and its reader."""
    made = [_checkpoint, _log, _label_array, _label_list, _d4rl, _packaged, _neorl2, _embedded]
    made += [_comparisons, _segments, _minari_metadata, _minari_data, _own_npz, _own_csv]
    made += [_status, _settings, _scores]
    found = []
    for number, make in enumerate(made):
        place = folder / str(number)
        place.mkdir(parents=True)
        found.append(make(place))
    return found


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes with one to four changes: flipped, replaced, cut, doubled, removed or interesting."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        length = min(len(changed) - at, draw.choice((1, 1, 2, 4, 8, 64)))
        kind = draw.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at : at + length] = draw.randbytes(length)
        elif kind == 2:
            changed[at : at + length] = b""
        elif kind == 3:
            changed[at:at] = changed[at : at + length]
        elif kind == 4:
            changed = changed[:at] if draw.random() < 0.3 else changed
        elif kind == 5:
            changed[at : at + length] = draw.choice(WORDS)
        else:
            other = draw.randrange(len(changed) + 1)
            changed[at : at + length] = changed[other : other + length]
    return bytes(changed)


WORDS = (
    *(b"", b"\0", b"\xff" * 8, b"\x00" * 64, b"-1", b"9" * 20, b"nan", b"1e999", b"null", b"true"),
    *(
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"[" * 50,
        b'"',
        b"\n",
        b",",
        b"{",
        b"\xc3\x28",
        b"0",
    ),
)


def outcome(value: Any) -> Any:
    """A value that is equal where what was read is equal."""
    if isinstance(value, Dataset | Comparisons):
        return {name: outcome(part) for name, part in vars(value).items() if name != "id"}
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: outcome(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [outcome(part) for part in value]
    return repr(value)


# One function per kind.


def _checkpoint(folder: Path) -> Reader:
    path = folder / "checkpoint.safetensors"
    agent = {"weights": torch.arange(40.0).view(4, 10), "counts": [1, 2], "name": "a"}
    checkpoint.save_checkpoint(path, {"loop": {"step": 10, "seeds": {0: 3}}, "state": agent})
    return Reader("checkpoint", path, lambda: checkpoint.load_checkpoint(path), True)


def _log(folder: Path) -> Reader:
    path = folder / "metrics.jsonl"
    log = files.Log(path)
    log.append(json.dumps({"step": step, "seed": 0, "loss": 0.5}) for step in range(20))
    state = log.state_dict()

    def read() -> bytes:
        files.Log(path).load_state_dict(state)
        return path.read_bytes()

    return Reader("metrics.jsonl beside its checkpoint", path, read, True)


def _label_array(folder: Path) -> Reader:
    path = folder / "label_human"
    path.write_bytes(pickle.dumps(np.arange(20), 4))
    return Reader("pickle of an array", path, lambda: pickles.read_integers(path))


def _label_list(folder: Path) -> Reader:
    path = folder / "indices"
    path.write_bytes(pickle.dumps([np.int64(3), 5, *range(10)], 2))
    return Reader("pickle of a list", path, lambda: pickles.read_integers(path))


def _steps() -> dict[str, np.ndarray]:
    ends = np.arange(ROWS) % 8 == 7
    return {
        "observations": RNG.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": RNG.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": RNG.normal(size=ROWS).astype(np.float32),
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
    return Reader("D4RL's HDF5", path, lambda: d4rl.read(path))


def _packaged(folder: Path) -> Reader:
    path = folder / "p.hdf5"
    _hdf5(path, _steps() | {"last_observations": np.zeros((3, 3), np.float32)})
    return Reader("the packaged HDF5", path, lambda: embedded.read(path, "corerl/p"))


def _neorl2(folder: Path) -> Reader:
    path, steps = folder / "a.npz", _steps()
    flags = {"done": steps["terminals"], "truncated": steps["timeouts"]}
    arrays = {"obs": steps["observations"], "next_obs": steps["observations"] + 1}
    arrays |= {"action": steps["actions"], "reward": steps["rewards"]}
    np.savez_compressed(path, **arrays, **flags)
    return Reader("NeoRL-2's npz", path, lambda: neorl2.read(path), True)


def _embedded(folder: Path) -> Reader:
    path, steps = folder / "e.npz", _steps()
    arrays = {key: steps[key] for key in ("observations", "actions", "rewards")}
    arrays |= {"next_observations": steps["observations"] + 1, "terminated": steps["terminals"]}
    np.savez(path, **arrays, truncated=steps["timeouts"])
    return Reader("our own npz", path, lambda: embedded.read(path, "corerl/e"), True)


def _dataset() -> Dataset:
    steps = _steps()
    arrays = [steps[key] for key in ("observations", "actions", "rewards")]
    return Dataset.from_steps(
        "test/a", *arrays, steps["observations"] + 1, steps["terminals"], steps["timeouts"]
    )


def _comparisons(folder: Path) -> Reader:
    path, dataset = folder / "c.npz", _dataset()
    starts, labels = np.array([[0, 9], [1, 16]]), np.array([0.0, 1.0])
    readers.write(path, Comparisons.of_dataset(dataset, starts, 4, labels, "teacher"), dataset)
    return Reader("comparisons", path, lambda: readers.read_own(path, dataset), True)


def _segments(folder: Path) -> Reader:
    path = folder / "s_train.npz"
    arrays = {f"obs_{i}": RNG.normal(size=(3, 4, 2)).astype(np.float32) for i in (1, 2)}
    arrays |= {f"action_{i}": RNG.uniform(-1, 1, (3, 4, 1)).astype(np.float32) for i in (1, 2)}
    np.savez(path, **arrays, label=np.array([0.0, 0.5, 1.0]))
    return Reader("IPL's segments", path, lambda: readers.read_ipl(path, "a", "test/a"), True)


def _minari(folder: Path) -> Path:
    episode = EpisodeBuffer(
        observations=RNG.normal(size=(7, 3)).astype(np.float32),
        actions=RNG.uniform(-2, 2, (6, 1)).astype(np.float32),
        rewards=RNG.normal(size=6),
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
            return minari._read(farama.MinariDataset(folder), "minari/small-v0")


def _minari_metadata(folder: Path) -> Reader:
    data = _minari(folder)
    return Reader("Minari's metadata", data / "metadata.json", lambda: _load_minari(data))


def _minari_data(folder: Path) -> Reader:
    data = _minari(folder)
    return Reader("Minari's HDF5", data / "main_data.hdf5", lambda: _load_minari(data))


def _own_npz(folder: Path) -> Reader:
    path = folder / "own.npz"
    own_files.write(path, _dataset())
    return Reader("a file of one's own, npz", path, lambda: own_files.load(str(path)), True)


def _own_csv(folder: Path) -> Reader:
    path, steps = folder / "own.csv", _steps()
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["observation_0", "observation_1", "action_0", "reward", "terminated", "truncated"]
        )
        for i in range(ROWS):
            numbers = [*steps["observations"][i, :2], steps["actions"][i, 0], steps["rewards"][i]]
            flags = [int(steps["terminals"][i]), int(steps["timeouts"][i])]
            table.writerow([*map(float, numbers), *flags])
    low_high = own_files.Data(action_low=-1, action_high=1)
    return Reader("a file of one's own, CSV", path, lambda: own_files.load(str(path), low_high))


def _status(folder: Path) -> Reader:
    facts = {"state": "done", "step": 40, "message": "", "diverged": {"0": 3}, "score": 1.5}
    files.write_json(folder / "status.json", facts)
    return Reader("status.json", folder / "status.json", lambda: read_status(folder))


def _settings(folder: Path) -> Reader:
    values = {"task": "corerl/pendulum", "label": None, "seeds": [0, 3], "steps": 40}
    values["algo"] = {"name": "bc", "label": "BC", "lr": 3e-4}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return Reader("config.yaml", folder / "config.yaml", lambda: read_settings(folder))


def _scores(folder: Path) -> Reader:
    path = folder / "scores.csv"
    row = "corerl/pendulum,BC,0a1b2c3d,{},{},-100.5,50.25,10,200.0,3.5,"
    rows = [row.format(seed, step) for step in (10, 20) for seed in (0, 1)]
    path.write_text("\n".join([SCORE_COLUMNS, *rows]) + "\n")
    return Reader("scores.csv", path, lambda: read_scores(path, running=False).to_dict())
