"""Score files: our tidy CSV, and the formats in which others published every seed."""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corerl.data.files.io import npz, one_line
from corerl.errors import CorerlError
from corerl.report.formats import unguarded
from corerl.report.units import SUCCESS_TASKS, UNITS, reported

LONGEST = 200  # characters of a name
COLUMNS = ["algorithm", "task", "seed", "step", "score", "unit", "config", "file", "pretrained"]


def read_file(path: Path) -> pd.DataFrame:
    """Reads a score file by its kind: tidy CSV, or one of the published formats that `read_*` know."""
    if path.name.endswith((".json.gz", ".json")):
        return read_rebrac_profiles(path)
    if path.suffix == ".npz":
        return read_d3rlpy_curves(path)
    if path.suffix == ".csv":
        with path.open("rb") as file:
            head = file.readline()
        if b"reward_mean" in head:
            raise CorerlError(
                f"{path} holds every run of NeoRL-2's grid. Choose configurations first, with: "
                "python -m corerl.report.published"
            )
        return read_scores(path)
    raise CorerlError(f"{path} is not a score file. Give a CSV, JSON or npz file.")


def read_scores(path: Path, running: bool | None = None) -> pd.DataFrame:
    """Reads a tidy CSV with columns algorithm, task, seed, `score` and/or `return`, and maybe step, config.

    `score` is normalised x100 or a success rate in percent: `unit` is empty where neither the file nor the
    task says which, and `success`, the share of solved episodes, is what `units.settled` tells it by. For
    tasks where `score` is empty the raw `return` counts. A row without a finite number is refused, but in a
    run's own file (`running` given) kept as NaN: a diverged seed. The last line of a run that is still
    `running` may be cut by a kill and is then ignored.
    """
    rows = _csv(path, may_be_cut=bool(running))
    if "step" not in rows.columns:
        rows = rows.rename(columns={"steps": "step"})  # as files of published numbers have it
    for column in ("algorithm", "task", "seed"):
        if column not in rows.columns:
            raise CorerlError(f"{path} has no column {column!r}. A score file needs {_NEEDED}.")
    if "score" not in rows.columns and "return" not in rows.columns:
        raise CorerlError(
            f"{path} has neither a column 'score' nor 'return'. A score file needs {_NEEDED}."
        )
    for column in ("algorithm", "task"):
        rows[column] = rows[column].map(unguarded)
    _check_names(path, rows)
    _check_units(path, rows)
    score = _numbers(path, rows, "score") if "score" in rows.columns else np.full(len(rows), np.nan)
    raw = _numbers(path, rows, "return") if "return" in rows.columns else score
    keys, returned = [rows["task"]], np.zeros(len(rows), bool)
    if "unit" in rows.columns:
        # Rows that say that they are raw returns lack no score, and count none beside their return.
        keys.append(rows["unit"].str.lower().eq("raw"))
        returned = keys[1].to_numpy() & np.isfinite(raw)
    scored = np.isfinite(score)
    if not scored.all():
        scored = pd.Series(scored).groupby(keys).transform("any").to_numpy()
    scored &= ~returned
    value = np.where(scored, score, raw)
    _check_values(path, value, raw, allow_nan=running is not None)
    return pd.DataFrame(
        {
            "algorithm": rows["algorithm"],
            "task": rows["task"],
            "seed": _integers(path, rows, "seed"),
            "step": _integers(path, rows, "step") if "step" in rows.columns else 0,
            "score": value,
            "unit": reported(rows, scored),
            "success": _shares(rows),
            "config": rows["config"] if "config" in rows.columns else "",
            "file": str(path),
            "pretrained": _integers(path, rows, "pretrained")
            if "pretrained" in rows.columns
            else 0,
        }
    )


def holds_best(path: Path) -> bool:
    """Tells a CSV whose column `evaluation` says that it holds the best evaluations of runs, not the last."""
    if path.suffix != ".csv":
        return False
    with path.open("rb") as file:
        if b"evaluation" not in file.readline():  # nor is it in the many files of runs
            return False
    rows = _csv(path)
    return "evaluation" in rows.columns and rows["evaluation"].str.lower().eq("best").any()


_NEEDED = "the columns algorithm, task, seed, score (normalised x100) or return (raw), and optionally step"


def _check_names(path: Path, rows: pd.DataFrame) -> None:
    """Refuses names that no table can show or that read like a way out of a folder."""
    for column in ("algorithm", "task"):
        for name in rows[column].unique():
            if problem := _name_problem(column, name):
                raise CorerlError(f"{_row(path, rows[column] == name)}: {problem}")


def _name_problem(column: str, name: str) -> str:
    plain = "Give a short name in plain text."
    if not name:
        return f"the {column} is empty. {plain}"
    if len(name) > LONGEST:
        return f"the {column} has more than {LONGEST} characters. {plain}"
    if re.search(r"[\x00-\x1f\x7f]", name):
        return f"the {column} holds a control character. {plain}"
    parts = name.split("/")
    if column == "task" and (not parts[0] or ".." in parts):
        return f"the task is {name!r}. A task must be <collection>/<name> or a name, not a path."
    return ""


def _check_units(path: Path, rows: pd.DataFrame) -> None:
    if "unit" not in rows.columns:
        return
    bad = ~rows["unit"].str.lower().isin([*UNITS, ""])
    if bad.any():
        known = ", ".join(UNITS)
        raise CorerlError(
            f"{_row(path, bad)}: the unit is {rows['unit'][bad].iloc[0]!r}. It must be one of {known}, or "
            "empty."
        )


def _csv(path: Path, may_be_cut: bool = False) -> pd.DataFrame:
    """Reads a CSV: fields as text without surrounding blanks. The header and all rows equally long."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as e:
        raise CorerlError(f"{path} is not a readable CSV ({e}). Repair or remove it.") from e
    if may_be_cut:
        text = text[: text.rfind("\n") + 1]
    try:
        rows = [[field.strip() for field in row] for row in csv.reader(io.StringIO(text))]
    except csv.Error as e:
        raise CorerlError(f"{path} is not a readable CSV ({e}). Repair or remove it.") from e
    while rows and rows[-1] in ([], [""]):
        rows.pop()  # editors leave blank lines at the end
    if not rows:
        raise CorerlError(
            f"{path} is empty. Remove the file, or run the program that writes it again."
        )
    head = rows[0]
    if len(set(head)) < len(head):
        raise CorerlError(f"{path}: the header names a column twice. Repair the header.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(head):
            raise CorerlError(
                f"{path}, row {number}: the row has {len(row)} fields, but the header has "
                f"{len(head)}. Repair the row."
            )
    return pd.DataFrame(rows[1:], columns=head, dtype=str)


def _row(path: Path, bad: Iterable[bool]) -> str:
    return f"{path}, row {int(np.argmax(np.asarray(bad))) + 2}"


def _numbers(path: Path, rows: pd.DataFrame, column: str) -> np.ndarray:
    """Reads numbers (N,) float64, NaN where the field is empty or says nan."""
    text = rows[column]
    values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64)
    if not np.isnan(values).any():
        return values
    bad = np.isnan(values) & ~text.str.lower().isin(["", "nan"])
    if bad.any():
        raise CorerlError(
            f"{_row(path, bad)}: {column} is {text[bad].iloc[0]!r}, but must be a number."
        )
    return values


def _shares(rows: pd.DataFrame) -> pd.Series | float:
    """Reads shares of solved episodes, NaN where the file gives none."""
    return pd.to_numeric(rows["success"], errors="coerce") if "success" in rows.columns else np.nan


def _integers(path: Path, rows: pd.DataFrame, column: str) -> np.ndarray:
    values = _numbers(path, rows, column)
    bad = ~(np.isfinite(values) & (values == np.round(values)))
    if bad.any():
        text = rows[column][bad].iloc[0]
        raise CorerlError(f"{_row(path, bad)}: {column} is {text!r}, but must be a whole number.")
    return values.astype(np.int64)


def _check_values(path: Path, value: np.ndarray, raw: np.ndarray, allow_nan: bool) -> None:
    half = ~np.isfinite(value) & np.isfinite(raw)
    if half.any():
        raise CorerlError(
            f"{_row(path, half)}: the score is missing, but other rows of the task have a score. Give "
            "all rows of a task the same unit."
        )
    value[np.isinf(value)] = np.nan
    bad = np.isnan(value)
    if bad.any() and not allow_nan:
        raise CorerlError(
            f"{_row(path, bad)}: the score must be a finite number. Repair or remove the row."
        )


# --------------------------------------------------------------------- other people's score files


def _tidy(rows: list[tuple], path: Path) -> pd.DataFrame:
    """Makes a table of normalised scores or success rates."""
    table = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score", "config"])
    unit = np.where(table["task"].str.startswith(SUCCESS_TASKS), "success", "normalised")
    return table.assign(unit=unit, file=str(path), pretrained=0)[COLUMNS]


def _unreadable(path: Path, kind: str, error: Exception) -> CorerlError:
    """Names the file: gzip, zipfile and numpy raise nearly every kind of error on damaged bytes."""
    return CorerlError(
        f"{path} is cut off, or is not {kind} ({one_line(error)[:200]}). Get it again."
    )


def read_rebrac_profiles(path: Path) -> pd.DataFrame:
    """Reads `profiles_data` of the ReBRAC repository: {algorithm: {dataset: {parameters: ... [score]}}}.

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
    except Exception as e:
        raise _unreadable(path, "a ReBRAC profiles file", e) from e
    return _tidy(rows, path)


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
    with npz(path, "a file of d3rlpy-benchmarks curves") as file:
        keys = [k for k in file if k.startswith(f"{group}/") and not k.endswith("/steps")]
        parts = [_of_curves(k, file[k], file[f"{k}/steps"]) for k in keys]
    if not parts:
        raise CorerlError(
            f"{path} holds no curves of the group {group!r}. Choose another file or group."
        )
    return pd.concat(parts, ignore_index=True).assign(file=str(path), pretrained=0)[COLUMNS]


def _of_curves(key: str, curves: np.ndarray, steps: np.ndarray) -> pd.DataFrame:
    group, algorithm, dataset, kind = key.split("/")
    seeds, checkpoints = curves.shape
    return pd.DataFrame(
        {
            "algorithm": algorithm,
            "task": f"{group}/{dataset}",
            "seed": np.repeat(np.arange(seeds), checkpoints),
            "step": np.tile(steps, seeds),
            "score": curves.astype(np.float64).ravel(),
            "unit": "raw",
            "config": kind,
        }
    )


def read_neorl2(path: Path) -> pd.DataFrame:
    """Reads NeoRL-2's `final_scores.csv`, every run of the hyperparameter grid: raw mean rewards.

    `config` is the configuration without its seed; a further column `printed_config` is the text by
    which NeoRL-2's own summary groups runs. Runs without a reward (crashed) are left out.
    """
    rows = _csv(path)
    for column in ("algo", "task", "config", "seed", "reward_mean"):
        if column not in rows.columns:
            raise CorerlError(
                f"{path} has no column {column!r}. Give NeoRL-2's file final_scores.csv."
            )
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
