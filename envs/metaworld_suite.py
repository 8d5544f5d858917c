"""MetaWorld's tasks as environments that draw their goals from a seed. Needs metaworld."""

from __future__ import annotations

import gymnasium

from corerl.errors import CorerlError

INSTALL = 'pip install "corerl[metaworld]"'
TASKS = (
    "button-press-v3",
    "drawer-open-v3",
    "sweep-into-v3",
    "plate-slide-v3",
    "door-close-v3",
    "assembly-v3",
)
"""Those that `corerl data make` records."""


class MetaWorld(gymnasium.Wrapper):
    """A task of MetaWorld, `button-press-v3`, that draws its goal from the seed of `reset`.

    Observations (39,), actions (4,) in [-1, 1], 500 steps; `info["success"]` is 0.0 or 1.0.

    Args:
        task: its name.
        hidden: whether the goal's place in the observation is 0.

    Raises:
        CorerlError: metaworld is missing.
    """

    def __init__(self, task: str, hidden: bool = True):
        env = package().env_dict.ALL_V3_ENVIRONMENTS[task]()
        env._partially_observable = hidden
        env.__dict__.pop("sawyer_observation_space", None)  # cached for a hidden goal
        env._freeze_rand_vec, env._set_task_called = False, True
        env.seeded_rand_vec = True  # else goals come from numpy's global generator
        super().__init__(env)
        self.observation_space = env.sawyer_observation_space

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if seed is not None:
            self.unwrapped.seed(seed)  # its own reset ignores the argument
        return self.env.reset()


for _name in TASKS:
    gymnasium.register(
        f"corerl/metaworld-{_name}",
        entry_point="corerl.envs.metaworld_suite:MetaWorld",
        kwargs={"task": _name},
    )


def package():
    """The package `metaworld`, with its environments and policies. Raises CorerlError where it is missing."""
    try:
        import metaworld.env_dict
        import metaworld.policies  # noqa: F401
    except ImportError as error:
        raise CorerlError(f"MetaWorld's tasks need its package ({error}). Run {INSTALL}") from error
    return metaworld
