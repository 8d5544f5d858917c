"""Random subsets of a critic ensemble, as REDQ's backup takes them (Chen et al. 2021, arXiv:2101.05982).

The members are heads of one batched product, `lead=(S, N)`. Where only M of them are evaluated their
weights are taken out first, so that it costs M products and not N.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from corerl.config import require


def with_replacement(uniforms: Tensor, members: int, count: int) -> Tensor:
    """Draws `count` of `members` critics `(S, count)`, perhaps one twice, by uniform draws `(S, members)`."""
    return (uniforms[:, :count] * members).long().clamp(max=members - 1)


def without_replacement(uniforms: Tensor, members: int, count: int) -> Tensor:
    """Draws `count` different ones of `members` critics `(S, count)`, by uniform draws `(S, members)`."""
    return uniforms[:, :members].argsort(-1)[:, :count]


def subset(
    uniforms: Tensor,
    members: int,
    count: int | None,
    draw: Callable[[Tensor, int, int], Tensor] = without_replacement,
) -> Tensor | None:
    """Returns the critics `(S, count)` that `draw` takes, or None, which is all, where `count` is None."""
    return None if count is None else draw(uniforms, members, count)


def check(cfg: Any) -> None:
    """Raises CorerlError where `critic_subsample` is more than all `critics`."""
    require(
        cfg.critic_subsample is None or cfg.critic_subsample <= cfg.critics,
        f"algo.critic_subsample={cfg.critic_subsample} must be at most algo.critics={cfg.critics}",
    )


def call(network: nn.Module, chosen: Tensor | None, *inputs: Tensor) -> Tensor:
    """Calls `network(*inputs)` with the heads `chosen` `(S, M)` alone, in their order. None is all."""
    if chosen is None:
        return network(*inputs)
    seeds = torch.arange(len(chosen), device=chosen.device)[:, None]
    weights = {
        name: p if p.shape[1] == 1 else p[seeds, chosen]  # a layer that all share has one copy
        for name, p in network.named_parameters()
    }
    return functional_call(network, weights, inputs)
