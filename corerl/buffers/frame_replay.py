"""Replay for discrete actions: each observation once, n-step returns, a reward per source.

An Atari transition holds eight frames of which one is new. Here a frame is stored once, as bytes where
it is bytes; stacks and next observations are put together when a batch is drawn. The frame that a truncated
step reaches is the only one that no later step begins with; those few lie apart.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from corerl import seeding
from corerl.buffers import memory_check
from corerl.buffers.transfer import Outbox
from corerl.config import require
from corerl.runs.replay_files import Ring


class DiscreteStep(NamedTuple):
    """One step of S seeds with discrete actions. Observations keep the environment's shape."""

    observations: np.ndarray  # (S, ...) float32, or uint8 if the environment gives uint8
    actions: np.ndarray  # (S,) int64
    rewards: np.ndarray  # (S,)
    next_observations: np.ndarray  # (S, ...)
    terminated: np.ndarray  # (S,) bool
    truncated: np.ndarray  # (S,) bool
    sources: np.ndarray  # (S, K), the reward of each source, or the only reward
    durations: np.ndarray | None = None  # (S,), time of each step, if some take longer than 1


class Transitions(NamedTuple):
    """n-step transitions of S seeds. The shape of an observation is the environment's."""

    observations: Tensor  # (S, B, ...) as the environment gives them: float32 or uint8
    actions: Tensor  # (S, B) int64
    rewards: Tensor  # (S, B, K), the discounted sum of n rewards, for each source
    next_observations: Tensor  # (S, B, ...)
    discounts: Tensor  # (S, B), discount ** (time of the n steps), or 0 after a terminal state


class FrameReplay:
    """The latest `capacity` steps of each of S seeds, on the device. The oldest is overwritten first.

    What lies before an episode's first frame is black (zeros), as in Dopamine, so the environment has to
    stack its frames that way. A return that runs into a time limit counts the truncated step's reward
    and bootstraps at the state which that step reached, as in dqn_zoo; Dopamine draws no such return.
    Memory for those states grows with the most of them that are in the replay at once.

    Args:
        shape: of an observation; with `stack` > 1 its first axis is that many frames, the latest last.
        dtype: of an observation, float32 or uint8.
        sources: K, the rewards of a step.
        capacity: steps per seed. 1M Atari frames take 7 GB per seed.
        seeds: the S seeds; each has its own stream of row numbers.
        batch_size: B.
        discount, n_step: of the returns.
        longest: the largest duration of a step, in units of time. With 1 none is stored.
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
        longest: int = 1,
        device: torch.device | str = "cpu",
    ):
        require(
            capacity > n_step + stack + 2,
            f"A replay of {n_step}-step returns of {stack} stacked frames needs a capacity of at least "
            f"{n_step + stack + 3} steps. Raise algo.data.capacity={capacity}",
        )
        self._frame = (shape[0] // stack, *shape[1:])
        self._capacity, self._stack = capacity, stack
        lead = (len(seeds), capacity)
        self._frames = memory_check.take((*lead, *self._frame), dtype, device, "algo.data.capacity")
        self._actions = torch.zeros(lead, dtype=torch.int64, device=device)
        self._rewards = torch.zeros(*lead, sources, device=device)
        self._ends = torch.zeros(*lead, 3, dtype=torch.uint8, device=device)
        """Terminated, truncated, and how many earlier frames of the episode there are, at most 255."""
        timed = {"durations": torch.ones(lead, dtype=torch.int32, device=device)}
        self._timed = timed if longest > 1 else {}
        self._cuts = torch.zeros(lead, dtype=torch.int32, device=device)
        """How many steps of the seed were truncated before this one: where in `_reached` it may look."""
        self._reached = torch.zeros(len(seeds), 1, *self._frame, dtype=dtype, device=device)
        coming = self._parts() | {"cuts": self._cuts, "reached": self._reached}
        one = {name: ((len(seeds), *x.shape[2:]), x.dtype) for name, x in coming.items()}
        self._incoming = Outbox(one, device)
        self._age = np.zeros(len(seeds), np.uint8)
        self._added = 0
        # Of truncated steps, on the host: where they are, how many there have been, how many are overwritten.
        self._truncated = np.zeros(lead, bool)
        self._cut, self._gone = np.zeros((2, len(seeds)), np.int64)
        self._seeds = torch.arange(len(seeds), device=device)[:, None]
        self._steps = torch.arange(n_step, device=device)
        self._powers = discount ** torch.arange(n_step * longest + 1, device=device)
        self._back = torch.arange(stack - 1, -1, -1, device=device)
        self._numbers = seeding.numbers(seeds, "batch", batch_size, device)

    def __len__(self) -> int:
        """Steps per seed."""
        return min(self._added, self._capacity)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(x.nbytes for x in (*self._parts().values(), self._cuts, self._reached))

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
        if self._timed:
            incoming["durations"][:] = step.durations
        incoming["cuts"][:] = self._cut
        incoming["reached"][:] = step.next_observations[:, -self._frame[0] :]
        for column, value in enumerate((step.terminated, step.truncated, self._age)):
            incoming["ends"][:, column] = value
        arrived = self._incoming.send()
        for name, part in (self._parts() | {"cuts": self._cuts}).items():
            part[:, row].copy_(arrived[name])
        self._keep(arrived["reached"], step.truncated, row)
        over = step.terminated | step.truncated
        self._age = np.where(over, 0, np.minimum(self._age, 254) + 1).astype(np.uint8)
        self._added += 1
        return arrived

    def _keep(self, reached: Tensor, truncated: np.ndarray, row: int) -> None:
        """Keeps the frames `(S, ...)` that truncated steps reached, in place of those that `row` gives up."""
        self._gone += self._truncated[:, row]
        self._truncated[:, row] = False
        self._note(reached, truncated, row)

    def _note(self, reached: Tensor, truncated: np.ndarray, row: int) -> None:
        """Keeps the frames `(S, ...)` that the steps at `row` reached, of the seeds whose was truncated."""
        self._truncated[truncated, row] = True
        most = (self._cut + truncated - self._gone).max()
        if most > self._reached.shape[1]:
            self._place(self._kept(), min(2 * most, self._capacity))
        for i in np.flatnonzero(truncated):
            self._reached[i, self._cut[i] % self._reached.shape[1]].copy_(reached[i])
        self._cut += truncated

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Ends these seeds' running episodes `(S,)` at their last step, which reached these observations.

        It becomes a truncated one. Its row may be on the disk already, where it stays as it was: that the
        next one begins an episode tells `load_state_dict`.
        """
        row = (self._added - 1) % self._capacity
        frames = np.ascontiguousarray(reached[:, -self._frame[0] :])
        self._note(self._on_device(frames), seeds, row)
        self._ends[self._on_device(seeds), row, 1] = 1
        self._age[seeds] = 0

    def _kept(self) -> Tensor:
        """Returns the frames `(S, n, ...)` that truncated steps reached, oldest first, zeros at last."""
        numbers = self._gone[:, None] + np.arange((self._cut - self._gone).max())
        frames = self._gather(self._reached, self._on_device(numbers))
        frames[self._on_device(numbers >= self._cut[:, None])] = 0
        return frames

    def _place(self, kept: Tensor, count: int) -> None:
        """Makes memory for `count` frames of each seed, with those that `_kept` returned."""
        shape, setting = (len(kept), count, *self._frame), "algo.data.capacity"
        self._reached = memory_check.take(
            shape, self._frames.dtype, self._frames.device, setting
        ).zero_()
        numbers = self._gone[:, None] + np.arange(kept.shape[1])
        self._reached[self._seeds, self._on_device(numbers % count)] = kept.to(self._reached.device)

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._frames.device)

    def sample(self) -> Transitions:
        """Samples the next batch of every seed, drawn uniformly with replacement."""
        n = len(self._steps)
        oldest = max(0, self._added - self._capacity)
        first = oldest + self._stack + 1 if oldest else 1  # further back, a stack's frames are gone
        return self._transitions(first + self._numbers.next() % (self._added - n - first))

    def _transitions(self, times: Tensor) -> Transitions:
        """Gathers n-step transitions that start at steps `times` `(S, B)`, counted from the first ever."""
        steps = times[..., None] + self._steps
        ends = self._gather(self._ends, steps)
        terminated, truncated = ends[..., 0].float(), ends[..., 1].float()
        going_on = ((1 - terminated) * (1 - truncated)).cumprod(-1)
        counted = torch.cat([torch.ones_like(going_on[..., :1]), going_on[..., :-1]], -1)
        length = counted.sum(-1).long()
        took = counted.long()
        if self._timed:
            took = took * self._gather(self._timed["durations"], steps)
        elapsed = took.cumsum(-1)
        weights = counted * self._powers[elapsed - took]
        terminal, cut = ((counted * x).amax(-1) for x in (terminated, truncated))
        return Transitions(
            self._history(times, self._back).flatten(2, 3),
            self._gather(self._actions, times),
            (weights[..., None] * self._gather(self._rewards, steps)).sum(-2),
            self._reached_by(times + length - 1, cut.bool()),
            self._powers[elapsed[..., -1]] * (1 - terminal),
        )

    def _reached_by(self, times: Tensor, cut: Tensor) -> Tensor:
        """Returns the observations that steps `times` `(S, B)` reached. Those `cut` were truncated."""
        following = self._gather(self._frames, times + 1)
        kept = self._gather(self._reached, self._gather(self._cuts, times).long())
        latest = torch.where(cut.view(*cut.shape, *[1] * len(self._frame)), kept, following)
        older = self._history(times, self._back[1:])
        return torch.cat([older, latest[:, :, None]], 2).flatten(2, 3)

    def _history(self, times: Tensor, back: Tensor) -> Tensor:
        """Returns frames `(S, B, n, ...)` so many steps `back` `(n,)`. Before the episode's first, zeros."""
        age = self._gather(self._ends, times)[..., 2:]
        frames = self._gather(self._frames, times[..., None] - back)
        known = (back <= age).to(frames.dtype)
        return frames * known.view(*known.shape, *[1] * len(self._frame))

    def _gather(self, part: Tensor, numbers: Tensor) -> Tensor:
        """Returns rows `(S, B, ..., *rest)` of the ring `part` `(S, size, *rest)`, by their numbers."""
        size = part.shape[1]
        seeds = self._seeds.view(-1, *[1] * (numbers.ndim - 1))
        rows = (numbers % size + seeds * size).flatten()
        return part.flatten(0, 1).index_select(0, rows).view(*numbers.shape, *part.shape[2:])

    def _parts(self) -> dict[str, Tensor]:
        return {
            "frames": self._frames,
            "actions": self._actions,
            "rewards": self._rewards,
            "ends": self._ends,
            **self._timed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows themselves, and the position in the stream of row numbers."""
        parts = {name: Ring.of(part, self._added) for name, part in self._parts().items()}
        numbers = self._numbers.state_dict()
        return parts | {
            "reached": self._kept(),
            "age": torch.from_numpy(self._age),
            "added": self._added,
            "numbers": numbers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned.

        In older ones, which have no `reached`, truncated steps bootstrap at the state that they began in.
        """
        self._added, self._age = state["added"], state["age"].numpy().copy()
        for name, part in self._parts().items():
            # Seed by seed: all at once take the room of a second replay on the device.
            for mine, saved in zip(part, state[name], strict=True):
                mine[: len(self)].copy_(saved)
        self._numbers.load_state_dict(state["numbers"])
        oldest = self._added % max(1, len(self))
        in_order = _truncated(state["ends"].cpu().roll(-oldest, 1)).long()
        truncated = in_order.roll(oldest, 1)
        self._ends[:, : len(self), 1] = truncated.to(self._ends)
        self._truncated[:] = False
        self._truncated[:, : len(self)] = truncated
        self._cuts[:, : len(self)].copy_((in_order.cumsum(1) - in_order).roll(oldest, 1))
        self._cut, self._gone = in_order.sum(1).numpy(), np.zeros_like(self._gone)
        kept = state.get("reached")
        if kept is None:
            rows = [(row.nonzero()[:, 0] + oldest) % len(self) for row in in_order]
            began = [frames[at] for frames, at in zip(state["frames"], rows, strict=True)]
            kept = pad_sequence(began, batch_first=True)
        self._place(kept, max(1, kept.shape[1]))


def _truncated(ends: Tensor) -> Tensor:
    """Tells which steps `(S, n)`, oldest first, were truncated, by a time limit or by `end_episodes`."""
    truncated = ends[..., 1].bool()
    begins = ends[:, 1:, 2] == 0
    truncated[:, :-1] |= begins & ~ends[:, :-1, 0].bool()
    return truncated
