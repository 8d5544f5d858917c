"""The observations and actions that an algorithm declares, held against a simulator's and a dataset's."""

from gymnasium import Space
from gymnasium.spaces import Box, Discrete

from corerl.config import Settings
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError

ACTIONS = {
    "continuous": "continuous actions",
    "numbered": "actions numbered from 0",
    "any": "actions that are vectors, or numbers from 0",
}


def check(algo: Settings, task: str, observations: Space, actions: Space) -> None:
    """Raises CorerlError where the algorithm cannot act in an environment of these spaces."""
    kind = None
    if isinstance(actions, Discrete) and actions.start == 0:
        kind = "numbered"
    elif isinstance(actions, Box) and len(actions.shape) == 1:
        kind = "continuous"
    _check_actions(algo, task, kind, f"actions of {actions}")
    rank = len(observations.shape) if isinstance(observations, Box) else None
    _check_rank(algo, task, rank, f"observations of {observations}")


def check_data(algo: Settings, dataset: Dataset) -> None:
    """Raises CorerlError where the algorithm cannot learn from the dataset."""
    kind = "numbered" if dataset.discrete else "continuous"
    _check_actions(algo, dataset.id, kind, f"{kind} ones")
    shape = dataset.observations.shape[1:]
    _check_rank(algo, dataset.id, len(shape), f"observations of shape {shape}")


def _check_actions(algo: Settings, task: str, kind: str | None, found: str) -> None:
    wanted, setting = algo.needed_actions()
    if kind is None or wanted not in ("any", kind):
        raise CorerlError(f"{algo.name}{setting} needs {ACTIONS[wanted]}, and {task} has {found}")


def _check_rank(algo: Settings, task: str, rank: int | None, found: str) -> None:
    if rank not in ((1, 3) if algo.images else (1,)):
        wanted = "vectors or images (channels, height, width)" if algo.images else "vectors"
        raise CorerlError(
            f"{algo.name} needs observations that are {wanted}, and {task} has {found}"
        )
