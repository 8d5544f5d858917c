"""Rewards from a few demonstrations in place of the recorded ones: SEABO, OTR and UDS.

    seabo   r = scale exp(-beta d / |A|), d the Euclidean distance of (s, a, s') to the nearest expert row,
            found exactly with a KD-tree (Lyu et al. 2024, arXiv:2402.03807)
    otr     r = scale exp(-beta c / |O|), c the mean cosine distance of s to the expert states that a
            transport plan of the episode moves it to (Luo et al. 2023, arXiv:2303.13971)
    uds     demonstrations keep their rewards, and every other row gets the smallest recorded one
            (Yu et al. 2022, arXiv:2202.01741)

Demonstrations are the episodes with the highest recorded returns, of the dataset itself or of another
task's. What comes later sees the new rewards: scaling, weighting, and the best tenth of cloning.

What differs from the authors' code:

 1  seabo, AntMaze's demonstration: theirs has the highest return divided by the distance of its first
    otr    state from the origin, ours the highest return
 2  seabo  the k-th neighbour is a setting of theirs, 1 in all runs; ours is the first
 3  otr    states are normalised by the whole dataset's statistics, theirs by those of the episodes so far
 4  uds    demonstrations of another task join the dataset
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import cKDTree

from corerl.config import Settings, at_least, one_of, positive, require
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.data.mixtures import joined
from corerl.data.observations import check_parts
from corerl.training.cached import cached
from corerl.training.run import Run

REWARDS = ("data", "seabo", "otr", "uds")
REGULARIZATION, ITERATIONS = 0.01, 100
"""The authors' settings of OTR's transport plan."""


@dataclass
class Expert(Settings):
    """Settings for the demonstrations and for the rewards that they make."""

    prefix: ClassVar[str] = "algo.data.expert."

    task: str | None = None  # task whose dataset has the demonstrations (null: the run's task)
    episodes: int = positive(1)  # number of demonstrations, the best by recorded return
    compare: str = one_of(  # what seabo compares, sas (s, a, s') | sa (s, a) | ss (s, s')
        "sas", "sa", "ss"
    )
    beta: float | None = at_least(0, None)  # decay of rewards by distance (null: seabo 0.5, otr 5)
    scale: float | None = positive(None)  # largest reward (null: 1 for seabo, 5 for otr)
    per_size: bool = True  # divides distances by the size of actions (seabo) or observations (otr)


def relabelled(run: Run, dataset: Dataset, data: Any) -> Dataset:
    """Returns the dataset with the rewards that `data.rewards` names.

    Raises:
        CorerlError: the environment trains too, or the demonstrations are too few or of other spaces.
    """
    check_phase(run.cfg.algo.phase, data)
    expert, other, best = demonstrations(run, dataset, data)
    require(
        data.rewards == "uds" or not dataset.discrete,
        f"algo.data.rewards={data.rewards} measures distances between vectors, but the actions of "
        f"{dataset.id} are discrete. Use algo.data.rewards=uds",
    )
    if data.rewards == "uds":
        return _unlabelled(dataset, other, best)
    make = {"seabo": seabo, "otr": otr}[data.rewards]
    rewards = make(dataset, expert, data.expert)
    returns = expert.episode_returns()
    print(
        f"corerl: algo.data.rewards={data.rewards} made rewards for {len(dataset):,} rows of "
        f"{dataset.id}, from {len(returns)} demonstrations of {expert.id} with a mean return of "
        f"{returns.mean():g}. The rewards range from {rewards.min():.3g} to {rewards.max():.3g}, with mean "
        f"{rewards.mean():.3g}",
        file=sys.stderr,
    )
    return dataset.with_rewards(rewards)


def check_phase(phase: str, data: Any) -> None:
    """Raises CorerlError where rewards are made and the environment trains too."""
    require(
        phase == "offline" or data.rewards == "data",
        f"algo.data.rewards={data.rewards} makes rewards for the dataset only, but algo.phase={phase} "
        "learns from the environment's rewards. Use algo.phase=offline",
    )


def demonstrations(run: Run, dataset: Dataset, data: Any) -> tuple[Dataset, Dataset, np.ndarray]:
    """Returns the demonstrations, the dataset that they are of, and the numbers of their episodes there.

    Args:
        dataset: the run's own, with the ends that `data.end_reward` makes.

    Raises:
        CorerlError: they are too few, or of other spaces.
    """
    source = tasks.another(run.task, data.expert.task)
    other = dataset if source is run.task else source.load().ended_by(data.end_reward)
    best = _best(other, data.expert.episodes)
    expert = other.select_episodes(best)
    _check_spaces(dataset, expert)
    return expert, other, best


def _unlabelled(dataset: Dataset, other: Dataset, best: np.ndarray) -> Dataset:
    """Keeps the rewards of the episodes `best` of `other` alone, which is the dataset or joins it."""
    smallest = np.full(len(dataset), dataset.rewards.min())
    if other is not dataset:
        return joined(dataset.id, [dataset.with_rewards(smallest), other.select_episodes(best)])
    labelled = np.isin(np.arange(dataset.n_episodes), best)
    labelled = np.repeat(labelled, dataset.episode_lengths())
    return dataset.with_rewards(np.where(labelled, dataset.rewards, smallest))


def refuse(data: Any, reason: str) -> None:
    """Raises CorerlError where demonstrations are asked for rewards that the run does not learn from."""
    require(
        data.rewards == "data",
        f"algo.data.rewards={data.rewards} is not possible, because {reason}. Set algo.data.rewards=data",
    )


def seabo(dataset: Dataset, expert: Dataset, settings: Expert) -> np.ndarray:
    """Returns SEABO's rewards `(N,)`: 0 for a row that `compare` finds no next state in.

    Raises:
        CorerlError: no demonstrated step has a next state.
    """
    (kept, rows), (_, known) = (_compared(part, settings.compare) for part in (dataset, expert))
    require(
        len(known) > 0,
        f"The demonstrations of {expert.id} have no step with a next state. Set "
        "algo.data.expert.compare=sa",
    )
    distances = cached(lambda: cKDTree(known).query(rows, workers=-1)[0], "nearest", rows, known)
    beta = 0.5 if settings.beta is None else settings.beta
    decay = beta / (dataset.actions.shape[1] if settings.per_size else 1)
    rewards = np.zeros(len(dataset), np.float32)
    rewards[kept] = _squashed(distances, decay, 1.0 if settings.scale is None else settings.scale)
    return rewards


def otr(dataset: Dataset, expert: Dataset, settings: Expert) -> np.ndarray:
    """Returns OTR's rewards `(N,)`. With several demonstrations, each episode goes by its own best."""
    mean, std = dataset.obs_stats(1e-6)
    states, known = ((part.observations - mean) / std for part in (dataset, expert))
    episodes = np.split(states, dataset.episode_ends[:-1])
    demonstrations = np.split(known, expert.episode_ends[:-1])

    beta = 5.0 if settings.beta is None else settings.beta
    decay = beta / (dataset.observations.shape[1] if settings.per_size else 1)

    def costs() -> np.ndarray:
        return np.concatenate([_nearest(episode, demonstrations, decay) for episode in episodes])

    ends = (dataset.episode_ends, expert.episode_ends)
    found = cached(costs, f"transport {decay}", states, known, *ends)
    return _squashed(found, decay, 5.0 if settings.scale is None else settings.scale)


def transport_costs(states: np.ndarray, expert: np.ndarray) -> np.ndarray:
    """Returns the mean cost `(T,)` of each of `T` states under Sinkhorn's plan to the expert's states.

    Costs are cosine distances, and all states of an episode weigh the same.
    """
    unit, expert_unit = (
        x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-8) for x in (states, expert)
    )
    cost = 1 - unit.astype(np.float64) @ expert_unit.T
    kernel = np.exp(-cost / REGULARIZATION)  # at least e^-200, which float64 holds
    u = np.ones(len(states))
    for _ in range(ITERATIONS):
        v = 1 / (u @ kernel) / len(expert)
        u = 1 / (kernel @ v) / len(states)
    return len(states) * u * ((kernel * cost) @ v)


def _nearest(episode: np.ndarray, demonstrations: list[np.ndarray], decay: float) -> np.ndarray:
    """Returns the costs to the demonstration that makes the largest sum of rewards."""
    costs = [transport_costs(episode, known) for known in demonstrations]
    return max(costs, key=lambda cost: np.exp(-decay * cost).sum())


def _squashed(distances: np.ndarray, decay: float, scale: float) -> np.ndarray:
    return (scale * np.exp(-decay * distances)).astype(np.float32)


def _best(dataset: Dataset, episodes: int) -> np.ndarray:
    """Returns the indices of the episodes with the highest returns, in their order."""
    count = dataset.n_episodes
    require(
        episodes <= count,
        f"algo.data.expert.episodes={episodes} is more than the {count} episodes of {dataset.id}. Lower "
        "algo.data.expert.episodes",
    )
    return np.sort(np.argsort(-dataset.episode_returns(), kind="stable")[:episodes])


def _check_spaces(dataset: Dataset, expert: Dataset) -> None:
    """Raises CorerlError where rows of the two cannot be compared."""
    mine, theirs = ((d.observations.shape[1:], d.actions.shape[1:]) for d in (dataset, expert))
    require(
        expert.unlabelled is None,
        f"Some demonstrations of {expert.id} have no actions. Leave those episodes out of the file",
    )
    require(
        mine == theirs and dataset.discrete == expert.discrete,
        f"The demonstrations of {expert.id} have observations {theirs[0]} and actions "
        f"{theirs[1]}, but the data of {dataset.id} has {mine[0]} and {mine[1]}. Choose an "
        "algo.data.expert.task with the same spaces",
    )
    check_parts(dataset.id, dict(dataset.parts), expert.id, dict(expert.parts))


def _compared(dataset: Dataset, compare: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rows can be compared, `(N,)`, and their vectors, side by side."""
    kept = np.ones(len(dataset), bool) if compare == "sa" else dataset.has_next
    parts = {
        "sas": (dataset.observations, dataset.actions, dataset.next_observations),
        "sa": (dataset.observations, dataset.actions),
        "ss": (dataset.observations, dataset.next_observations),
    }[compare]
    return kept, np.hstack(parts)[kept]
