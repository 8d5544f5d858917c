"""Replay for numbered actions: each observation once, n-step returns, a reward per source.

An Atari transition holds eight frames of which one is new. Here a frame is stored once, as bytes where
it is bytes; stacks and next observations are put together when a batch is drawn.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers import room
from corerl.buffers.transfer import Outbox
from corerl.config import require
from corerl.runs.replay_files import Ring


class DiscreteStep(NamedTuple):
    """One step of S seeds with numbered actions; observations keep the environment's shape."""

    observations: np.ndarray  # (S, ...) float32, or uint8 where the environment's are
    actions: np.ndarray  # (S,) int64
    rewards: np.ndarray  # (S,)
    next_observations: np.ndarray  # (S, ...)
    terminated: np.ndarray  # (S,) bool
    truncated: np.ndarray  # (S,) bool
    sources: np.ndarray  # (S, K): the reward by source, or the reward itself where there is one


class Transitions(NamedTuple):
    """n-step transitions of S seeds; the shape of an observation is the environment's."""

    observations: Tensor  # (S, B, ...) as the environment gives them: float32 or uint8
    actions: Tensor  # (S, B) int64
    rewards: Tensor  # (S, B, K): discounted sums of each source over the steps counted
    next_observations: Tensor  # (S, B, ...)
    discounts: Tensor  # (S, B): discount ** steps counted, or 0 past a true terminal


class FrameReplay:
    """The latest `capacity` steps of each of S seeds, on the device; the oldest is overwritten first.

    What lies before an episode's first frame is black (zeros), as in Dopamine, so the environment has to
    stack its frames that way. The state reached by a truncated step is not stored: a return that
    runs into a time limit is cut one step earlier and goes on from the last state that is, and a draw
    of the truncated step itself counts for the one before it.

    Args:
        shape: of an observation; with `stack` > 1 its first axis is that many frames, the latest last.
        dtype: of an observation, float32 or uint8.
        sources: K, the rewards of a step.
        capacity: steps per seed. 1M Atari frames take 7 GB per seed.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size: B.
        discount, n_step: of the returns.
        stack: frames of an observation.
        device: where the rows live.

    Raises:
        CorerlError: the capacity is too small for a single return, or too large for the device.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        sources: int,
        capacity: int,
        seeds: Sequence[int],
        batch_size: int,
        *,
        discount: float,
        n_step: int = 1,
        stack: int = 1,
        device: torch.device | str = "cpu",
    ):
        require(
            capacity > n_step + stack + 2,
            f"A replay of {capacity} steps is too small for {n_step}-step returns of {stack} frames",
        )
        self._frame = (shape[0] // stack, *shape[1:])
        self._lead, self._capacity, self._stack = (len(seeds), batch_size), capacity, stack
        lead = (len(seeds), capacity)
        self._frames = room.take((*lead, *self._frame), dtype, device, "algo.data.capacity")
        self._actions = torch.zeros(lead, dtype=torch.int64, device=device)
        self._rewards = torch.zeros(*lead, sources, device=device)
        self._ends = torch.zeros(*lead, 3, dtype=torch.uint8, device=device)
        """Terminated, truncated, and how many earlier frames of the episode there are, at most 255."""
        one = {name: ((len(seeds), *x.shape[2:]), x.dtype) for name, x in self._parts().items()}
        self._incoming = Outbox(one, device)
        self._age = np.zeros(len(seeds), np.uint8)
        self._added = 0
        self._starts = torch.arange(len(seeds), device=device)[:, None] * capacity
        self._steps = torch.arange(n_step, device=device)
        self._powers = discount ** torch.arange(n_step + 1, device=device)
        self._back = torch.arange(stack - 1, -1, -1, device=device)

        def draw(rng: torch.Generator, block: int) -> Tensor:
            # Far wider than any size, so that the remainder is uniform on rows not yet counted.
            return torch.randint(2**62, (block, batch_size), generator=rng, device=device)

        self._numbers = seeding.Stream(seeds, "batch", draw, device)

    def __len__(self) -> int:
        """Steps per seed."""
        return min(self._added, self._capacity)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in self._parts().values())

    @property
    def ready(self) -> bool:
        """Tells whether there is a whole return to draw."""
        return self._added > len(self._steps) + 1

    def add(self, step: DiscreteStep, rewards: np.ndarray) -> dict[str, Tensor]:
        """Stores a step of every seed with the rewards `(S, K)` to learn from.

        Returns the rewards and the `ends` `(S, 3)` on the device, good until the next call.
        """
        row = self._added % self._capacity
        incoming = self._incoming.open()
        incoming["frames"][:] = step.observations[:, -self._frame[0] :]
        incoming["actions"][:] = step.actions
        incoming["rewards"][:] = rewards
        for column, value in enumerate((step.terminated, step.truncated, self._age)):
            incoming["ends"][:, column] = value
        arrived = self._incoming.send()
        for name, part in self._parts().items():
            part[:, row].copy_(arrived[name])
        over = step.terminated | step.truncated
        self._age = np.where(over, 0, np.minimum(self._age, 254) + 1).astype(np.uint8)
        self._added += 1
        return arrived

    def sample(self) -> Transitions:
        """Samples the next batch of every seed, drawn uniformly with replacement."""
        n = len(self._steps)
        oldest = max(0, self._added - self._capacity)
        first = oldest + self._stack + 1 if oldest else 1  # further back, a stack's frames are gone
        times = first + self._numbers.next() % (self._added - n - first)
        return self._transitions(times - self._gather(self._ends, times)[..., 1].long())

    def _transitions(self, times: Tensor) -> Transitions:
        """Gathers n-step transitions that start at steps `times` `(S, B)`, counted from the first ever."""
        steps = times[..., None] + self._steps
        ends = self._gather(self._ends, steps)
        terminated, truncated = ends[..., 0].float(), ends[..., 1].float()
        going_on = ((1 - terminated) * (1 - truncated)).cumprod(-1)
        before = torch.cat([torch.ones_like(going_on[..., :1]), going_on[..., :-1]], -1)
        counted = before * (1 - truncated)
        weights = counted * self._powers[:-1]
        length = counted.sum(-1).long()
        terminal = (counted * terminated).amax(-1)
        return Transitions(
            self._observations(times),
            self._gather(self._actions, times),
            (weights[..., None] * self._gather(self._rewards, steps)).sum(-2),
            self._observations(times + length),
            self._powers[length] * (1 - terminal),
        )

    def _observations(self, times: Tensor) -> Tensor:
        """Stacks `(S, B, stack * channels, ...)`; frames before the episode's first are zeros."""
        age = self._gather(self._ends, times)[..., 2:]
        frames = self._gather(self._frames, times[..., None] - self._back)
        known = (self._back <= age).to(frames.dtype)
        frames = frames * known.view(*known.shape, *[1] * len(self._frame))
        return frames.view(*times.shape, -1, *self._frame[1:])

    def _gather(self, part: Tensor, times: Tensor) -> Tensor:
        """Returns rows `(S, B, ..., *rest)` of `part` `(S, capacity, *rest)`."""
        starts = self._starts.view(-1, *[1] * (times.ndim - 1))
        rows = (times % self._capacity + starts).flatten()
        return part.flatten(0, 1).index_select(0, rows).view(*times.shape, *part.shape[2:])

    def _parts(self) -> dict[str, Tensor]:
        return {
            "frames": self._frames,
            "actions": self._actions,
            "rewards": self._rewards,
            "ends": self._ends,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows themselves, and the position in the stream of row numbers."""
        parts = {name: Ring.of(part, self._added) for name, part in self._parts().items()}
        numbers = self._numbers.state_dict()
        return parts | {
            "age": torch.from_numpy(self._age),
            "added": self._added,
            "numbers": numbers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._added, self._age = state["added"], state["age"].numpy().copy()
        for name, part in self._parts().items():
            part[:, : len(self)].copy_(state[name])
        self._numbers.load_state_dict(state["numbers"])
