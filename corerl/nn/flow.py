"""Flow matching: velocity networks, their loss, and Euler sampling with guidance.

A flow carries noise x_0 ~ N(0, I) along dx/dt = v(s, x, t) to an action x_1 at time 1 (Lipman et al. 2023,
arXiv:2210.02747). The straight path between the two has the velocity x_1 - x_0, which `v` is fitted to.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corerl.nn.networks import MLP

Field = Callable[[Tensor, Tensor], Tensor]
"""`field(x, t) -> v` at points `(S, B, A)` and times `(S, B, 1)`."""


class Velocity(MLP):
    """A vector per state and point: `(S, B, O)`, `(S, B, A)` and conditions `(S, B, .)` to `(S, B, A)`.

    Args:
        sizes: features of the observation, of the action, and of each hidden layer.
        conditions: features of all conditions together: 1 for the time alone, 0 for a policy in one step.
        rngs: one CPU generator per seed for the initial weights.
        others: as for `MLP`.
    """

    def __init__(
        self, sizes: Sequence[int], conditions: int, rngs: Sequence[torch.Generator], **others
    ):
        observation, action, *hidden = sizes
        features = [observation + action + conditions, *hidden, action]
        super().__init__(features, (len(rngs),), rngs, **others)

    def forward(self, observations: Tensor, x: Tensor, *conditions: Tensor) -> Tensor:
        return super().forward(torch.cat([observations, x, *conditions], -1))


def matching_error(field: Field, actions: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """Returns the squared error of a velocity, mean over its features, `(S, B)`.

    Args:
        field: the velocity at points on the straight path from `noise` to `actions`.
        actions, noise: the path's ends `(S, B, A)`. times: where on it, `(S, B, 1)` in [0, 1].
    """
    x = (1 - times) * noise + times * actions
    return (field(x, times) - (actions - noise)).square().mean(-1)


def euler(field: Field, noise: Tensor, steps: int) -> Tensor:
    """Follows a velocity from `noise` `(S, B, A)` at time 0 to time 1 in `steps` equal steps."""
    x = noise
    for i in range(steps):
        times = x.new_full((*x.shape[:-1], 1), i / steps)
        x = x + field(x, times) / steps
    return x


def guided(unconditional: Field, conditional: Field, weight: float) -> Field:
    """Returns the velocity of classifier-free guidance: 0 without the label, 1 with it, more beyond it."""

    def velocity(x: Tensor, times: Tensor) -> Tensor:
        start = unconditional(x, times)
        return start + weight * (conditional(x, times) - start)

    return velocity
