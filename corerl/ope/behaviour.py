"""Probabilities of the recorded actions: as recorded, or by a model fitted to them."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl import seeding
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError
from corerl.nn import networks, optim, truncated_normal
from corerl.nn.learner import GradientStep

HELD_OUT = 0.1
"""The share of episodes that a fitted model is judged on."""
LOOKS = 24
"""How often it is judged in training, less and less often: few rows are soon known by heart."""


class Behaviour(NamedTuple):
    """Log-probabilities or log-densities `(N,)` of the recorded actions, and where they come from."""

    log_prob: np.ndarray
    source: str


def recorded(dataset: Dataset) -> Behaviour:
    """Returns the propensities recorded with the data.

    Raises:
        CorerlError: nothing was, or it is no probability.
    """
    if dataset.behaviour_log_prob is None:
        raise CorerlError(
            f"{dataset.id} was recorded without propensities, which importance weights need. Fit a model "
            "of the behaviour (--behaviour fitted), or choose method fqe, which needs no weights."
        )
    log_prob = dataset.behaviour_log_prob.astype(np.float64)
    if dataset.discrete and (log_prob > 1e-6).any():
        row = int(np.argmax(log_prob > 1e-6))
        raise CorerlError(
            f"{dataset.id}, row {row}: a propensity must be at most 1. Repair behaviour_log_prob."
        )
    return Behaviour(log_prob, "recorded")


def fitted(
    dataset: Dataset,
    *,
    steps: int = 10_000,
    lr: float = 1e-3,
    batch_size: int = 256,
    hidden_width: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Behaviour:
    """Fits a network by maximum likelihood: a softmax over discrete actions, else a normal.

    Its mean and standard deviation depend on the state. It is truncated to the actions' bounds.

    A tenth of the episodes is held out. The latest network is kept under which these are as likely as
    ever, up to a standard error. The result has their mean log-likelihood, and that of a model which does
    not look at the state.
    """
    model = _Model(dataset, lr, hidden_width, seed, device)
    held = _held_out(dataset, seed)
    rows = torch.from_numpy(np.flatnonzero(~held)).to(device)
    numbers = seeding.indices([seed], len(rows), batch_size, device, "behaviour")
    others = torch.from_numpy(np.flatnonzero(held)).to(device)
    looks = set(np.geomspace(min(50, steps), steps, LOOKS).astype(int))
    best, network = np.full(len(others), -math.inf), model.network
    for step in range(1, steps + 1):
        model.update(rows[numbers.next()])
        if step in looks:
            now = model.of(others)
            best = now if now.mean() > best.mean() else best
            if (best - now).mean() <= (best - now).std() / math.sqrt(len(now)):
                network = copy.deepcopy(model.network)
    model.network = network
    log_prob = model.of(torch.arange(len(held), device=device))
    found, wants = log_prob[held].mean(), _constant(dataset, held)[held].mean()
    source = (
        f"fitted: held-out log-likelihood {found:.3f} per step, against {wants:.3f} for a model that "
        "ignores the state"
    )
    return Behaviour(log_prob, source)


class _Model:
    def __init__(self, dataset: Dataset, lr: float, width: int, seed: int, device):
        mean, std = dataset.obs_stats()
        observations = (dataset.observations - mean) / std
        self._observations = torch.from_numpy(observations).to(device)
        self._actions = torch.from_numpy(dataset.actions).to(device)
        self._numbered = dataset.discrete
        outputs = (
            int(dataset.actions.max()) + 1 if dataset.discrete else 2 * dataset.actions.shape[1]
        )
        sizes = [observations.shape[1], width, width, outputs]
        rngs = seeding.generators([seed], "behaviour model")
        self.network = networks.MLP(sizes, (1,), rngs).to(device)
        optimizer = optim.Adam(self.network.parameters(), lr)
        self._step = GradientStep(self._loss, optimizer, "off")

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        out = self.network(observations)
        if self._numbered:
            return F.log_softmax(out, -1).gather(-1, actions[..., None]).squeeze(-1)
        mean, log_std = out.chunk(2, -1)
        return truncated_normal.log_prob(mean, log_std.clamp(-5, 2), actions)

    def _loss(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.log_prob(observations, actions).mean(-1), {}

    def update(self, rows: Tensor) -> None:
        self._step(self._observations[rows], self._actions[rows])

    @torch.no_grad()
    def of(self, rows: Tensor) -> np.ndarray:
        both = [(self._observations[part], self._actions[part]) for part in rows.split(65_536)]
        parts = [self.log_prob(s[None], a[None])[0] for s, a in both]
        return torch.cat(parts).cpu().double().numpy()


def _held_out(dataset: Dataset, seed: int) -> np.ndarray:
    """Marks, `(N,)` bool, the rows of a tenth of the episodes, at least one. None where there is one."""
    n = dataset.n_episodes
    if n == 1:
        raise CorerlError(
            f"{dataset.id} has only one episode, too few to fit a model of the behaviour. Choose method fqe."
        )
    chosen = np.random.default_rng(seed).permutation(n)[: max(1, round(HELD_OUT * n))]
    held = np.zeros(n, bool)
    held[chosen] = True
    return np.repeat(held, dataset.episode_lengths())


def _constant(dataset: Dataset, held: np.ndarray) -> np.ndarray:
    """Returns log-likelihoods under the shares of actions, or one normal, of the rows that were fitted.

    The normal has their moments before it is truncated to the actions' bounds.
    """
    kept = dataset.actions[~held]
    if dataset.discrete:
        counts = np.bincount(kept, minlength=int(dataset.actions.max()) + 1) + 1
        return np.log(counts / counts.sum())[dataset.actions]
    mean, std = kept.mean(0, dtype=np.float64), kept.std(0, dtype=np.float64) + 1e-6
    normal = torch.from_numpy(mean), torch.from_numpy(np.log(std))
    return truncated_normal.log_prob(*normal, torch.from_numpy(dataset.actions)).numpy()
