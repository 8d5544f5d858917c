"""`corerl/courier`: a road on which the fewest decisions are not the shortest way (a semi-Markov problem).

A courier brings parcels down a road of 12 cells, one after the other, until a day of 240 minutes is over.
A cell on foot takes one minute. A bus rides four cells. At cell 4 a bus leaves at once and takes 2 minutes.
Elsewhere the courier waits, and a ride takes 9. A parcel pays 1 when the courier sets out with it.

    every ride           3 decisions and 20 minutes a parcel: 12 parcels a day
    on foot              12 decisions and 12 minutes: 20 parcels
    walk, ride, walk     9 decisions and 10 minutes: 24 parcels

A learner that discounts by decisions rides everywhere. One that discounts by minutes finds the best way
(tests/envs/test_courier.py). The data is of uniform actions, with a column of durations.

`python -m corerl.envs.courier` prints the mean return of uniform actions, kept in `corerl.data.embedded`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from corerl.envs.restorable import Restorable

CELLS, DAY = 12, 240
WALK, RIDE = 0, 1
FAR, AT_ONCE, WAITING = 4, 2, 9
STOP = 4
STEPS = 20_000


class Courier(Restorable):
    """An observation is the cell, one-hot. `longest` and the info's `duration` tell how long steps take."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 1, (CELLS,), np.float32)
    longest = WAITING
    kept = ("cell", "time")

    def __init__(self):
        self.cell, self.time = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.cell, self.time = 0, 0
        return observe(self.cell), {}

    def step(self, action: int):
        reward, self.cell, duration = move(self.cell, int(action))
        self.time += duration
        return observe(self.cell), reward, False, self.time >= DAY, {"duration": duration}


gymnasium.register("corerl/Courier", entry_point=Courier)


def move(cell: int, action: int) -> tuple[float, int, int]:
    """Returns the reward, the next cell and the minutes of a step. After the last cell comes the first."""
    reached, minutes = cell + 1, 1
    if action == RIDE:
        reached, minutes = cell + FAR, AT_ONCE if cell == STOP else WAITING
    return float(cell == 0), reached if reached < CELLS else 0, minutes


def observe(cell: int) -> np.ndarray:
    return np.eye(CELLS, dtype=np.float32)[cell]


def make(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns `STEPS` steps of uniform actions, days one after the other. The last is cut."""
    rng = np.random.default_rng([seed, 0xC0])
    rows, cell, time = [], 0, 0
    for action in rng.integers(2, size=STEPS):
        reward, reached, minutes = move(cell, action)
        time += minutes
        over = time >= DAY
        rows.append((observe(cell), action, reward, observe(reached), over, minutes))
        cell, time = (0, 0) if over else (reached, time)
    names = ("observations", "actions", "rewards", "next_observations", "truncated", "durations")
    arrays = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    return arrays | {"behaviour_log_prob": np.full(STEPS, np.log(0.5), np.float32)}


def random_return(days: int, seed: int = 0) -> float:
    """Returns the mean return of days of uniform actions."""
    env, rng, total = Courier(), np.random.default_rng(seed), 0.0
    for _ in range(days):
        env.reset()
        over = False
        while not over:
            _, reward, _, over, _ = env.step(int(rng.integers(2)))
            total += reward
    return total / days


if __name__ == "__main__":
    print("uniform actions", random_return(20_000))
