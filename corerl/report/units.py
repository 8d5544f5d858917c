"""Units of scores: normalised returns, solved episodes, or raw returns."""

import numpy as np
import pandas as pd

SUCCESS_TASKS = ("ogbench/", "adroit/", "corerl/metaworld/", "corerl/goal-maze", "d4rl/antmaze-")
"""Tasks whose score is the share of solved episodes. D4RL's AntMaze is among them: its reward is 1 at the
goal and its reference returns are 0 and 1."""
UNITS = {
    # name in a file: (on a page, of an axis)
    "normalised": ("normalised score ×100", "normalised score"),
    "success": ("success rate, %", "success rate, %"),
    "raw": ("raw return", "return"),
}


def reported(rows: pd.DataFrame, scored: np.ndarray) -> np.ndarray:
    """Returns (N,) the unit that the row of a score file or its task says, and "" where neither does.

    Args:
        rows: columns as text; `unit` comes before what the task says.
        scored: (N,) whether the row's value is a score and no raw return.
    """
    solved = rows["task"].str.startswith(SUCCESS_TASKS)
    found = np.where(scored, np.where(solved, "success", ""), "raw").astype(object)
    if "unit" not in rows.columns:
        return found
    said = rows["unit"].str.lower().to_numpy()
    return np.where(np.isin(said, list(UNITS)), said, found)


def settled(scores: pd.DataFrame) -> pd.Series:
    """Returns the unit of every row of all files read together, where `reported` left some of a task open.

    They are success rates where every score is 100 times the row's `success`, a share. 0 of 0 says
    nothing, as a seed that never solves its task scores 0 in both units: without another row it is the
    unit that files say of the task, and else normalised.
    """
    unit, task = scores["unit"], scores["task"]
    score = scores["score"].where(unit == "")
    share = 100 * scores["success"]
    known = score.notna() & share.notna() & ((score != 0) | (share != 0))
    equal = ((score - share).abs() < 1e-6)[known].groupby(task[known]).all()
    seen = equal.map({True: "success", False: "normalised"})
    said = (
        unit[~unit.isin(["", "raw"])]
        .groupby(task)
        .agg(lambda u: u.iloc[0] if u.nunique() == 1 else None)
    )
    return unit.mask(unit == "", task.map(seen).fillna(task.map(said)).fillna("normalised"))
