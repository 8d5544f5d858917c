"""The Preference Transformer's reward (Kim et al. 2023), and DPPO's (An et al. 2023), of whole segments.

A transformer reads (action, state) of all steps, and its tokens of states say what each is worth.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from corerl.config import at_least, positive, require, within
from corerl.nn import embeddings, networks, transformer


@dataclass
class Fitting(transformer.TransformerSettings):
    """The network's size and how it is fitted to comparisons."""

    steps: int = positive(20_000)  # number of first updates, which fit the reward

    layers: int = positive(1)
    heads: int = positive(4)
    width: int = positive(256)
    dropout: float = within(0.1, "[0, 1)")  # dropout of embeddings, attention and block outputs

    lr: float = positive(1e-3)  # learning rate after the warm-up (a tenth of it at start and end)
    warmup: float = within(0.1, "[0, 1)")  # share of the steps in which the learning rate rises
    weight_decay: float = at_least(0, 1e-4)  # weight decay of all parameters
    batch_size: int = positive(256)  # comparisons per batch

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % 2 == 0, f"{self.prefix}width={self.width} must be even")


class SegmentTransformer(transformer.Trunk):
    """Tokens of the actions and states of segments `(S, n, L, ...)`.

    Args:
        cfg: `layers`, `heads`, `width` and `dropout`.
        rngs: one CPU generator per seed for the initial weights.
        length: the largest L.
    """

    def __init__(
        self,
        cfg: Any,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        length: int,
    ):
        super().__init__()
        lead, width = (len(rngs),), cfg.width
        self.rate = cfg.dropout
        self.embed_state = networks.Linear(observation_dim, width, lead, rngs, networks.lecun)
        self.embed_action = networks.Linear(action_dim, width, lead, rngs, networks.lecun)
        self.embed_time = embeddings.Embedding(length + 1, width, lead, rngs, std=width**-0.5)
        self.embed_norm = networks.LayerNorm(width, lead)
        self.blocks = nn.ModuleList(
            transformer.Block(width, cfg.heads, rngs, init=networks.lecun)
            for _ in range(cfg.layers)
        )
        self.norm = networks.LayerNorm(width, lead)

    def embedded(
        self, observations: Tensor, actions: Tensor, valid: Tensor, causal: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Returns the tokens before the first block `(S, n, 2 L, width)`, and which they may look at."""
        each = transformer.each
        time = self.embed_time((valid.cumsum(-1) * valid).long())
        tokens = [
            each(self.embed_action, actions) + time,
            each(self.embed_state, observations) + time,
        ]
        x = each(self.embed_norm, torch.stack(tokens, 3).flatten(2, 3))
        real = (valid > 0).repeat_interleave(2, dim=2)
        return x, transformer.causal(real) if causal else transformer.both_ways(real)

    def hidden(
        self,
        observations: Tensor,
        actions: Tensor,
        valid: Tensor,
        keys: Tensor | None = None,
        wanted: slice = slice(1, None, 2),
        causal: bool = True,
    ) -> Tensor:
        """Returns the last block's tokens, of states unless `wanted` says otherwise, `(S, n, L', width)`.

        `valid` `(S, n, L)` is 0.0 in padding, which stands on the left. `keys` `(S, places)` drop units.
        Without `causal` tokens look at those that follow, too, and padding may stand on the right.
        """
        x, allowed = self.embedded(observations, actions, valid, causal)
        return self.through_blocks(x, allowed, wanted, keys)


class RewardTransformer(SegmentTransformer):
    """Rewards of the steps of segments `(S, n, L, ...)`.

    Args:
        cfg: of `Fitting`, with `attention`: whether the score is by preference attention or by a head; and
            for the former `scale`: what products of queries and keys are divided by, `none` or `width`.
        Others as of `SegmentTransformer`.
    """

    def __init__(
        self,
        cfg: Any,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        length: int,
    ):
        super().__init__(cfg, observation_dim, action_dim, rngs, length)
        lead, width = (len(rngs),), cfg.width
        if cfg.attention:
            self.preference = networks.Linear(width, 2 * width + 1, lead, rngs, networks.lecun)
        else:
            self.head = networks.MLP([width, width // 2, 1], lead, rngs, init=networks.lecun)
        self.attention = cfg.attention
        if cfg.attention:
            self.scale = math.sqrt(width) if cfg.scale == "width" else 1.0

    def rewards(self, hidden: Tensor) -> Tensor:
        """Returns r_t, `(S, n, L, width)` to `(S, n, L)`."""
        if self.attention:
            return transformer.each(self.preference, hidden)[..., -1]
        return transformer.each(self.head, hidden).squeeze(-1)

    def score(self, observations: Tensor, actions: Tensor, keys: Tensor | None = None) -> Tensor:
        """Scores whole segments `(S, n, L, ...)` by the mean of z_t, or without attention of r_t."""
        valid = torch.ones_like(observations[..., 0])
        hidden = self.hidden(observations, actions, valid, keys)
        if not self.attention:
            return self.rewards(hidden).mean(-1)
        parts = transformer.each(self.preference, hidden)
        width = hidden.shape[-1]
        query, key, reward = parts.split([width, width, 1], -1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / self.scale, -1)
        return (weights @ reward).squeeze(-1).mean(-1)
