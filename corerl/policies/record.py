"""Films a trained policy, also without a screen: `corerl record RUN --out film.mp4` (or .gif)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from corerl.config import require
from corerl.data.files.io import one_line, replacing
from corerl.data.tasks import another
from corerl.errors import CorerlError
from corerl.policies.load import load
from corerl.policies.loaded_policy import Loaded
from corerl.policies.simulation import Crash, simulate

VIDEO = 'pip install "corerl[video]"'
KINDS = (".mp4", ".gif")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_policy_arguments(parser, episodes=1)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("film.mp4"),
        help=f"file to write, {' or '.join(KINDS)} (default: film.mp4)",
    )
    parser.add_argument("--fps", type=float, help="frames per second (default: the environment's)")


def add_policy_arguments(parser: argparse.ArgumentParser, episodes: int) -> None:
    """Adds the arguments that `play` and `record` share."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder, <root>/<task>/<algorithm>-<hash>")
    add("--seed", type=int, help="one of the run's seeds (default: its first)")
    add("--episodes", type=int, default=episodes, help=f"episodes to play (default: {episodes})")
    add("--task", help="another task to play, with the same observations and actions")


def run(args: argparse.Namespace) -> int:
    """Writes the film and prints what its episodes returned."""
    require(args.episodes > 0, f"--episodes {args.episodes} must be positive")
    known = args.fps is None or 0 < args.fps < float("inf")
    require(known, f"--fps {args.fps} must be positive and finite")
    require(args.out.suffix in KINDS, f"--out {args.out} must end in .mp4 or .gif")
    write = _writer(args.out)
    # Read when a simulator is first imported: without a screen, it must draw into memory.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    agent = one_seed(load(args.run, args.seed))
    task = another(agent.task, args.task)
    frames: list[np.ndarray] = []
    rates: list[float] = []

    def camera() -> gymnasium.Env:
        env = Camera(drawn(task.make_env(), "rgb_array", task.id), frames)
        rates.append(env.metadata.get("render_fps") or 30)
        return env

    with telling_what_is_missing(task.id):
        episodes = simulate(agent, task, args.episodes, make_env=camera, at_once=1)
    fps = args.fps or rates[0]
    write(frames, fps)
    returns = ", ".join(f"{value:.2f}" for value in episodes.returns[0])
    print(f"{args.out}: {len(frames):,} frames, {len(frames) / fps:.1f} s, returns {returns}")
    return 0


def one_seed(agent: Loaded) -> Loaded:
    """Returns the policy of the first seed, where none was chosen."""
    return agent if len(agent.seeds) == 1 else agent.only(agent.seeds[0])


class Camera(gymnasium.Wrapper):
    """A wrapper that adds a picture to `frames` at every reset and step."""

    def __init__(self, env: gymnasium.Env, frames: list[np.ndarray]):
        super().__init__(env)
        self._frames = frames

    def reset(self, **kwargs: Any):
        result = self.env.reset(**kwargs)
        self._frames.append(np.asarray(self.env.render()))
        return result

    def step(self, action):
        result = self.env.step(action)
        self._frames.append(np.asarray(self.env.render()))
        return result


def drawn(env: gymnasium.Env, mode: str, id: str) -> gymnasium.Env:
    """Returns `env` with a way to be drawn, `human` or `rgb_array`, or raises CorerlError if it has none."""
    modes = env.unwrapped.metadata.get("render_modes") or []
    if mode not in modes:
        what = "in a window" if mode == "human" else "as a film"
        raise CorerlError(
            f"The environment of {id} cannot be shown {what}. Its render modes: "
            f"{', '.join(map(str, modes)) or 'none'}."
        )
    # The simulators read it when they draw; to pass it to every maker would change all of them.
    env.unwrapped.render_mode = mode
    return env


@contextmanager
def telling_what_is_missing(id: str) -> Iterator[None]:
    """Turns errors of simulators that cannot draw into one sentence that says what to install."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CorerlError) and not isinstance(error, Crash):
            raise
        text = one_line(error.__cause__ if isinstance(error, Crash) else error)
        if "pygame" in text:
            raise CorerlError(
                f"Drawing {id} needs pygame, which is not installed. Run {VIDEO}"
            ) from error
        if any(
            word in text.lower()
            for word in ("egl", "osmesa", "opengl", "glfw", "gl context", "display")
        ):
            raise CorerlError(
                f"{id} cannot be drawn here, because OpenGL without a screen is missing ({text}). "
                "With a GPU, run apt-get install libegl1 and set MUJOCO_GL=egl. Without a GPU, run apt-get "
                "install libosmesa6 and set MUJOCO_GL=osmesa."
            ) from error
        raise


def _writer(out: Path):
    """Returns a function that writes frames. Its requirements are checked before anything is played."""
    try:
        import imageio.v2 as imageio

        if out.suffix == ".mp4":
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise CorerlError(
            f"Writing {out.suffix} files needs {error.name}, which is not installed. Run {VIDEO}"
        ) from error

    def write(frames: list[np.ndarray], fps: float) -> None:
        film = {"fps": fps, "macro_block_size": 2}
        options = film if out.suffix == ".mp4" else {"duration": 1000 / fps, "loop": 0}
        with replacing(out) as part:
            imageio.mimsave(part, [_even(frame) for frame in frames], **options)

    return write


def _even(frame: np.ndarray) -> np.ndarray:
    """Drops the last odd row and column: the common codec takes no odd sizes."""
    height, width = (size - size % 2 for size in frame.shape[:2])
    return frame[:height, :width]
