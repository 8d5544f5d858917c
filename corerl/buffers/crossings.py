"""Goals from other episodes, by way of rows whose states lie close together.

Temporal augmentation (Ghugare, Geist, Berseth and Eysenbach 2024, arXiv:2401.11237): an episode that crosses
another might have gone on like that one. So whatever the other came to is a goal of the first. States are
close that k-means puts into one cluster.
"""

import numpy as np
import torch
from scipy.cluster.vq import kmeans2, vq
from torch import Tensor

from corerl.config import require

SAMPLED = 20_000
"""States that the clusters are fitted to."""


class Crossings:
    """The rows of a dataset by their clusters.

    Args:
        states: of all rows, `(N, O)`. last: the last row of each row's episode `(N,)`.
        clusters: how many.

    Raises:
        CorerlError: there are more clusters than rows.
    """

    def __init__(self, states: np.ndarray, last: Tensor, clusters: int):
        require(
            clusters <= len(states),
            f"algo.goals.clusters={clusters} must be at most {len(states)}, the number of "
            "rows of the dataset",
        )
        rng = np.random.default_rng(0)
        few = states[rng.permutation(len(states))[:SAMPLED]].astype(np.float64)
        centres, _ = kmeans2(few, clusters, minit="++", seed=rng)
        self.cluster = torch.from_numpy(vq(states.astype(np.float64), centres)[0].astype(np.int64))
        self._members = self.cluster.argsort(stable=True).to(last.device)
        sizes = torch.bincount(self.cluster, minlength=clusters)
        self._sizes, self._starts = (x.to(last.device) for x in (sizes, sizes.cumsum(0) - sizes))
        self.cluster = self.cluster.to(last.device)
        self._last = last

    def goals(self, rows: Tensor, draws: Tensor) -> Tensor:
        """Returns rows that are reached after `rows` `(S, B)` meet an episode, by draws `(S, 3, B)`."""
        last = self._last[rows]
        meeting = _between(torch.minimum(rows + 1, last), last, draws[:, 0])
        cluster = self.cluster[meeting]
        place = (draws[:, 1] * self._sizes[cluster]).long()
        place = torch.minimum(place, self._sizes[cluster] - 1)  # a float32 draw may round up
        other = self._members[self._starts[cluster] + place]
        return _between(other, self._last[other], draws[:, 2])


def _between(first: Tensor, last: Tensor, uniform: Tensor) -> Tensor:
    """Returns whole numbers from `first` to `last`, both included, by uniform draws."""
    return torch.minimum(first + (uniform * (last - first + 1)).long(), last)
