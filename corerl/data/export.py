"""A Dataset as a file that other people's code reads: D4RL's HDF5, or a Minari dataset.

HDF5 has D4RL's keys, `observations, actions, rewards, terminals, timeouts`, with actions in [-1, 1], which an
attribute says, and `next_observations`, which CORL and d3rlpy read where it is there. `qlearning_dataset` of
the d4rl package leaves out the rows that time out, also where they have a next observation.

A Minari dataset has the environment's own actions, and an observation more than steps: where the last one
of an episode was never recorded, its last step is left out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from gymnasium import spaces

from corerl.data import minari
from corerl.data.action_range import Narrow
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.files.checks import leaps
from corerl.data.files.fields import SCALED
from corerl.data.files.io import one_line, replacing
from corerl.data.observations import Flat, unflattened, wrapper
from corerl.data.simulators import unscaled
from corerl.errors import CorerlError

KEYS = {
    "terminated": "terminals",
    "truncated": "timeouts",
    "behaviour_log_prob": "infos/action_log_probs",
}
"""D4RL's names where they are not ours."""


def to_hdf5(dataset: Dataset, path: Path, facts: dict[str, Any]) -> None:
    """Writes `dataset` in D4RL's layout, with `facts` as attributes.

    `has_next` is kept beside it where a row's next observation is not real. A dictionary's parts are arrays
    of their own, `observations/position`: without their names nobody could tell in which order they lie.

    Raises:
        CorerlError: the file cannot be written.
    """
    with replacing(path) as part, h5py.File(part, "w") as file:
        for field, array in own_files.fields_of(dataset).items():
            if field != "has_next" or not array.all():
                file.create_dataset(KEYS.get(field, field), data=array, compression="gzip")
        for name, value in (facts | ({} if dataset.discrete else {"actions": SCALED})).items():
            file.attrs[name] = value if isinstance(value, str) else json.dumps(value)


def to_minari(dataset: Dataset, id: str, env: gymnasium.Env | None, facts: dict[str, Any]) -> int:
    """Writes `dataset` as the Minari dataset `id`. The number of steps that were left out.

    Args:
        env: the environment with actions in [-1, 1], as a task makes it; None: spaces are the data's.
        facts: for its metadata: `algorithm_name`, `description`, ...

    Raises:
        CorerlError: the id is no Minari id or is taken, rows inside an episode do not follow each other, or
            no episode has two steps.
    """
    import minari as library
    from minari.data_collector import EpisodeBuffer

    if not minari.is_id(id):
        raise CorerlError(f"{id} is not a Minari id. Write one as NAMESPACE/NAME-v0.")
    if (minari.root() / id).exists():
        raise CorerlError(f"{minari.root() / id} exists already: choose another id, or delete it.")
    unknown = ~np.delete(dataset.has_next, dataset.episode_ends - 1)
    if lost := len(leaps(dataset)) + unknown.sum():
        raise CorerlError(
            f"In {lost:,} rows of {dataset.id} inside an episode, the next observation is unknown "
            "or differs from the next row's observation. Minari's format cannot store such rows. "
            "Export to FILE.hdf5 instead."
        )
    if dataset.durations is not None:
        raise CorerlError(
            f"The steps of {dataset.id} have durations, which Minari's format cannot store. "
            "Export to FILE.hdf5 instead."
        )
    raw, scaled = _bare(env), unscaled(env)
    parts = getattr(wrapper(env, Flat), "parts", None)
    buffers, left_out = [], 0
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        known = bool(dataset.has_next[end - 1])
        steps = end - start - (not known)
        left_out += not known
        if steps == 0:
            continue
        rows = slice(start, start + steps)
        last = (dataset.next_observations if known else dataset.observations)[end - 1]
        actions = dataset.actions[rows]
        if not dataset.discrete and scaled is not None:
            low, high = scaled.action_space.low, scaled.action_space.high
            actions = (low + (actions + 1) / 2 * (high - low)).astype(low.dtype)
        observations = np.concatenate([dataset.observations[rows], last[None]])
        over = np.arange(steps) == steps - 1
        buffers.append(
            EpisodeBuffer(
                observations=_in_space(raw and raw.observation_space, observations, parts),
                actions=actions,
                rewards=dataset.rewards[rows],
                terminations=over & bool(known and dataset.terminated[end - 1]),
                truncations=over & ~bool(known and dataset.terminated[end - 1]),
                infos={},
            )
        )
    if not buffers:
        raise CorerlError(
            f"No episode of {dataset.id} has a next observation, so there is nothing to export. "
            "Check where its episodes end."
        )
    given = {"env": raw} if raw is not None else _spaces(dataset)
    try:
        with minari.writing(id), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no permalink, no e-mail address, ...
            library.create_dataset_from_buffers(id, buffers, **given, **facts)
    except Exception as error:  # the library raises AssertionError, ValueError, ...
        raise CorerlError(f"minari cannot write {id} ({one_line(error)}).") from error
    return left_out


def _bare(env: gymnasium.Env | None) -> gymnasium.Env | None:
    """Returns the environment as it is without this package's wrappers."""
    env = unscaled(env) or env
    while isinstance(env, Narrow | Flat):
        env = env.env
    return env


def _in_space(
    space: spaces.Space | None, flat: np.ndarray, parts: Mapping[str, spaces.Space] | None
) -> np.ndarray | dict[str, Any]:
    """Restores flat observations to the environment's type, a dictionary where it has parts."""
    if isinstance(space, spaces.Dict):
        return unflattened(space, flat, parts)
    return flat if space is None else flat.astype(space.dtype)


def _spaces(dataset: Dataset) -> dict[str, spaces.Space]:
    shape = dataset.observations.shape[1:]
    if dataset.observations.dtype == np.uint8:
        observed: spaces.Space = spaces.Box(0, 255, shape, np.uint8)
    else:
        observed = spaces.Box(-np.inf, np.inf, shape, np.float32)
    if dataset.discrete:
        return {
            "observation_space": observed,
            "action_space": spaces.Discrete(int(dataset.actions.max()) + 1),
        }
    return {
        "observation_space": observed,
        "action_space": spaces.Box(-1, 1, dataset.actions.shape[1:]),
    }
