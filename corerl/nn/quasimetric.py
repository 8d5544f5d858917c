"""Distances between embeddings that need not be the same there and back, but keep the triangle inequality.

Wang and Isola 2022 (IQE, arXiv:2211.15120) and Liu et al. 2023 (MRN, arXiv:2208.08133), as OGBench has them
(seohongpark/ogbench at 1d41409, impls/utils/networks.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corerl.nn.networks import MLP, Scalar

GROUP = 8
"""Intervals in each group of IQE."""


class Quasimetric(nn.Module):
    """An embedding of states and a distance between embeddings, `(S, B, D)` twice to `(S, B)`.

    Args:
        sizes: features of the state, of each hidden layer, and of the embedding.
        kind: `iqe`, a mix of mean and maximum over groups, with a learned share; or `mrn`.
        rngs, others: as for `MLP`.
    """

    def __init__(self, sizes: Sequence[int], kind: str, rngs: Sequence[torch.Generator], **others):
        super().__init__()
        self.embed = MLP(sizes, (len(rngs),), rngs, **others)
        self.share = Scalar(0.0, len(rngs)) if kind == "iqe" else None

    def forward(self, here: Tensor, there: Tensor) -> Tensor:
        if self.share is None:
            return mrn(here, there)
        lengths = union_lengths(*(x.unflatten(-1, (-1, GROUP)) for x in (here, there)))
        share = torch.sigmoid(self.share())[:, None]
        return share * lengths.mean(-1) + (1 - share) * lengths.amax(-1)


def union_lengths(low: Tensor, high: Tensor) -> Tensor:
    """Returns the lengths `(...)` of the unions of the intervals from `low` to `high`, `(..., n)`.

    An interval whose end is below its start is empty.
    """
    points, order = torch.cat([low, high], -1).sort(-1)
    full = (low < high).to(low.dtype)
    opened = torch.cat([full, -full], -1).gather(-1, order).cumsum(-1)[..., :-1]
    return ((points[..., 1:] - points[..., :-1]) * (opened > 0.5)).sum(-1)


def mrn(here: Tensor, there: Tensor) -> Tensor:
    """Returns the Euclidean distance of the first half plus the largest fall of the second."""
    near, far = here.chunk(2, -1), there.chunk(2, -1)
    euclid = (near[0] - far[0]).square().sum(-1).clamp(min=1e-12).sqrt()
    return euclid + (near[1] - far[1]).amax(-1).relu()
