"""Policies that see a stock, on a finite MDP: a table of what they do, against the solver's own policy."""

import numpy as np
import pytest
import torch

from corerl.envs import mdps
from corerl.risk.finite_mdp import return_law
from corerl.risk.static_cvar import static
from corerl.risk.stock_policy import stock_policies

BOUNDS = (-20.0, 20.0)


def seen(state: int, time: int) -> np.ndarray:
    return np.array([state, time], np.float32)


def test_the_optimum_as_a_policy_of_stocks_has_its_law():
    """Five wagers at 1/4, from the solver's budget and from one that is too high."""
    mdp = mdps.wagers()
    best = static(mdp, 0.25)

    def act(observations, stocks):
        rows = zip(observations.flatten(0, 1).tolist(), stocks.flatten().tolist(), strict=True)
        chosen = [best.policy(int(t), int(s), best.budget - stock) for (s, t), stock in rows]
        return torch.tensor(chosen).view(stocks.shape)

    first = torch.tensor([best.budget, best.budget + 4])
    laws = [return_law(mdp, p)[0] for p in stock_policies(mdp, act, seen, first, BOUNDS)]
    assert laws[0].cvar(0.25) == pytest.approx(best.value)
    assert laws[1].cvar(0.25) < best.value - 0.1


def test_stocks_are_discounted_and_kept_within_their_bounds():
    """Going on pays 1 at a discount of 0.95: after it the stock is (c - 1) / 0.95, at most 20."""
    asked = []

    def act(observations, stocks):
        asked.append(stocks.tolist())
        return torch.ones_like(stocks).long()

    first = torch.tensor([2.0, 30.0])
    stock_policies(mdps.hazard(), act, seen, first, BOUNDS)
    assert asked[0] == [[2.0], [20.0]]
    assert asked[1] == [[pytest.approx(1 / 0.95)], [20.0]]
