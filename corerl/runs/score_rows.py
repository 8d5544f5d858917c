"""Columns and steps of the files that a run appends to."""

import csv
import json
from typing import NamedTuple

import numpy as np

SCORE_COLUMNS = (
    # One row per seed; `success` is the share of episodes that solved the task, where that is known.
    "task,algorithm,config,seed,step,return,score,episodes,length,return_std,success"
)


KEPT = ("score", "return", "evaluated")
"""Fields of the status that a resumed run keeps."""


def _score_step(line: str) -> int | None:
    fields = next(csv.reader([line]))
    return None if fields[0] == "task" else int(fields[4])


def _json_step(line: str) -> int:
    return json.loads(line)["step"]


STEP_OF = {"metrics.jsonl": _json_step, "returns.jsonl": _json_step, "scores.csv": _score_step}
"""The logs, and how the step of a line is read."""


class Episodes(NamedTuple):
    """Undiscounted returns, lengths in steps, and whether the task was ever solved: `(S, episodes)`."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray  # 0.0 or 1.0 (NaN where the environment has no `info["success"]`)
