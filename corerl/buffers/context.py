"""The memory of a policy that reads windows, while it acts."""

import torch
from torch import Tensor

from corerl.buffers.sequences import Windows


class ContextWindow:
    """The last K steps of n episodes of each of S seeds; before an episode's first there are zeros.

    Args:
        lead: S and n. length: K.
        observation_dim, action_dim: features.
        last_timestep: later time steps are counted as this one.
        like: a tensor with the type and the device of all others.
    """

    def __init__(
        self,
        lead: tuple[int, int],
        length: int,
        observation_dim: int,
        action_dim: int,
        *,
        last_timestep: int,
        like: Tensor,
    ):
        zeros = like.new_zeros(*lead, length)
        states, actions = (
            zeros[..., None].repeat(1, 1, 1, size) for size in (observation_dim, action_dim)
        )
        self._windows = Windows(states, actions, zeros, zeros.long(), zeros)
        self._step, self._last = 0, last_timestep

    def observe(self, observations: Tensor, returns_to_go: Tensor) -> Windows:
        """Returns windows that end with these, `(S, n, O)` and `(S, n)`, at which nothing was done yet."""
        past = self._windows
        time = torch.full_like(past.timesteps[:, :, 0], min(self._step, self._last))
        unknown = torch.zeros_like(past.actions[:, :, 0])
        latest = (observations, unknown, returns_to_go, time, torch.ones_like(returns_to_go))
        self._windows = Windows(
            *(
                torch.cat([x[:, :, 1:], new[:, :, None]], 2)
                for x, new in zip(past, latest, strict=True)
            )
        )
        self._step += 1
        return self._windows

    def record_actions(self, actions: Tensor) -> None:
        """Records the actions `(S, n, A)` at the last step seen."""
        self._windows.actions[:, :, -1] = actions
