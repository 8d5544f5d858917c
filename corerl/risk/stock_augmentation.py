"""The stock that makes static CVaR a problem with a state, and the CVaR of quantiles.

CVaR_tau(G) = max_c { c - E[(c - G)^+] / tau }   (Rockafellar and Uryasev 2000), so that a policy of the
largest CVaR is one that keeps the shortfall (c - G)^+ small from a well-chosen c. What it needs to know
besides the state is the stock, what is still missing in units of the rewards to come (Bauerle and Ott
2011):

    c_0 = c,   c_{t+1} = (c_t - r_t) / discount,   c - G = discount^t (c_t - G_t)

with G_t the discounted return from step t on. The stock is a budget: high where much is missing, and the
maximising c is a tau-quantile of G. (Pires et al. 2025 write C = -c.)
"""

from collections.abc import Callable

import torch
from torch import Tensor


def next_stock(stock: Tensor, rewards: Tensor, discounts: Tensor | float) -> Tensor:
    """Returns (c - r) / discount, or 0 where the discount is 0, past the end of an episode. Shapes broadcast.

    With n-step returns, `rewards` are their discounted sums and `discounts` are discount ** n.
    """
    left = stock - rewards
    if not isinstance(discounts, Tensor):
        return left / discounts
    over = discounts == 0
    return torch.where(over, 0.0, left / torch.where(over, 1.0, discounts))


def shortfall(quantiles: Tensor, stock: Tensor) -> Tensor:
    """Returns E[(c - Z)^+] `(...)` of N equally likely values Z `(..., N)` at stocks c `(...)`."""
    return (stock[..., None] - quantiles).clamp(min=0).mean(-1)


def at_stocks(shortfalls: Tensor, grid: Tensor, stock: Tensor) -> Tensor:
    """Returns shortfalls `(..., K)` at stocks `(..., K)` from those `(..., G)` at an even grid `(G,)`.

    Between neighbours they are straight; below the grid they stay, and above it they rise as the stock does.
    Both are right where the grid holds all returns.
    """
    low, high = grid[0], grid[-1]
    place = (stock - low) * ((len(grid) - 1) / (high - low))
    below = place.long().clamp(0, len(grid) - 2)
    left, right = shortfalls.gather(-1, below), shortfalls.gather(-1, below + 1)
    share = (place - below).clamp(0, 1)
    return torch.lerp(left, right, share) + (stock - high).clamp(min=0)


def start_stock(quantiles: Tensor, stocks: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Returns the c `(...)` of the largest c - E[(c - G)^+] / tau among `stocks` `(..., C)`, and that value.

    `quantiles` `(..., C, N)` are N equally likely returns from each start with that stock. The stock is
    chosen before the first state is known: returns from several first states belong side by side in N.
    """
    values = stocks - shortfall(quantiles, stocks) / tau
    best, where = values.max(-1)
    return stocks.gather(-1, where[..., None]).squeeze(-1), best


def successive_halving(
    play: Callable[[Tensor], Tensor], stocks: Tensor, tau: float, episodes: int
) -> Tensor:
    """Returns the first stock `(S,)` whose played returns have the largest CVaR, out of `(S, C)`.

    Successive halving (Karnin, Koren and Somekh 2013): every round plays C * `episodes` episodes of each
    seed, as many with each of the stocks that are left, and the better half by all rounds goes on.

    Args:
        play: first stocks `(S, n)` to the returns `(S, n)` of an episode with each.
    """
    budget = stocks.shape[1] * episodes
    returns = stocks.new_empty(*stocks.shape, 0)
    while (left := stocks.shape[1]) > 1:
        each = budget // left
        played = play(stocks.repeat_interleave(each, 1)).unflatten(1, (left, each))
        returns = torch.cat([returns, played], -1)
        best = cvar(returns, tau).topk((left + 1) // 2, 1).indices
        stocks = stocks.gather(1, best)
        returns = returns.gather(1, best[..., None].expand(-1, -1, returns.shape[-1]))
    return stocks.squeeze(1)


def cvar(quantiles: Tensor, tau: float) -> Tensor:
    """Returns CVaR_tau `(...)` of N equally likely values `(..., N)`. The one at the boundary is split."""
    weights = tail_weights(quantiles.shape[-1], tau, quantiles)
    return (quantiles.sort(-1).values * weights).sum(-1)


def tail_weights(count: int, tau: float, like: Tensor) -> Tensor:
    """Returns the weights of `count` ascending, equally likely values in the mean of the lower `tau`."""
    share = tau * count
    ranks = torch.arange(count, device=like.device, dtype=like.dtype)
    return (share - ranks).clamp(0, 1) / share
