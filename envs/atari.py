"""Atari 2600 games as DQN and its successors see them, with the reward split by its source.

Four frames per action of which the last two are merged by their maximum, grey, 84 x 84, the latest four
stacked (zeros before an episode's first); the smallest set of actions, no sticky actions unless the name
ends in `-sticky` (probability 0.25), no random number of idle steps at the start, at most 27,000 steps.

The sources are those of MD3QN's authors (Zhang et al. 2021, NeurIPS): an order in which the score of a
step is taken apart. A source pays at most once per step, and what is left at the end belongs to none:
in MsPacman a ghost's 200 to 1600 count 100, so that the sum of sources is not the reward.
Needs `pip install "corerl[atari]"`, which brings the games.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from corerl.errors import CorerlError

SIDE, STACK, SKIP = 84, 4, 4
LIMIT = 27_000
"""Steps of an episode, 108,000 frames or half an hour of play."""
STICKY = 0.25

Source = tuple[int, Callable[[float], bool]]
"""Points, and whether the source pays, asked of what would then be left of the step's reward."""


def _always(left: float) -> bool:
    return True


SOURCES: dict[str, tuple[Source, ...]] = {
    "AirRaid": tuple((points, _always) for points in (100, 75, 50, 25)),
    "Asteroids": (
        (20, lambda left: left % 50 <= 0.1),
        (50, lambda left: left % 100 <= 10),
        (100, _always),
    ),
    "Gopher": ((20, lambda left: left % 100 <= 0.1), (100, _always)),
    "MsPacman": (
        (10, lambda left: left % 50 <= 0.1),
        (50, lambda left: left % 100 <= 10),
        (100, _always),
    ),
    "Pong": ((-1, lambda left: left < 0.1), (1, lambda left: left > -0.1)),
    "UpNDown": (
        (10, lambda left: left % 100 <= 0.1),
        (100, lambda left: left % 200 <= 10),
        (200, _always),
    ),
}


def by_source(reward: float, sources: tuple[Source, ...]) -> np.ndarray:
    """The rewards of one step by source, `(K,)` float32, in the order of the table."""
    parts = np.zeros(len(sources), np.float32)
    for i, (points, pays) in enumerate(sources):
        if reward >= points and pays(reward - points):
            parts[i] = points
            reward -= points
    return parts


class Atari(gymnasium.Env):
    """One game, `(4, 84, 84)` uint8. `info["reward_vector"]` `(K,)` where the sources are known.

    Args:
        game: such as `MsPacman`.
        sticky: the probability that the last action is repeated instead.
        life_loss: an episode ends with a life, and `reset` goes on with the game while there are
            lives; `info["game_over"]` tells the two apart.
    """

    metadata = {"render_modes": []}  # noqa: RUF012
    stack = STACK

    def __init__(self, game: str, sticky: float = 0.0, life_loss: bool = False):
        ale_py, cv2 = _libraries()
        self._resize, self._area = cv2.resize, cv2.INTER_AREA
        self.game, self._sources, self._life_loss = game, SOURCES.get(game), life_loss
        self._ale, self._state_type = ale_py.ALEInterface(), ale_py.ALEState
        self._ale.setFloat("repeat_action_probability", sticky)
        self._rom = ale_py.roms.get_rom_path(roms()[game])
        self._ale.loadROM(self._rom)
        self._buttons = self._ale.getMinimalActionSet()
        self.action_space = spaces.Discrete(len(self._buttons))
        self.observation_space = spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
        if self._sources:
            points = np.array([points for points, _ in self._sources], np.float32)
            self.reward_space = spaces.Box(points.clip(max=0), points.clip(min=0))
        self._screens = np.zeros((2, *self._ale.getScreenDims()), np.uint8)
        self._frames = np.zeros((STACK, SIDE, SIDE), np.uint8)
        self._steps = self._lives = 0

    def __str__(self) -> str:
        return f"atari/{self.game}"

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self._ale.setInt("random_seed", seed % 2**31)
            self._ale.loadROM(self._rom)  # the emulator reads its seed here alone
        if seed is not None or self._is_over() or not self._life_loss or not self._steps:
            self._ale.reset_game()
            self._steps = 0
        self._lives = self._ale.lives()
        self._screens[1] = 0
        self._ale.getScreenGrayscale(self._screens[0])
        self._frames[:] = 0
        return self._observe(), {}

    def step(self, action):
        reward, lost = 0, False
        for frame in range(SKIP):
            reward += self._ale.act(self._buttons[action])
            lost = self._life_loss and self._ale.lives() < self._lives
            if lost or self._ale.game_over():
                break
            if frame >= SKIP - 2:
                self._ale.getScreenGrayscale(self._screens[frame - SKIP + 2])
        self._lives = self._ale.lives()
        self._steps += 1
        over = self._ale.game_over()
        truncated = not over and self._steps >= LIMIT
        info: dict[str, Any] = {"lives": self._lives, "game_over": over or truncated}
        if self._sources:
            info["reward_vector"] = by_source(reward, self._sources)
        return self._observe(), float(reward), over or lost, truncated, info

    def _is_over(self) -> bool:
        return self._ale.game_over() or self._steps >= LIMIT

    def _observe(self) -> np.ndarray:
        merged = self._screens.max(0)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._resize(merged, (SIDE, SIDE), interpolation=self._area)
        return self._frames.copy()

    def state_dict(self) -> dict[str, Any]:
        """The emulator, its generator included, and what has been seen of it."""
        system = np.frombuffer(self._ale.cloneSystemState().serialize(), np.uint8)
        return {
            "system": torch.from_numpy(system.copy()),
            "screens": torch.from_numpy(self._screens.copy()),
            "frames": torch.from_numpy(self._frames.copy()),
            "steps": self._steps,
            "lives": self._lives,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ale.restoreSystemState(self._state_type(state["system"].numpy().tobytes()))
        self._screens[:] = state["screens"].numpy()
        self._frames[:] = state["frames"].numpy()
        self._steps, self._lives = state["steps"], state["lives"]


def make(name: str, life_loss: bool = False) -> Atari:
    """The game of a task's name, such as `MsPacman` or `MsPacman-sticky`."""
    sticky = name.endswith("-sticky")
    return Atari(name.removesuffix("-sticky"), STICKY if sticky else 0.0, life_loss)


def is_game(name: str) -> bool:
    """Whether `make` knows this name. Of games without sources, only the emulator knows.

    Raises CorerlError where it is asked and not installed.
    """
    game = name.removesuffix("-sticky")
    return game in SOURCES or game in roms()


def roms() -> dict[str, str]:
    """`{"MsPacman": "ms_pacman", ...}` for every game that ale-py ships."""
    ale_py, _ = _libraries()
    return {
        re.sub(r"(^|_)(.)", lambda m: m[2].upper(), rom): rom
        for rom in ale_py.roms.get_all_rom_ids()
    }


def _libraries() -> tuple[Any, Any]:
    try:
        import ale_py
        import ale_py.roms  # noqa: F401
        import cv2
    except ImportError as e:
        raise CorerlError(
            f'Atari games need ale-py and opencv ({e}). Run pip install "corerl[atari]".'
        ) from e
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py, cv2
