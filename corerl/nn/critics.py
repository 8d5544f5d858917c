"""Values of states, critics of state and action, and values of every discrete action."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from corerl.nn.encoders import Encoder
from corerl.nn.learner import Spec
from corerl.nn.networks import MLP, Init, Linear, SharedLinear, torch_init


class Critics(MLP):
    """N critics at one action per state: `(S, B, O)` and `(S, B, A)` to `(S, N, B)`.

    Args:
        sizes: features of the observation, of the action, and of each hidden layer.
        rngs: one CPU generator per seed for the initial weights.
        heads: N; 2 are the twin critics of TD3 (Fujimoto et al. 2018).
        shared_output: they have their hidden layers to themselves and the last one in common.
        others: as for `MLP`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        rngs: Sequence[torch.Generator],
        heads: int = 2,
        *,
        shared_output: bool = False,
        init: Init = torch_init,
        output_init: Init | None = None,
        **others,
    ):
        observation, action, *hidden = sizes
        features = [observation + action, *hidden]
        others |= {"init": init, "output_init": output_init}
        super().__init__([*features, 1], (len(rngs), heads), rngs, **others)
        if shared_output:
            self.layers[-1] = SharedLinear(features[-1], 1, rngs, output_init or init)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([observations, actions], -1)
        return super().forward(inputs[:, None]).squeeze(-1)


class ManyActionCritics(Critics):
    """N critics at K actions per state: `(S, B, O)` and `(S, K, B, A)` to `(S, N, K, B)`.

    The first layer's product with the state is made once and shared by the K actions. At least one
    layer is hidden.
    """

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        weight, bias = self.layers[0].weight, self.layers[0].bias
        seeds, k, batch, _ = actions.shape
        of_state, gather_actions = weight.split([observations.shape[-1], actions.shape[-1]], dim=2)
        state = observations[:, None] @ of_state + bias
        action = actions.reshape(seeds, 1, k * batch, -1) @ gather_actions
        x = (state[:, :, None] + action.unflatten(2, (k, batch))).flatten(2, 3)
        x = self._finish(x, 0)
        for i in range(1, len(self.norms)):
            x = self._hidden(x, i)
        return self.layers[-1](x).view(seeds, -1, k, batch)


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


class ActionValues(nn.Module):
    """Numbers for every discrete action: `(S, B, *shape)` to `(S, B, A, *sizes)`.

    Args:
        shape: of an observation, a vector or an image.
        outputs: A, and the sizes of what each action has: quantiles, sources of reward.
        layers, width: dense layers, after the convolutions where observations are images.
        rngs, init, others: as for `Encoder`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: tuple[int, ...],
        layers: int,
        width: int,
        rngs: Sequence[torch.Generator],
        *,
        init: Init = torch_init,
        **others,
    ):
        super().__init__()
        self.encoder = Encoder(shape, layers, width, rngs, init=init, **others)
        self.head = Linear(width, math.prod(outputs), (len(rngs),), rngs, init)
        self.outputs = outputs

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.encoder(observations)).unflatten(-1, self.outputs)


def action_values(cfg: Any, spec: Spec, *sizes: int, **others) -> ActionValues:
    """Builds `ActionValues` for a spec, on its device. Each action has numbers of `sizes`.

    Args:
        cfg: with `hidden_layers`, `hidden_width` and `between` (nn/mlp_settings.py).
        others: as for `Encoder`.
    """
    outputs, dense = (spec.action_dim, *sizes), (cfg.hidden_layers, cfg.hidden_width)
    options = cfg.mlp_options | others
    return ActionValues(spec.observation_dim, outputs, *dense, spec.rngs, **options).to(spec.device)


def gather_actions(values: Tensor, actions: Tensor) -> Tensor:
    """Selects the rows `(S, B, ...)` of `values` `(S, B, A, ...)` at `actions` `(S, B)`."""
    sizes = values.shape[3:]
    rows = actions.view(*actions.shape, 1, *[1] * len(sizes)).expand(-1, -1, 1, *sizes)
    return values.gather(2, rows).squeeze(2)


def q_of_windows(critic: Critics, observations: Tensor, actions: Tensor) -> Tensor:
    """Evaluates N critics at every step, `(S, B, K, O)` and `(S, B, K, A)` to `(S, N, B, K)`."""
    q = critic(observations.flatten(1, 2), actions.flatten(1, 2))
    return q.unflatten(-1, observations.shape[1:3])


def regression(q: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the squared error of N critics, summed over them, and what a run logs of it.

    Args:
        q: `(S, N, B)`. y: their common targets `(S, B)`.
    """
    loss = (q - y[:, None]).square().mean(-1).sum(1)
    return loss, {"critic_loss": loss, "q": q.mean((1, 2))}


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Returns |expectile - 1(u < 0)| u^2 of every u in `difference` (IQL, eq. 5)."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return weight * difference.square()
