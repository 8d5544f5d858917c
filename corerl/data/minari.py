"""`minari/...`: datasets of the Farama Foundation's Minari, local or downloaded by minari itself.

Episodes hold T + 1 observations for T steps, so every row is a transition. Dictionary observations
of goal environments are flattened in gymnasium's order (achieved_goal, desired_goal, observation),
which loses nothing: AntMaze's position is only in achieved_goal. Actions are scaled from the
dataset's action space to [-1, 1]. `mujoco/*` and `D4RL/*` here are not D4RL's data.

Reference returns stand in the metadata of a dataset (`ref_min_score`, `ref_max_score`), so they are
known once it is on this machine. Minari's own score is between 0 and 1; ours is times 100.

Reading needs no jax and no network. Files are in `$MINARI_DATASETS_PATH` or `~/.minari/datasets`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from corerl.data import download, tables
from corerl.data.columns import flags
from corerl.data.dataset import Dataset
from corerl.data.file_reading import one_line, reading, unit_actions
from corerl.data.observations import by_name, widths
from corerl.errors import CorerlError, nearest

ROOT = "MINARI_DATASETS_PATH"
FIELDS = ("rewards", "terminations", "truncations")
ARRAYS = ("observations", "actions", *FIELDS)
TABLES = ("arrow", "parquet")
"""Endings of minari's other kinds of storage, which have a folder per episode."""
PACKAGES = ("gymnasium_robotics", "minigrid", "metaworld", "ale_py", "mo_gymnasium")
"""Packages that register, when imported, environments of Minari's own datasets."""


def names() -> list[str]:
    """Returns the known remote datasets and those on this machine."""
    return sorted({*tables.minari_ids(), *local()})


def is_id(name: str) -> bool:
    """Tells whether this is a Minari id, `namespace/name-v0`. Only a download tells whether it exists."""
    return re.fullmatch(r"[\w-]+(/[\w-]+)*-v\d+", name) is not None


def local() -> list[str]:
    """Ids of the datasets on this machine."""
    return _whole_ids(root())


def load(id: str) -> Dataset:
    """Loads the dataset of this Minari id, downloaded if it is not on this machine."""
    import minari

    if find(id) is None:
        fetch(id)
    folder = _folder(id)
    with reading(folder, "a Minari dataset"):
        return _read(minari.MinariDataset(folder), f"minari/{id}")


def reference(id: str) -> tuple[float, float] | None:
    """Returns that score 0 and 100, from the metadata of a dataset on this machine."""
    found = metadata(id)
    low, high = found.get("ref_min_score"), found.get("ref_max_score")
    return None if low is None or high is None else (float(low), float(high))


def metadata(id: str) -> dict[str, Any]:
    """Reads what a dataset on this machine says of itself, or empty where it is not here."""
    path = find(id)
    if path is None:
        return {}
    with reading(path, "Minari metadata"):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def find(id: str) -> Path | None:
    """Finds the dataset's metadata file on this machine. None unless its data are there too."""
    folder = _folder(id)
    return folder / "metadata.json" if _is_whole(folder) else None


def fetch(id: str) -> Path:
    """Downloads by minari, again where only a part is there. CorerlError says what stands in the way."""
    where = f"put its folder at {_folder(id).parent}"
    if download.offline():
        raise CorerlError(f"{id} is not on this machine and CORERL_OFFLINE is set: {where}.")
    import minari

    try:
        with writing(id):
            minari.download_dataset(id)
    except ImportError as e:
        raise CorerlError(
            f'minari cannot download {id} ({e}): pip install "minari[hf]", or {where}.'
        ) from e
    except Exception as e:  # the remotes raise errors of their own, one kind per storage service
        if isinstance(e, FileExistsError) and (file := find(id)):  # another process brought it
            return file
        raise CorerlError(
            f"minari cannot download {id} ({one_line(e)}): check the network and the id, "
            f"or {where}.{nearest(id, tables.minari_ids())}"
        ) from e
    return _folder(id) / "metadata.json"


def environment(id: str, trust: bool) -> gymnasium.Env:
    """Returns the environment that the dataset names for evaluation, else the one it was recorded in.

    A dataset may name any function of any module as its environment. Only those that gymnasium's registry
    has, or that of a package in `PACKAGES`, are called without `trust`.
    """
    import minari

    if find(id) is None:
        fetch(id)
    with reading(_folder(id), "a Minari dataset"):
        dataset = minari.MinariDataset(_folder(id))
        spec = dataset._eval_env_spec or dataset.env_spec
        if spec is None:
            raise CorerlError("it names no environment to evaluate in.")
        if not trust:
            _refuse_unknown(spec)
    return gymnasium.make(spec)


def parts(id: str) -> list[str]:
    """Returns the names of a dictionary's parts in the order in which `load` lays them side by side.

    Minari's spaces are sorted by name at every depth; the environment's own may be in another order.
    """
    import minari

    space = minari.MinariDataset(_folder(id)).observation_space
    return list(by_name(space)) if isinstance(space, spaces.Dict) else []


def _refuse_unknown(spec: EnvSpec) -> None:
    entry = str(spec.entry_point)
    package = entry.partition(":")[0].partition(".")[0]
    if package in PACKAGES:
        with suppress(ImportError):
            gymnasium.register_envs(importlib.import_module(package))
    known = {str(registered.entry_point) for registered in gymnasium.registry.values()}
    wrappers = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    foreign = [entry] if entry not in known else []
    foreign += [name for name in wrappers if not name.startswith("gymnasium.wrappers.")]
    if foreign:
        raise CorerlError(
            f"its environment {spec.id} is made by {foreign[0]}, which gymnasium does not know. A dataset "
            "can name any function, so corerl did not call it. If you trust this one, add trust=true."
        )


def root() -> Path:
    """Returns the folder of minari's datasets."""
    own = os.environ.get(ROOT)
    return Path(own) if own else Path.home() / ".minari" / "datasets"


@contextmanager
def writing(id: str) -> Iterator[None]:
    """A block in which minari makes the dataset `id`, which is there once the block ends without an error.

    Until then it is in a hidden folder, whose name is no id. A part of the dataset in its place is replaced.
    Another process that makes it is waited for.

    Raises:
        FileExistsError: the dataset is there, whole.
    """
    part = root() / f".{id.replace('/', '.')}.part"
    with download.alone(part.with_suffix(".lock")):
        if _is_whole(_folder(id)):
            raise FileExistsError(f"{_folder(id)} is there already")
        shutil.rmtree(part, ignore_errors=True)
        try:
            with _rooted(part):
                yield
            _keep(part, id)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _keep(part: Path, id: str) -> None:
    """Moves the dataset `id` out of `part`, and what minari brought with it: sets that it is combined of."""
    ids = _whole_ids(part)
    if id not in ids:
        raise FileNotFoundError(f"minari left no whole {id}")
    _keep_namespaces(part)
    for made in ids:
        folder = _folder(made)
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
        elif made != id:
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        (part / made / "data").rename(folder)


def _keep_namespaces(part: Path) -> None:
    for described in part.glob("**/namespace_metadata.json"):
        kept = root() / described.relative_to(part)
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            described.rename(kept)


@contextmanager
def _rooted(folder: Path) -> Iterator[None]:
    """A block in which `folder` is that of minari's datasets."""
    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before


def _folder(id: str) -> Path:
    return root() / id / "data"


def _whole_ids(root: Path) -> list[str]:
    folders = (path.parent for path in root.glob("**/data/metadata.json"))
    ids = {folder.parent.relative_to(root).as_posix(): folder for folder in folders}
    return [id for id, folder in ids.items() if is_id(id) and _is_whole(folder)]


def _is_whole(folder: Path) -> bool:
    """Tells whether data stand beside the metadata. A killed download leaves one without the other."""
    metadata = folder / "metadata.json"
    if not metadata.is_file():
        return False
    if (folder / "main_data.hdf5").is_file():
        return True
    with suppress(OSError, ValueError, KeyError, TypeError):
        episodes = json.loads(metadata.read_text(encoding="utf-8"))["total_episodes"]
        stored = {path.parent for kind in TABLES for path in folder.glob(f"*/*.{kind}")}
        return 0 < episodes <= len(stored)
    return False


def _read(source, id: str) -> Dataset:
    """Reads a minari.MinariDataset as a Dataset."""
    n, space, taken = source.total_steps, source.observation_space, source.action_space
    if not isinstance(taken, spaces.Box | spaces.Discrete):
        raise CorerlError(f"its actions are {taken}: only boxes and numbers can be read.")
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8
    shape = space.shape if image else (_width(space),)
    observations = np.empty((n, *shape), np.uint8 if image else np.float32)
    following = np.empty_like(observations)
    columns = {key: np.empty(n, np.float32 if key == "rewards" else bool) for key in FIELDS}
    discrete = isinstance(taken, spaces.Discrete)
    actions = np.empty((n, *taken.shape), np.int64 if discrete else np.float32)
    row = 0
    for number, episode in enumerate(_episodes(source)):
        steps = len(episode["rewards"])
        rows = slice(row, row + steps)
        _check_count(row + steps, n, at_least=False)
        _check_observations(number, space, episode["observations"], steps + 1)
        _check_shape(number, "actions", episode["actions"], (steps, *taken.shape))
        for key in FIELDS:
            _check_shape(number, key, episode[key], (steps,))
        states = _numbers(space, episode["observations"], image)
        observations[rows], following[rows] = states[:-1], states[1:]
        with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
            actions[rows] = np.asarray(episode["actions"][()])
            for key in FIELDS:
                column = np.asarray(episode[key][()])
                columns[key][rows] = column if key == "rewards" else flags(column, key)
        if steps:
            last = row + steps - 1
            columns["truncations"][last] |= not columns["terminations"][last]
        row += steps
    _check_count(row, n, at_least=True)
    if not discrete:
        actions = unit_actions(actions.reshape(n, -1), taken.low.ravel(), taken.high.ravel())
    dataset = Dataset.from_steps(
        id,
        observations,
        actions,
        columns["rewards"],
        following,
        columns["terminations"],
        columns["truncations"],
    )
    if not isinstance(space, spaces.Dict):
        return dataset
    return replace(dataset, parts=widths(by_name(space)))


def _check_count(row: int, steps: int, at_least: bool) -> None:
    if row > steps or (at_least and row < steps):
        raise CorerlError(
            f"its episodes have {'' if at_least else 'at least '}{row} steps, and its metadata counts "
            f"{steps}."
        )


def _check_observations(number: int, space: spaces.Space, value, rows: int) -> None:
    for part, inner in _inside(space, value):
        _check_observations(number, part, inner, rows)
    if space.shape is not None:
        _check_shape(number, "observations", value, (rows, *space.shape))


def _width(space: spaces.Space) -> int:
    """Returns the features of an observation as a vector."""
    try:
        return spaces.flatdim(space)
    except (NotImplementedError, ValueError) as error:
        raise CorerlError(f"its observations are {space}, which is not a vector.") from error


def _inside(space: spaces.Space, value) -> Iterator[tuple[spaces.Space, Any]]:
    """Yields the parts of a dictionary or a tuple, each with its values. HDF5 holds a tuple by name."""
    if isinstance(space, spaces.Dict):
        yield from ((part, value[key]) for key, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield part, value[i if isinstance(value, tuple) else f"_index_{i}"]


def _check_shape(number: int, field: str, array, shape: tuple[int, ...]) -> None:
    """Checks a shape before reading: it may claim any size, and HDF5 takes its time to fill it."""
    if array.shape != shape:
        raise CorerlError(f"episode {number}: its {field} have shape {array.shape}, not {shape}.")


def _episodes(source) -> Iterator[dict]:
    """Yields each episode as a mapping of arrays.

    minari's own iterator also decodes the infos, which takes twice as long as all the rest.
    """
    path = Path(source.spec.data_path) / "main_data.hdf5"
    encoded = isinstance(source.observation_space, spaces.Box) and (
        source.observation_space.dtype == np.uint8
    )
    if encoded or not path.is_file():
        yield from source.storage.get_episodes(source.episode_indices)
        return
    with h5py.File(path, "r") as file:
        for i in source.episode_indices:
            if f"episode_{i}" not in file:
                raise CorerlError(f"main_data.hdf5 has no episode_{i}, which the metadata counts.")
            episode = file[f"episode_{i}"]
            yield {key: episode[key] for key in ARRAYS}  # opening one takes longer than reading it


def _numbers(space: spaces.Space, value, image: bool) -> np.ndarray:
    """Returns (T + 1, D), the observations as gymnasium flattens them. An image stays as it is."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [_numbers(part, inner, image) for part, inner in _inside(space, value)]
        return np.concatenate(parts, axis=1)
    array = np.asarray(value[()])
    if isinstance(space, spaces.Discrete):
        return _one_hot(array - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = (array - space.start).reshape(len(array), -1).T
        counts = space.nvec.ravel().tolist()
        return np.concatenate([_one_hot(*of_one) for of_one in zip(digits, counts, strict=True)], 1)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise CorerlError(
            f"its observations have a {space}, which corerl cannot read. Supported: Box, Discrete, "
            "MultiBinary, MultiDiscrete, and Dict or Tuple of these."
        )
    return array if image else array.reshape(len(array), -1)


def _one_hot(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns (T + 1, count), as gymnasium flattens a Discrete."""
    if ((numbers < 0) | (numbers >= count)).any():
        raise CorerlError(f"its observations hold a number outside its Discrete({count}).")
    return np.eye(count, dtype=np.float32)[numbers]
