"""A grid to survey: a step pays for what it sees first, and nothing for what has been seen.

As `risk/coverage` a robot on 7 by 7 cells sees its own cell and the four beside it, whose worth is uniform
in [0, 1]. It makes 10 steps, each to a neighbour or none. The sum of an episode's rewards is what all of its
cells see together, less what the first one sees. That is a submodular function of the set of visited cells,
which no reward of state and action has. An observation is the cell as a one-hot vector and the share of steps
made. As `risk/coverage-map` it also has the cells that have been seen.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from corerl.envs.restorable import Restorable

MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])


class Coverage(Restorable):
    """Attributes: `worth` (C,) of the cells. `sees` (C, C): which cells each one sees."""

    kept = ("cell", "seen", "time")

    def __init__(self, side: int = 7, steps: int = 10, shows_map: bool = False, seed: int = 0):
        cells = side * side
        self.worth = np.random.default_rng(seed).uniform(size=cells)
        self.side, self.steps, self.shows_map = side, steps, shows_map
        places = np.stack(np.divmod(np.arange(cells), side), 1)
        self.sees = np.abs(places[:, None] - places).sum(-1) <= 1
        self.after = np.stack(
            [self._cell(np.clip(places + move, 0, side - 1)) for move in MOVES], 1
        )
        width = cells * (1 + shows_map) + 1
        self.observation_space = spaces.Box(0, 1, (width,), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self.start = cells // 2
        self.cell, self.time, self.seen = self.start, 0, self.sees[self.start]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.cell, self.time, self.seen = self.start, 0, self.sees[self.start]
        return self._observation(), {}

    def step(self, action: int):
        self.cell, self.time = int(self.after[self.cell, int(action)]), self.time + 1
        gain = self.gain(self.seen, self.cell)
        self.seen = self.seen | self.sees[self.cell]
        return self._observation(), gain, self.time == self.steps, False, {}

    def gain(self, seen: np.ndarray, cell: int) -> float:
        """Returns the worth of what a cell sees and is not among the `seen` (C,)."""
        return float(self.worth[self.sees[cell] & ~seen].sum())

    def best_return(self) -> float:
        """Returns the largest sum of an episode's rewards, by search over cells and what they have seen."""
        reached = {(self.start, self.sees[self.start].tobytes()): 0.0}
        for _ in range(self.steps):
            following: dict[tuple[int, bytes], float] = {}
            for (cell, known), value in reached.items():
                seen = np.frombuffer(known, bool)
                for after in set(self.after[cell].tolist()):
                    key = after, (seen | self.sees[after]).tobytes()
                    total = value + self.gain(seen, after)
                    following[key] = max(following.get(key, 0.0), total)
            reached = following
        return max(reached.values())

    def _cell(self, places: np.ndarray) -> np.ndarray:
        return places[..., 0] * self.side + places[..., 1]

    def _observation(self) -> np.ndarray:
        here = np.zeros(len(self.worth), np.float32)
        here[self.cell] = 1
        parts = [here, self.seen] if self.shows_map else [here]
        return np.concatenate([*parts, [self.time / self.steps]], dtype=np.float32)
