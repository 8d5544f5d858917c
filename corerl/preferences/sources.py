"""Preferences between segments: what an algorithm's `Config` says of them, and where they come from.

    preferences: Preferences = field(default_factory=Preferences)       in an algorithm's Config
    comparisons = loading.comparisons(run, cfg.preferences, limit)      in its train

Labels of different sources are different data: no table may mix them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from corerl.config import Settings, added, at_least, group, one_of, positive, require, within
from corerl.data import download
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError, FileMissing
from corerl.preferences import readers, teachers
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.values import Values

if TYPE_CHECKING:
    from corerl.data.tasks import Task
    from corerl.training.run import Run

SOURCES = ("teacher", *readers.REPOSITORIES, "file")
OF_TEACHERS = ("seed", "ranked", "judge", "beta", "gamma", "epsilon", "skip", "equal")
"""Settings that labels in a file do not ask; `length` and `discount` stand in tables, whoever judges."""


@dataclass
class Preferences(Settings):
    """Settings for the comparisons to learn from. Part of an algorithm's `Config`."""

    prefix: ClassVar[str] = "algo.preferences."

    source: str = "teacher"  # teacher | pt | dppo | uni_rlhf | uni_rlhf_scripted | ipl | file
    path: str | None = None  # file or folder of labels (null: <data folder>/preferences/<source>)
    sha256: str | None = added(None)  # checksum of the file at path, computed for the run's name
    pairs: int | None = positive(None)  # number of pairs (null: all of a file, 2,000 of a teacher)
    ranked: int = added(within(2, "[2, 20]"))  # number of segments that a teacher ranks at a time
    split: bool = added(False)  # splits rankings into pairs (for algorithms that take rankings)
    crossing: str = "refuse"  # refuse | drop | keep segments in a file that cross an episode's end
    length: int = positive(64)  # steps in each segment of a teacher (files have their own)
    seed: int = at_least(0, 0)  # seed of a teacher's pairs, the same for all seeds of a run
    # What a teacher compares; the latter two ask for V, fitted whenever labels are made
    judge: str = added(  # a teacher judges segments by return | regret | advantage
        one_of("return", "regret", "advantage")
    )
    values: Values = added(group(Values))
    # A teacher's faults (B-Pref); without them it is an oracle.
    beta: float | None = at_least(  # P(win) = sigmoid(beta * return difference) (null: no noise)
        0, None
    )
    gamma: float = within(  # a myopic teacher weighs reward t of an L-step segment by gamma^(L-1-t)
        1.0, "(0, 1]"
    )
    epsilon: float = within(0.0, "[0, 1]")  # probability that a preference is reversed
    skip: float = at_least(  # a pair needs a return above this share of a usual segment's return
        0, 0.0
    )
    equal: float = at_least(  # returns tie if closer than this share of a usual segment's return
        0, 0.0
    )
    discount: float = within(1.0, "(0, 1]")  # multiplies the weight of reward t by discount^t

    def __post_init__(self):
        super().__post_init__()
        key = "algo.preferences"
        known = ", ".join(SOURCES)
        require(self.source in SOURCES, f"{key}.source={self.source} is not one of {known}")
        crossing, ways = self.crossing, readers.CROSSINGS
        require(crossing in ways, f"{key}.crossing={crossing} is not one of {', '.join(ways)}")
        require(
            self.judge == "return" or not self.skip,
            f"{key}.skip={self.skip} is a share of segment returns, but "
            f"{key}.judge={self.judge} does not judge by returns. Leave {key}.skip out",
        )
        faults = [name for name in ("epsilon", "skip", "equal") if getattr(self, name)]
        require(
            self.ranked == 2 or not faults,
            f"{key}.{', '.join(faults)} is for pairs only, but {key}.ranked={self.ranked}. Leave out one of "
            "these settings",
        )
        require(
            self.source != "file" or self.path,
            f"{key}.source=file needs {key}.path, the file of labels",
        )
        require(
            self.source != "teacher" or self.path is None,
            f"{key}.path={self.path} has no effect with {key}.source=teacher. Set {key}.source=file to read "
            "the file",
        )
        for name in OF_TEACHERS if self.source != "teacher" else ():
            value = getattr(self, name)
            require(
                value == getattr(Preferences, name),
                f"{key}.{name}={value} has no effect, because {key}.source={self.source} is not a "
                "teacher",
            )


def checksum(cfg: Preferences) -> str | None:
    """Computes the SHA-256 of the labels' file, or None where they are no single file.

    Raises:
        FileMissing: `source=file`, and there is none.
    """
    if cfg.source == "teacher":
        return None
    path = _root(cfg)
    if path.is_file():
        return download.digest(path)
    if cfg.source == "file":
        raise FileMissing(
            f"algo.preferences.path={cfg.path} must be a file that exists, but there is no {path}."
        )
    return None


def check_crop(crop: int | None, cfg: Preferences) -> None:
    """Raises CorerlError where `source=file` and its segments are shorter than an algorithm's `crop`."""
    if crop is None or cfg.source != "file":
        return
    length = readers.read_length(_root(cfg))
    require(
        crop <= length,
        f"algo.crop={crop} must not exceed {length}, the steps of a segment in {_root(cfg)}. Set "
        "algo.crop=null to use whole segments",
    )


def _root(cfg: Preferences) -> Path:
    if cfg.path is not None:
        return Path(cfg.path).expanduser()
    return download.data_dir("preferences") / cfg.source


def load(run: Run, cfg: Preferences) -> Comparisons:
    """Loads the comparisons that `cfg` asks for, on the run's data. The same for each of its seeds.

    Raises:
        CorerlError: the labels are missing, broken, or of another version of the data, or the data has
            images or discrete actions.
    """
    return find(run.task, run.dataset, cfg)


def find(task: Task, dataset: Callable[[], Dataset], cfg: Preferences) -> Comparisons:
    """Loads comparisons as `load` does, but calls `dataset` only where labels need it (not for `ipl`)."""
    if cfg.source == "teacher":
        return teachers.teach(vectors(dataset()), cfg)
    root = _root(cfg)
    if cfg.sha256 and checksum(cfg) != cfg.sha256:
        raise CorerlError(
            f"{root} has changed since this run started (its SHA-256 was {cfg.sha256[:12]}...). Restore the "
            "old file of labels, or start a new run with the new file."
        )
    if cfg.source == "ipl":
        require(
            task.action_range is None,
            "action_range changes the dataset's actions, but the labels of algo.preferences.source=ipl "
            "have actions of their own. Leave action_range out",
        )
        return _fitting(task, readers.read_ipl(root, task.name, task.id)).first(cfg.pairs)
    if cfg.source == "file":
        return readers.read_own(root, vectors(dataset()), task.history).first(cfg.pairs)
    require(
        task.collection == "d4rl",
        f"the labels of {cfg.source} are for D4RL's tasks (d4rl/...), not for {task.id}. Choose a "
        "task of D4RL",
    )
    found = readers.read_rows(cfg.source, root, task.name)
    compared = readers.on_rows(vectors(dataset()), found, cfg.source, cfg.crossing)
    return compared.first(cfg.pairs)


def _fitting(task: Task, compared: Comparisons) -> Comparisons:
    """Returns `compared` where its numbers are the task's environment's, or that cannot be made here."""
    try:
        env = task.make_env()
    except CorerlError:
        return compared
    sizes = env.observation_space.shape, env.action_space.shape
    env.close()
    theirs = (compared.observation_dim,), (compared.action_dim,)
    require(
        sizes == theirs,
        f"observations and actions of {task.id} have shapes {sizes[0]} and {sizes[1]}, but those "
        f"of the labels have {theirs[0]} and {theirs[1]}. Choose labels of the same task",
    )
    return compared


def vectors(dataset: Dataset) -> Dataset:
    """Returns `dataset`. Raises CorerlError where preferences cannot be learned on it."""
    require(
        not dataset.discrete and dataset.observations.ndim == 2,
        f"learning from preferences needs vector observations and continuous actions, but {dataset.id} "
        "does not have both",
    )
    return dataset
