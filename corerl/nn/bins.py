"""Coarse-to-fine bins: a number of [-1, 1] as L choices among B, each inside the interval of the last.

Seo, Uruc and James 2024 (arXiv:2407.07787), section 4.1: after l choices the interval has the width
2 / B^l, so that it is known by its centre; the first one is [-1, 1] around 0.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.config import require


@dataclass(frozen=True)
class Bins:
    """The arithmetic of `levels` choices among `bins`, for every feature of an action by itself."""

    levels: int
    bins: int

    def width(self, level: int) -> float:
        """Returns the width of an interval after `level` choices."""
        return 2 / self.bins**level

    def zoom(self, centres: Tensor, choices: Tensor, level: int) -> Tensor:
        """Centres of the intervals that `choices` take inside those around `centres`, of equal shapes.

        `level` counts the choices before this one.
        """
        offset = choices.to(centres.dtype) - (self.bins - 1) / 2
        return centres + self.width(level + 1) * offset

    def encode(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the choices `(..., L, D)` int64 that lead to the intervals around `actions` `(..., D)`.

        Also returns the centres before the first choice, after it, and so on, `(..., L + 1, D)`.
        """
        centres, choices = [torch.zeros_like(actions)], []
        for level in range(self.levels):
            place = (actions - centres[-1]) / self.width(level + 1) + self.bins / 2
            choices.append(place.floor().clamp(0, self.bins - 1).long())
            centres.append(self.zoom(centres[-1], choices[-1], level))
        return torch.stack(choices, -2), torch.stack(centres, -2)

    def rounded(self, actions: Tensor) -> Tensor:
        """Returns the centres of the last intervals that hold `actions`."""
        return self.encode(actions)[1][..., -1, :]


def check(cfg: Any) -> None:
    """Raises CorerlError where an algorithm's `levels` of `bins` are finer than float32."""
    require(
        cfg.levels * math.log2(cfg.bins) <= 20,
        f"algo.bins={cfg.bins} in algo.levels={cfg.levels} levels are too fine for float32. Choose values "
        "with bins ** levels below a million",
    )
