"""Risky PointMass of CODAC (Ma, Jayaraman and Bastani 2021): the short way leads through a risky disc.

A point in the unit square moves by up to 0.1 per axis and step. Each step costs its distance to the goal
(0.1, 0.1) plus 0.1; in the disc of radius 0.3 around the centre it costs 50 more with probability 0.1.
The episode ends within 0.05 of the goal, or after 100 steps.

As in the authors' code: reward and end look at where the step began; training starts are uniform in [0.1,
0.9]^2 outside the disc, and with `evaluation=True` (the task `risk/pointmass`) in [0.80, 0.85]^2. Nothing in
their release asks for the latter: what it prints is of `risk/pointmass-anywhere`. Differently: an observation
leaves out the goal, which never moves; actions are in [-1, 1]; the penalty comes from the environment's own
generator, not from numpy's global one.

`make` records 5,000 episodes of noisy controllers, a third of them through the disc, a third around it,
a third drifting (the authors' data is the replay of a run of their own agent).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from corerl import seeding
from corerl.config import require
from corerl.envs.restorable import Restorable

SPEED = 0.1
GOAL, REACHED = np.array([0.1, 0.1]), 0.05
CENTRE, RADIUS = np.array([0.5, 0.5]), 0.3
STEPS = 100


class RiskyPointMass(Restorable):
    """An observation is the position, an action the move in units of 0.1.

    Args:
        evaluation: start near the corner opposite the goal.
        probability, penalty: of a step that begins in the disc.
    """

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    kept = ("time", "position")

    def __init__(self, evaluation: bool = False, probability: float = 0.1, penalty: float = 50.0):
        require(0 <= probability <= 1, f"probability={probability} must lie in [0, 1]")
        self.evaluation, self.probability, self.penalty = evaluation, probability, penalty
        self.time, self.position = 0, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        if self.evaluation:
            self.position = 0.85 - self.np_random.uniform(0, 0.05, 2)
        else:
            self.position = starts(self.np_random, 1)[0]
        return self.position.astype(np.float32), {}

    def step(self, action: np.ndarray):
        u = self.np_random.random((1,))
        reward, after, over = move(
            self.position[None], np.asarray(action)[None], u < self.probability, self.penalty
        )
        info = {"risky": bool(in_disc(self.position))}
        self.position = after[0]
        self.time += 1
        truncated = self.time == STEPS and not over[0]
        return self.position.astype(np.float32), float(reward[0]), bool(over[0]), truncated, info


def move(
    positions: np.ndarray, actions: np.ndarray, unlucky: np.ndarray, penalty: float = 50.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards (n,), positions after the step (n, 2) and whether it was the last (n,)."""
    distance = np.linalg.norm(positions - GOAL, axis=-1)
    rewards = -distance - 0.1 - penalty * (unlucky & in_disc(positions))
    after = np.clip(positions + SPEED * np.clip(actions, -1, 1), 0, 1)
    return rewards, after, distance < REACHED


def in_disc(positions: np.ndarray) -> np.ndarray:
    return np.linalg.norm(positions - CENTRE, axis=-1) <= RADIUS


def starts(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 2) uniform in [0.1, 0.9]^2 outside the disc."""
    positions = rng.uniform(0.1, 0.9, (n, 2))
    while (inside := in_disc(positions)).any():
        positions[inside] = rng.uniform(0.1, 0.9, (inside.sum(), 2))
    return positions


def make(seed: int = 0, episodes: int = 5_000) -> dict[str, np.ndarray]:
    """Recorded steps of the three controllers (`Dataset.from_steps`)."""
    rng = np.random.default_rng(seeding.derive(seed, "risky pointmass"))
    kind = rng.integers(3, size=episodes)  # straight, around, drifting
    side = rng.choice([-1.0, 1.0], episodes)
    noise = rng.uniform(0.1, 0.5, episodes)[:, None]
    position, alive = starts(rng, episodes), np.ones(episodes, bool)
    columns: list[list[np.ndarray]] = []
    for t in range(STEPS):
        action = _control(position, kind, side) + noise * rng.standard_normal((episodes, 2))
        action = np.clip(np.where((kind == 2)[:, None], 1.5 * action - 0.3, action), -1, 1)
        reward, after, over = move(position, action, rng.random(episodes) < 0.1)
        cut = (t == STEPS - 1) & ~over
        columns.append([position, action, reward, after, over, cut, alive])
        position, alive = after, alive & ~over
    stacked = [
        np.stack(column, 1) for column in zip(*columns, strict=True)
    ]  # (episodes, STEPS, ...)
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    return {name: x[stacked[-1]] for name, x in zip(names, stacked, strict=False)}


def _control(position: np.ndarray, kind: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Towards the goal. Those that go around first pass a corner of the square off the diagonal."""
    corner = np.where(side[:, None] > 0, [0.1, 0.9], [0.9, 0.1])
    off_diagonal = (position[:, 0] - position[:, 1]) * side < -0.5
    beyond = position.sum(1) < 0.9
    target = np.where(((kind != 1) | off_diagonal | beyond)[:, None], GOAL, corner)
    return np.clip((target - position) / SPEED, -1, 1)
