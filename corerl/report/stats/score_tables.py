"""Score tables: one row per run (or per evaluation of a run), with named columns."""

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report.stats.bootstrap import Runs, sort_runs


def check(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table itself, if it is a score table: the four columns, finite scores, no run twice.

    Raises CorerlError naming the missing column, or the algorithm, task and seed of a bad row.
    """
    for column in ("algorithm", "task", "seed", "score"):
        if column not in table.columns:
            raise CorerlError(
                f"A score table needs the columns algorithm, task, seed and score, but {column!r} "
                f"is missing; it has {', '.join(map(str, table.columns)) or 'none'}."
            )
    if not len(table):
        raise CorerlError("The score table has no rows, so there is nothing to estimate.")
    bad = ~np.isfinite(table["score"].to_numpy(dtype=np.float64))
    if bad.any():
        row = table.iloc[int(bad.argmax())]
        raise CorerlError(
            f"The score of {_run_name(row)} is {row['score']}; remove the run or report it as "
            "failed, because no estimate may skip it silently."
        )
    keys = [c for c in ("algorithm", "task", "seed", "step") if c in table.columns]
    twice = table.duplicated(keys)
    if twice.any():
        row = table.iloc[int(twice.to_numpy().argmax())]
        raise CorerlError(
            f"{_run_name(row)} stands in the score table twice; keep one row for each run, or give "
            "the configurations different algorithm names."
        )
    return table


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
    rows = table.groupby(["algorithm", "task", "seed"], sort=False)[largest].idxmax()
    return table.loc[rows].reset_index(drop=True)


def common_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the steps that all runs of an algorithm evaluated."""
    runs = table.drop_duplicates(["algorithm", "task", "seed"])["algorithm"].value_counts()
    counts = table.groupby(["algorithm", "step"])["step"].transform("size")
    return table[counts == table["algorithm"].map(runs)]


def runs_of(table: pd.DataFrame, algorithm: str | None = None) -> Runs:
    check(table)
    names = list(dict.fromkeys(table["algorithm"]))
    if algorithm is None and len(names) > 1:
        raise CorerlError(
            f"The table holds {len(names)} algorithms ({', '.join(map(str, names[:5]))}); "
            "say which one to estimate."
        )
    if algorithm is not None:
        if algorithm not in names:
            raise CorerlError(f"The table has no {algorithm!r}.{nearest(str(algorithm), names)}")
        table = table[table["algorithm"] == algorithm]
    if table.duplicated(["task", "seed"]).any():
        raise CorerlError(
            "The table holds several steps of a run; take final(table) or best(table) first."
        )
    task, _ = pd.factorize(table["task"], sort=True)
    return sort_runs(table["score"].to_numpy(dtype=np.float64), task)
