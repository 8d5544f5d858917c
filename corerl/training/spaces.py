"""The observations and actions that an algorithm declares, held against a simulator's and a dataset's."""

from gymnasium import Space
from gymnasium.spaces import Box, Discrete

from corerl.config import Settings, require
from corerl.data.dataset import Dataset
from corerl.data.files.checks import too_many_actions
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.nn import encoders

ACTIONS = {
    "continuous": "continuous actions",
    "discrete": "discrete actions from 0",
    "any": "continuous actions, or discrete actions from 0",
}

COLOURS = 4
"""Most channels of a picture; where as many numbers are last, and more first, channels are last."""


def check(algo: Settings, task: str, observations: Space, actions: Space) -> None:
    """Raises CorerlError where the algorithm cannot act in an environment of these spaces."""
    kind = None
    if isinstance(actions, Discrete) and actions.start == 0:
        kind = "discrete"
    elif isinstance(actions, Box) and len(actions.shape) == 1:
        kind = "continuous"
    _check_actions(algo, task, kind, f"actions of {actions}")
    shape = observations.shape if isinstance(observations, Box) else ()
    _check_shape(algo, task, shape, f"observations of {observations}")


def check_goals(algo: Settings, task: str, has_goals: bool, history: int) -> None:
    """Raises CorerlError where an algorithm needs goals and a task has none, or the reverse.

    Several latest observations (`history`) are refused beside goals. The environment shows its goal with each
    of them, and the data shows one goal beside them all.
    """
    require(
        history == 1 or not has_goals,
        f"history={history} is not possible, because {task} has goals. Set history=1",
    )
    require(
        has_goals or not algo.knows_goals,
        f"{algo.name} learns to reach goals, but {task} has none. Choose a task such as "
        "corerl/goal-maze or ogbench/pointmaze-medium-navigate-v0",
    )
    require(
        algo.knows_goals or not has_goals,
        f"{task} has goals, which {algo.name} does not support. Choose an algorithm such as "
        "gcivl, or a single-goal version of the task",
    )


def check_as_shown(task: Task, reader: str) -> None:
    """Raises CorerlError where `reader`, a function of the environment, would not get its own spaces.

    `history` stacks observations and `action_range` rescales actions.
    """
    require(
        task.history == 1,
        f"history={task.history} is not possible, because {reader} reads single observations. Set history=1",
    )
    require(
        task.action_range is None,
        f"action_range is not possible, because {reader} uses the environment's whole range of actions. "
        "Leave out action_range",
    )


def check_data(algo: Settings, dataset: Dataset) -> None:
    """Raises CorerlError where the algorithm cannot learn from the dataset."""
    kind = "discrete" if dataset.discrete else "continuous"
    _check_actions(algo, dataset.id, kind, f"{kind} actions")
    problem = too_many_actions(dataset)
    require(not problem, problem)
    shape = dataset.observations.shape[1:]
    _check_shape(algo, dataset.id, shape, f"observations of shape {shape}")


def _check_actions(algo: Settings, task: str, kind: str | None, found: str) -> None:
    wanted, setting = algo.needed_actions()
    wanted = "discrete" if wanted == "numbered" else wanted  # as files of before name it
    if kind is None or wanted not in ("any", kind):
        raise CorerlError(f"{algo.name}{setting} needs {ACTIONS[wanted]}, but {task} has {found}")


def _check_shape(algo: Settings, task: str, shape: tuple[int, ...], found: str) -> None:
    if len(shape) == 1:
        return
    if not algo.images or len(shape) != 3:
        wanted = "vectors or images (channels, height, width)" if algo.images else "vectors"
        raise CorerlError(
            f"{algo.name} needs observations that are {wanted}, but {task} has {found}"
        )
    channels, height, width = shape
    least = encoders.smallest(algo.padding)
    if min(height, width) < least or width <= COLOURS < channels:
        size = f" of at least {least}x{least} pixels" if least > 1 else ""
        raise CorerlError(
            f"{algo.name} needs images (channels, height, width){size}, but {task} has {found}. "
            "Wrap the environment in gymnasium.wrappers.ResizeObservation if images are too "
            "small. If channels come last, wrap it in TransformObservation with "
            "image.transpose(2, 0, 1)"
        )
