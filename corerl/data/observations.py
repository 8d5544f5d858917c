"""Observations as one vector: the parts of a dictionary side by side, and the latest K of an episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.data.files.checks import leaps


class Flat(gymnasium.ObservationWrapper):
    """Lays the parts of a dictionary side by side, in the order `names`. Without them, the space's.

    Those of a dictionary in it are `arm/position`, and `arm` is all of them. Gymnasium sorts the space of a
    plain dictionary by name.

    Attributes:
        parts: the spaces of the parts by name, in the order in which they lie.

    Raises:
        CorerlError: a name is none of the environment's, or one of its is missing.
    """

    def __init__(self, env: gymnasium.Env, names: Sequence[str] | None = None):
        super().__init__(env)
        known = by_name(env.observation_space)
        names = names or list(known)
        found = [[part for part in known if is_in(part, name)] for name in names]
        order = list(chain.from_iterable(found))
        require(
            all(found) and sorted(order) == sorted(known),
            f"the parts of an observation are called {', '.join(known)} in {env.unwrapped}, but "
            f"{', '.join(names)} in the data. Give them the same names",
        )
        self.parts = {part: known[part] for part in order}
        flat = [spaces.flatten_space(space) for space in self.parts.values()]
        low, high = (
            np.concatenate([getattr(space, bound) for space in flat], dtype=np.float64)
            for bound in ("low", "high")
        )
        self.observation_space = spaces.Box(low, high, dtype=np.float64)

    def observation(self, observation: Mapping[str, Any]) -> np.ndarray:
        given = by_name(observation)
        return np.concatenate(
            [spaces.flatten(space, given[name]) for name, space in self.parts.items()],
            dtype=np.float64,
        )


class History(gymnasium.Wrapper):
    """Shows the latest `length` observations as one vector, oldest first.

    An episode's first one stands for those before it. `frames` `(length, O)` are what is shown.

    Raises:
        CorerlError: observations are no vectors.
    """

    def __init__(self, env: gymnasium.Env, length: int):
        super().__init__(env)
        space = env.observation_space
        require(
            isinstance(space, spaces.Box) and len(space.shape) == 1,
            f"history={length} stacks vectors, but {env.unwrapped} has observations of {space}. "
            "Set history=1",
        )
        low, high = np.tile(space.low, length), np.tile(space.high, length)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype)
        self.length, self.frames = length, np.empty((length, *space.shape))

    def reset(self, **kwargs: Any):
        observation, info = self.env.reset(**kwargs)
        self.frames = first(observation, self.length)
        return self.frames.reshape(-1), info

    def step(self, action: Any):
        observation, *rest = self.env.step(action)
        self.frames = later(self.frames, observation)
        return self.frames.reshape(-1), *rest


def by_name(tree: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Returns what a dictionary holds, `arm/position` where `arm` is a dictionary itself, in its order."""
    found = {}
    for name, part in tree.items():
        inner = isinstance(part, Mapping)
        found |= by_name(part, f"{inside}{name}/") if inner else {f"{inside}{name}": part}
    return found


def is_in(part: str, name: str) -> bool:
    """Tells whether `part` is `name` itself or lies in the dictionary of that name."""
    return f"{part}/".startswith(f"{name}/")


def flattened(given: Mapping[str, Any], known: Mapping[str, spaces.Space]) -> np.ndarray:
    """Lays parts side by side in their order: `(O,)` of one observation, or `(n, O)` of n of them.

    Args:
        given: each as its space has it (a number, a matrix) or as a vector, or n of them in rows.
        known: spaces by name; a part without one is a vector.

    Raises:
        CorerlError: a part does not fit its space, or one is of one observation and another of several.
    """
    parts = {name: np.asarray(value) for name, value in given.items()}
    common = set.intersection(*(_leads(x, known.get(name)) for name, x in parts.items()))
    shapes = ", ".join(f"{name} {x.shape}" for name, x in parts.items())
    require(
        common,
        f"the parts of an observation have shapes {shapes}. Give each part in the environment's "
        "shape or as a vector. For n observations, give n rows of each part",
    )
    lead = min(common, key=len)
    return np.concatenate([_vectors(x, known.get(name), lead) for name, x in parts.items()], -1)


def _leads(value: np.ndarray, space: spaces.Space | None) -> set[tuple[int, ...]]:
    """Returns the shapes that may stand before a part's own: `()` of one observation, `(n,)` of n."""
    if space is None:
        return {value.shape[:-1]}
    width = spaces.flatdim(space)
    shapes = {space.shape, (width,), () if width == 1 else (width,)}
    starts = [(value.ndim - len(shape), shape) for shape in shapes]
    return {value.shape[:i] for i, shape in starts if i >= 0 and value.shape[i:] == shape}


def _vectors(value: np.ndarray, space: spaces.Space | None, lead: tuple[int, ...]) -> np.ndarray:
    if space is None or isinstance(space, spaces.Box):
        return value.reshape(*lead, -1)
    if value.shape == (*lead, spaces.flatdim(space)):
        return value
    rows = value.reshape(-1, *space.shape)
    require(
        all(map(space.contains, rows)),
        f"a part of an observation is {value}, but must lie in {space}",
    )
    return np.stack([spaces.flatten(space, x) for x in rows]).reshape(*lead, -1)


def widths(parts: Mapping[str, spaces.Space]) -> tuple[tuple[str, int], ...]:
    """Returns the names of parts and how many features each has, as `Dataset.parts`."""
    return tuple((name, spaces.flatdim(space)) for name, space in parts.items())


def unflattened(
    space: spaces.Dict, flat: np.ndarray, parts: Mapping[str, spaces.Space] | None = None
) -> dict[str, Any]:
    """Returns the dictionary of flat observations `(n, O)`, each part as the environment shows it.

    Args:
        parts: spaces by name in the order in which they lie; None: the space's own.
    """
    parts = parts or by_name(space)
    ends = np.cumsum([spaces.flatdim(part) for part in parts.values()])[:-1]
    pieces = zip(parts, np.split(flat, ends, axis=1), strict=True)
    return _nested(space, {name: _shaped(parts[name], piece) for name, piece in pieces})


def _shaped(space: spaces.Space, flat: np.ndarray) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return flat.astype(space.dtype).reshape(-1, *space.shape)
    return np.stack([spaces.unflatten(space, row) for row in flat])


def _nested(space: spaces.Dict, pieces: Mapping[str, np.ndarray], inside: str = "") -> dict:
    return {
        name: _nested(part, pieces, f"{inside}{name}/")
        if isinstance(part, spaces.Dict)
        else pieces[f"{inside}{name}"]
        for name, part in space.items()
    }


def kept_as(shape: Sequence[int], dtype: np.dtype) -> type:
    """Returns the type in which observations are kept: images' bytes as bytes, everything else as float32."""
    return np.uint8 if len(shape) == 3 and dtype == np.uint8 else np.float32


def wrapper(env: gymnasium.Env | None, kind: type) -> Any:
    """Returns the outermost wrapper of this kind around `env`, or None where there is none."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return env
        env = env.env
    return None


def check_parts(one: str, mine: Collection[str], other: str, theirs: Collection[str]) -> None:
    """Raises CorerlError where both have names for the parts of an observation, in another order or others.

    A dictionary's name stands for all of its parts.
    """
    few, many = sorted((mine, theirs), key=len)
    within = [next((name for name in few if is_in(part, name)), part) for part in many]
    require(
        not few or [name for name, _ in groupby(within)] == list(few),
        f"observations have the parts {', '.join(mine)} in {one}, but {', '.join(theirs)} in {other}. "
        "Both must have the same parts in the same order. A file's order is data.columns.observations",
    )


def first(observation: np.ndarray, length: int) -> np.ndarray:
    """Returns the frames `(length, ...)` at an episode's start."""
    return np.repeat(np.asarray(observation)[None], length, 0)


def later(frames: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Returns the frames one step later. The oldest is dropped."""
    return np.concatenate([frames[1:], np.asarray(observation)[None]])


def with_history(dataset: Dataset, length: int) -> Dataset:
    """Returns the dataset with observations `(N, length * O)`, stacked as `History` shows them.

    Frames also begin anew after a gap inside an episode. A gap is where a row has no next observation, or one
    that is not the next row's.

    Raises:
        CorerlError: observations are no vectors.
    """
    steps, shape = len(dataset), dataset.observations.shape[1:]
    require(
        len(shape) == 1,
        f"history={length} stacks vectors, but {dataset.id} has observations of shape {shape}. Set history=1",
    )
    starts = _starts(dataset)
    back = np.arange(length - 1, -1, -1)
    rows = np.maximum(np.arange(steps)[:, None] - back, starts[:, None])
    stacked = dataset.observations[rows].reshape(steps, -1)
    following = np.concatenate([stacked[:, shape[0] :], dataset.next_observations], 1)
    return replace(dataset, observations=stacked, next_observations=following, parts=())


def _starts(dataset: Dataset) -> np.ndarray:
    """Returns for each row `(N,)` the first of the rows up to it that follow each other."""
    before = np.concatenate(
        [dataset.episode_ends - 1, leaps(dataset), np.flatnonzero(~dataset.has_next)]
    )
    starts = np.zeros(len(dataset) + 1, np.int64)
    starts[before + 1] = before + 1
    return np.maximum.accumulate(starts[:-1])
