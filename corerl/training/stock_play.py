"""Plays a policy that sees a stock (risk/stock_augmentation.py), in training and evaluation."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.frame_replay import DiscreteStep
from corerl.nn.learner import Stateful
from corerl.risk.stock_augmentation import next_stock
from corerl.training.experience import EpsilonGreedy, Experience

Act = Callable[[Tensor, Tensor | None], Tensor]
"""Greedy actions `(S, n)` at observations `(S, n, ...)` and stocks `(S, n)`."""


class Stocks(Stateful):
    """The stock of every seed's running training episode, and where episodes begin.

    Args:
        cfg: the algorithm's: its range `low` to `high`, `discount`, `starts` first states to remember, and
            `explore`, the share of episodes that begin with a stock drawn from the range.
        observations: `(S, 1, ...)`, of the first states.

    Attributes:
        now: `(S, 1)`. first: `(S,)`, the best first stock, and `promised`, its CVaR by the critic.
    """

    def __init__(
        self, cfg: Any, observations: Tensor, seeds: Sequence[int], device: torch.device | str
    ):
        self.cfg = cfg
        middle = torch.full((len(seeds),), (cfg.low + cfg.high) / 2, device=device)
        self.first, self.promised, self.now = middle, middle.clone(), middle[:, None].clone()
        self._starts = observations.repeat_interleave(cfg.starts, 1).clone()
        self._episodes = [0] * len(seeds)
        self._draws = seeding.uniform(seeds, "stocks", (1, 2), device)

    def search(self, best: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        """Finds the first stock for the first states that are remembered, and what it promises."""
        self.first, self.promised = best(self._starts)

    def metrics(self) -> dict[str, Tensor]:
        """Returns the best first stocks and their CVaR by the critic, `(S,)` each."""
        return {"stock": self.first, "promised": self.promised}

    def play(self, step: int, experience: Experience, act: Act) -> None:
        """Plays the steps up to `step`, each with the stock that the one before left."""
        for number in range(step - experience.cfg.train_every + 1, step + 1):
            played = experience.play_one(number, lambda x: act(x, self.now))
            self.follow(*played, experience.envs.look)

    def follow(
        self, step: DiscreteStep, stored: dict[str, Tensor], look: Callable[[], Tensor]
    ) -> None:
        """Updates stocks after a step. `FrameReplay.add` returned `stored`.

        `look` gives the observations `(S, 1, ...)` at which play goes on; it is asked where an episode has
        ended.
        """
        cfg = self.cfg
        left = next_stock(self.now, stored["rewards"], cfg.discount).clamp(cfg.low, cfg.high)
        explores, share = self._draws.next().unbind(-1)
        random = cfg.low + (cfg.high - cfg.low) * share
        first = torch.where(explores < cfg.explore, random, self.first[:, None])
        over = stored["ends"][:, :2].amax(-1, keepdim=True).bool()
        self.now = torch.where(over, first, left)
        ended = np.flatnonzero(step.terminated | step.truncated).tolist()
        observations = look() if ended else None
        for i in ended:
            self._starts[i, self._episodes[i] % cfg.starts] = observations[i, 0]
            self._episodes[i] += 1

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Begins a new episode of these seeds `(S,)` at the best first stock."""
        ended = torch.from_numpy(seeds).to(self.now.device)[:, None]
        self.now = torch.where(ended, self.first[:, None], self.now)

    def state_dict(self) -> dict[str, Any]:
        parts = {"now": self.now, "first": self.first, "promised": self.promised}
        kept = {"starts": self._starts, "episodes": self._episodes}
        return parts | kept | {"draws": self._draws.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.now.device
        for name in ("now", "first", "promised"):
            setattr(self, name, state[name].to(device))
        self._starts.copy_(state["starts"])
        self._episodes = list(state["episodes"])
        self._draws.load_state_dict(state["draws"])


class NoStocks:
    """What `Stocks` does where the objective has no stock."""

    first = None

    def search(self, best: Any) -> None:
        pass

    def metrics(self) -> dict[str, Tensor]:
        return {}

    def play(self, step: int, experience: Experience, act: Act) -> None:
        experience.play(step, act)


class StockPlayer(EpsilonGreedy):
    """Evaluated episodes: every one begins with its seed's best first stock and follows its rewards.

    Args:
        cfg: as for `Stocks`, and `data`, whose clipping of rewards the stock follows too.
        act: greedy actions. stocks: whose `first` begins.
        actions: how many there are. purpose: as for `RandomPolicy`.

    Attributes:
        stock: `(S, n)`, of the running episodes; None where there are no stocks.
    """

    def __init__(
        self,
        cfg: Any,
        act: Act,
        stocks: Stocks | NoStocks,
        actions: int,
        seeds: Sequence[int],
        *purpose: str,
    ):
        super().__init__(self._best, cfg.data.eval_epsilon, actions, seeds, *purpose)
        self._cfg, self._act_with, self._stocks = cfg, act, stocks
        self.stock: Tensor | None = None

    def begin(self, seeds: int, episodes: int) -> None:
        super().begin(seeds, episodes)
        if self._stocks.first is not None:
            self.stock = self._stocks.first[:, None].expand(seeds, episodes)

    def reward(self, rewards: Tensor) -> None:
        if self.stock is not None:
            cfg, learned = self._cfg, self.learned(rewards)
            self.stock = next_stock(self.stock, learned, cfg.discount).clamp(cfg.low, cfg.high)

    def learned(self, rewards: Tensor) -> Tensor:
        """Returns these rewards as training took them."""
        return rewards.clamp(-1, 1) if self._cfg.data.clip == "total" else rewards

    def _best(self, observations: Tensor) -> Tensor:
        return self._act_with(observations, self.stock)
