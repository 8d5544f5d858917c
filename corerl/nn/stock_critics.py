"""Critics of static CVaR at a state and a stock: the return's distribution, or its shortfall."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.nn import embeddings, networks
from corerl.nn.critics import ActionValues
from corerl.nn.encoders import Encoder
from corerl.nn.learner import Spec


class StockQuantiles(nn.Module):
    """Quantiles `(S, B, A, N)` of the return of A actions, at states `(S, B, *shape)` and, if there are any,
    stocks `(S, B)`."""

    def __init__(self, cfg: Any, spec: Spec):
        super().__init__()
        self.encoder = Encoder(spec.observation_dim, 0, 0, spec.rngs)
        inputs = self.encoder.features + (cfg.cosines if cfg.stocked else 0)
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        self.outputs = (spec.action_dim, cfg.quantiles)
        sizes = [inputs, *hidden, math.prod(self.outputs)]
        self.head = networks.MLP(sizes, spec.lead, spec.rngs, **cfg.mlp_options)
        self.cosines = embeddings.Cosines(cfg.cosines)
        self.range = (cfg.low, cfg.high)
        self.unit = (cfg.high - cfg.low) / 2 if cfg.ranged else 1.0

    def forward(self, observations: Tensor, stock: Tensor | None) -> Tensor:
        return self.of_features(self.encoder(observations), stock)

    def of_features(self, x: Tensor, stock: Tensor | None) -> Tensor:
        """Returns the same from the features `(S, B, F)` of the states."""
        if stock is not None:
            low, high = self.range
            share = (stock.clamp(low, high) - low) / (high - low)
            x = torch.cat([x, self.cosines(share)], -1)
        return self.unit * self.head(x).unflatten(-1, self.outputs)


class StockShortfalls(ActionValues):
    """Shortfalls E[(c - Z)^+] of A actions at G even stocks c, from `low` to `high`.

    Puts out logits `(S, B, A, G - 1)` of their slopes between neighbouring stocks: chances of less than c.
    """

    def __init__(self, cfg: Any, spec: Spec):
        outputs = (spec.action_dim, cfg.stocks - 1)
        dense = (cfg.hidden_layers, cfg.hidden_width)
        super().__init__(spec.observation_dim, outputs, *dense, spec.rngs, **cfg.mlp_options)
        self.register_buffer("grid", torch.linspace(cfg.low, cfg.high, cfg.stocks), False)
        self.gap = (cfg.high - cfg.low) / (cfg.stocks - 1)

    def forward(self, observations: Tensor, stock: Tensor | None = None) -> Tensor:
        """Returns the logits. They are of all stocks at once, whatever `stock` is."""
        return super().forward(observations)

    def on_grid(self, logits: Tensor) -> Tensor:
        """Returns the shortfalls `(..., G)`. At `low` it is 0."""
        return F.pad(self.gap * logits.sigmoid().cumsum(-1), (1, 0))
