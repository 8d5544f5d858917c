"""A replay that draws pieces of episodes by priority: LAP (Fujimoto et al. 2020, arXiv:2007.06049)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.replay import ReplayBuffer


class Pieces(NamedTuple):
    """H steps that follow each other, of S seeds; `counted` is 0.0 past the end of their episode."""

    observations: Tensor  # (S, B, O) at the first step
    actions: Tensor  # (S, B, H, A)
    rewards: Tensor  # (S, B, H)
    next_observations: Tensor  # (S, B, H, O)
    terminated: Tensor  # (S, B, H)
    counted: Tensor  # (S, B, H)


RUN = 128
"""Priorities that are summed together: a draw finds its run by the sums, and its step within the run."""


class PrioritisedReplay(ReplayBuffer):
    """The latest steps of each seed; a step is the first of a piece in proportion to its priority.

    New steps get the largest priority that there has been. A piece ends with its episode, whether by a
    terminal or a time limit, and with the newest step. Others as for `ReplayBuffer`.

    The sums of priorities, in runs of `RUN`, are kept up to date: of a million priorities a draw reads
    some 40,000, and not all of them.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        capacity: int,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
    ):
        super().__init__(observation_dim, action_dim, capacity, seeds, batch_size, device)
        runs = -(-capacity // RUN)
        self._priorities = torch.zeros(len(seeds), runs * RUN, device=device)
        self._sums = torch.zeros(len(seeds), runs, dtype=torch.float64, device=device)
        self._first_runs = torch.arange(len(seeds), device=device)[:, None] * runs
        self._largest = torch.ones(len(seeds), device=device)
        self._draws = seeding.uniform(seeds, "priorities", (batch_size,), device)
        self.terminated = torch.zeros(len(seeds), device=device)
        """(S,): 1.0 for a seed that has met a true terminal."""

    def add(self, step: Sequence[np.ndarray]) -> None:
        """Adds a step of all seeds, at the largest priority so far."""
        position = self._added % self._rows.shape[1]
        super().add(step)
        self._priorities[:, position] = self._largest
        run = position // RUN
        self._sums[:, run] = self._runs()[:, run].sum(-1, dtype=torch.float64)
        ended = self._rows[:, position, -2]
        torch.maximum(self.terminated, ended, out=self.terminated)

    def sample_pieces(self, length: int) -> tuple[Pieces, Tensor]:
        """Pieces of `length` steps, and the places of their first ones `(S, B)`, for `prioritise`."""
        reached = self._sums.cumsum(1)
        draws = self._draws.next().double() * reached[:, -1:]
        run = torch.searchsorted(reached, draws, right=True).clamp(max=self._sums.shape[1] - 1)
        before = (reached - self._sums).gather(1, run)
        inside = self._of_runs(run).cumsum(-1, dtype=torch.float64)
        place = torch.searchsorted(inside, (draws - before)[..., None], right=True).squeeze(-1)
        places = (run * RUN + place.clamp(max=RUN - 1)).clamp(max=len(self) - 1)
        return self._pieces(places, length), places

    def _runs(self) -> Tensor:
        """Returns the priorities `(S, runs, RUN)`; 0 where there is no step."""
        return self._priorities.unflatten(1, (-1, RUN))

    def _of_runs(self, run: Tensor) -> Tensor:
        """Returns the priorities in the runs of these numbers, `(S, B)` to `(S, B, RUN)`."""
        rows = (run + self._first_runs).flatten()
        return self._priorities.view(-1, RUN).index_select(0, rows).view(*run.shape, RUN)

    def _pieces(self, places: Tensor, length: int) -> Pieces:
        capacity = self._rows.shape[1]
        steps = torch.arange(length, device=places.device)
        newer = (((self._added - 1) % capacity - places) % capacity)[..., None]  # steps after it
        chosen = (places[..., None] + steps.minimum(newer)) % capacity + self._starts[..., None]
        rows = self._rows.flatten(0, 1).index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        observations, actions, rewards, after, terminated, truncated = rows.split(self._sizes, -1)
        known = (steps <= newer).to(rows.dtype)
        goes_on = ((1 - terminated) * (1 - truncated)).squeeze(-1)[..., :-1].cumprod(-1)
        counted = known * torch.cat([torch.ones_like(goes_on[..., :1]), goes_on], -1)
        return Pieces(
            observations[..., 0, :],
            actions,
            rewards.squeeze(-1),
            after,
            terminated.squeeze(-1),
            counted,
        )

    def prioritise(self, places: Tensor, priorities: Tensor) -> None:
        """Gives the steps at `places` `(S, B)` these priorities."""
        self._priorities.scatter_(1, places, priorities)
        run = places // RUN
        self._sums.scatter_(1, run, self._of_runs(run).sum(-1, dtype=torch.float64))
        torch.maximum(self._largest, priorities.amax(1), out=self._largest)

    def forget_largest(self) -> None:
        """Makes the largest priority that of a step which is there."""
        self._largest.copy_(self._priorities[:, : len(self)].amax(1))

    def mean_size(self) -> Tensor:
        """Returns the mean absolute reward of the stored steps, `(S,)`."""
        return self._rows[:, : len(self), sum(self._sizes[:2])].abs().mean(1)

    def state_dict(self) -> dict:
        mine = {"priorities": self._priorities[:, : len(self)], "largest": self._largest}
        mine |= {"sums": self._sums, "terminated": self.terminated}
        mine |= {"draws": self._draws.state_dict()}
        return super().state_dict() | mine

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._priorities[:, : len(self)].copy_(state["priorities"])
        if "sums" in state:
            self._sums.copy_(state["sums"])
        else:  # a checkpoint from before they were kept
            self._sums.copy_(self._runs().sum(-1, dtype=torch.float64))
        self._largest.copy_(state["largest"])
        self.terminated.copy_(state["terminated"])
        self._draws.load_state_dict(state["draws"])
