"""DPPO: direct preference-based policy optimisation (An et al. 2023, NeurIPS, arXiv:2301.12842).

No reward and no critic: the policy is moved towards the actions of preferred segments. A preference model is
fitted to the labels and scores a segment at every row of the dataset, as in algos/cpl_ranked.py. Then every
batch ranks its segments. For all pairs i, j of which i scores more,

    D = mean over t of |pi(s_t) - a_t| / 2 / temperature,
    L = mean of -log [ exp -D_i / (exp -D_i + exp -contrast D_j) ].

With contrast 1 that is Bradley and Terry's model of distances, and with 0 the preferred segments are cloned.

    corerl train algo=dppo task=d4rl/hopper-medium-replay-v2 seeds=5
    python algos/dppo.py task=corerl/pendulum steps=4000 algo.ranked_by=teacher algo.length=64 seeds=3

Of `steps`, the first `score.steps` fit the model. With ranked_by=teacher a script scores the segments.

What differs from the authors' code, snu-mllab/DPPO at 917d52c, and its switch.

    item               authors                                  ours                          switch
 1  lambda per task    in no file                               1, their default              contrast
 2  dropout            0 by default, per task in no file        0                             dropout
 3  smoothness         weight and shift 0 by default            left out                      -
 4  pairs              all but those whose loss rounds to 0     all                           -
 5  equal scores       as argsort leaves them                   in the order of the batch     -
 6  the rest           -                                        as cpl_ranked.py, 5 to 10     -
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.algos import cpl_ranked
from corerl.algos.cpl_ranked import Ranked, RankedCPL
from corerl.config import at_least, positive, within
from corerl.preferences.segments import Segments
from corerl.training.run import Run


@dataclass
class Config(Ranked):
    name: str = "dppo"
    label: str = "DPPO"

    temperature: float = positive(0.1)  # divides distances of the policy's actions from the data's
    contrast: float = at_least(0, 1.0)  # weight of the losing segment (1: Bradley-Terry, 0: BC)
    dropout: float = within(0.0, "[0, 1)")  # dropout rate in the policy


class DPPO(RankedCPL):
    """DPPO agents of S seeds, trained together."""

    def loss(self, batch: Segments, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss on all pairs of the batch. `keys` (S, layers) are for dropout."""
        distance = self.distance(batch, keys)
        ranked = distance.gather(1, batch.scores.argsort(dim=1, stable=True)) / self.cfg.temperature
        lower, higher = ranked[:, :, None], ranked[:, None]
        pairs = ranked.shape[1] * (ranked.shape[1] - 1) / 2
        each = F.softplus(higher - self.cfg.contrast * lower)
        loss = each.triu(1).sum((1, 2)) / pairs
        right = (higher < lower).to(loss.dtype).triu(1).sum((1, 2)) / pairs
        return loss, {"dppo_loss": loss, "accuracy": right, "distance": distance.mean(1)}

    def distance(self, batch: Segments, keys: Tensor | None = None) -> Tensor:
        """Returns the mean distance of each segment, `(S, B)`. At a distance of 0 the gradient is 0."""
        squares = self.difference(batch, keys).square().sum(-1)
        away = squares > 0
        steps = torch.where(away, squares, 1.0).sqrt() * away
        return (steps * batch.valid).sum(-1) / batch.valid.sum(-1)


build = DPPO


def train(cfg: Config, run: Run) -> None:
    cpl_ranked.train(cfg, run, DPPO)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
