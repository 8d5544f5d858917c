"""Chooses the first stock of a policy by successive halving over its own episodes.

A critic may promise too much for a stock. Here each candidate plays episodes, apart from the evaluated ones,
and the better half goes on to the next round (`successive_halving`).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from corerl.risk.stock_augmentation import successive_halving
from corerl.training.evaluation import Evaluator
from corerl.training.stock_play import NoStocks, StockPlayer

AT_ONCE = 200
"""Environments of a seed that run together."""


class Racer:
    """A player of episodes with given first stocks `(S, n)`, in order, which keeps their discounted returns.

    Args:
        player: acts at its `stock` `(S, n)` and changes it in `reward`; `begin(S, n)` begins episodes, and
            `learned(rewards)` are what training took for rewards. discount: of the returns.

    Attributes:
        returns: `(S, n)`, of the episodes played so far.
    """

    def __init__(self, player: Any, stocks: Tensor, discount: float):
        self._player, self._stocks, self._discount = player, stocks, discount
        self._begun = 0
        self.returns = torch.zeros_like(stocks)

    def begin(self, seeds: int, episodes: int) -> None:
        playing = slice(self._begun, self._begun + episodes)
        self._player.begin(seeds, episodes)
        self._player.stock = self._stocks[:, playing]
        self._running = self.returns[:, playing]
        self._begun, self._weight = self._begun + episodes, 1.0

    def __call__(self, observations: Tensor) -> Tensor:
        return self._player(observations)

    def reward(self, rewards: Tensor) -> None:
        self._running += self._weight * self._player.learned(rewards)
        self._weight *= self._discount
        self._player.reward(rewards)


def race(
    make_player: Callable[[str], Any],
    make_env: Callable[[], gymnasium.Env],
    seeds: Sequence[int],
    stocks: Tensor,
    *,
    tau: float,
    episodes: int,
    discount: float,
) -> Tensor:
    """Returns the first stocks `(S,)` of the largest CVaR at `tau` in play, out of `stocks` `(S, C)`.

    Every round plays C * `episodes` episodes of each seed. `make_player(purpose)` makes a `Racer`'s player,
    which draws from streams of that purpose. `discount`: as for `Racer`.
    """
    rounds = itertools.count()

    def play(firsts: Tensor) -> Tensor:
        purpose = f"race {next(rounds)}"
        racer = Racer(make_player(f"{purpose} actions"), firsts, discount)
        evaluator = Evaluator(make_env, seeds, firsts.shape[1], firsts.device, AT_ONCE, purpose)
        evaluator(racer)
        evaluator.close()
        return racer.returns

    return successive_halving(play, stocks, tau, episodes)


def raced(
    agent: Any, make_env: Callable[[], gymnasium.Env], actions: int, seeds: Sequence[int]
) -> Tensor:
    """Returns the first stocks `(S,)` that do best in episodes played for that.

    Args:
        agent: of static CVaR, with `act`, `candidates`, `device` and `cfg`. actions: how many there are.
    """
    cfg = agent.cfg

    def player(purpose: str) -> StockPlayer:
        return StockPlayer(cfg, agent.act, NoStocks(), actions, seeds, purpose)

    stocks = agent.candidates(len(seeds), agent.device)
    options = {"tau": cfg.tau, "episodes": cfg.race, "discount": cfg.discount}
    return race(player, make_env, seeds, stocks, **options)
