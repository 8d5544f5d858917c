"""GPT-2 blocks (Radford et al. 2019) with a leading seed axis: pre-norm attention and a wide MLP.

Dropout must give each seed masks of its own, and they are too many to be drawn ahead (4 million numbers
a step for the Decision Transformer), so a mask is hashed from one drawn integer per seed and place.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.config import Settings, require
from corerl.nn import networks


class TransformerSettings(Settings):
    """Settings with a `width` that is shared out among `heads`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        width, heads, key = self.width, self.heads, self.prefix
        require(width % heads == 0, f"{key}width={width} must be a multiple of {key}heads={heads}")


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): `(S, B, T, width)` to `(S, B, T', width)`.

    Args:
        width, heads: features of a token, and the attention heads that share them.
        rngs: one CPU generator per seed for the initial weights.
        init: of every layer; `attention_init`, where given, of query, key and value.
        activation: of the MLP, which is four times as wide.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rngs: Sequence[torch.Generator],
        *,
        init: networks.Init,
        attention_init: networks.Init | None = None,
        activation: Callable[[Tensor], Tensor] = F.relu,
    ):
        super().__init__()
        lead = (len(rngs),)
        attention_init = attention_init or init
        self.heads = heads
        self.attention_norm = networks.LayerNorm(width, lead)
        self.query = networks.Linear(width, width, lead, rngs, attention_init)
        self.key_value = networks.Linear(width, 2 * width, lead, rngs, attention_init)
        self.projection = networks.Linear(width, width, lead, rngs, init)
        self.mlp_norm = networks.LayerNorm(width, lead)
        self.widen = networks.Linear(width, 4 * width, lead, rngs, init)
        self.narrow = networks.Linear(4 * width, width, lead, rngs, init)
        self.activation = activation

    def forward(
        self,
        x: Tensor,
        allowed: Tensor,
        keys: Sequence[Tensor | None] = (None, None, None),
        rate: float = 0.0,
        outputs: slice = slice(None),
    ) -> Tensor:
        """Returns the tokens after the block.

        Args:
            allowed: `(S, B, T, T)` bool, which tokens (last axis) each token may look at.
            keys: dropout keys of attention weights, attention's output and the MLP's; None for none.
            rate: of dropout.
            outputs: the tokens that are wanted, T' of T; in a last block the others are never used.
        """
        normed = each(self.attention_norm, x)
        key, value = each(self.key_value, normed).chunk(2, -1)
        query = each(self.query, normed[:, :, outputs])
        mixed = self._attention(query, key, value, allowed[:, :, outputs], keys[0], rate)
        x = x[:, :, outputs] + dropout(each(self.projection, mixed), keys[1], rate)
        wide = self.activation(each(self.widen, each(self.mlp_norm, x)))
        return x + dropout(each(self.narrow, wide), keys[2], rate)

    def weights(self, x: Tensor, allowed: Tensor, outputs: slice = slice(None)) -> Tensor:
        """Returns how much the `outputs` of tokens look at each token, `(S, B, heads, T', T)`."""
        normed = each(self.attention_norm, x)
        key, _ = each(self.key_value, normed).chunk(2, -1)
        query = each(self.query, normed[:, :, outputs])
        return self._weights(self._split(query), self._split(key), allowed[:, :, None, outputs])

    def _attention(self, query, key, value, allowed, dropout_key, rate) -> Tensor:
        query, key, value = (self._split(x) for x in (query, key, value))
        allowed = allowed[:, :, None]
        if dropout_key is None:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        else:  # torch's takes its dropout masks from one generator for all seeds
            weights = self._weights(query, key, allowed)
            mixed = dropout(weights, dropout_key, rate) @ value
        return mixed.transpose(2, 3).flatten(3)

    @staticmethod
    def _weights(query, key, allowed) -> Tensor:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return torch.softmax(scores.masked_fill(~allowed, -math.inf), -1)

    def _split(self, x: Tensor) -> Tensor:
        """Splits `(S, B, T, width)` into heads, `(S, B, heads, T, width / heads)`."""
        return x.unflatten(-1, (self.heads, -1)).transpose(2, 3)


class Trunk(nn.Module):
    """A transformer of `blocks` behind embeddings of its own, and the normalisation of its last tokens.

    Attributes:
        blocks: a `ModuleList` of `Block`. norm: of the last block's tokens. rate: of dropout.
    """

    blocks: nn.ModuleList
    norm: networks.LayerNorm
    rate: float

    @property
    def places(self) -> int:
        """The places where units are dropped: the embedding, and three in each block."""
        return 1 + 3 * len(self.blocks)

    def through_blocks(
        self, x: Tensor, allowed: Tensor, wanted: slice, keys: Tensor | None = None
    ) -> Tensor:
        """Returns the `wanted` tokens behind the last block, normalised.

        Args:
            x: embedded tokens `(S, B, T, width)`. allowed: `(S, B, T, T)` bool, as of `Block`.
            keys: `(S, places)` int32 drop units; None for evaluation.
        """
        keys = [None] * self.places if keys is None else keys.unbind(1)
        x = dropout(x, keys[0], self.rate)
        for i, block in enumerate(self.blocks):
            outputs = wanted if i == len(self.blocks) - 1 else slice(None)
            x = block(x, allowed, keys[1 + 3 * i : 4 + 3 * i], self.rate, outputs)
        return each(self.norm, x)


def joint_xavier(width: int) -> networks.Init:
    """Initialises query, key and value as torch's attention module: as one Xavier matrix, zero bias."""
    return networks.uniform((6 / (4 * width)) ** 0.5, bias=0.0)


def each(layer: nn.Module, x: Tensor) -> Tensor:
    """Applies a layer of `corerl.nn.networks` to every token of `(S, B, T, features)`."""
    return layer(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


def causal(valid: Tensor) -> Tensor:
    """Lets each token look at valid tokens up to itself: `(S, B, T, T)`, `valid` being `(S, B, T)` bool.

    A padded token may look at itself, for a softmax over nothing is not a number; no valid token ever
    looks at it.
    """
    steps = torch.arange(valid.shape[-1], device=valid.device)
    itself = steps[:, None] == steps
    return ((steps[:, None] >= steps) & valid[:, :, None]) | itself


def both_ways(valid: Tensor) -> Tensor:
    """Lets each token, padded ones too, look at all valid ones: `(S, B, T, T)`. `valid` as for `causal`."""
    return valid[:, :, None].expand(-1, -1, valid.shape[-1], -1)


def branching(past: Tensor, branches: int, length: int) -> Tensor:
    """Makes a `causal` mask for `past` tokens `(S, B, P)` and branches of `length` tokens that follow them.

    Each branch looks at the past and at its own tokens up to itself, so that one pass computes them all.
    """
    valid = F.pad(past, (0, branches * length), value=True)
    number = torch.arange(1, branches + 1, device=past.device).repeat_interleave(length)
    number = F.pad(number, (past.shape[-1], 0))
    return causal(valid) & ((number == 0) | (number[:, None] == number))


def dropout_keys(
    seeds: Sequence[int],
    places: int,
    device: torch.device | str = "cpu",
    purpose: str = "dropout",
) -> seeding.Stream:
    """Returns a stream of keys `(S, places)` int32, one for each place where the network drops units.

    A run with two such networks gives each a `purpose` (`seeding`).
    """

    def draw(rng: torch.Generator, block: int) -> Tensor:
        shape, dtype = (block, places), torch.int32
        return torch.randint(-(2**31), 2**31, shape, dtype=dtype, generator=rng, device=device)

    return seeding.Stream(seeds, purpose, draw, device)


def dropout(x: Tensor, key: Tensor | None, rate: float) -> Tensor:
    """Zeroes a share `rate` of the entries of `(S, ...)` and scales the rest by 1 / (1 - rate)."""
    if key is None or rate == 0:
        return x
    return x * kept(key, x.shape[1:], rate) / (1 - rate)


def kept(key: Tensor, shape: Sequence[int], rate: float) -> Tensor:
    """Returns `(S, *shape)` bool, True with probability 1 - rate: a hash of each entry's number and its key.

    The mixing is Wellons's `lowbias32`, with the key going in twice, so that two keys do not give two
    orders of the same bits.
    """
    x = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device).view(1, *shape)
    key = key.view(-1, *[1] * len(shape))
    x = x ^ key
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D + key
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    x = x ^ ((x >> 16) & 0xFFFF)
    return (x & 0xFFFFFF) >= round(rate * 2**24)


def multipliers(keys: Tensor | None, shape: Sequence[int], rate: float) -> list[Tensor] | None:
    """Draws `keep` of `networks.MLP.forward`: 0 or 1/(1 - rate), `(S, *shape)`, for keys `(S, layers)`."""
    if keys is None:
        return None
    return [kept(key, shape, rate) / (1 - rate) for key in keys.unbind(1)]
