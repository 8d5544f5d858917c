"""Rows of the files that a run appends to: their columns, their steps, and metrics of goals."""

import csv
import json
from typing import Any, NamedTuple

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


def goal_lines(
    step: int, seeds: list[int], tasks: int, successes: np.ndarray, going: list[int]
) -> list[dict[str, Any]]:
    """Returns a line of metrics per seed: the share of solved episodes of each goal, taken in turn."""
    played = range(min(tasks, successes.shape[1]))
    return [
        {"step": step, "seed": seeds[s]}
        | {f"success of task {i + 1}": float(successes[s, i::tasks].mean()) for i in played}
        for s in going
    ]
