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
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from corerl.data import download, minari_episodes, tables
from corerl.data.dataset import Dataset
from corerl.data.files.io import one_line, reading
from corerl.data.observations import by_name
from corerl.errors import CorerlError, nearest

ROOT = "MINARI_DATASETS_PATH"
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
        return minari_episodes.read(minari.MinariDataset(folder), f"minari/{id}")


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
    where = f"put the dataset's folder in {_folder(id).parent} by hand"
    if download.offline():
        raise CorerlError(
            f"{id} is not on this machine and CORERL_OFFLINE is set. Unset CORERL_OFFLINE, or {where}."
        )
    import minari

    try:
        with writing(id):
            minari.download_dataset(id)
    except ImportError as e:
        raise CorerlError(
            f'minari cannot download {id} ({e}). Run pip install "minari[hf]", or {where}.'
        ) from e
    except Exception as e:  # the remotes raise errors of their own, one kind per storage service
        if isinstance(e, FileExistsError) and (file := find(id)):  # another process brought it
            return file
        raise CorerlError(
            f"minari cannot download {id} ({one_line(e)}). Check the network and the id, "
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
            raise CorerlError("the dataset does not name an environment to evaluate in.")
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
            f"its environment {spec.id} is made by {foreign[0]}, which gymnasium has not "
            "registered. A dataset can name any function, so corerl did not call it. If you trust "
            "the dataset, add trust=true."
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
            raise FileExistsError(f"{_folder(id)} exists already")
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
        raise FileNotFoundError(f"minari left {id} incomplete")
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
