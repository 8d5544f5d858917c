"""A point that is to reach a goal in a square, with the observations and rewards of gymnasium-robotics.

`task=gym/reach:Reach-v0`, from this folder. A step moves the point by at most 0.2 in [-1, 1]^2.
It costs 1 unless the goal is within 0.15. An episode has 20 steps. The goal is at least 0.6 away
from the first place.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class Reach(gymnasium.Env):
    """Places and goals `(2,)`, uniform in the square."""

    def __init__(self):
        box = spaces.Box(-1, 1, (2,), np.float32)
        parts = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(parts, box))
        self.action_space = box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        while np.linalg.norm(self.place - self.goal) < 0.6:
            self.goal = self.np_random.uniform(-1, 1, 2)
        return self._observation(), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.2 * np.asarray(action), -1, 1)
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self._observation(), reward, False, False, {}

    @staticmethod
    def compute_reward(achieved, desired, info):
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.15).astype(np.float32)

    def _observation(self):
        place, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": goal}


gymnasium.register("Reach-v0", Reach, max_episode_steps=20)
