"""`neorl2/...`: NeoRL-2, near-real-world tasks of Gao et al. 2025 (arXiv:2503.19267), CC BY 4.0.

Files are npz with obs, action, next_obs, reward, done, truncated; the next observation is recorded
everywhere, so every row is a transition. Actions are in [-1, 1], as the environments take them.

As `get_dataset()` of the neorl2 package does, Fusion keeps its first 20 training episodes and
RocketRecovery its first 100 (validation: a quarter of that); `episodes=None` keeps all.

`Pipeline` in the project's GitHub repository is an earlier version than the released one. A file
that you put in the folder yourself is read with a warning; a download that differs is refused.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from corerl.data import download, tables
from corerl.data.action_scaling import unit_actions
from corerl.data.dataset import Dataset
from corerl.data.files.io import check_keys, npz
from corerl.errors import CorerlError

REPOSITORY = (
    "https://raw.githubusercontent.com/polixir/neorl2_dataset/"
    "a06cd69a2d3b223dd6e653f9209444b9d0fbefc2/scripts/dataset"
)
RELEASE = "http://datasets.polixir.site/neorl2"
KEYS = ("obs", "action", "next_obs", "reward", "done", "truncated")
ROWS = {"train": 100000, "val": 20000}
TRAIN_EPISODES = {"Fusion": 20, "RocketRecovery": 100}  # neorl2/envs/base.py, get_dataset


def names() -> list[str]:
    return list(tables.neorl2())


def load(name: str, split: str = "train", episodes: int | str | None = "protocol") -> Dataset:
    """Loads the released data of a task, downloaded if it is not in the data folder.

    `episodes` keeps only the first so many; "protocol" is the package's own number, None is all.
    """
    file = find(name, split)
    dataset = read(file or fetch(name, split), f"neorl2/{name}")
    checksum = _checksum(name, split)
    if file and not download.matches(file, checksum):
        warnings.warn(
            f"{file} is not the released NeoRL-2 file ({checksum}). State this next to every result "
            "on it, or delete it so that corerl downloads the released file.",
            stacklevel=2,
        )
    if episodes == "protocol":
        episodes = TRAIN_EPISODES.get(name)
        episodes = episodes // 4 if episodes and split == "val" else episodes
    if episodes is None or episodes >= dataset.n_episodes:
        return dataset
    return dataset.select_episodes(np.arange(episodes))


def reference(name: str) -> tuple[float, float]:
    """Returns that score 0 and 100."""
    row = tables.neorl2()[name]
    return float(row["min"]), float(row["max"])


def find(name: str, split: str = "train") -> Path | None:
    """Finds the file on this machine, under the name of the release or of the GitHub repository."""
    return download.find("neorl2", _file_names(name, split))


def fetch(name: str, split: str = "train") -> Path:
    """Downloads the file of a task. Its digest must be the released one."""
    release, repository = _file_names(name, split)
    old = name == "Pipeline"
    url = f"{RELEASE}/{name}/{release}" if old else f"{REPOSITORY}/{name}/{repository}"
    return download.fetch(url, download.data_dir("neorl2") / release, _checksum(name, split))


def read(path: Path | str, id: str | None = None) -> Dataset:
    """Reads one npz file in NeoRL-2's layout."""
    path = Path(path)
    with npz(path, "an npz file") as file:
        check_keys(file, KEYS, "NeoRL-2's")
        obs, action, next_obs, reward, done, truncated = (file[key] for key in KEYS)
        action = unit_actions(action, -1, 1)
        return Dataset.from_steps(
            id or f"neorl2/{path.stem}", obs, action, reward, next_obs, done, truncated
        )


def _file_names(name: str, split: str) -> tuple[str, str]:
    if name not in tables.neorl2() or split not in ROWS:
        raise CorerlError(
            f"NeoRL-2 has no split {split} of a task {name}. Tasks: {', '.join(names())}. Splits: train, val."
        )
    return f"{name}-{split}.npz", f"{name}-high-{ROWS[split]}-{split}.npz"


def _checksum(name: str, split: str) -> str:
    return "md5:" + tables.neorl2()[name][f"{split}_md5"]
