"""Reads the episodes of a Minari dataset as one Dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

from corerl.data.action_scaling import unit_actions
from corerl.data.dataset import Dataset
from corerl.data.files.arrays import flags
from corerl.data.observations import by_name, widths
from corerl.errors import CorerlError

FIELDS = ("rewards", "terminations", "truncations")


ARRAYS = ("observations", "actions", *FIELDS)


def read(source, id: str) -> Dataset:
    """Reads a minari.MinariDataset as a Dataset."""
    n, space, taken = source.total_steps, source.observation_space, source.action_space
    if not isinstance(taken, spaces.Box | spaces.Discrete):
        raise CorerlError(
            f"its actions are {taken}, which corerl cannot read. Supported: Box and Discrete."
        )
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8
    shape = space.shape if image else (_width(space),)
    observations = np.empty((n, *shape), np.uint8 if image else np.float32)
    following = np.empty_like(observations)
    columns = {key: np.empty(n, np.float32 if key == "rewards" else bool) for key in FIELDS}
    discrete = isinstance(taken, spaces.Discrete)
    actions = np.empty((n, *taken.shape), np.int64 if discrete else np.float32)
    row = 0
    for number, episode in enumerate(_episodes(source)):
        steps = len(episode["rewards"])
        rows = slice(row, row + steps)
        _check_count(row + steps, n, at_least=False)
        _check_observations(number, space, episode["observations"], steps + 1)
        _check_shape(number, "actions", episode["actions"], (steps, *taken.shape))
        for key in FIELDS:
            _check_shape(number, key, episode[key], (steps,))
        states = _numbers(space, episode["observations"], image)
        observations[rows], following[rows] = states[:-1], states[1:]
        with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
            actions[rows] = np.asarray(episode["actions"][()])
            for key in FIELDS:
                column = np.asarray(episode[key][()])
                columns[key][rows] = column if key == "rewards" else flags(column, key)
        if steps:
            last = row + steps - 1
            columns["truncations"][last] |= not columns["terminations"][last]
        row += steps
    _check_count(row, n, at_least=True)
    if not discrete:
        actions = unit_actions(actions.reshape(n, -1), taken.low.ravel(), taken.high.ravel())
    dataset = Dataset.from_steps(
        id,
        observations,
        actions,
        columns["rewards"],
        following,
        columns["terminations"],
        columns["truncations"],
    )
    if not isinstance(space, spaces.Dict):
        return dataset
    return replace(dataset, parts=widths(by_name(space)))


def _check_count(row: int, steps: int, at_least: bool) -> None:
    if row > steps or (at_least and row < steps):
        raise CorerlError(
            f"its episodes have {'' if at_least else 'at least '}{row} steps, but its metadata "
            f"says {steps}. Download the dataset again."
        )


def _check_observations(number: int, space: spaces.Space, value, rows: int) -> None:
    for part, inner in _inside(space, value):
        _check_observations(number, part, inner, rows)
    if space.shape is not None:
        _check_shape(number, "observations", value, (rows, *space.shape))


def _width(space: spaces.Space) -> int:
    """Returns the features of an observation as a vector."""
    try:
        return spaces.flatdim(space)
    except (NotImplementedError, ValueError) as error:
        raise CorerlError(
            f"its observations are {space}, which corerl cannot turn into vectors."
        ) from error


def _inside(space: spaces.Space, value) -> Iterator[tuple[spaces.Space, Any]]:
    """Yields the parts of a dictionary or a tuple, each with its values. HDF5 holds a tuple by name."""
    if isinstance(space, spaces.Dict):
        yield from ((part, value[key]) for key, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield part, value[i if isinstance(value, tuple) else f"_index_{i}"]


def _check_shape(number: int, field: str, array, shape: tuple[int, ...]) -> None:
    """Checks a shape before reading: it may claim any size, and HDF5 takes its time to fill it."""
    if array.shape != shape:
        raise CorerlError(
            f"episode {number}: its {field} have shape {array.shape}, but should have {shape}."
        )


def _episodes(source) -> Iterator[dict]:
    """Yields each episode as a mapping of arrays.

    minari's own iterator also decodes the infos, which takes twice as long as all the rest.
    """
    path = Path(source.spec.data_path) / "main_data.hdf5"
    encoded = isinstance(source.observation_space, spaces.Box) and (
        source.observation_space.dtype == np.uint8
    )
    if encoded or not path.is_file():
        yield from source.storage.get_episodes(source.episode_indices)
        return
    with h5py.File(path, "r") as file:
        for i in source.episode_indices:
            if f"episode_{i}" not in file:
                raise CorerlError(
                    f"main_data.hdf5 has no episode_{i}, but the metadata lists it. Download the dataset "
                    "again."
                )
            episode = file[f"episode_{i}"]
            yield {key: episode[key] for key in ARRAYS}  # opening one takes longer than reading it


def _numbers(space: spaces.Space, value, image: bool) -> np.ndarray:
    """Returns (T + 1, D), the observations as gymnasium flattens them. An image stays as it is."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [_numbers(part, inner, image) for part, inner in _inside(space, value)]
        return np.concatenate(parts, axis=1)
    array = np.asarray(value[()])
    if isinstance(space, spaces.Discrete):
        return _one_hot(array - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = (array - space.start).reshape(len(array), -1).T
        counts = space.nvec.ravel().tolist()
        return np.concatenate([_one_hot(*of_one) for of_one in zip(digits, counts, strict=True)], 1)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise CorerlError(
            f"a part of its observations is {space}, which corerl cannot read. Supported: Box, Discrete, "
            "MultiBinary, MultiDiscrete, and Dict or Tuple of these."
        )
    return array if image else array.reshape(len(array), -1)


def _one_hot(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns (T + 1, count), as gymnasium flattens a Discrete."""
    if ((numbers < 0) | (numbers >= count)).any():
        raise CorerlError(
            f"an observation of its Discrete({count}) is not a number from 0 to {count - 1}."
        )
    return np.eye(count, dtype=np.float32)[numbers]
