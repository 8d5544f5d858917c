"""A replay that draws pieces of episodes by priority: LAP (Fujimoto et al. 2020, arXiv:2007.06049)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.replay import ReplayBuffer
from corerl.config import require


class Pieces(NamedTuple):
    """H steps that follow each other, of S seeds. `counted` is 0.0 past a terminal."""

    observations: Tensor  # (S, B, O) at the first step
    actions: Tensor  # (S, B, H, A)
    rewards: Tensor  # (S, B, H)
    next_observations: Tensor  # (S, B, H, O)
    terminated: Tensor  # (S, B, H)
    counted: Tensor  # (S, B, H)


RUN = 128
"""Priorities that are summed together: a draw finds its run by the sums, and its step within the run."""


class PrioritizedReplay(ReplayBuffer):
    """The latest steps of each seed. A step is the first of a piece in proportion to its priority.

    New steps get the largest priority that there has been, which never falls. A step can be the first
    of a piece once `horizon` further steps of its episode are there, or at once where the episode ends
    in a terminal: a piece is cut by nothing else, and the last `horizon` steps before a time limit
    begin none. `priority` is that of the first steps. Others as for `ReplayBuffer`; `capacity` is more than
    `horizon`.

    The sums of priorities, in runs of `RUN`, are kept up to date: of a million priorities a draw reads
    some 40,000, and not all of them.

    Attributes:
        terminated: `(S,)`, 1.0 for a seed that has met a true terminal.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        capacity: int,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
        *,
        horizon: int,
        priority: float = 1.0,
    ):
        super().__init__(observation_dim, action_dim, capacity, seeds, batch_size, device)
        count, runs = len(seeds), -(-capacity // RUN)
        self.horizon = horizon
        self._priorities = torch.zeros(count, runs * RUN, device=device)
        self._open = torch.zeros(count, runs * RUN, device=device)  # 1: may be drawn
        self._sums = torch.zeros(count, runs, dtype=torch.float64, device=device)
        self._first_runs = torch.arange(count, device=device)[:, None] * runs
        self._largest = torch.full((count,), priority, device=device)
        self._length = torch.zeros(count, device=device)  # of the running episode
        self._back = torch.arange(horizon + 1, device=device)
        self._draws = seeding.uniform(seeds, "priorities", (batch_size,), device)
        self.terminated = torch.zeros(count, device=device)

    def add(self, step: Sequence[np.ndarray]) -> None:
        """Adds a step of all seeds, at the largest priority so far."""
        capacity = self._rows.shape[1]
        position = self._added % capacity
        super().add(step)
        self._priorities[:, position] = self._largest
        terminated, truncated = self._rows[:, position, -2:].unbind(-1)
        self._length += 1
        places = (position - self._back) % capacity
        of_episode = self._back < self._length[:, None]
        opened = terminated[:, None].maximum((self._back == self.horizon).to(terminated.dtype))
        self._open[:, places] = torch.where(of_episode, opened, self._open[:, places])
        self._length *= (1 - terminated) * (1 - truncated)
        for run in {i % capacity // RUN for i in range(position - self.horizon, position + 1)}:
            steps = slice(run * RUN, (run + 1) * RUN)
            weights = self._priorities[:, steps] * self._open[:, steps]
            self._sums[:, run] = weights.sum(-1, dtype=torch.float64)
        torch.maximum(self.terminated, terminated, out=self.terminated)

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Ends these seeds' running episodes `(S,)` at their last step, as a time limit would."""
        self._length[torch.from_numpy(seeds).to(self._length.device)] = 0

    def require_ready(self, task: str) -> None:
        """Raises CorerlError where a seed has no step that can be drawn yet. Waits for the device."""
        require(
            bool((self._sums.sum(1) > 0).all()),
            f"In the first algo.random_steps, no episode of {task} reached {self.horizon + 1} steps or "
            "a terminal state. Raise algo.random_steps, or lower algo.horizon and algo.n_step",
        )

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

    def _of_runs(self, run: Tensor) -> Tensor:
        """Returns by what the steps in these runs are drawn, `(S, B)` to `(S, B, RUN)`. 0 for closed ones."""
        rows = (run + self._first_runs).flatten()
        parts = (x.view(-1, RUN).index_select(0, rows) for x in (self._priorities, self._open))
        return torch.mul(*parts).view(*run.shape, RUN)

    def _pieces(self, places: Tensor, length: int) -> Pieces:
        capacity = self._rows.shape[1]
        steps = torch.arange(length, device=places.device)
        newer = (((self._added - 1) % capacity - places) % capacity)[..., None]  # steps after it
        chosen = (places[..., None] + steps.minimum(newer)) % capacity + self._starts[..., None]
        rows = self._rows.flatten(0, 1).index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        observations, actions, rewards, after, terminated, _ = rows.split(self._sizes, -1)
        terminated = terminated.squeeze(-1)
        goes_on = (1 - terminated)[..., :-1].cumprod(-1)
        return Pieces(
            observations[..., 0, :],
            actions,
            rewards.squeeze(-1),
            after,
            terminated,
            torch.cat([torch.ones_like(terminated[..., :1]), goes_on], -1),
        )

    def prioritise(self, places: Tensor, priorities: Tensor) -> None:
        """Gives the steps at `places` `(S, B)` these priorities. One that is there twice, the larger."""
        self._priorities.scatter_reduce_(1, places, priorities, "amax", include_self=False)
        run = places // RUN
        self._sums.scatter_(1, run, self._of_runs(run).sum(-1, dtype=torch.float64))
        torch.maximum(self._largest, priorities.amax(1), out=self._largest)

    def mean_size(self) -> Tensor:
        """Returns the mean absolute reward of the stored steps, `(S,)`."""
        return self._rows[:, : len(self), sum(self._sizes[:2])].abs().mean(1)

    def state_dict(self) -> dict:
        mine = {name: x[:, : len(self)] for name, x in self._by_step().items()}
        mine |= self._by_seed() | {"draws": self._draws.state_dict()}
        return super().state_dict() | mine

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        for name, mine in self._by_step().items():
            mine[:, : len(self)].copy_(state[name])
        for name, mine in self._by_seed().items():
            mine.copy_(state[name])
        self._draws.load_state_dict(state["draws"])

    def _by_step(self) -> dict[str, Tensor]:
        return {"priorities": self._priorities, "open": self._open}

    def _by_seed(self) -> dict[str, Tensor]:
        names = ("sums", "largest", "length")
        return {name: getattr(self, f"_{name}") for name in names} | {"terminated": self.terminated}
