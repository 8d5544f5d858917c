"""Rock, paper, scissors on the plane: a task of preferences that no reward explains.

A point starts in the middle and moves by up to 0.1 per axis and step, for 5 steps. There are three corners,
a third of the circle apart. An episode is of the corner that is nearest in direction at its end, or of the
middle if it ends within 0.12 of it. A corner is preferred to the middle, and to the corner before it, with
probability 0.9:

    1 to 0,  2 to 1,  0 to 2,  all to the middle

The minimax winner goes to each corner in a third of its episodes. Whoever goes to one alone loses nine in ten
to the next. The environment's reward is always 0.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from corerl.envs.restorable import Restorable

SPEED, STEPS, MIDDLE = 0.1, 5, 0.12
CHANCE = 0.9
ANGLES = 2 * np.pi * np.arange(3) / 3
CORNERS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
PREFERENCES = np.full((4, 4), 0.5)
"""P[i, j]: the chance that i is preferred to j; the fourth is the middle."""
for better, worse in ((1, 0), (2, 1), (0, 2), (0, 3), (1, 3), (2, 3)):
    PREFERENCES[better, worse], PREFERENCES[worse, better] = CHANCE, 1 - CHANCE


class ThreeCorners(Restorable):
    """An observation is the position and the share of the time, an action the move in units of 0.1."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    spec = EnvSpec("three-corners", max_episode_steps=STEPS)
    kept = ("time", "position")

    def __init__(self):
        self.time, self.position = 0, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time, self.position = 0, np.zeros(2)
        return self._seen(), {}

    def step(self, action: np.ndarray):
        self.position = move(self.position, action)
        self.time += 1
        info = {"corner": int(corner(self.position))}
        return self._seen(), 0.0, self.time == STEPS, False, info

    def _seen(self) -> np.ndarray:
        return np.append(self.position, self.time / STEPS).astype(np.float32)

    def summary(
        self, observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray
    ) -> np.ndarray:
        """Returns the corner of an episode `(1,)`."""
        return corner(move(observations[-1:, :2], actions[-1:]))

    def prefers(self, one: np.ndarray, other: np.ndarray) -> float:
        """Returns the chance that the corner `one` is preferred to `other`."""
        return float(PREFERENCES[int(one[0]), int(other[0])])


def move(position: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Returns positions after a step, `(..., 2)`."""
    return np.clip(position + SPEED * np.clip(action, -1, 1), -1, 1)


def corner(position: np.ndarray) -> np.ndarray:
    """Returns the nearest corner in direction, or 3 in the middle, `(...)`."""
    nearest = (position @ CORNERS.T).argmax(-1)
    return np.where(np.linalg.norm(position, axis=-1) < MIDDLE, 3, nearest)
