"""The multi-reward mazes of MD3QN (Zhang et al. 2021, NeurIPS), v0 to v6.

A reward per source at every step, random and correlated between sources, with a joint law of returns
that can be computed exactly. In all of them: a square of colour pays its source once, when it is
entered; no square is entered twice; a move through a wall or into an entered or unused square has no
effect but takes a step; a move through an opening in the outer wall ends the episode and pays nothing.

v0 pays together or not at all, v1 one source at the other's cost, v2 two sources of one law on
different ways. In v3 to v6 every square is worth exactly 1, some squares choose the action themselves,
and an episode succeeds if the discounted return of every source meets its bound.

Two differences from the authors' code: the time limit truncates where theirs terminates, and the
drawing is ours (the same squares, colours and sizes, averaged from 256 to 84 pixels as theirs is).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from corerl.envs.maze_drawing import IMAGE, draw
from corerl.errors import CorerlError, nearest

MOVES = ((-1, 0), (0, -1), (1, 0), (0, 1))
"""Rows and columns that the actions 0 up, 1 left, 2 down and 3 right go."""
TIME_LIMIT = 150
DISCOUNT = 0.99
"""Of the returns that the bounds of v3 to v6 are about."""

Cell = tuple[int, int]


@dataclass(frozen=True)
class Source:
    """One source of reward: uniform on [low, high] at each of its squares."""

    colour: tuple[int, int, int]
    low: float
    high: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Maze:
    """A map, with openings as `"row,column"`.

    `>` is one way down or right, `<` one way up or left. Those in `tops` are between a square and the one
    above it, those in `lefts` between it and the one to its left. A row or column beyond the last is the
    outer wall.
    """

    size: int
    start: Cell
    sources: tuple[Source, ...]
    tops: str
    lefts: str
    unused: tuple[Cell, ...] = ()
    chosen: dict[Cell, tuple[float, ...]] = field(default_factory=dict)
    """Squares that replace the action by a draw with these probabilities."""
    bounds: tuple[str, ...] = ()
    """Per source, such as `"<0.2"`: what its discounted return must meet."""

    @cached_property
    def openings(self) -> dict[tuple[Cell, int], Cell]:
        """Where an action leads from a square, for every pair with an opening, possibly outside."""
        found = {}
        for spelled, back, forth in ((self.tops, 0, 2), (self.lefts, 1, 3)):
            for word in spelled.split():
                after = tuple(int(n) for n in word.rstrip("<>").split(","))
                before = (after[0] + MOVES[back][0], after[1] + MOVES[back][1])
                if not word.endswith(">"):
                    found[after, back] = before
                if not word.endswith("<"):
                    found[before, forth] = after
        return found

    @cached_property
    def source_of(self) -> dict[Cell, int]:
        return {cell: i for i, source in enumerate(self.sources) for cell in source.cells}

    def inside(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size


def _sources(*triples) -> tuple[Source, ...]:
    colours = {
        "orange": (255, 200, 150),
        "blue": (150, 200, 255),
        "green": (175, 255, 175),
        "red": (255, 175, 175),
    }
    return tuple(Source(colours[name], *law, cells) for name, law, cells in triples)


ONE = (1.0, 1.0)
LOW, HIGH = (0.2, 0.6), (0.4, 0.9)

MAZES = {
    "v0": Maze(
        size=5,
        start=(2, 1),
        sources=_sources(
            ("orange", (0.2, 0.4), ((0, 0),)),
            ("blue", (0.8, 1.0), ((0, 2),)),
            ("green", (0.3, 0.5), ((2, 3),)),
            ("red", (0.5, 0.7), ((3, 2),)),
        ),
        tops="0,0 1,3 1,4 2,3 3,2 4,2 5,2",
        lefts="0,1 0,2 0,3 0,5 1,4 2,2 2,3 3,0 3,1 3,2",
        unused=(
            *((1, 0), (1, 1), (1, 2), (2, 0), (2, 4), (3, 3), (3, 4)),
            *((4, 0), (4, 1), (4, 3), (4, 4)),
        ),
    ),
    "v1": Maze(
        size=5,
        start=(0, 0),
        sources=_sources(
            ("green", LOW, ((0, 1), (1, 2), (2, 3), (3, 4))),
            ("red", HIGH, ((1, 0), (2, 1), (3, 2), (4, 3))),
        ),
        tops="1,0 1,1> 2,1 2,2> 3,2 3,3> 4,3 4,4>",
        lefts="0,1 1,1> 1,2 2,2> 2,3 3,3> 3,4 4,4> 4,5",
        unused=(
            *((0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 0), (2, 4)),
            *((3, 0), (3, 1), (4, 0), (4, 1), (4, 2)),
        ),
    ),
    "v2": Maze(
        size=5,
        start=(0, 0),
        sources=_sources(
            ("green", LOW, ((0, 1), (1, 4), (4, 2))),
            ("red", HIGH, ((0, 2), (2, 4), (4, 1))),
        ),
        tops="1,0 1,3> 2,3 2,4 3,3> 3,4 4,3 4,0 5,0",
        lefts="0,1 0,2 0,3 1,1 1,2 1,3> 1,4 3,0 3,1< 3,2 3,3 3,4< 4,1< 4,2 4,3",
        unused=((0, 4), (2, 0), (2, 1), (2, 2), (4, 4)),
    ),
    "v3": Maze(
        size=5,
        start=(0, 0),
        sources=_sources(
            ("red", ONE, ((3, 1), (3, 4))),
            ("green", ONE, ((0, 3), (2, 1), (3, 2))),
            ("blue", ONE, ((2, 0), (4, 0), (4, 1), (4, 4))),
        ),
        tops="1,0> 1,2 1,4> 2,0 2,1 2,4 3,0 3,1 3,2 3,3 3,4 4,0 4,1 4,2 4,3> 4,4> 5,0 5,1 5,2 5,3",
        lefts="0,1> 0,2 0,3 0,4 1,1 1,3 1,4> 2,2 2,4< 4,4 4,5",
        chosen={(1, 0): (0, 0, 1 / 3, 2 / 3), (2, 1): (0, 0, 1 / 2, 1 / 2)},
        bounds=("<0.2", ">0.7", ">0.7"),
    ),
    "v4": Maze(
        size=7,
        start=(0, 4),
        sources=_sources(
            ("red", ONE, ((2, 0), (2, 3), (2, 5), (4, 0), (4, 3), (4, 5), (6, 3))),
            ("green", ONE, ((1, 2), (1, 4), (3, 4), (5, 1), (5, 4))),
            ("blue", ONE, ((1, 6), (5, 6), (3, 1))),
        ),
        tops="1,0 1,1 1,2 1,3 1,4 1,5 1,6 2,0> 2,1> 2,2> 2,3> 2,4> 2,5> 2,6> "
        "3,0 3,1 3,2 3,3 3,4 3,5 3,6 4,0> 4,1> 4,2> 4,3> 4,4> 4,5> 4,6> "
        "5,0 5,1 5,2 5,3 5,4 5,5 5,6 6,0> 6,1> 6,2> 6,3> 6,4> 6,5> 6,6> 7,0 7,6",
        lefts="0,1 0,2 0,3 0,4 0,5 0,6 2,1 2,2 2,3 2,4 2,5 2,6 "
        "4,1 4,2 4,3 4,4 4,5 4,6 6,1 6,2 6,3 6,4 6,5 6,6",
        bounds=("<0.2", ">1.6", ">0.8"),
    ),
    "v5": Maze(
        size=6,
        start=(0, 0),
        sources=_sources(
            ("red", ONE, ((3, 1), (4, 4), (1, 4))),
            ("green", ONE, ((0, 3), (2, 1), (1, 1))),
            ("blue", ONE, ((3, 0), (4, 0), (4, 1), (5, 1), (3, 4), (4, 3))),
        ),
        tops="1,0> 1,2 1,4> 1,5> 2,0 2,1 2,5 3,0 3,1 3,2 3,3> 3,4> 3,5> "
        "4,0 4,1 4,2 4,3 4,4 4,5 5,0 5,1 5,2 5,3> 5,4> 5,5> 6,0 6,1 6,3",
        lefts="0,1> 0,2 0,3 0,4 0,5 1,1 1,3 1,4> 1,5 2,4 2,5 5,4 5,5 5,6",
        unused=((2, 2), (3, 2), (4, 2), (5, 2)),
        chosen={(1, 0): (0, 0, 1 / 2, 1 / 2)},
        bounds=("<0.2", ">0.92", ">0.87"),
    ),
    "v6": Maze(
        size=6,
        start=(0, 0),
        sources=_sources(
            ("red", ONE, ((3, 0), (3, 5), (4, 1), (4, 4), (1, 4))),
            ("green", ONE, ((2, 1), (3, 3), (4, 2), (4, 5))),
            ("blue", ONE, ((4, 0), (3, 4), (4, 3), (5, 2))),
        ),
        tops="0,1 0,5 1,0> 1,2 2,0 2,1 2,5 3,0 3,1 3,2 3,3> 3,4> 3,5> "
        "4,0 4,1 4,2 4,3 4,4 4,5 5,0 5,1 5,2 5,3> 5,4> 5,5> 6,0 6,1 6,2 6,3",
        lefts="0,1> 0,2 0,3 0,4 0,5 1,1 1,3 1,4 1,5 2,2 2,4 2,5 5,4 5,5 5,6",
        chosen={(1, 0): (0, 0, 1 / 2, 1 / 2), (0, 1): (1 / 2, 0, 0, 1 / 2)},
        bounds=(">0.6", ">0.6", ">0.6"),
    ),
}


class MazeEnv(gymnasium.Env):
    """One maze. The reward is the sum over sources. `info["reward_vector"]` `(K,)` has the parts.

    Observations are drawings `(3, 84, 84)` uint8, or with `vector=True` the square one-hot and the
    squares that have been entered, `(2 * size * size,)` float32. Where the maze has bounds, the info of
    an episode's last step says under `success` whether its discounted returns met all of them.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, maze: Maze, vector: bool = False):
        self.maze, self._vector = maze, vector
        shape, kind = ((2 * maze.size**2,), np.float32) if vector else ((3, IMAGE, IMAGE), np.uint8)
        self.observation_space = spaces.Box(0, 1 if vector else 255, shape, kind)
        self.action_space = spaces.Discrete(len(MOVES))
        low, high = np.array([(s.low, s.high) for s in maze.sources], np.float32).T
        self.reward_space = spaces.Box(low.clip(max=0), high.clip(min=0))
        self._draw = lru_cache(4096)(lambda cell, entered: draw(maze, cell, entered))
        self._begin()

    def _begin(self) -> None:
        self._cell = self.maze.start
        self._entered: frozenset[Cell] = frozenset([self.maze.start])
        self._steps = 0
        self._returns = np.zeros(len(self.maze.sources))

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self._begin()
        return self._observe(), {}

    def step(self, action):
        if self._cell in self.maze.chosen:
            action = self.np_random.choice(len(MOVES), p=self.maze.chosen[self._cell])
        target = self.maze.openings.get((self._cell, int(action)))
        outside = target is not None and not self.maze.inside(target)
        rewards = np.zeros(len(self.maze.sources))
        if target is not None and not outside and self._is_free(target):
            rewards = self._enter(target)
        self._returns += DISCOUNT**self._steps * rewards
        self._steps += 1
        truncated = not outside and self._steps == TIME_LIMIT
        info: dict[str, Any] = {"reward_vector": rewards}
        if self.maze.bounds and (outside or truncated):
            info["success"] = self.meets_bounds(self._returns)
        return self._observe(), float(rewards.sum()), outside, truncated, info

    def meets_bounds(self, returns: np.ndarray) -> bool:
        """Whether discounted returns `(K,)` meet every bound of the maze."""
        pairs = zip(returns, self.maze.bounds, strict=True)
        return all((z < float(b[1:])) if b[0] == "<" else (z > float(b[1:])) for z, b in pairs)

    def _is_free(self, cell: Cell) -> bool:
        return cell not in self._entered and cell not in self.maze.unused

    def _enter(self, cell: Cell) -> np.ndarray:
        rewards = np.zeros(len(self.maze.sources))
        if cell in self.maze.source_of:
            index = self.maze.source_of[cell]
            source = self.maze.sources[index]
            rewards[index] = self.np_random.uniform(source.low, source.high)
        self._cell, self._entered = cell, self._entered | {cell}
        return rewards

    def _observe(self) -> np.ndarray:
        if not self._vector:
            return self._draw(self._cell, self._entered)
        features = np.zeros((2, self.maze.size, self.maze.size), np.float32)
        features[0][self._cell] = 1
        for cell in self._entered:
            features[1][cell] = 1
        return features.reshape(-1)

    def state_dict(self) -> dict[str, Any]:
        """Where the episode stands. The generator is the caller's to keep."""
        return {
            "cell": list(self._cell),
            "entered": sorted(map(list, self._entered)),
            "steps": self._steps,
            "returns": torch.from_numpy(self._returns.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cell = tuple(state["cell"])
        self._entered = frozenset(map(tuple, state["entered"]))
        self._steps, self._returns = state["steps"], state["returns"].numpy().copy()


def names() -> list[str]:
    """`v0` to `v6`, each also with `-vector` for vector observations."""
    return [*MAZES, *(f"{name}-vector" for name in MAZES)]


def make(name: str) -> MazeEnv:
    """The maze `v0`, or `v0-vector`. CorerlError for a name that does not exist."""
    if name not in names():
        raise CorerlError(
            f"There is no maze {name}.{nearest(name, names())} Known: {', '.join(names())}."
        )
    return MazeEnv(MAZES[name.removesuffix("-vector")], vector=name.endswith("-vector"))
