"""Score tables: one row per run (or per evaluation of a run), with named columns."""

from numbers import Real

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report.stats.bootstrap import Runs, sort_runs

RUN = ("algorithm", "task", "seed")
"""Columns that name a run."""


def check(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table itself, if it is a score table: the four columns, every run named and once.

    Scores, and steps where the table has them, are finite numbers. Raises CorerlError naming the missing
    column, or a bad row's algorithm, task and seed.
    """
    for column in (*RUN, "score"):
        if column not in table.columns:
            raise CorerlError(
                f"A score table needs the columns algorithm, task, seed and score, but {column!r} "
                f"is missing. It has {', '.join(map(str, table.columns)) or 'none'}."
            )
    if not len(table):
        raise CorerlError("The score table has no rows. Give at least one run.")
    for column in RUN:
        if (i := _first(table[column].isna())) is not None:
            raise CorerlError(
                f"Row {i} (counted from 0) of the score table, {_run_name(table.iloc[i])}, has no "
                f"{column}. Give one. For a name such as NA or None, read the file with "
                "keep_default_na=False."
            )
    for column in ("score", "step"):
        if column in table and (i := _first(~_finite(table[column]))) is not None:
            raise CorerlError(
                f"The {column} of {_run_name(table.iloc[i])} is {table[column].iloc[i]}, but must be a "
                "finite number. Repair or remove the run."
            )
    keys = [c for c in (*RUN, "step") if c in table.columns]
    if (i := _first(table.duplicated(keys))) is not None:
        raise CorerlError(
            f"{_run_name(table.iloc[i])} is in the score table twice. Keep one row for each run, "
            "or give the configurations different algorithm names."
        )
    return table


def _first(bad: np.ndarray | pd.Series) -> int | None:
    """Returns the position of the first bad row, or None where there is none."""
    return int(np.argmax(bad)) if np.any(bad) else None


def _finite(values: pd.Series) -> np.ndarray:
    """Tells which values are finite numbers. Text is none, whatever it says."""
    if not pd.api.types.is_numeric_dtype(values):
        values = pd.to_numeric(values.where(values.map(lambda x: isinstance(x, Real))))
    return np.isfinite(values.to_numpy(np.float64, na_value=np.nan))


def _run_name(row: pd.Series) -> str:
    step = f" at step {row['step']}" if "step" in row.index else ""
    return f"{row['algorithm']} on {row['task']} with seed {row['seed']}{step}"


def final(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the last evaluation of every run (the headline), one row per run."""
    return _one_row_per_run(table, "step")


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the best evaluation of every run, one row per run: a maximum over training, biased up."""
    return _one_row_per_run(table, "score")


def _one_row_per_run(table: pd.DataFrame, largest: str) -> pd.DataFrame:
    check(table)
    if "step" not in table.columns:
        return table
    table = table.reset_index(drop=True)
    rows = table.groupby(list(RUN), sort=False, observed=True)[largest].idxmax()
    return table.loc[rows].reset_index(drop=True)


def common_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the steps that all runs of an algorithm evaluated."""
    runs = table.drop_duplicates(list(RUN))["algorithm"].value_counts()
    counts = table.groupby(["algorithm", "step"], observed=True)["step"].transform("size")
    return table[counts == table["algorithm"].map(runs)]


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table itself, if estimates of its algorithms may stand side by side.

    Raises CorerlError where it holds several units, or an algorithm lacks a task that another ran.
    """
    one_unit(check(table))
    tasks = table.groupby("algorithm", sort=False, observed=True)["task"].agg(set)
    for algorithm, own in tasks.items():
        if lacking := sorted(set.union(*tasks) - own):
            raise CorerlError(
                f"{algorithm} did not run {lacking[0]}, but other algorithms in the table did. "
                "Keep the tasks that all algorithms have."
            )
    return table


def one_unit(table: pd.DataFrame) -> None:
    """Refuses rows of several units, where the table has a column `unit`."""
    units = table["unit"].unique() if "unit" in table.columns else ()
    if len(units) > 1:
        raise CorerlError(
            f"The score table holds several units ({', '.join(map(str, units))}), which no estimate may "
            "mix. Choose the rows of one unit first."
        )


def runs_of(table: pd.DataFrame, algorithm: str | None = None) -> Runs:
    """Returns the runs of one algorithm, of a table that may hold others.

    Raises CorerlError where they are several steps of a run, or in several units.
    """
    table = rows_of(table, algorithm)
    one_unit(table)
    return sorted_runs(table)


def sorted_runs(table: pd.DataFrame) -> Runs:
    """Returns the runs of a table that was checked."""
    task, _ = pd.factorize(table["task"], sort=True)
    return sort_runs(table["score"].to_numpy(dtype=np.float64), task)


def scores_by_task(table: pd.DataFrame, algorithm: str) -> dict[str, np.ndarray]:
    """Returns one algorithm's scores `(seeds,)` on each task, in the table's order of rows."""
    tasks = rows_of(table, algorithm).groupby("task", observed=True)
    return {task: rows["score"].to_numpy(dtype=np.float64) for task, rows in tasks}


def to_rliable(table: pd.DataFrame, *, cut: bool = False) -> dict[str, np.ndarray]:
    """Returns rliable's `score_dict`: the scores `(runs, tasks)` of each algorithm.

    Columns are the tasks in sorted order. A column holds its task's seeds in ascending order, so a row may
    hold different seeds. `cut=True` keeps only the first seeds of every task, as many as an algorithm has on
    each of its tasks.

    Raises CorerlError where an algorithm's tasks have different numbers of seeds without `cut`, or where
    algorithms have different tasks or units.
    """
    found = {}
    for algorithm in dict.fromkeys(comparable(table)["algorithm"]):
        scores = scores_by_task(table.sort_values("seed", kind="stable"), algorithm)
        sizes = [len(column) for column in scores.values()]
        fewest, most = min(sizes), max(sizes)
        if fewest < most and not cut:
            raise CorerlError(
                f"{algorithm} has {fewest} to {most} seeds on its tasks, but rliable needs the same number "
                f"of seeds on each. Pass cut=True to keep the first {fewest} of every task."
            )
        found[algorithm] = np.stack([scores[task][:fewest] for task in sorted(scores)], axis=1)
    return found


def rows_of(table: pd.DataFrame, algorithm: str | None = None) -> pd.DataFrame:
    """Returns the rows of one algorithm, one for each run."""
    check(table)
    names = list(dict.fromkeys(table["algorithm"]))
    if algorithm is None and len(names) > 1:
        raise CorerlError(
            f"The table holds {len(names)} algorithms ({', '.join(map(str, names[:5]))}). "
            "Name one algorithm to estimate."
        )
    if algorithm is not None:
        if algorithm not in names:
            raise CorerlError(
                f"The table has no algorithm {algorithm!r}.{nearest(str(algorithm), names)}"
            )
        table = table[table["algorithm"] == algorithm]
    if table.duplicated(["task", "seed"]).any():
        raise CorerlError(
            "The table holds several steps of a run. Take final(table) or best(table) first."
        )
    return table
