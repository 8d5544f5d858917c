"""Critic ensembles of which an update asks a few: REDQ's trick (Chen et al. 2021, arXiv:2101.05982).

The members are heads of one batched product, `lead=(S, N)`. What asks only M of them takes the M heads'
weights out first, so that it costs M products and not N.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from corerl.nn import networks


class Critics(networks.MLP):
    """N critics at K actions per state: `(S, B, O)` and `(S, K, B, A)` to `(S, N, K, B)`.

    The first layer's product with the state is made once and shared by the K actions.

    Args:
        sizes: features of observation and action together, of each hidden layer, and 1.
        members: N.
        rngs, others: as for `MLP`.
    """

    def __init__(
        self, sizes: Sequence[int], members: int, rngs: Sequence[torch.Generator], **others
    ):
        super().__init__(sizes, (len(rngs), members), rngs, **others)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        weight, bias = self.layers[0].weight, self.layers[0].bias
        seeds, k, batch, _ = actions.shape
        of_state, of_action = weight.split([observations.shape[-1], actions.shape[-1]], dim=2)
        state = observations[:, None] @ of_state + bias
        action = actions.reshape(seeds, 1, k * batch, -1) @ of_action
        x = (state[:, :, None] + action.unflatten(2, (k, batch))).flatten(2, 3)
        x = self._finish(x, 0)
        for i, layer in enumerate(self.layers[1:-1], start=1):
            x = self._finish(layer(x), i)
        return self.layers[-1](x).view(seeds, -1, k, batch)

    def _finish(self, x: Tensor, i: int) -> Tensor:
        norm = self.norms[i]
        return self.activation(norm(x)) if self.norm_first else norm(self.activation(x))


def with_replacement(uniforms: Tensor, members: int, count: int) -> Tensor:
    """`count` of `members` critics `(S, count)`, perhaps one twice, from uniform draws `(S, members)`."""
    return (uniforms[:, :count] * members).long().clamp(max=members - 1)


def without_replacement(uniforms: Tensor, members: int, count: int) -> Tensor:
    """`count` different ones of `members` critics `(S, count)`, from uniform draws `(S, members)`."""
    return uniforms[:, :members].argsort(-1)[:, :count]


def call(network: nn.Module, chosen: Tensor | None, *inputs: Tensor) -> Tensor:
    """`network(*inputs)` of the heads `chosen` `(S, M)` alone, in their order; None asks all."""
    if chosen is None:
        return network(*inputs)
    seeds = torch.arange(len(chosen), device=chosen.device)[:, None]
    weights = {name: p[seeds, chosen] for name, p in network.named_parameters()}
    return functional_call(network, weights, inputs)
