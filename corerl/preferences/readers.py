"""Labels in the files that others published, and in our own.

    pt, dppo            <folder>/<environment>/{indices_num*, indices_2_num*, label_human}: people's labels on
                        segments of 100 steps of D4RL's data (Kim et al. 2023; An et al. 2023)
    uni_rlhf            <folder>/<environment>_human_labels/{human_label,indices_1,indices_2}_*.pkl: crowds'
                        labels, 2,000 an environment (Yuan et al. 2024); the length stands in the names
    uni_rlhf_scripted   <folder>/<environment>_fake_labels/...: a script's labels on the same pairs
    ipl                 a file of segments by value, or <folder>/<environment>/*_train.npz: the pt labels as
                        Hejna and Sadigh (2023) cut them out; needs no dataset
    file                what `corerl data preferences --out` wrote

In the pickles 0 says that the first segment is preferred, 1 the second, -1 neither. Where there are more
pairs than labels, the first ones are labelled. Indices count the rows of D4RL's `qlearning_dataset`: the raw
rows without those that time out, and without the last. So all of HalfCheetah's segments lie within its
episodes of 1,000 steps, and 98.5 % of the scripted labels on door-human agree with the rewards of the
demonstrations that it replays; of the raw rows of these numbers, 84.9 %.

Some segments cross an episode's end: Uni-RLHF's sampler (fast_track/generate_d4rl_fake_labels.py) counts to
a fixed number of steps and sees no time-outs. That is none in HalfCheetah, by its code at most one in 800 in
Hopper and Walker2d, and 18 % in door-human. Its authors fit reward networks to them all the same; `crossing`
says what is done here. What is kept suits those, not methods that learn from the steps within a segment.
In AntMaze the samplers look at goals and time-outs, not at terminal states: how many segments run over one is
not known to us.
"""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corerl.data.dataset import Dataset
from corerl.data.files.io import npz
from corerl.errors import CorerlError
from corerl.preferences.comparisons import LABELS, Comparisons, following, one_length
from corerl.preferences.pickles import read_array, read_integers
from corerl.runs.files import make_directory, write_atomically

CODES = {0: 0.0, 1: 1.0, -1: 0.5}
STEPS = 100  # of a segment of PT's and DPPO's D4RL sets
REPOSITORIES = {
    "pt": "csmile-1006/PreferenceTransformer, human_label",
    "dppo": "snu-mllab/DPPO, human_label",
    "uni_rlhf": "pickxiguapi/Clean-Offline-RLHF, crowdsource_human_labels",
    "uni_rlhf_scripted": "pickxiguapi/Clean-Offline-RLHF, generated_fake_labels",
    "ipl": "jhejna/inverse-preference-learning, datasets/preference_transformer",
}
"""The repository on GitHub and its folder that the files are from."""
CROSSINGS = ("refuse", "drop", "keep")
ROUNDING = 1e-4
"""By how much an action may lie beyond -1 or 1."""


class Labelled(NamedTuple):
    """Comparisons of rows that make transitions, as a file has them."""

    where: Path
    starts: np.ndarray  # (P, 2) int64
    labels: np.ndarray  # (P,)
    length: int


def read_rows(source: str, root: Path, environment: str) -> Labelled:
    """Reads the labels of a source other than `ipl` and `file` on an environment of D4RL, `hopper-medium-v2`.

    Raises:
        CorerlError: no folder has them, or a file is broken, short, or labelled otherwise.
    """
    if source in ("pt", "dppo"):
        folder = _folder(source, root, environment)
        names = ("indices_num*", "indices_2_num*", "label_human")
        first, second, labels = (_one(folder, name) for name in names)
        return _labelled(folder, first, second, _codes(labels), STEPS)
    scripted = source == "uni_rlhf_scripted"
    folder = _folder(source, root, f"{environment}_{'fake' if scripted else 'human'}_labels")
    names = ("indices_1", "indices_2", "fake_label" if scripted else "human_label")
    paths = [_one(folder, f"{name}_*_env_{environment}_num_*.pkl") for name in names]
    length = re.search(r"_len_(\d+)_", paths[0].name)
    if length is None or any(length[0] not in path.name for path in paths):
        raise CorerlError(
            f"All files in {folder} must have the same segment length in their names, as in _len_200_."
        )
    labels = (_probabilities if scripted else _codes)(paths[2])
    return _labelled(folder, *paths[:2], labels, int(length[1]))


def _folder(source: str, root: Path, name: str) -> Path:
    """Returns `root` itself or a folder in it, of this name."""
    inside = REPOSITORIES[source].rpartition(", ")[2]
    candidates = (root / name, root / inside / name, *([root] if root.name == name else []))
    for folder in candidates:
        if folder.is_dir():
            return folder
    within = root / inside if (root / inside).is_dir() else root
    folders = sorted(path.name for path in within.glob("*") if path.is_dir())
    raise CorerlError(
        f"{within} has no folder {name} with the labels of {source}"
        + (f", only {', '.join(folders)}" if folders else "")
        + f". Get the labels from github.com/{REPOSITORIES[source]}, and set algo.preferences.path to their "
        "folder."
    )


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise CorerlError(f"{folder} must have exactly one file {pattern}, but has {len(found)}.")
    return found[0]


def _codes(path: Path) -> np.ndarray:
    codes = read_integers(path)
    bad = np.flatnonzero(~np.isin(codes, list(CODES)))
    if bad.size:
        raise CorerlError(
            f"{path}: row {bad[0]} is {codes[bad[0]]}, but must be 0 (the first is preferred), 1 (the "
            "second) or -1 (neither)."
        )
    return np.select([codes == code for code in CODES], list(CODES.values()))


def _probabilities(path: Path) -> np.ndarray:
    """Reads the probabilities of the second segment, from rows (1, 0), (0, 1) and (0.5, 0.5)."""
    pairs = read_array(path)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise CorerlError(
            f"the array in {path} has shape {pairs.shape}, but must have shape (n, 2)."
        )
    bad = np.flatnonzero(~np.isin(pairs[:, 1], LABELS) | (pairs.sum(1) != 1))
    if bad.size:
        raise CorerlError(
            f"{path}: row {bad[0]} is {pairs[bad[0]]}, but must be (1, 0), (0, 1) or (0.5, 0.5)."
        )
    return pairs[:, 1]


def _labelled(folder: Path, first: Path, second: Path, labels: np.ndarray, length: int) -> Labelled:
    starts = [read_integers(path) for path in (first, second)]
    if len(starts[0]) != len(starts[1]) or len(labels) > len(starts[0]) or not len(labels):
        raise CorerlError(
            f"{folder} has {len(starts[0])} first and {len(starts[1])} second segments and "
            f"{len(labels)} labels, so one of its files is cut off. Download the files again."
        )
    return Labelled(folder, np.stack(starts, 1)[: len(labels)], labels, length)


def on_rows(dataset: Dataset, found: Labelled, source: str, crossing: str) -> Comparisons:
    """Returns the labelled segments, found among the dataset's rows.

    Args:
        crossing: what is done with a comparison where a segment crosses an episode's end: `refuse` all of
            them, `drop` it, or `keep` it, and the rows as one long episode.

    Raises:
        CorerlError: a segment lies outside the data, or crosses an end and that is refused.
    """
    rows = dataset.transition_rows()
    last = found.starts + found.length - 1
    for p, which in np.argwhere((found.starts < 0) | (last >= len(rows)))[:1]:
        raise CorerlError(
            f"{found.where}: segment {which + 1} of comparison {p} begins at transition "
            f"{found.starts[p, which]} and has {found.length} steps, but {dataset.id} has only {len(rows)} "
            "transitions. Get the version of the data that was labelled."
        )
    if crossing == "keep":
        return _as_one_episode(dataset, rows, found, source)
    starts, last = rows[found.starts], rows[last]
    episodes = [np.searchsorted(dataset.episode_ends, x, side="right") for x in (starts, last)]
    crosses = (episodes[0] != episodes[1]) | (last - starts != found.length - 1)
    bad = crosses.any(1)
    if crossing == "refuse" and bad.any():
        p, which = np.argwhere(crosses)[0]
        raise CorerlError(
            f"{found.where}: in {bad.sum()} of {len(bad)} comparisons, a segment crosses an episode's end. "
            f"The first is segment {which + 1} of comparison {p}, in rows {starts[p, which]} to "
            f"{last[p, which]} of the data. Set algo.preferences.crossing=drop to leave such comparisons "
            "out, or =keep to learn from them, as the labels' authors did."
        )
    return Comparisons.of_dataset(dataset, starts[~bad], found.length, found.labels[~bad], source)


def _as_one_episode(
    dataset: Dataset, rows: np.ndarray, found: Labelled, source: str
) -> Comparisons:
    return Comparisons(
        id=dataset.id,
        source=source,
        observations=dataset.observations[rows],
        actions=dataset.actions[rows],
        next_observations=following(dataset)[rows],
        terminated=dataset.terminated[rows],
        rewards=dataset.rewards[rows],
        ends=np.array([len(rows)]),
        starts=found.starts,
        length=found.length,
        labels=found.labels.astype(np.float32),
    )


def read_ipl(root: Path, environment: str, id: str) -> Comparisons:
    """Segments by value: `obs_1, obs_2` (P, L, O), `action_1, action_2` (P, L, A), `label` (P,).

    Raises:
        CorerlError: there is no such file, it lacks an array or they do not agree.
    """
    path = root
    if not root.is_file():
        # *_eval.npz are the last tenth of the *_train.npz beside them, not others.
        path = _one(_folder("ipl", root, environment), "*_train.npz")
    wanted = ("obs_1", "obs_2", "action_1", "action_2", "label")
    with npz(path, "an npz file of segments") as file:
        parts = _keys(file, wanted)
        for name in wanted[1:4]:
            like = parts["obs_1" if name == "obs_2" else "action_1"]
            if parts[name].shape != like.shape or len(like) != len(parts["label"]):
                raise CorerlError(
                    f"{name} has shape {parts[name].shape}, but must have shape {like.shape}, with "
                    f"one row for each of the labels (shape {parts['label'].shape})."
                )
        observations, actions = (
            np.stack([parts[f"{name}_1"], parts[f"{name}_2"]], 1) for name in ("obs", "action")
        )
        for p, which, *place in np.argwhere(np.abs(actions) > 1 + ROUNDING)[:1]:
            raise CorerlError(
                f"action_{which + 1} of comparison {p} holds {actions[p, which, *place]:g}, outside [-1, 1]. "
                "Scale actions so that -1 and 1 are the bounds of the environment."
            )
        return Comparisons.by_value(id, "ipl", observations, actions.clip(-1, 1), parts["label"])


def _keys(file, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    missing = [name for name in wanted if name not in file]
    if missing:
        raise CorerlError(
            f"it must have the arrays {', '.join(wanted)}, but has only {', '.join(file)}."
        )
    return {name: file[name] for name in wanted}


# Our own.


def fingerprint(dataset: Dataset, history: int = 1) -> str:
    """Hashes latest observations, rewards and episode ends: labels belong to one version of a dataset.

    Whatever its actions are scaled to, and however many observations are one input.
    """
    width = dataset.observations.shape[1] // history
    return _digest(dataset.observations[:, -width:], dataset.rewards, dataset.episode_ends)


def is_of(sha256: str, dataset: Dataset, history: int = 1) -> bool:
    """Tells whether labels with this fingerprint, or with an older version's, are of the dataset."""
    older = _digest(dataset.actions, dataset.rewards, dataset.episode_ends)
    return sha256 in (fingerprint(dataset, history), older)


def _digest(*arrays: np.ndarray) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def write(path: Path, comparisons: Comparisons, dataset: Dataset) -> None:
    """Writes where the segments of `dataset` start and what their labels are, as plain npz."""
    save(
        path,
        starts=comparisons.starts,
        labels=comparisons.labels,
        length=comparisons.length,
        source=comparisons.source,
        dataset=comparisons.id,
        sha256=fingerprint(dataset),
        **_named(comparisons),
    )


def _named(comparisons: Comparisons) -> dict[str, np.ndarray]:
    if comparisons.labellers is None:
        return {}
    return {"labellers": np.array(comparisons.names)[comparisons.labellers]}


def save(path: Path, **arrays: Any) -> None:
    """Writes arrays as plain npz, whole or not at all."""
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    make_directory(path.absolute().parent)
    write_atomically(path, content.getvalue())


def read_own(path: Path, dataset: Dataset, history: int = 1) -> Comparisons:
    """Reads comparisons that `write` wrote. Their `source` is the teacher's. `history` is the dataset's.

    Raises:
        CorerlError: the file is broken, or of another dataset or version of it.
    """
    names = ("starts", "labels", "length", "source", "dataset", "sha256")
    with npz(path, "an npz file of comparisons") as file:
        parts = _keys(file, names)
        if not is_of(str(parts["sha256"]), dataset, history):
            raise CorerlError(
                f"its labels are for {parts['dataset']}, whose rows differ from those of "
                f"{dataset.id} on this machine. Get the data that was labelled, or make the labels again."
            )
        if not len(np.atleast_1d(parts["labels"])):
            raise CorerlError(
                "the file has no answers yet. Answer some questions with `corerl label`."
            )
        source, length = str(parts["source"]), one_length(parts["length"])
        judged = parts["labels"], source, file.get("labellers")
        return Comparisons.of_dataset(dataset, parts["starts"], length, *judged)


def read_length(path: Path) -> int:
    """Reads how many steps the segments have in a file that `write` wrote. CorerlError as `read_own`."""
    with npz(path, "an npz file of comparisons") as file:
        return one_length(_keys(file, ("length",))["length"])
