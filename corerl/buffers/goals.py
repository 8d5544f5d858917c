"""Transitions of a dataset with goals drawn from it, after OGBench (Park et al. 2025, arXiv:2410.20092).

A goal of row t, in an episode whose last row is L, is the row itself, a later one, or any of the dataset.
The rows' law is that of OGBench's code (seohongpark/ogbench at 1d41409, impls/utils/datasets.py):

 1. The last row is the last that has an action. So the state that an episode ends in is never a goal.
 2. The only later row of L is L itself: success by index, and a policy that is asked to stay.
 3. The uniform law rounds a number between t + 1 and L, so that both ends have half the others' weight.
 4. The geometric law is cut at L, where its tail piles up: P(L) = discount^(L - t - 1).
 5. Success is equality of rows, not of states. Where states come again, V(s, s) is then below 0.
    `success=state` compares states, as exact tests do.
 6. HIQL's high-level goals know no `actor_p_curgoal`. A random one keeps the target of its own episode.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.crossings import Crossings
from corerl.buffers.packed import PackedRows
from corerl.config import Settings, one_of, positive, require, within
from corerl.data.dataset import Dataset


@dataclass
class GoalColumns(Settings):
    """What of a state is a goal."""

    prefix: ClassVar[str] = "algo.goals."

    columns: Any = None  # columns of the observation that form a goal, such as [0, 1] (null: all)


@dataclass
class Goals(GoalColumns):
    """Shares of goals in a batch: the row itself, random rows, and for the rest later rows of its episode."""

    value_p_curgoal: float = within(0.2, "[0, 1]")  # share of value goals that are the row's state
    value_p_randomgoal: float = within(0.3, "[0, 1]")  # share of value goals from random rows
    value_geom_sample: bool = True  # steps to a later value goal are geometric (false: uniform)
    actor_p_curgoal: float = within(0.0, "[0, 1]")  # share of policy goals that are the row's state
    actor_p_randomgoal: float = within(0.0, "[0, 1]")  # share of policy goals from random rows
    actor_geom_sample: bool = False  # steps to a later policy goal are geometric (false: uniform)
    gc_negative: bool = True  # reward -1 per step until the goal (false: 1 at the goal)
    augment: float = within(0.0, "[0, 1]")  # share of policy goals from episodes that pass nearby
    clusters: int = positive(40)  # number of k-means clusters of states, used if augment > 0
    success: str = one_of(  # a goal is reached in: index (the goal's row) | state (equal states)
        "index", "state"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for of in ("value", "actor"):
            current, random = (getattr(self, f"{of}_p_{kind}goal") for kind in ("cur", "random"))
            require(
                current + random <= 1 + 1e-9,
                f"algo.goals.{of}_p_curgoal={current} and {of}_p_randomgoal={random} must sum to "
                "at most 1",
            )


class GoalBatch(NamedTuple):
    """Transitions of S seeds with a goal for the value and another one for the policy."""

    observations: Tensor  # (S, B, O)
    actions: Tensor  # (S, B, A)
    next_observations: Tensor  # (S, B, O)
    value_goals: Tensor  # (S, B, G)
    rewards: Tensor  # (S, B), for reaching the value goals
    terminated: Tensor  # (S, B), 1.0 where the state is the value goal
    actor_goals: Tensor  # (S, B, G)


class SubgoalBatch(NamedTuple):
    """Transitions of S seeds with the goals of a hierarchy (HIQL)."""

    observations: Tensor  # (S, B, O)
    actions: Tensor  # (S, B, A)
    next_observations: Tensor  # (S, B, O)
    value_goals: Tensor  # (S, B, G)
    rewards: Tensor  # (S, B), for reaching the value goals
    terminated: Tensor  # (S, B), 1.0 where the state is the value goal
    low_goals: Tensor  # (S, B, G), the state `subgoal_steps` later, or the episode's last
    high_goals: Tensor  # (S, B, G)
    high_targets: Tensor  # (S, B, G), at most `subgoal_steps` later, on the way to the high goal


class GoalRows(PackedRows):
    """A dataset's transitions on a device, whose states can be goals.

    Args:
        dataset: with vector observations and continuous actions; rewards and ends do not count.
        columns: of an observation that are its goal; None for all of them.
        device: where the rows live.

    Raises:
        CorerlError: a row inside an episode has no next observation, or a goal's column does not exist.

    Attributes:
        goal_dim: features of a goal, G.
        state_dim: features of the dataset's observations, O.
        columns: of an observation that are its goal; None for all of them.
        observation_dim: O + G, what the environment shows.
    """

    def __init__(
        self, dataset: Dataset, columns: Sequence[int] | None, device: torch.device | str = "cpu"
    ):
        rows = np.flatnonzero(dataset.has_next)
        parts = (dataset.observations, dataset.actions, dataset.next_observations)
        super().__init__(parts, device, only=rows)
        self._last = torch.from_numpy(last_rows(dataset)).to(device)
        width = self.state_dim = self._sizes[0]
        chosen = list(range(width)) if columns is None else list(columns)
        require(
            all(type(c) is int and 0 <= c < width for c in chosen) and bool(chosen),
            f"algo.goals.columns={columns} must be a list of observation columns of {dataset.id}, from 0 to "
            f"{width - 1}",
        )
        self.goal_dim, self.columns = len(chosen), None if columns is None else chosen
        self._columns = torch.tensor(chosen, device=device)

    @property
    def observation_dim(self) -> int:
        return self.state_dim + self.goal_dim

    def _state(self, rows: Tensor) -> Tensor:
        """Returns the states at `rows` as goals, `(S, B, G)`."""
        return self._as_goals(self._take(rows))

    def _as_goals(self, packed: Tensor) -> Tensor:
        return packed[..., : self.state_dim].index_select(-1, self._columns)

    def _take(self, rows: Tensor) -> Tensor:
        return self._rows.index_select(0, rows.flatten()).unflatten(0, rows.shape)

    def state_dict(self) -> dict:
        """Returns the positions in the streams. The data is not part of a checkpoint."""
        return {name: stream.state_dict() for name, stream in self._streams().items()}

    def load_state_dict(self, state: dict) -> None:
        for name, stream in self._streams().items():
            stream.load_state_dict(state[name])

    def _streams(self) -> dict[str, seeding.Stream]:
        """Returns the streams that batches are drawn by."""
        raise NotImplementedError


class GoalBuffer(GoalRows):
    """A dataset whose batches have goals. Arguments and attributes besides these are those of `GoalRows`.

    Args:
        seeds: the S seeds; each has its own streams of rows and goals.
        batch_size: B.
        goals: which goals are drawn. discount: of the geometric law.
    """

    def __init__(
        self,
        dataset: Dataset,
        seeds: Sequence[int],
        batch_size: int,
        goals: Goals,
        discount: float,
        device: torch.device | str = "cpu",
    ):
        super().__init__(dataset, goals.columns, device)
        self._goals, self._discount = goals, discount
        size = len(self._rows)
        self._indices = seeding.indices(seeds, size, batch_size, device)
        self._others = seeding.indices(seeds, size, 2 * batch_size, device, purpose="goals")
        self._draws = seeding.uniform(seeds, "goal draws", (4, batch_size), device)
        self._crossings = self._crossing_draws = None
        if goals.augment:
            states = dataset.observations[dataset.has_next][:, self._columns.cpu().numpy()]
            self._crossings = Crossings(states, self._last, goals.clusters)
            shape = (4, batch_size)
            self._crossing_draws = seeding.uniform(seeds, "crossings", shape, device)

    def sample(self) -> GoalBatch:
        """Samples the next batch of every seed."""
        rows, (value_random, actor_random), draws = self._next()
        value = self._goal(rows, value_random, draws[:, :2], "value")
        actor = self._goal(rows, actor_random, draws[:, 2:], "actor")
        if self._crossings is not None:
            chance, *places = self._crossing_draws.next().unbind(1)
            crossed = self._crossings.goals(rows, torch.stack(places, 1))
            actor = torch.where(chance < self._goals.augment, crossed, actor)
        return GoalBatch(*self._transitions(rows), *self._towards(rows, value), self._state(actor))

    def sample_subgoals(self, steps: int) -> SubgoalBatch:
        """Samples the next batch of every seed, with subgoals that are `steps` rows later."""
        rows, (value_random, high_random), draws = self._next()
        value = self._goal(rows, value_random, draws[:, :2], "value")
        last = self._last[rows]
        ahead = torch.minimum(rows + steps, last)
        later = self._later(rows, last, draws[:, 2], self._goals.actor_geom_sample)
        is_random = draws[:, 3] < self._goals.actor_p_randomgoal
        high = torch.where(is_random, high_random, later)
        targets = torch.where(is_random, ahead, torch.minimum(ahead, later))
        states = map(self._state, (ahead, high, targets))
        return SubgoalBatch(*self._transitions(rows), *self._towards(rows, value), *states)

    def _next(self) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Returns rows `(S, B)`, two sets of random ones, and uniform draws `(S, 4, B)`."""
        return self._indices.next(), self._others.next().chunk(2, 1), self._draws.next()

    def _goal(self, rows: Tensor, random: Tensor, draws: Tensor, of: str) -> Tensor:
        """Returns the rows of goals `(S, B)` by the settings of `of`, by uniform `draws` `(S, 2, B)`."""
        current, share, geometric = (
            getattr(self._goals, f"{of}_{name}")
            for name in ("p_curgoal", "p_randomgoal", "geom_sample")
        )
        later = self._later(rows, self._last[rows], draws[:, 0], geometric)
        # The row itself, then random rows, then later ones divide [0, 1).
        goals = torch.where(draws[:, 1] < current + share, random, later)
        return torch.where(draws[:, 1] < current, rows, goals)

    def _later(self, rows: Tensor, last: Tensor, uniform: Tensor, geometric: bool) -> Tensor:
        """Returns a later row of each row's episode, `(S, B)`, by uniform draws."""
        if geometric:
            ahead = 1 + (torch.log1p(-uniform) / math.log(self._discount)).long()
            return torch.minimum(rows + ahead, last)
        nearest = torch.minimum(rows + 1, last)
        return last - (uniform * (last - nearest)).round().long()

    def _transitions(self, rows: Tensor) -> Sequence[Tensor]:
        return self._take(rows).split(self._sizes, -1)

    def _towards(self, rows: Tensor, goals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the goals `(S, B, G)`, and for a step at `rows` reward and end `(S, B)`."""
        state = self._state(goals)
        reached = goals == rows
        if self._goals.success == "state":
            reached = (state == self._state(rows)).all(-1)
        reached = reached.to(state.dtype)
        return state, reached - float(self._goals.gc_negative), reached

    def _streams(self) -> dict[str, seeding.Stream]:
        streams = {"rows": self._indices, "others": self._others, "draws": self._draws}
        crossing = self._crossing_draws
        return streams if crossing is None else streams | {"crossings": crossing}


def last_rows(dataset: Dataset) -> np.ndarray:
    """Returns for each row with a next observation the last such row of its episode, counted among them.

    Raises:
        CorerlError: a row inside an episode has no next observation.
    """
    ends = dataset.episode_ends - 1
    inside = np.ones(len(dataset.has_next), bool)
    inside[ends] = False
    cut = np.flatnonzero(inside & ~dataset.has_next)
    require(
        not len(cut),
        f"Row {cut[0] if len(cut) else 0} of {dataset.id} is inside an episode but has no next observation. "
        "Goals come from whole episodes: put the steps in order and mark where episodes end",
    )
    kept = np.diff(np.cumsum(dataset.has_next)[ends], prepend=0)  # rows of each episode
    return np.repeat(np.cumsum(kept) - 1, kept)
