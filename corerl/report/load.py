"""Scores from run directories and score files, as one tidy table."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corerl.errors import CorerlError
from corerl.report.labels import Settings, split
from corerl.report.scorefiles import COLUMNS, read_file, read_scores
from corerl.report.units import settled
from corerl.runs import pending
from corerl.runs.config_labels import flatten
from corerl.runs.directory import read_status
from corerl.runs.files import below, read_json, read_yaml

FINISHED = "done"


@dataclass
class Results:
    """Everything that was read.

    `scores`: one row per run and evaluation with COLUMNS; `unit` is one of units.UNITS. Steps of a run
    that goes on online count those of the environment: its updates on the data, `pretrained` of them, end
    at step 0. `runs`: one row per group of seeds in the same state, with RUN_COLUMNS; `label` is the
    algorithm's name before configurations were named apart, `file` leads to the group's scores.
    `settings`: {file: flat settings}. `environments`: {file: env.json}. `labels`: {algorithm in `scores`:
    its name before configurations were named apart}.
    """

    scores: pd.DataFrame
    runs: pd.DataFrame
    settings: dict[str, Settings] = field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)


def load(paths: Iterable[Path | str], unfinished: bool = False) -> Results:
    """Reads run folders (searched recursively) and score files.

    Runs that have not finished are listed in `runs` but their scores are left out, unless
    `unfinished`; seeds that diverged are always left out. Raises CorerlError, naming the file and
    row, for anything unreadable, and if there is no score at all.
    """
    paths = [Path(path) for path in paths]
    read = _Reading(unfinished)
    seen: set[Path] = set()  # paths may overlap, as runs runs/corerl do
    for path in paths:
        if not os.path.exists(path):
            raise CorerlError(
                f"There is no file or folder {path}. Give run folders or score files."
            )
        for place in _places(path):
            file = (place if place.is_file() else place / "scores.csv").resolve()
            if file in seen:
                continue
            seen.add(file)
            if place.is_file():
                read.parts.append(read_file(place))
            else:
                read.add_folder(place)
    scores = _concat(read.parts).reset_index(drop=True)
    runs = pd.DataFrame(read.runs, columns=RUN_COLUMNS)
    if not len(scores):
        raise CorerlError(_nothing(paths, runs))
    labels = scores["algorithm"].copy()
    unit = settled(scores.reindex(columns=[*COLUMNS, "success"]))
    scores, notes = split(scores[COLUMNS].assign(unit=unit), read.configs)
    _refuse_twice(scores)
    notes += _several_codes(scores, read.environments)
    labels = dict(zip(scores["algorithm"], labels, strict=True))
    return Results(scores, runs, read.settings, read.environments, notes, labels)


def _several_codes(scores: pd.DataFrame, environments: dict[str, dict[str, Any]]) -> list[str]:
    """Names what is pooled of seeds that were trained with different code of their algorithm.

    A seed that went on after a change has several, a list.
    """
    codes = {file: facts["code"] for file, facts in environments.items() if facts.get("code")}
    trained = scores.assign(code=scores["file"].map(codes)).explode("code")
    counts = trained.groupby(["algorithm", "task"], sort=False)["code"].nunique()
    return [
        f"The report pools the seeds of {algorithm} on {task}, although they were trained with different "
        "code of their algorithm."
        for algorithm, task in counts.index[counts > 1]
    ]


RUN_COLUMNS = [
    *("algorithm", "task", "seeds", "state", "step", "steps", "message", "counted", "file"),
    *("updates_per_s", "seconds", "compile"),  # as status.json has them
]
_NO_SCORES = pd.DataFrame(columns=COLUMNS)


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([p for p in parts if len(p)]) if any(map(len, parts)) else _NO_SCORES


def _nothing(paths: list[Path], runs: pd.DataFrame) -> str:
    where = ", ".join(map(str, paths))
    if not len(runs):
        return (
            f"There is no scores.csv or status.json under {where}, so there are no runs. "
            "Give a folder of runs."
        )
    states = ", ".join(f"{n} {s}" for s, n in runs["state"].value_counts().items())
    return (
        f"No run under {where} has finished with a score ({states}). See corerl status, or add "
        "--unfinished to report their latest evaluations."
    )


def _places(path: Path) -> list[Path]:
    """Returns what is below a folder, or a score file. A run's own is its folder, which knows what counts."""
    if not path.is_file():
        return _seed_folders(path)
    of_run = path.name == "scores.csv" and (path.parent / "status.json").exists()
    return [path.parent if of_run else path]


def _seed_folders(root: Path) -> list[Path]:
    """Returns the folders of groups of seeds and of score files. Not those of reports that lie among them."""
    folders = {file.parent for file in below(root, "scores.csv", "status.json")}
    folders = {folder for folder in folders if not (folder / "scores.tex").exists()}  # tables
    reports = {folder for folder in folders if (folder / "index.html").exists()}
    return sorted(folders - reports or folders & {root})  # a report's scores if it is all there is


# --------------------------------------------------------------------------------- run directories


class _Reading:
    """The runs and scores read so far."""

    def __init__(self, unfinished: bool):
        self.unfinished = unfinished
        self.parts: list[pd.DataFrame] = []
        self.runs: list[tuple] = []
        self.settings: dict[str, Settings] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        self.configs: dict[tuple[str, str], Settings] = {}

    def add_folder(self, folder: Path) -> None:
        """Adds a group of seeds, or a folder that holds a score file and nothing else of a run."""
        if folder.name in ("", ".."):  # of which `parent` is not the folder above
            folder = folder.resolve()
        file = folder / "scores.csv"
        if not (folder / "status.json").exists() and not (folder.parent / "config.yaml").exists():
            self.parts.append(read_scores(file))
            return
        environment = read_json(folder / "env.json")
        if isinstance(environment, dict):
            self.environments[str(file)] = environment
        begun = _begun_from(self.environments.get(str(file), {}))
        config = _settings(folder.parent / "config.yaml")
        scores, rows = _read_group(folder, config, self.unfinished, begun)
        self.parts.append(scores)
        self.runs += rows
        flat = flatten(config)
        self.settings[str(file)] = flat
        for key in set(zip(scores["task"], scores["config"], strict=True)):
            self.configs[key] = flat


def _read_group(
    folder: Path, config: dict[str, Any], unfinished: bool, begun: int
) -> tuple[pd.DataFrame, list[tuple]]:
    """Reads the counted scores of one group of seeds, and its rows of the list of runs.

    `begun` steps were made by the run that it went on from.
    """
    status = read_status(folder)
    file = folder / "scores.csv"
    if status.get("state") == FINISHED and pending.steps(folder):
        status |= {"state": "pending", "message": pending.described(folder.parent)}
    done = status.get("state") == FINISHED
    scores = read_scores(file, running=not done) if file.exists() else _NO_SCORES
    group = _Group(
        algorithm=config.get("label") or folder.parent.name.rpartition("-")[0],
        task=config.get("task", "?"),
        state=_state(status, config, scores),
        steps=status.get("steps", config.get("steps")),
        status=status,
        file=file,
    )
    kept, rows = _judge_seeds(group, scores, unfinished)
    own = pretrained(config)
    return kept.assign(step=kept["step"] - own, pretrained=begun + own), rows


def pretrained(config: dict[str, Any]) -> int:
    """Counts a run's updates on the data before the environment's first step, which its files count too."""
    algo = config.get("algo") or {}
    return algo.get("online", {}).get("pretrain_steps", 0) if algo.get("phase") == "both" else 0


def _begun_from(environment: dict[str, Any]) -> int:
    """Counts the steps of the finished run that this one continued (`training.pretrained.restore`)."""
    said = environment.get("pretrained")
    steps = said.get("steps") if isinstance(said, dict) else None
    return steps if isinstance(steps, int) else 0


@dataclass(frozen=True)
class _Group:
    """Facts shared by a group of seeds that ran together."""

    algorithm: str
    task: str
    state: str
    steps: int | None
    status: dict[str, Any]
    file: Path


def _state(status: dict, config: dict, scores: pd.DataFrame) -> str:
    if "state" in status:
        return str(status["state"])
    reached = len(scores) and "steps" in config and scores["step"].max() >= config["steps"]
    return FINISHED if reached else "unknown"


def _judge_seeds(
    group: _Group, scores: pd.DataFrame, unfinished: bool
) -> tuple[pd.DataFrame, list[tuple]]:
    """Keeps the seeds that count: of a finished run, neither diverged nor stopped early."""
    kept, found = [], {}
    if len(scores):  # the file's own words come before the folder's
        first = scores.iloc[0]
        group = replace(group, algorithm=first["algorithm"], task=first["task"])
    end = max(scores["step"].max(), group.status.get("evaluated") or 0)  # rows may have been lost
    of_rows, steps = scores["seed"].to_numpy(), scores["step"].to_numpy()
    lost = scores["score"].isna().to_numpy()
    for seed in sorted({*of_rows.tolist(), *group.status.get("seeds", [])}):
        rows = np.flatnonzero(of_rows == seed)
        state, step = _judge(group, seed, steps[rows], lost[rows], end)
        counted = bool(len(rows)) and (state == FINISHED or (unfinished and state != "diverged"))
        if counted:
            kept.append(rows)
        found.setdefault((state, step, counted), []).append(seed)
    if not found:
        found[(group.state, group.status.get("step"), False)] = []
    head = (group.algorithm, group.task)
    last = (str(group.file), *map(group.status.get, ("updates_per_s", "seconds", "compile")))
    message = str(group.status.get("message", ""))
    name = group.file.parent.name
    table = [
        (*head, ranges(seeds) or name, state, step, group.steps, message, counted, *last)
        for (state, step, counted), seeds in found.items()
    ]
    return (scores.iloc[np.concatenate(kept)] if kept else _NO_SCORES), table


def _judge(
    group: _Group, seed: int, steps: np.ndarray, lost: np.ndarray, end: int
) -> tuple[str, int | None]:
    """Returns a seed's state and how far it came, from the steps of its rows and where they have no score."""
    diverged = group.status.get("diverged") or {}
    if str(seed) in diverged:
        return "diverged", int(diverged[str(seed)])
    if lost.any():
        return "diverged", int(steps[lost].min())
    if not len(steps):
        return ("no score" if group.state == FINISHED else group.state), group.status.get("step")
    last = int(steps.max())
    stopped = group.state == FINISHED and last < end
    return ("stopped early" if stopped else group.state), last


def ranges(seeds: list) -> str:
    """Writes `[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _settings(file: Path) -> dict[str, Any]:
    """Reads a run's settings, as far as a report needs them, or empty where the file is absent."""
    found = read_yaml(file) if file.exists() else {}

    def hold(name: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            raise CorerlError(f"{file} is damaged: {name} is {value!r:.40}. Repair or remove it.")
        return value

    hold("task", found.get("task", ""), str)
    hold("label", found.get("label") or "", str)
    hold("steps", found.get("steps", 0), int)
    algo = hold("algo", found.get("algo") or {}, dict)
    online = hold("algo.online", algo.get("online") or {}, dict)
    hold("algo.online.pretrain_steps", online.get("pretrain_steps", 0), int)
    return found


def _refuse_twice(scores: pd.DataFrame) -> None:
    keys = ["algorithm", "task", "seed", "step"]
    twice = scores.duplicated(keys, keep=False)
    if not twice.any():
        return
    rows = scores[twice].sort_values(keys, kind="stable").iloc[:2]
    a, b = rows.iloc[0], rows.iloc[1]
    raise CorerlError(
        f"{a['algorithm']} on {a['task']} with seed {a['seed']} and step {a['step']} is in "
        f"{a['file']} and again in {b['file']}. Give only one of the two files, or change an algorithm name."
    )
