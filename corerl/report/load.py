"""Scores from run directories and score files, as one tidy table."""

import csv
import gzip
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from corerl.errors import CorerlError

COLUMNS = ["algorithm", "task", "seed", "step", "score", "unit", "config", "file"]
FINISHED = "done"


@dataclass
class Results:
    """Everything that was read.

    `scores`: one row per run and evaluation with COLUMNS; `unit` is "normalised" (x100) or "raw". Steps of
    a run that goes on online count those of the environment: its updates on the data end at step 0.
    `runs`: one row per group of seeds in the same state, with columns algorithm, task, seeds,
    state, step, steps, message, counted, file. `environments`: the env.json of every run read.
    """

    scores: pd.DataFrame
    runs: pd.DataFrame
    environments: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load(paths: Iterable[Path], unfinished: bool = False) -> Results:
    """Read run folders (searched recursively) and score files.

    Runs that have not finished are listed in `runs` but their scores are left out, unless
    `unfinished`; seeds that diverged are always left out. Raises CorerlError, naming the file and
    row, for anything unreadable, and if there is no score at all.
    """
    parts, runs, environments, configs = [], [], [], {}
    paths = list(paths)
    for path in paths:
        if not path.exists():
            raise CorerlError(f"There is no {path}; give run folders or score files.")
        if path.is_file():
            parts.append(read_file(path))
            continue
        for folder in _seed_folders(path):
            scores, rows = _read_group(folder, unfinished)
            parts.append(scores)
            runs.extend(rows)
            environments.extend(_json(folder / "env.json"))
            configs.update(_config(folder.parent, scores))
    scores = _concat(parts).reset_index(drop=True)
    table = pd.DataFrame(runs, columns=_RUN_COLUMNS)
    if not len(scores):
        raise CorerlError(_nothing(paths, table))
    scores, notes = _split_configs(scores, configs)
    _refuse_twice(scores)
    return Results(scores, table, environments, notes)


_RUN_COLUMNS = [
    *("algorithm", "task", "seeds", "state", "step", "steps", "message", "counted", "file")
]
_NO_SCORES = pd.DataFrame(columns=COLUMNS)


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([p for p in parts if len(p)]) if any(map(len, parts)) else _NO_SCORES


def _nothing(paths: list[Path], runs: pd.DataFrame) -> str:
    where = ", ".join(map(str, paths))
    if not len(runs):
        return f"There are no runs under {where}: no scores.csv and no status.json."
    states = ", ".join(f"{n} {s}" for s, n in runs["state"].value_counts().items())
    return (
        f"No run under {where} has finished with a score ({states}); see corerl status, or add "
        "--unfinished to report the latest evaluation of runs that have one."
    )


def _seed_folders(root: Path) -> list[Path]:
    marks = [*root.rglob("scores.csv"), *root.rglob("status.json")]
    return sorted({p.parent for p in marks})


# --------------------------------------------------------------------------------- run directories


def _read_group(folder: Path, unfinished: bool) -> tuple[pd.DataFrame, list[tuple]]:
    """The counted scores of one group of seeds, and its rows of the list of runs."""
    status = (_json(folder / "status.json") or [{}])[0]
    config = _yaml(folder.parent / "config.yaml")
    file = folder / "scores.csv"
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
    return kept.assign(step=kept["step"] - _pretrained(config)), rows


def _pretrained(config: dict[str, Any]) -> int:
    """How many of a run's steps were updates on the data before the environment's first."""
    algo = config.get("algo") or {}
    return algo["online"]["pretrain_steps"] if algo.get("phase") == "both" else 0


@dataclass(frozen=True)
class _Group:
    """What a group of seeds that ran together has in common."""

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
    """Which seeds count: those of a finished run that neither diverged nor stopped early."""
    kept, found = [], {}
    if len(scores):  # the file's own words come before the folder's
        first = scores.iloc[0]
        group = replace(group, algorithm=first["algorithm"], task=first["task"])
    for seed in sorted({*scores["seed"], *group.status.get("seeds", [])}):
        rows = scores[scores["seed"] == seed]
        state, step = _judge(group, seed, rows, scores["step"].max())
        counted = bool(len(rows)) and (state == FINISHED or (unfinished and state != "diverged"))
        if counted:
            kept.append(rows)
        found.setdefault((state, step, counted), []).append(seed)
    if not found:
        found[(group.state, group.status.get("step"), False)] = []
    head = (group.algorithm, group.task)
    tail = (group.steps, str(group.status.get("message", "")))
    table = [
        (
            *head,
            _ranges(seeds) or group.file.parent.name,
            state,
            step,
            *tail,
            counted,
            str(group.file),
        )
        for (state, step, counted), seeds in found.items()
    ]
    return _concat(kept), table


def _judge(group: _Group, seed: int, rows: pd.DataFrame, end: int) -> tuple[str, int | None]:
    diverged = group.status.get("diverged") or {}
    bad = rows["score"].isna()
    if str(seed) in diverged:
        return "diverged", int(diverged[str(seed)])
    if bad.any():
        return "diverged", int(rows.loc[bad, "step"].min())
    if not len(rows):
        return ("no score" if group.state == FINISHED else group.state), group.status.get("step")
    last = int(rows["step"].max())
    stopped = group.state == FINISHED and last < end
    return ("stopped early" if stopped else group.state), last


def _ranges(seeds: list) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _json(file: Path) -> list[dict]:
    """[content], or [] where the file is absent."""
    if not file.exists():
        return []
    try:
        content = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise CorerlError(f"{file} is not readable JSON ({e}); repair or remove it.") from e
    if not isinstance(content, dict):
        raise CorerlError(f"{file} should hold a JSON object; repair or remove it.")
    return [content]


def _yaml(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        content = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        reason = " ".join(str(e).split())
        raise CorerlError(f"{file} is not readable YAML ({reason}); repair or remove it.") from e
    if not isinstance(content, dict):
        raise CorerlError(f"{file} should hold a mapping; repair or remove it.")
    return content


# ------------------------------------------------------------------------- several configurations


def _config(folder: Path, scores: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """{(task, config hash): flattened config} for the runs of one configuration's folder."""
    flat = _flatten(_yaml(folder / "config.yaml"))
    return {key: flat for key in set(zip(scores["task"], scores["config"], strict=True))}


def _flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _split_configs(scores: pd.DataFrame, configs: dict) -> tuple[pd.DataFrame, list[str]]:
    """Give seeds of one label, but of different configurations in one cell, different names."""
    notes = []
    hashes = scores.groupby(["algorithm", "task"])["config"].unique()
    for label in dict.fromkeys(scores["algorithm"]):
        cells = {t: h for t, h in hashes[label].items() if len(h) > 1}
        if not cells:
            continue
        keys = sorted(
            {k for t, h in cells.items() for k in _differing([configs.get((t, c)) for c in h])}
        )
        rows = scores["algorithm"] == label
        names = [
            _config_name(label, c, configs.get((t, c)), keys)
            for t, c in zip(scores.loc[rows, "task"], scores.loc[rows, "config"], strict=True)
        ]
        scores.loc[rows, "algorithm"] = names
        told = ", ".join(k.removeprefix("algo.") for k in keys) or "the hash of the configuration"
        notes.append(
            f"{label} was run with several configurations on the same task, so its seeds are not "
            f"pooled but split by {told}."
        )
    return scores, notes


def _differing(configs: list[dict | None]) -> set[str]:
    known = [c for c in configs if c]
    if len(known) < len(configs):
        return set()
    keys = {k for c in known for k in c if k.split(".")[0] not in ("task", "seeds", "label")}
    return {k for k in keys if len({repr(c.get(k)) for c in known}) > 1}


def _config_name(label: str, config: str, flat: dict | None, keys: list[str]) -> str:
    if not flat or not keys:
        return f"{label} [{config or 'no hash'}]"
    values = " ".join(f"{k.removeprefix('algo.')}={flat.get(k)}" for k in keys)
    return f"{label} {values}"


def _refuse_twice(scores: pd.DataFrame) -> None:
    keys = ["algorithm", "task", "seed", "step"]
    twice = scores.duplicated(keys, keep=False)
    if not twice.any():
        return
    rows = scores[twice].sort_values(keys, kind="stable").iloc[:2]
    a, b = rows.iloc[0], rows.iloc[1]
    raise CorerlError(
        f"{a['algorithm']} on {a['task']} with seed {a['seed']} and step {a['step']} is in "
        f"{a['file']} and again in {b['file']}; give only one of them, or other algorithm names."
    )


# ------------------------------------------------------------------------------------ score files


def read_file(path: Path) -> pd.DataFrame:
    """A score file by its kind: tidy CSV, or one of the published formats that `read_*` know."""
    if path.name.endswith((".json.gz", ".json")):
        return read_rebrac_profiles(path)
    if path.suffix == ".npz":
        return read_d3rlpy_curves(path)
    if path.suffix == ".csv":
        with path.open("rb") as file:
            head = file.readline()
        if b"reward_mean" in head:
            raise CorerlError(
                f"{path} holds every run of NeoRL-2's grid; choose configurations first, with "
                "python -m corerl.report.published."
            )
        return read_scores(path)
    raise CorerlError(f"{path} is not a score file; score files are CSV, JSON or npz.")


def read_scores(path: Path, running: bool | None = None) -> pd.DataFrame:
    """Tidy CSV with columns algorithm, task, seed, `score` and/or `return`, and maybe step, config.

    `score` is normalised x100; for tasks where it is empty the raw `return` counts. A row without
    a finite number is refused, but in a run's own file (`running` given) kept as NaN: a diverged
    seed. The last line of a run that is still `running` may be cut by a kill and is then ignored.
    """
    rows = _csv(path, may_be_cut=bool(running))
    for column in ("algorithm", "task", "seed"):
        if column not in rows.columns:
            raise CorerlError(f"{path} has no column {column!r}; it needs {_NEEDED}.")
    if "score" not in rows.columns and "return" not in rows.columns:
        raise CorerlError(f"{path} has neither a column 'score' nor 'return'; it needs {_NEEDED}.")
    empty = rows["algorithm"].eq("") | rows["task"].eq("")
    if empty.any():
        raise CorerlError(f"{_row(path, empty)}: the algorithm or the task is empty.")
    score = _numbers(path, rows, "score") if "score" in rows.columns else np.full(len(rows), np.nan)
    raw = _numbers(path, rows, "return") if "return" in rows.columns else score
    scored = pd.Series(np.isfinite(score)).groupby(rows["task"]).transform("any").to_numpy()
    value = np.where(scored, score, raw)
    _check_values(path, value, raw, allow_nan=running is not None)
    return pd.DataFrame(
        {
            "algorithm": rows["algorithm"],
            "task": rows["task"],
            "seed": _integers(path, rows, "seed"),
            "step": _integers(path, rows, "step") if "step" in rows.columns else 0,
            "score": value,
            "unit": np.where(scored, "normalised", "raw"),
            "config": rows["config"] if "config" in rows.columns else "",
            "file": str(path),
        }
    )


_NEEDED = "algorithm, task, seed, score (normalised x100) or return (raw), and optionally step"


def _csv(path: Path, may_be_cut: bool = False) -> pd.DataFrame:
    """Every field as text without surrounding blanks; the header and all rows equally long."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise CorerlError(f"{path} is not a readable CSV ({e}); repair or remove it.") from e
    if may_be_cut:
        text = text[: text.rfind("\n") + 1]
    rows = [[field.strip() for field in row] for row in csv.reader(io.StringIO(text))]
    if not rows:
        raise CorerlError(f"{path} is empty; remove it or rerun what wrote it.")
    head = rows[0]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(head):
            raise CorerlError(
                f"{path}, row {number}: {len(row)} fields under a header of {len(head)}; the file "
                "is cut or damaged, so repair the row or rerun what wrote it."
            )
    return pd.DataFrame(rows[1:], columns=head, dtype=str)


def _row(path: Path, bad: Iterable[bool]) -> str:
    return f"{path}, row {int(np.argmax(np.asarray(bad))) + 2}"


def _numbers(path: Path, rows: pd.DataFrame, column: str) -> np.ndarray:
    """(N,) float64, NaN where the field is empty or says nan."""
    text = rows[column]
    values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64)
    bad = np.isnan(values) & ~text.str.lower().isin(["", "nan"])
    if bad.any():
        raise CorerlError(f"{_row(path, bad)}: {column} is {text[bad].iloc[0]!r}, not a number.")
    return values


def _integers(path: Path, rows: pd.DataFrame, column: str) -> np.ndarray:
    values = _numbers(path, rows, column)
    bad = ~(np.isfinite(values) & (values == np.round(values)))
    if bad.any():
        text = rows[column][bad].iloc[0]
        raise CorerlError(f"{_row(path, bad)}: {column} is {text!r}, not a whole number.")
    return values.astype(np.int64)


def _check_values(path: Path, value: np.ndarray, raw: np.ndarray, allow_nan: bool) -> None:
    half = ~np.isfinite(value) & np.isfinite(raw)
    if half.any():
        raise CorerlError(
            f"{_row(path, half)}: the score is missing but other rows of the task have one; give "
            "every run of a task the same unit."
        )
    value[np.isinf(value)] = np.nan
    bad = np.isnan(value)
    if bad.any() and not allow_nan:
        raise CorerlError(
            f"{_row(path, bad)}: there is no finite score; remove the row or mend it."
        )


# --------------------------------------------------------------------- other people's score files


def _tidy(rows: list[tuple], path: Path, unit: str) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score", "config"])
    return table.assign(unit=unit, file=str(path))[COLUMNS]


def read_rebrac_profiles(path: Path) -> pd.DataFrame:
    """`profiles_data` of the ReBRAC repository: {algorithm: {dataset: {parameters: ... [score]}}}.

    Final normalised scores; the position in the list is the seed, the parameters are the config.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt") as file:
            content = json.load(file)
        rows = [
            (algorithm.replace(" + ", "+"), f"d4rl/{dataset}", seed, 0, float(score), config)
            for algorithm, datasets in content.items()
            for dataset, tree in datasets.items()
            for config, scores in _leaves(tree)
            for seed, score in enumerate(scores)
        ]
    except (OSError, ValueError, AttributeError, TypeError, EOFError) as e:
        raise CorerlError(f"{path} is not a ReBRAC profiles file ({e}).") from e
    return _tidy(rows, path, "normalised")


def _leaves(tree: Any, path: str = "") -> Iterable[tuple[str, list]]:
    if isinstance(tree, list):
        yield path, tree
        return
    for key, branch in tree.items():
        yield from _leaves(branch, f"{path}/{key}" if path else key)


def read_d3rlpy_curves(path: Path, group: str = "d4rl") -> pd.DataFrame:
    """Curves of d3rlpy-benchmarks: keys `group/algorithm/dataset/kind` (seeds, checkpoints).

    Raw returns; `<key>/steps` (checkpoints,) holds the update counts. `group` is d4rl, atari or
    finetuning; the task id is `<group>/<dataset>`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = [k for k in file if k.startswith(f"{group}/") and not k.endswith("/steps")]
            cells = [(k.split("/"), file[k], file[f"{k}/steps"]) for k in keys]
    except (OSError, ValueError, KeyError) as e:
        raise CorerlError(f"{path} is not a file of d3rlpy-benchmarks curves ({e}).") from e
    if not cells:
        raise CorerlError(f"{path} holds no curves of the group {group!r}.")
    parts = []
    for (_, algorithm, dataset, kind), curves, steps in cells:
        seeds, checkpoints = curves.shape
        cell = {
            "algorithm": algorithm,
            "task": f"{group}/{dataset}",
            "seed": np.repeat(np.arange(seeds), checkpoints),
            "step": np.tile(steps, seeds),
            "score": curves.astype(np.float64).ravel(),
            "unit": "raw",
            "config": kind,
            "file": str(path),
        }
        parts.append(pd.DataFrame(cell))
    return pd.concat(parts, ignore_index=True)


def read_neorl2(path: Path) -> pd.DataFrame:
    """NeoRL-2's `final_scores.csv`, every run of the hyperparameter grid: raw mean rewards.

    `config` is the configuration without its seed; a further column `printed_config` is the text by
    which NeoRL-2's own summary groups runs. Runs without a reward (crashed) are left out.
    """
    rows = _csv(path)
    for column in ("algo", "task", "config", "seed", "reward_mean"):
        if column not in rows.columns:
            raise CorerlError(f"{path} has no column {column!r}; it is not NeoRL-2's final_scores.")
    rows = rows[np.isfinite(_numbers(path, rows, "reward_mean"))]
    # "12_actor_lr=0.0001,seed=7,mode=a": the leading number only counts the trials
    text = rows["config"].str.split("_", n=1).str[1]
    return pd.DataFrame(
        {
            "algorithm": rows["algo"],
            "task": "neorl2/" + rows["task"],
            "seed": _integers(path, rows, "seed"),
            "step": 0,
            "score": _numbers(path, rows, "reward_mean"),
            "unit": "raw",
            "config": text.str.replace(r",?seed=\d+", "", regex=True).str.strip(","),
            "file": str(path),
            "printed_config": text.str.split(",seed", n=1).str[0],
        }
    ).reset_index(drop=True)
