"""Segments as a person can judge them: pictures of the simulator, or else curves of what was observed.

Simulators are put into the states that the observations tell. Where a position was left out of them, as x
of the running robots, it follows from the speed. What no simulator here can show is drawn as curves.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.errors import CorerlError

WIDTH = 320
RUNNERS = {"HalfCheetah": 1, "Hopper": 1, "Walker2d": 1, "Ant": 2}
"""MuJoCo robots whose observations begin with all positions but the first so many, then all speeds.

Where `exclude_current_positions_from_observation` is false, they begin with all positions."""

Put = Callable[[np.ndarray, np.ndarray, int], None]
"""`put(observation, action, step)` brings the simulator into that state."""


class Pictures:
    """Pictures of a dataset's segments. Used from one thread: OpenGL's contexts belong to one.

    Attributes:
        why: why there are only curves; empty where there are pictures.
    """

    def __init__(self, task: Task, dataset: Dataset):
        self._dataset = dataset
        self._env: gymnasium.Env | None = None
        self._put: Put | None = None
        self.why = ""
        try:
            self._begin(task)
        except (
            Exception
        ) as error:  # simulators without OpenGL fail in many ways; curves always can be drawn
            self.why = f"corerl cannot draw {task.id} here ({type(error).__name__}: {error})"

    def _begin(self, task: Task) -> None:
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        env = task.make_env()
        put = placer(env)
        if put is None:
            name = type(env.unwrapped).__name__
            env.close()
            raise CorerlError(f"the observations of {name} do not give its full state")
        env.reset(seed=0)
        env.unwrapped.render_mode = "rgb_array"
        put(self._dataset.observations[0], self._dataset.actions[0], 0)
        env.render()  # fails here rather than at the first pair
        self._env, self._put = env, put

    def segment(self, start: int, length: int) -> dict[str, Any]:
        """Returns `{"frames": [JPEG in base64, ...]}`, or `{"curves": {...}}`."""
        rows = slice(start, start + length)
        observations, actions = self._dataset.observations[rows], self._dataset.actions[rows]
        if self._put is None:
            return {"curves": self._curves(observations, actions)}
        frames = []
        for step, (observation, action) in enumerate(zip(observations, actions, strict=True)):
            self._put(observation, action, step)
            frames.append(_jpeg(np.asarray(self._env.render())))
        return {"frames": frames}

    def _curves(self, observations: np.ndarray, actions: np.ndarray) -> dict[str, Any]:
        """Scales features to 0 to 1 of their range in the data, so that both segments have one scale."""
        low, high = self._dataset.observations.min(0), self._dataset.observations.max(0)
        scaled = (observations - low) / np.where(high > low, high - low, 1)
        return {
            "observations": np.round(scaled.astype(np.float64), 3).tolist(),
            "actions": np.round((actions.astype(np.float64) + 1) / 2, 3).tolist(),
        }

    def close(self) -> None:
        """Closes the simulator."""
        if self._env is not None:
            self._env.close()


def placer(env: gymnasium.Env) -> Put | None:
    """Returns the function that puts `env` into an observed state, or None where none is known."""
    inner = env.unwrapped
    name = type(inner).__name__.removesuffix("Env")
    if name == "Pendulum":
        return _pendulum(inner)
    if name in RUNNERS and type(inner).__module__.startswith("gymnasium.envs.mujoco"):
        excluded = getattr(inner, "_exclude_current_positions_from_observation", True)
        return _runner(inner, RUNNERS[name] if excluded else 0)
    return None


def _pendulum(env: Any) -> Put:
    def put(observation: np.ndarray, action: np.ndarray, step: int) -> None:
        cosine, sine, speed = (float(x) for x in observation)
        env.state = np.array([np.arctan2(sine, cosine), speed])
        env.last_u = float(action[0]) * env.max_torque

    return put


def _runner(env: Any, hidden: int) -> Put:
    at = np.zeros(hidden)

    def put(observation: np.ndarray, action: np.ndarray, step: int) -> None:
        nq, nv = env.model.nq, env.model.nv
        known = nq - hidden
        speeds = observation[known : known + nv]
        at[:] = 0 if step == 0 else at + speeds[:hidden] * env.dt
        env.set_state(np.concatenate([at, observation[:known]]).astype(float), speeds.astype(float))

    return put


def _jpeg(picture: np.ndarray) -> str:
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((WIDTH, WIDTH))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return base64.b64encode(content.getvalue()).decode()
