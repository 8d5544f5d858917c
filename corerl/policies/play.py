"""Shows a trained policy in a window: `corerl play RUN`."""

from __future__ import annotations

import argparse
import os
import sys

import gymnasium

from corerl.config import require
from corerl.data.tasks import another
from corerl.errors import CorerlError
from corerl.policies import record
from corerl.policies.load import load
from corerl.policies.simulation import score, simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    record.add_policy_arguments(parser, episodes=3)


def run(args: argparse.Namespace) -> int:
    """Plays one episode after the other and prints what each returned."""
    if sys.platform == "linux" and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        raise CorerlError(
            "There is no screen here (neither DISPLAY nor WAYLAND_DISPLAY is set). Make a film instead: "
            "corerl record RUN --out film.mp4"
        )
    require(args.episodes > 0, f"--episodes {args.episodes} must be positive")
    agent = record.one_seed(load(args.run, args.seed))
    task = another(agent.task, args.task)

    def window() -> gymnasium.Env:
        return record.drawn(task.make_env(), "human", task.id)

    with record.telling_what_is_missing(task.id):
        episodes = simulate(agent, task, args.episodes, make_env=window, at_once=1)
    for number, value in enumerate(episodes.returns[0]):
        print(f"episode {number}: return {value:.2f}, {episodes.lengths[0, number]} steps")
    scores = score(task, episodes)
    print(
        f"mean {episodes.returns.mean():.2f}"
        + (f", score {scores[0]:.1f}" if scores is not None else "")
    )
    return 0
