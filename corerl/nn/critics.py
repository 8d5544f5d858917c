"""Values of states, and critics of state and action: N heads of one batched product."""

from collections.abc import Sequence

import torch
from torch import Tensor

from corerl.nn.networks import MLP


class Critics(MLP):
    """N critics at one action per state: `(S, B, O)` and `(S, B, A)` to `(S, N, B)`.

    Args:
        sizes: features of the observation, of the action, and of each hidden layer.
        rngs: one CPU generator per seed for the initial weights.
        heads: N; 2 are the twin critics of TD3 (Fujimoto et al. 2018).
        others: as for `MLP`.
    """

    def __init__(
        self, sizes: Sequence[int], rngs: Sequence[torch.Generator], heads: int = 2, **others
    ):
        observation, action, *hidden = sizes
        super().__init__([observation + action, *hidden, 1], (len(rngs), heads), rngs, **others)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([observations, actions], -1)
        return super().forward(inputs[:, None]).squeeze(-1)


class StateValue(MLP):
    """A value per state: `(S, B, O)` to `(S, B)`.

    Args:
        sizes: features of the observation and of each hidden layer.
        rngs, others: as for `Critics`.
    """

    def __init__(self, sizes: Sequence[int], rngs: Sequence[torch.Generator], **others):
        super().__init__([*sizes, 1], (len(rngs),), rngs, **others)

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations).squeeze(-1)
