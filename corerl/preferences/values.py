"""Values of a dataset's states, for teachers that judge by regret.

V is fitted to one-step targets alone,

    L = |expectile - 1(u < 0)| u^2,   u = r + discount * V_target(s') - V(s),

which is IQL's value loss (Kostrikov et al. 2022, eq. 5) with the target itself in place of Q: where the next
state follows from state and action, as in MuJoCo, Q(s, a) = r + discount * V(s'), and no Q is needed. At an
expectile of 0.5 it is the value of the policy that made the data; towards 1 that of the best of its actions.
Where the next state is drawn, an expectile above 0.5 takes luck for skill, too.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.config import Settings, at_least, positive, within
from corerl.data.dataset import Dataset
from corerl.nn import optim
from corerl.nn.critics import StateValue, expectile_loss
from corerl.nn.learner import GradientStep

PIECE = 65_536
"""States that are valued at once."""


@dataclass
class Values(Settings):
    """Settings of the fit. Part of `Preferences`, as `values`."""

    prefix: ClassVar[str] = "algo.preferences.values."

    discount: float = within(0.99, "[0, 1]")
    expectile: float = within(0.7, "(0, 1)")  # V is this expectile of its targets (0.5: the mean)
    steps: int = positive(20_000)  # updates of V
    batch_size: int = positive(256)
    lr: float = positive(1e-3)  # initial learning rate (falls to 0 along a cosine)
    polyak: float = within(0.02, "(0, 1]")  # share of new weights in the target, every update
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)


class Fit:
    """A fit of V to transitions of normalised states, for one seed. Rewards are divided by `scale`."""

    def __init__(self, cfg: Values, observation_dim: int, seed: int):
        self.cfg = cfg
        sizes = [observation_dim, *[cfg.hidden_width] * cfg.hidden_layers]
        self.value = StateValue(sizes, seeding.generators([seed], "preferences/values"))
        self.target = optim.target_of(self.value)
        optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        self._step = GradientStep(
            self.loss, optimizer, "off", optim.Schedule(optimizer, optim.cosine(cfg.steps))
        )

    def loss(
        self, states: Tensor, rewards: Tensor, next_states: Tensor, discounts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the module's L. States are `(1, B, O)`, the others `(1, B)`. True ends have discount 0."""
        with torch.no_grad():
            target = rewards + discounts * self.target(next_states)
        return expectile_loss(target - self.value(states), self.cfg.expectile).mean(-1), {}

    def update(self, *batch: Tensor) -> None:
        """Takes one step, and the target follows."""
        self._step(*batch)
        optim.polyak(self.target, self.value, self.cfg.polyak)

    @torch.no_grad()
    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Returns V of `(N, O)`, `(N,)` float64."""
        pieces = [self.value(piece[None])[0] for piece in torch.from_numpy(states).split(PIECE)]
        return torch.cat(pieces).double().numpy()


def fit(dataset: Dataset, cfg: Values, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits V and returns it at every row's state and at its next state, `(N,)` float64 each.

    After a true end it is 0. Rows without a next observation teach nothing, and what is said of what
    follows them is not a number.
    """
    states, next_states = dataset.observations, dataset.next_observations
    mean, std = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64) + 1e-3
    states, next_states = (((x - mean) / std).astype(np.float32) for x in (states, next_states))
    # Values of about 1, whatever the rewards: the mean reward's, earned for ever.
    scale = float(np.abs(dataset.rewards).mean(dtype=np.float64)) / max(1 - cfg.discount, 1e-3)
    scale = scale or 1.0
    known = np.flatnonzero(dataset.has_next)
    discounts = cfg.discount * ~dataset.terminated
    parts = (states, dataset.rewards / scale, next_states, discounts)
    parts = [torch.from_numpy(np.asarray(part[known], np.float32)) for part in parts]
    learner = Fit(cfg, states.shape[1], seed)
    rows = seeding.indices([seed], len(known), cfg.batch_size, purpose="preferences/values")
    for _ in range(cfg.steps):
        chosen = rows.next()
        learner.update(*(part[chosen] for part in parts))
    following = np.where(dataset.terminated, 0.0, scale * learner(next_states))
    return scale * learner(states), np.where(dataset.has_next, following, np.nan)
