"""`corerl/mujoco/...`, `pointmaze/...`, `metaworld/...`: sets that `corerl data make` makes on this machine.

They are Minari datasets (`corerl/mujoco/hopper-medium-regenerated-v0`), so that other tools read them.
Their names say `regenerated`: made by D4RL's recipe and scored on D4RL's scale, they are not D4RL's
data, and no number on them belongs beside a number on D4RL's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from corerl.data import d4rl, minari
from corerl.data.dataset import Dataset
from corerl.envs import metaworld_suite
from corerl.errors import CorerlError

# The versions that D4RL's own tasks are evaluated in here, since scores are on D4RL's scale; v5 pays
# other rewards on Hopper and Walker2d (corerl/data/simulators.py).
LOCOMOTION = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4"}
QUALITIES = ("random", "medium-replay", "medium", "medium-expert", "expert")

MAZES = {
    "umaze": "PointMaze_UMaze-v3",
    "medium": "PointMaze_Medium-v3",
    "large": "PointMaze_Large-v3",
}

ENVIRONMENTS = {
    f"mujoco/{body}-{quality}-regenerated": environment
    for body, environment in LOCOMOTION.items()
    for quality in QUALITIES
} | {f"pointmaze/{maze}": environment for maze, environment in MAZES.items()}
ENVIRONMENTS |= {
    f"metaworld/{task}": f"corerl.envs.metaworld_suite:corerl/metaworld-{task}"
    for task in metaworld_suite.TASKS
}
"""Every set that can be made, and the environment that it is made and evaluated in."""

# Mean returns over 1,000 episodes of uniform random actions and of the noise-free controller:
# python -m corerl.recipes.pointmaze
MAZE_REFERENCE = {
    "pointmaze/umaze": (14.6, 233.1),
    "pointmaze/medium": (10.0, 459.8),
    "pointmaze/large": (10.3, 590.5),
}


def names() -> list[str]:
    return list(ENVIRONMENTS)


def minari_id(name: str) -> str:
    """Returns the set's id among Minari datasets."""
    return f"corerl/{name}-v0"


def folder(name: str) -> Path:
    """Returns the folder that the set has, or will have, on this machine."""
    return minari.root() / minari_id(name)


def find(name: str) -> Path | None:
    """Finds the set's metadata file. None unless the set is complete."""
    path = minari.find(minari_id(name))
    return path if path and recipe(name) else None


def recipe(name: str) -> dict | None:
    """Returns the settings with which `corerl data make` made the set on this machine."""
    return minari.metadata(minari_id(name)).get("corerl_recipe")


def facts(name: str) -> dict:
    """Returns what was measured when the set was made: policy's step and score, returns, a checksum."""
    return minari.metadata(minari_id(name)).get("corerl_facts", {})


def load(name: str) -> Dataset:
    """Loads the set from this machine. If it is missing, raises CorerlError with the command for it."""
    if find(name) is None:
        raise CorerlError(
            f"corerl/{name} has not been made on this machine. Make it with: corerl data make corerl/{name}"
        )
    return replace(minari.load(minari_id(name)), id=f"corerl/{name}")


def reference(name: str) -> tuple[float, float] | None:
    """Returns that score 0 and 100: D4RL's of this robot. For a maze our own of the recipe's controller.

    None for a task of MetaWorld, which is scored by success.
    """
    if name.startswith("metaworld/"):
        return None
    if name in MAZE_REFERENCE:
        return MAZE_REFERENCE[name]
    body = name.removeprefix("mujoco/").partition("-")[0]
    return d4rl.reference(f"{body}-medium-v2")
