"""HalfCheetah, Hopper and Walker2d with a cost for going too fast.

A step costs 1 where the forward velocity after it is above a limit, else 0. The limits are those of
safety-gymnasium (PKU-Alignment/safety-gymnasium at 32dfed6, tasks/safe_velocity, v1): 3.2096, 0.7402 and
2.3415 m/s. Its usual budget is 25 an episode of 1,000 steps.

The cost is also the last feature of the observation, so that every replay holds it. Environments are
gymnasium's v4, and safety-gymnasium's are its own copies.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LIMITS = {"HalfCheetah-v4": 3.2096, "Hopper-v4": 0.7402, "Walker2d-v4": 2.3415}


class VelocityCost(gymnasium.Wrapper):
    """Adds the cost of the step before to `info` and to the end of the observation."""

    def __init__(self, env: gymnasium.Env, limit: float):
        super().__init__(env)
        self.limit = limit
        low, high = env.observation_space.low, env.observation_space.high
        bounds = np.append(low, 0.0), np.append(high, 1.0)
        self.observation_space = spaces.Box(*bounds, dtype=env.observation_space.dtype)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return np.append(observation, 0.0), info | {"cost": 0.0}

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(info["x_velocity"] > self.limit)
        info |= {"cost": cost}
        return np.append(observation, cost), reward, terminated, truncated, info
