"""Windows of a dataset's episodes with a later state of the same episode as their goal."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.goals import GoalRows
from corerl.config import require
from corerl.data.dataset import Dataset


class Trajectories(NamedTuple):
    """Windows of C + F steps of S seeds. The last F may go beyond the goal, where `valid` is 0.0."""

    observations: Tensor  # (S, B, C, O), of the first C steps
    actions: Tensor  # (S, B, C, A)
    goals: Tensor  # (S, B, G)
    achieved: Tensor  # (S, B, C + F, G), the goal's columns of the states at all steps
    valid: Tensor  # (S, B, C + F), 1.0 before the goal


class TrajectoryBuffer(GoalRows):
    """A dataset whose batches are windows with goals. Other arguments are those of `GoalRows`.

    Every start that has C later rows is drawn alike. Its goal is one of them from the C-th on, each alike.

    Args:
        seeds: the S seeds; each has its own streams of starts and goals.
        batch_size: B.
        history, future: C and F.

    Raises:
        CorerlError: no episode is longer than C.
    """

    def __init__(
        self,
        dataset: Dataset,
        seeds: Sequence[int],
        batch_size: int,
        history: int,
        future: int,
        columns: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ):
        super().__init__(dataset, columns, device)
        rows = torch.arange(len(self._last), device=device)
        self._starts = rows[self._last - rows >= history]
        require(
            len(self._starts) > 0,
            f"No episode of {dataset.id} is longer than algo.history={history} steps. Lower algo.history",
        )
        self._history, self._steps = history, torch.arange(history + future, device=device)
        self._indices = seeding.indices(seeds, len(self._starts), batch_size, device)
        self._draws = seeding.uniform(seeds, "goal draws", (batch_size,), device)

    def sample(self) -> Trajectories:
        """Samples the next windows of every seed."""
        starts = self._starts[self._indices.next()]
        last, nearest = self._last[starts], starts + self._history
        ahead = (self._draws.next() * (last - nearest + 1)).long()
        goals = torch.minimum(nearest + ahead, last)
        rows = starts[..., None] + self._steps
        window = self._take(torch.minimum(rows, last[..., None]))
        observations, actions, _ = window[:, :, : self._history].split(self._sizes, -1)
        valid = (rows < goals[..., None]).to(window.dtype)
        return Trajectories(
            observations, actions, self._state(goals), self._as_goals(window), valid
        )

    def _streams(self) -> dict[str, seeding.Stream]:
        return {"starts": self._indices, "draws": self._draws}
