"""Stocks (risk/stock_augmentation.py) where static CVaR is learned from data: in play, and of the dataset."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.data.dataset import Dataset

FIRST_STATES = 64


class OfflineStockPlayer:
    """A policy with a stock for every episode: chosen at the start, then changed by the rewards.

    Args:
        agent: has `act` at observations and stocks, `start_stock`, the law `stocks` and `cfg`.
        first: `(F, O)` first states of the data; None: each episode's own.
    """

    def __init__(self, agent: Any, tau: float, first: Tensor | None):
        self.agent, self.tau, self.first = agent, tau, first
        self._stock: Tensor | None = None

    def begin(self, seeds: int, episodes: int) -> None:
        self._stock = None

    def __call__(self, observations: Tensor) -> Tensor:
        if self._stock is None:
            self._stock = self._choose(observations)
        return self.agent.act(observations, self._stock)

    def reward(self, rewards: Tensor) -> None:
        """Follows the rewards `(S, n)` of the step just made, as the environment paid them."""
        cfg = self.agent.cfg
        learned = rewards * cfg.data.reward_scale + cfg.data.reward_shift
        self._stock = self.agent.stocks.next(self._stock, learned, cfg.discount)

    def _choose(self, observations: Tensor) -> Tensor:
        seeds, episodes = observations.shape[:2]
        if self.first is not None:
            first = self.first.expand(seeds, -1, -1)
            return self.agent.start_stock(first, self.tau)[0][:, None].expand(-1, episodes)
        own = [self.agent.start_stock(observations[:, [e]], self.tau)[0] for e in range(episodes)]
        return torch.stack(own, 1)


def first_states(dataset: Dataset) -> Tensor:
    """Returns the first states `(F, O)` of at most FIRST_STATES episodes, evenly spaced in the dataset."""
    starts = dataset.episode_starts
    episodes = np.linspace(0, len(starts) - 1, min(FIRST_STATES, len(starts))).astype(int)
    return torch.as_tensor(dataset.observations[starts[episodes]])


class ReturnsToGo:
    """Labels for `preprocessing.load`: the discounted return to go of the dataset's rows.

    Attributes:
        first: `(F, O)` first states of at most FIRST_STATES episodes. to_go: `(N,)` returns to go.
    """

    def __init__(self, discount: float):
        self.discount = discount

    def __call__(self, dataset: Dataset) -> np.ndarray:
        self.first = first_states(dataset)
        self.to_go = dataset.returns_to_go(self.discount)
        return self.to_go
