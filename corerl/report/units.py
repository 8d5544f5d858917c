"""Units of scores: normalised returns, solved episodes, or raw returns."""

import numpy as np
import pandas as pd

SUCCESS_TASKS = ("ogbench/", "adroit/", "corerl/metaworld/", "d4rl/antmaze-")
"""Tasks whose score is the share of solved episodes. D4RL's AntMaze is among them: its reward is 1 at the
goal and its reference returns are 0 and 1."""
UNITS = {
    # name in a file: (on a page, of an axis)
    "normalised": ("normalised score ×100", "normalised score"),
    "success": ("success rate, %", "success rate, %"),
    "raw": ("raw return", "return"),
}


def units(rows: pd.DataFrame, scored: np.ndarray) -> np.ndarray:
    """Returns (N,) the unit of every row of a score file; one task has one unit.

    Args:
        rows: columns as text; `unit` says it, and `success` (a share) tells it where it is the score.
        scored: (N,) whether the row's value is a score and no raw return.
    """
    solved = rows["task"].str.startswith(SUCCESS_TASKS).to_numpy() | _solved(rows)
    found = np.where(scored, np.where(solved, "success", "normalised"), "raw").astype(object)
    if "unit" not in rows.columns:
        return found
    said = rows["unit"].str.lower().to_numpy()
    return np.where(np.isin(said, list(UNITS)), said, found)


def _solved(rows: pd.DataFrame) -> np.ndarray:
    """Returns (N,) whether every score of the row's task is 100 times its share of solved episodes."""
    if "success" not in rows.columns or "score" not in rows.columns:
        return np.zeros(len(rows), dtype=bool)
    score = pd.to_numeric(rows["score"], errors="coerce")
    share = pd.to_numeric(rows["success"], errors="coerce")
    equal = (score - 100 * share).abs() < 1e-6  # False where one is missing
    return equal.groupby(rows["task"]).transform("all").to_numpy()
