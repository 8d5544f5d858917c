"""Environments with several goals: state and goal side by side, and one goal after another."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class GoalTasks(gymnasium.Wrapper):
    """Shows the state and, behind it, the goal of the episode.

    The environment takes `options={"task_id": i}`, counted from 1, and returns the goal as `info["goal"]`.
    A reset without options takes the tasks in turn.

    Attributes:
        goal_tasks: how many tasks there are.
    """

    def __init__(self, env: gymnasium.Env, tasks: int):
        super().__init__(env)
        self.goal_tasks, self._resets = tasks, 0
        self._goal = np.zeros(env.observation_space.shape)
        low, high = (
            np.tile(end, 2) for end in (env.observation_space.low, env.observation_space.high)
        )
        self.observation_space = spaces.Box(low, high, dtype=env.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if options is None:
            options = {"task_id": self._resets % self.goal_tasks + 1}
            self._resets += 1
        observation, info = self.env.reset(seed=seed, options=options)
        self._goal = np.asarray(info["goal"])
        return self._shown(observation), info

    def step(self, action: np.ndarray):
        observation, *others = self.env.step(action)
        return self._shown(observation), *others

    def state_dict(self) -> dict[str, Any]:
        """Returns the goal of the episode, and how many tasks were taken in turn."""
        return {"goal": torch.tensor(self._goal), "resets": self._resets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._goal, self._resets = state["goal"].numpy(), state["resets"]

    def _shown(self, observation: np.ndarray) -> np.ndarray:
        return np.concatenate([observation, self._goal]).astype(self.observation_space.dtype)
