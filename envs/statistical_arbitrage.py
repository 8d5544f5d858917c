"""Statistical arbitrage in a mean-reverting price, the task of the convex scoring functions.

The price follows an Ornstein-Uhlenbeck process by Euler steps of 1/5,

    P' = P + kappa (mu - P) dt + sigma sqrt(dt) xi,   kept in [0, 2];   kappa 2, mu 1, sigma 0.2

the inventory q' = q + a is kept in [-5, 5] with trades a in [-2, 2], and each of the 5 steps earns
q (P' - P) - 0.005 a^2 with the inventory before the trade, the last one besides -q'^2 / 2. At first
P ~ N(mu, 8 sigma^2 / kappa) and q ~ U(-5, 5).

Our reading of a third party's reproduction, since the paper's body was not at hand: the variance of the
first price, Euler steps, hard bounds on the inventory, and q rather than q' in the gains are its choices.
The reward is minus the cost of the paper.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from corerl.envs.restorable import Restorable

STEPS, DT = 5, 0.2
KAPPA, MU, SIGMA = 2.0, 1.0, 0.2
LOW_PRICE, HIGH_PRICE = 0.0, 2.0
MOST_HELD, MOST_TRADED = 5.0, 2.0
TRADE_COST, FINAL_COST = 0.005, 0.5


class StatisticalArbitrage(Restorable):
    """Actions in [-1, 1] are trades in [-2, 2]. An observation is t / 5, the price, inventory / 5."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Box(
        np.float32([0, LOW_PRICE, -1]), np.float32([1, HIGH_PRICE, 1]), dtype=np.float32
    )
    kept = ("time", "price", "held")

    def __init__(self):
        self.time, self.price, self.held = 0, MU, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        price = self.np_random.normal(MU, math.sqrt(8 * SIGMA**2 / KAPPA))
        self.price = float(np.clip(price, LOW_PRICE, HIGH_PRICE))
        self.held = float(self.np_random.uniform(-MOST_HELD, MOST_HELD))
        return self._observation(), {}

    def step(self, action: np.ndarray):
        trade = MOST_TRADED * float(np.clip(np.asarray(action).item(), -1, 1))
        noise = SIGMA * math.sqrt(DT) * self.np_random.standard_normal()
        price = float(np.clip(self.price + KAPPA * (MU - self.price) * DT + noise, 0, HIGH_PRICE))
        reward = self.held * (price - self.price) - TRADE_COST * trade**2
        self.price = price
        self.held = float(np.clip(self.held + trade, -MOST_HELD, MOST_HELD))
        self.time += 1
        over = self.time == STEPS
        return self._observation(), reward - over * FINAL_COST * self.held**2, over, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.time / STEPS, self.price, self.held / MOST_HELD], np.float32)
