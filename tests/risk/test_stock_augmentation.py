"""The stock and the CVaR of quantiles, against their definitions and the exact estimators."""

import numpy as np
import pytest
import torch

from corerl.envs.mdps import wagers
from corerl.risk import measures
from corerl.risk.static_cvar import static
from corerl.risk.stock_augmentation import (
    at_stocks,
    cvar,
    next_stock,
    shortfall,
    start_stock,
    successive_halving,
)


def test_what_is_missing_is_the_same_in_every_unit():
    """c - G = discount^t (c_t - G_t), with n rewards at once as well as one by one."""
    rng = np.random.default_rng(0)
    rewards, discount = torch.from_numpy(rng.normal(size=6)), 0.8
    powers = discount ** torch.arange(7.0, dtype=torch.float64)
    total = (powers[:6] * rewards).sum()
    stock = first = torch.tensor(1.5, dtype=torch.float64)
    for t in range(6):
        to_come = (powers[: 6 - t] * rewards[t:]).sum()
        torch.testing.assert_close(first - total, powers[t] * (stock - to_come))
        stock = next_stock(stock, rewards[t], discount)
    together = next_stock(first, total, powers[6])
    torch.testing.assert_close(together, stock)


def test_nothing_is_divided_by_the_discount_of_an_end():
    left = next_stock(torch.tensor([5.0, 5.0]), torch.tensor([2.0, 2.0]), torch.tensor([0.5, 0.0]))
    assert left.tolist() == [6.0, 0.0]


def test_shortfall_by_hand():
    values = torch.tensor([[4.0, -1.0, 2.0, 9.0]])
    assert shortfall(values, torch.tensor([3.0])).item() == (4 + 1) / 4


def test_shortfalls_between_below_and_above_a_grid():
    grid, shortfalls = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([[0.0, 0.5, 2.0]])
    stocks = torch.tensor([[-9.0, -2.0, -0.5, 0.0, 1.0, 2.0, 7.0]])
    found = at_stocks(shortfalls, grid, stocks)
    assert found.tolist() == [[0, 0, 0.375, 0.5, 1.25, 2, 7]]


@pytest.mark.parametrize("tau", [0.25, 0.5, 0.75, 1.0])
def test_backups_of_shortfalls_on_a_grid_find_the_optimum(tau):
    """Of five wagers, whose returns lie on the grid: W(c) <- min_a E[W(c - r)] from c^+."""
    mdp, grid = wagers(), torch.arange(-15.0, 21.0, dtype=torch.float64)
    shortfalls = grid.clamp(min=0)
    for _ in range(mdp.horizon):
        of_actions = [
            sum(p * at_stocks(shortfalls, grid, grid - r) for p, r in zip(*law, strict=True))
            for law in zip(mdp.probabilities[0], mdp.rewards[0], strict=True)
        ]
        shortfalls = torch.stack(of_actions).amin(0)
    promised = (grid - shortfalls / tau).max().item()
    assert promised == pytest.approx(static(mdp, tau).value)


@pytest.mark.parametrize("tau", [0.05, 0.3, 0.5, 0.999, 1.0])
def test_cvar_is_the_exact_estimator(tau):
    values = np.random.default_rng(0).normal(size=(3, 7))
    found = cvar(torch.from_numpy(values), tau).tolist()
    assert found == pytest.approx([measures.cvar(row, tau) for row in values])


@pytest.mark.parametrize("tau", [0.1, 0.35, 0.5, 1.0])
def test_the_best_stock_of_a_law_is_its_quantile(tau):
    """With a law that no stock changes, the maximum over its atoms is its CVaR."""
    values = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 9)))
    stocks = values.sort(-1).values
    best, promised = start_stock(values[:, None].expand(2, 9, 9), stocks, tau)
    expected = [measures.cvar(row, tau) for row in values.numpy()]
    assert promised.tolist() == pytest.approx(expected)
    for row, c in zip(values.numpy(), best.tolist(), strict=True):
        assert (row < c).mean() <= tau + 1e-9 and (row <= c).mean() >= tau - 1e-9


def test_first_states_are_weighed_together():
    """Returns 0 and 10 from two first states, for sure: CVaR_1/2 of the mixture is 0, not the mean 5."""
    stocks = torch.linspace(0, 10, 11)[None]
    laws = torch.tensor([0.0, 10.0]).expand(1, 11, 2)  # side by side
    best, promised = start_stock(laws, stocks, 0.5)
    assert promised.item() == 0 and 0 <= best.item() <= 10


def test_the_better_half_races_on():
    """Returns of stock c are c and -1 by turns, but of 3 always 0.5: at tau 1/2 the worst half is
    -1 or 0.5."""
    rounds = []

    def play(firsts):
        rounds.append(firsts[0].unique().tolist())
        bad = torch.arange(firsts.shape[1]) % 2 == 0
        return torch.where(firsts == 3, 0.5, torch.where(bad, -1.0, firsts))

    stocks = torch.arange(5.0).expand(2, -1)
    best = successive_halving(play, stocks, 0.5, 4)
    assert best.tolist() == [3.0, 3.0]
    assert [len(r) for r in rounds] == [5, 3, 2] and all(3.0 in r for r in rounds)


def test_a_race_remembers_its_rounds():
    """Three stocks of 2 episodes; 0 wins the first round by more than it loses the second by."""
    rounds = iter([[[9.0, 9.0, 1.0, 1.0, 0.0, 0.0]], [[0.0] * 3, [2.0] * 3]])

    def play(firsts):
        return torch.tensor(next(rounds)).view(1, -1)

    assert successive_halving(play, torch.arange(3.0)[None], 1.0, 2).tolist() == [0.0]
