"""The evaluation environment of each task, with actions in [-1, 1] wherever they are continuous.

D4RL was recorded with gym's v2 MuJoCo environments on mujoco-py, which no longer installs. Nearest:

- hopper, halfcheetah, walker2d: gymnasium's v4, the v2 code on the maintained bindings. v5 is
  another task: Hopper and Walker2d pay no alive bonus on the step that falls, Walker2d's feet have
  other friction.
- ant: Ant-v4 plus the 84 contact forces of v2, which mujoco-py 2 always left at zero.
- pen, door, hammer, relocate: gymnasium-robotics' AdroitHand v1 with D4RL's time limits, with its
  reach term subtracted, not added, and pen ending when it is dropped, as in D4RL.
- antmaze, maze2d, kitchen and the rest are refused: the simulators that exist differ in dynamics or
  observations, so their scores would not be D4RL's.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from corerl.data import d4rl, minari
from corerl.data.dataset import Dataset
from corerl.data.files.fields import part
from corerl.data.files.io import one_line
from corerl.data.observations import Flat, by_name, is_in, wrapper
from corerl.envs.simglucose import Simglucose
from corerl.errors import CorerlError, nearest

LOCOMOTION = {
    "hopper": "Hopper-v4",
    "halfcheetah": "HalfCheetah-v4",
    "walker2d": "Walker2d-v4",
    "ant": "Ant-v4",
}
ADROIT = {
    "pen": "AdroitHandPen-v1",
    "door": "AdroitHandDoor-v1",
    "hammer": "AdroitHandHammer-v1",
    "relocate": "AdroitHandRelocate-v1",
}
REFUSED = {
    "antmaze": "gymnasium-robotics' ant has five times the torque, half the time step and other mazes. "
    "Train on the minari/D4RL/antmaze tasks, which were recorded in gymnasium-robotics",
    "maze2d": "gymnasium-robotics' PointMaze has other coordinates, goals and reward radius"
    ". Train on the minari/D4RL/pointmaze tasks, which were recorded in gymnasium-robotics",
    "kitchen": "gymnasium-robotics' FrankaKitchen has other observations and control. "
    "Train on the minari/D4RL/kitchen tasks, which were recorded in gymnasium-robotics",
    "bullet": "pybullet's environments were never ported to gymnasium",
    "carla": "CARLA 0.9.8's environment was never ported to gymnasium",
    "flow": "Flow's environments were never ported to gymnasium",
    "minigrid": "D4RL's own fourrooms was never ported to gymnasium",
}
ANT_CONTACT_FORCES = 84
ROBOTICS = 'pip install "corerl[robotics]"'
NEORL2 = (
    "git clone https://github.com/polixir/NeoRL2 && pip install --no-deps -e NeoRL2 "
    "(the release on PyPI is broken, and its pinned gymnasium and numpy are too old)"
)


def make_d4rl(name: str) -> gymnasium.Env:
    """Makes the nearest maintained environment of a D4RL dataset. Raises CorerlError if none fits."""
    family = name.partition("-")[0]
    if family in LOCOMOTION:
        env = make(LOCOMOTION[family])
        return _pad_observations(env, ANT_CONTACT_FORCES) if family == "ant" else env
    if family in ADROIT:
        return D4RLAdroit(make_hand(family, d4rl.time_limit(name)), family)
    raise CorerlError(
        f"You can train on d4rl/{name}, but not play it: {REFUSED.get(family, 'no simulator fits')}."
    )


def make_hand(family: str, limit: int) -> gymnasium.Env:
    """Makes gymnasium-robotics' AdroitHand v1 as it is, except for its time limit."""
    _import("gymnasium_robotics", ROBOTICS)
    return make(ADROIT[family], max_episode_steps=limit)


class D4RLAdroit(gymnasium.Wrapper):
    """AdroitHand v1 with D4RL's rewards and ends.

    Since its release 1.2.1, gymnasium-robotics' v1 adds 0.1 |palm - object| where D4RL subtracts it
    (its pull request 220), and it lets pen go on after the drop (its height under 0.075 m), where
    D4RL ends. Both follow from the observation. Replaying the DAPG door demonstrations gives their
    recorded returns: 230.16 for 230.13, 745.65 for 745.61 (uncorrected: 234.87, 753.60).
    """

    def __init__(self, env: gymnasium.Env, family: str):
        super().__init__(env)
        self.reach: Callable[[np.ndarray], np.ndarray] | None = {
            "door": lambda obs: obs[35:38],  # palm - handle
            "hammer": lambda obs: obs[33:36] - obs[36:39],  # palm, hammer
            "relocate": lambda obs: obs[30:33],  # palm - ball
        }.get(family)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward = float(np.squeeze(reward))
        if self.reach:
            reward -= 0.2 * float(np.linalg.norm(self.reach(obs)))
        else:
            terminated = bool(obs[26] < 0.075)
        return obs, reward, terminated, truncated, info


@contextlib.contextmanager
def _standing_in(module: str) -> Iterator[None]:
    """Lets `import module` succeed meanwhile.

    Simglucose imports setuptools' pkg_resources, which is gone since setuptools 82, and never uses it; an
    empty one that stayed would mislead whoever looks for it later, such as pytest.
    """
    added = module not in sys.modules
    if added:
        sys.modules[module] = types.ModuleType(module)
    try:
        yield
    finally:
        if added:
            sys.modules.pop(module, None)


def make_neorl2(name: str) -> gymnasium.Env:
    """Makes an environment of the neorl2 package by gymnasium.make (its own fails under gymnasium 1).

    RandomFrictionHopper draws its friction from Python's global `random`, so that its episodes do
    not repeat for a seed.
    """
    with _standing_in("pkg_resources"):
        _import("neorl2", NEORL2)
        try:
            env = make(name)
        except (
            CorerlError,
            OSError,
        ) as e:  # its install leaves out modules and files that it needs
            raise CorerlError(
                f"The neorl2 package is installed, but lacks some of its files ({e}): {NEORL2}"
            ) from e
    return Simglucose(env) if name == "Simglucose" else env


def make_minari(id: str, trust: bool) -> gymnasium.Env:
    """Makes the environment of `minari.environment` with actions in [-1, 1]."""
    try:
        env = minari.environment(id, trust)
    except (ImportError, gymnasium.error.Error) as e:
        raise CorerlError(
            f"minari/{id} cannot run here: {e}. Most of Minari's environments need {ROBOTICS}"
        ) from e
    return unit_box(_flat(env, minari.parts(id)))


def make_gym(id: str, columns: Sequence[str] = ()) -> gymnasium.Env:
    """Makes a registered gymnasium environment, or `module:id` of another package.

    `columns` are a file's arrays of observations: where they are a dictionary's parts, the environment's are
    laid side by side in their order.
    """
    if not is_gym(id):
        raise CorerlError(
            f"gymnasium has no environment {id}.{nearest(id, gymnasium.registry)} Write one of another "
            f"package as module:Id. gymnasium-robotics needs {ROBOTICS}."
        )
    if ":" in id and str(Path.cwd()) not in sys.path:
        sys.path.append(
            str(Path.cwd())
        )  # a module of one's own lies where one works; the rest goes first
    env = make(id)
    return _flat(env, _order(env, columns))


def misfit(env: gymnasium.Env, dataset: Dataset) -> str:
    """Says why a policy learned on `dataset` cannot act in `env`, or empty where it can."""
    shape = dataset.observations.shape[1:]
    if env.observation_space.shape != shape:
        return (
            f"observations are {shape} in the data but {env.observation_space.shape} in the "
            "environment"
        )
    actions = env.action_space
    discrete = isinstance(actions, spaces.Discrete)
    if not isinstance(actions, spaces.Box) and not (discrete and actions.start == 0):
        return (
            f"actions are {actions} in the environment, but must be vectors or whole numbers from 0"
        )
    if dataset.discrete != discrete:
        kinds = ("discrete", "vectors") if dataset.discrete else ("vectors", "discrete")
        return f"actions are {kinds[0]} in the data but {kinds[1]} in the environment"
    if dataset.discrete:
        largest, known = int(dataset.actions.max()), int(env.action_space.n)
        return (
            f"the data has action {largest}, but the environment has only {known} actions"
            if largest >= known
            else ""
        )
    if env.action_space.shape != dataset.actions.shape[1:]:
        return (
            f"actions are {dataset.actions.shape[1:]} in the data but {env.action_space.shape} in "
            "the environment"
        )
    return ""


def is_gym(id: str) -> bool:
    """Tells whether `make_gym` knows this id. Gymnasium-robotics' ids count where it is installed."""
    if ":" not in id and id not in gymnasium.registry:
        with contextlib.suppress(ImportError):
            gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
    return ":" in id or id in gymnasium.registry


class UnitBox(wrappers.RescaleAction):
    """Scales actions in [-1, 1]. No other `RescaleAction`, which an environment may come with, is one."""


def unit_box(env: gymnasium.Env) -> gymnasium.Env:
    """Returns `env` with continuous actions in [-1, 1]. Discrete ones are left."""
    space = env.action_space
    if isinstance(space, spaces.Box) and space.dtype.kind != "f":
        raise CorerlError(
            f"{env} has actions of {space}, which are whole numbers, but a policy chooses real "
            "numbers in [-1, 1]. Declare the action space as a float32 Box, or as Discrete."
        )
    if not isinstance(space, spaces.Box) or ((space.low == -1).all() and (space.high == 1).all()):
        return env
    if not space.is_bounded():
        raise CorerlError(
            f"{env} has unbounded actions, so corerl cannot scale them to [-1, 1]. Give the Box of "
            "its actions finite bounds."
        )
    if (space.low == space.high).any():
        raise CorerlError(
            f"{env} has actions of {space}, where low equals high in some dimension. Leave that "
            "dimension out."
        )
    one = space.dtype.type(1)  # of another type, gymnasium warns of an overflow
    return UnitBox(env, -one, one)


def unscaled(env: gymnasium.Env | None) -> gymnasium.Env | None:
    """Returns the environment whose actions `unit_box` scales, or None where they were in [-1, 1] already."""
    scaling = wrapper(env, UnitBox)
    return scaling and scaling.env


def make(id: str, **kwargs) -> gymnasium.Env:
    """Makes what gymnasium knows by this id, with actions in [-1, 1]."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*out of date.*")
            warnings.filterwarnings("ignore", ".*precision lowered.*")
            # The checker warns of observations a hair outside their space, and costs time at each step.
            return unit_box(gymnasium.make(id, disable_env_checker=True, **kwargs))
    except (ImportError, gymnasium.error.DependencyNotInstalled) as e:
        raise CorerlError(
            f"{id} cannot run here: {e}. Install the package that this error names."
        ) from e
    except gymnasium.error.Error as e:
        raise CorerlError(f"gymnasium has no environment {id}: {one_line(e)}") from e


def _import(module: str, install: str) -> None:
    try:
        package = importlib.import_module(module)
    except ImportError as e:
        raise CorerlError(f"This task needs {module} ({e}): {install}") from e
    gymnasium.register_envs(package)


def _flat(env: gymnasium.Env, parts: Sequence[str] = ()) -> gymnasium.Env:
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        return Flat(env, parts)
    flattenable = not isinstance(space, spaces.Box) and space.is_np_flattenable
    return wrappers.FlattenObservation(env) if flattenable else env


def _order(env: gymnasium.Env, columns: Sequence[str]) -> list[str]:
    """Returns the names of the observation's parts in the data's order. None where the data tells none.

    Columns of a table that are named one by one are no parts, nor is one array that holds them all.
    """
    if not isinstance(env.observation_space, spaces.Dict):
        return []
    names, known = [part(name) for name in columns], by_name(env.observation_space)
    shared = any(is_in(place, name) for place in known for name in names)
    reported = min(len(names), len(known)) > 1 and any("/" in name for name in columns)
    return names if shared or reported else []


def _pad_observations(env: gymnasium.Env, n: int) -> gymnasium.Env:
    size = env.observation_space.shape[0] + n
    space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    return wrappers.TransformObservation(env, lambda obs: np.pad(obs, (0, n)), space)
