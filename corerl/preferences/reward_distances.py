"""The distance of a reward that was learned from comparisons to the true one, on the dataset's rows.

The distance is STARC's (corerl/risk/rewards.py), blind to shaping and scale, which comparisons cannot
tell; beside it are Spearman's and Pearson's correlations of the numbers as they are, which are not.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from corerl.data.dataset import Dataset, Transitions
from corerl.data.observations import check_parts
from corerl.errors import CorerlError
from corerl.policies.loaded_policy import Loaded
from corerl.policies.simulation import named_parts
from corerl.preferences.relabelling import rows_of
from corerl.preferences.reward_models import MarkovReward, ensemble_mean
from corerl.risk.rewards import starc_of_rows
from corerl.runs.files import write_atomically

FILE = "reward_distances.csv"
ROWS = 20_000
"""Rows that the distance is taken over, at most: a fit of 256 features needs no more."""


class Distance(NamedTuple):
    """The distance of one seed's reward from the dataset's, over `rows` rows."""

    seed: int
    data: str
    starc: float  # from 0 (both order all policies alike) to 1 (the reverse)
    rank: float  # Spearman's correlation between the two rewards over all rows
    linear: float  # Pearson's correlation between the two rewards over all rows
    rows: int


def distances(agent: Loaded, dataset: Dataset | None = None) -> list[Distance]:
    """Measures the `Distance` of every seed of a run that learned its reward.

    Raises:
        CorerlError: the algorithm learns no reward, or the dataset's rewards are all equal.
    """
    dataset = agent.task.load() if dataset is None else dataset
    check_parts(agent.task.id, named_parts(agent.task), dataset.id, dict(dataset.parts))
    t = dataset.transitions()
    if np.ptp(t.rewards) == 0:
        raise CorerlError(
            f"All rewards of {dataset.id} are {t.rewards[0]:g}, so a distance to them is not "
            "defined. Choose another task."
        )
    chosen = np.random.default_rng(0).permutation(len(t.rewards))[:ROWS]
    true, found = t.rewards[chosen].astype(np.float64), []
    for seeds, parts in agent.states():
        learned = _learned(agent, parts, dataset, t)
        learned = np.broadcast_to(learned, (len(seeds), learned.shape[1]))[:, chosen]
        for seed, mine in zip(seeds, learned.astype(np.float64), strict=True):
            starc = starc_of_rows(
                *(mine, true, t.observations[chosen], t.next_observations[chosen]),
                *(t.terminated[chosen], agent.cfg.algo.discount),
            )
            rank, linear = stats.spearmanr(mine, true)[0], stats.pearsonr(mine, true)[0]
            found.append(Distance(seed, dataset.id, starc, float(rank), float(linear), len(true)))
    return sorted(found)


def _learned(agent: Loaded, parts: dict[str, Any], dataset: Dataset, t: Transitions) -> np.ndarray:
    """Returns rewards `(S or 1, N)` of the transitions."""
    cfg, learner = agent.cfg.algo, parts.get("agent")
    reward = parts.get("reward", getattr(learner, "reward", None))
    if not hasattr(reward, "rewards") and not hasattr(learner, "implied_rewards"):
        raise CorerlError(
            f"{agent.label} learns no reward. Choose a run of P-IQL, PT, DTR or IPL, which learn rewards."
        )
    limit = cfg.clip_actions if cfg.data is None else cfg.data.clip_actions
    rows = rows_of(dataset, limit)
    if isinstance(reward, MarkovReward):
        observations = t.observations
        if reward is getattr(learner, "reward", None):  # it saw what the policy sees
            observations = learner.normalizer.of_array(observations)
        members = reward.rewards(observations, rows.actions)
        if reward.cfg.ensemble != "mean":
            return reward.combined(members).cpu().numpy()
        return ensemble_mean(members, getattr(cfg, "ensemble_normalization", False)).cpu().numpy()
    if reward is not None:
        return reward.rewards(rows).cpu().numpy()
    pair = [learner.normalizer.of_array(x) for x in (t.observations, t.next_observations)]
    return learner.implied_rewards(pair[0], rows.actions, pair[1], t.terminated).numpy()


def write(agent: Loaded, found: list[Distance]) -> Path:
    """Writes `reward_distances.csv` in the run's folder, where a report finds it.

    What it holds of other seeds, or over other data, stays.

    Raises:
        CorerlError: what it holds is damaged.
    """
    path, asked = agent.path / FILE, {(str(d.seed), d.data) for d in found}
    kept = []
    try:
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                kept = [row for row in list(csv.reader(file))[1:] if tuple(row[:2]) not in asked]
        rows = sorted([*kept, *found], key=lambda row: (row[1], int(row[0])))
    except (ValueError, LookupError, csv.Error) as error:
        raise CorerlError(f"{path} is damaged ({error}). Repair or remove it.") from error
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([Distance._fields, *rows])
    write_atomically(path, text.getvalue().encode())
    return path
