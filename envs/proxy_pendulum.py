"""Pendulum-v1 with a proxy reward that is right where it was seen, and a reference policy.

The proxy is the true reward, and pays besides for speed above 2 rad/s in the upper half. The reference swings
the pole up and catches it, with noise. It is slow where it is high, so that its proxy rewards correlate with
the true ones by 0.73. A policy that is optimal for the proxy spins the pole for ever.

The proxy of the step before is the last feature of the observation, so that every replay holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from corerl.envs import pendulum
from corerl.envs.restorable import Restorable

SLOW, BONUS = 2.0, 5.0
REFERENCE = pendulum.Gains(*(np.full(1, x) for x in (0.1, 0.4, 7.0, 0.8, 0.5)))
"""Of the reference. It is a mediocre controller, which leaves something to gain."""
LARGEST = BONUS * (pendulum.MAX_SPEED - SLOW)
LEAST = -(np.pi**2 + 0.1 * pendulum.MAX_SPEED**2 + 0.001 * pendulum.MAX_TORQUE**2)


class ProxyPendulum(Restorable):
    """An observation is cosine, sine, angular speed and the proxy. Episodes have 200 steps."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Box(
        np.float32([-1, -1, -pendulum.MAX_SPEED, LEAST]),
        np.float32([1, 1, pendulum.MAX_SPEED, LARGEST]),
    )
    kept = ("time", "theta", "speed")

    def __init__(self):
        self.time, self.theta, self.speed = 0, np.pi, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        self.theta, self.speed = self.np_random.uniform([-np.pi, -1.0], [np.pi, 1.0]).tolist()
        return self._observation(0.0), {}

    def step(self, action: np.ndarray):
        torque = np.float32(np.asarray(action).item())
        theta, speed, reward = pendulum.step(self.theta, self.speed, torque)
        self.theta, self.speed, self.time = float(theta), float(speed), self.time + 1
        fast = max(0.0, abs(self.speed) - SLOW) * (np.cos(self.theta) > 0)
        over = self.time == pendulum.STEPS
        return self._observation(reward + BONUS * fast), float(reward), False, over, {}

    def _observation(self, proxy: float) -> np.ndarray:
        state = pendulum.observe(np.array([self.theta]), np.array([self.speed]))[0]
        return np.append(state, np.float32(proxy))

    @staticmethod
    def reference(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Returns actions `(..., 1)` at observations `(..., 4)`, of normal noise `(..., 1)`."""
        theta = np.arctan2(observations[..., 1], observations[..., 0])
        mean = pendulum.control(theta, observations[..., 2], REFERENCE)
        return np.clip(mean[..., None] + REFERENCE.noise * noise, -1, 1).astype(np.float32)
