"""Whole episodes for on-policy learning: E at a time of every seed, from fresh environment seeds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from corerl import seeding
from corerl.config import require
from corerl.errors import CorerlError
from corerl.nn import policies
from corerl.risk.stock_augmentation import next_stock
from corerl.training.environment_step import begin, close, note_crash, refuse_durations, step

STOCK_LIMIT = 1e6
"""A stock is kept to plus-minus this, in units of `scale`: division by discount^t ends at infinity."""


class Played(NamedTuple):
    """E episodes of S seeds, of T steps and fewer. After an end everything but the actions is 0."""

    observations: Tensor  # (S, E, T, O)
    actions: Tensor  # (S, E, T, A) float, or (S, E, T) int64 where they are discrete
    rewards: Tensor  # (S, E, T)
    alive: Tensor  # (S, E, T), 1 where a step was made, else 0

    @property
    def last(self) -> Tensor:
        """`(S, E, T)`: 1 at each episode's last step, else 0."""
        return self.alive - torch.nn.functional.pad(self.alive[..., 1:], (0, 1))


def to_go(rewards: Tensor, discount: float = 1.0) -> Tensor:
    """Returns the discounted sums of rewards `(..., T)` from each step on."""
    returns, ahead = torch.empty_like(rewards), torch.zeros_like(rewards[..., 0])
    for t in reversed(range(rewards.shape[-1])):
        ahead = rewards[..., t] + discount * ahead
        returns[..., t] = ahead
    return returns


class Collector:
    """A player of `episodes` episodes of every seed at each call, with environment seeds from a stream.

    Nothing of an environment outlives a call, so that any environment can be resumed. Where a seed's
    environment crashes (`stepping.note_crash`), its rewards are NaN from there on.

    Args:
        make_env: builds one environment with vector observations.
        seeds: the S seeds. episodes: E. device: where the policy computes.
        max_steps: T; an episode that is longer is cut.
        discount: per step, of what is learned. Below 1 it would depend on durations of steps.

    Raises:
        CorerlError: observations are not vectors, actions neither vectors nor numbered from 0, or steps
            have durations and are discounted.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        seeds: Sequence[int],
        episodes: int,
        max_steps: int,
        device: torch.device | str = "cpu",
        discount: float = 1.0,
    ):
        self._envs = [[make_env() for _ in range(episodes)] for _ in seeds]
        self._max_steps, self._device = max_steps, device
        self._numbers, self._crashed = list(seeds), set()
        self._seeds = seeding.indices(seeds, 2**31 - 1, episodes, purpose="env")
        env = self._envs[0][0]
        space, actions = env.observation_space, env.action_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise CorerlError(
                f"{env.unwrapped} has observations of {space}, but this algorithm needs vectors."
            )
        if discount < 1:
            refuse_durations(env)
        self.observation_dim = space.shape[0]
        self.discrete = isinstance(actions, spaces.Discrete)
        """Tells whether actions are discrete."""
        vectors = isinstance(actions, spaces.Box) and len(actions.shape) == 1
        require(
            vectors or (self.discrete and actions.start == 0),
            f"{env.unwrapped} has actions of {actions}, but this algorithm needs vectors, or "
            "Discrete actions from 0",
        )
        self.action_dim = int(actions.n) if self.discrete else actions.shape[0]
        """The number of actions, or of features of one."""

    def play(self, act: Callable[[Tensor], Tensor]) -> Played:
        """Plays with `act: (S, E, O) -> (S, E, A)`, or `(S, E)` where actions are discrete.

        The environment gets vectors within [-1, 1]; `Played` has them as they were drawn.
        As in an evaluation, `act` also has `begin(S, E)`, called first, and `reward(rewards (S, E))`, called
        after every step, 0 where an episode has ended. The observations of an ended episode are 0.
        """
        lead = (len(self._envs), len(self._envs[0]))
        seeds = self._seeds.next().tolist()
        starts = [(i, self._envs[i][j], seeds[i][j]) for i, j in np.ndindex(lead)]
        now = begin(starts, self._crashed, self._numbers).astype(np.float32)
        now = now.reshape(*lead, self.observation_dim)
        act.begin(*lead)
        going, steps = np.ones(lead, bool), []
        going[list(self._crashed)] = False
        for _ in range(self._max_steps):
            observations = torch.tensor(now * going[..., None], device=self._device)
            actions = act(observations)
            rewards, alive = np.zeros(lead, np.float32), going.copy()
            numbers = actions.nan_to_num().cpu().numpy()
            if not self.discrete:
                numbers = numbers.clip(-1, 1)
            for i, j in zip(*np.nonzero(alive), strict=True):
                if i in self._crashed:
                    continue
                try:
                    result = step(self._envs[i][j], numbers[i, j], now.shape[2:])
                except (Exception, SystemExit) as error:
                    note_crash(self._crashed, i, self._numbers, error)
                    continue
                now[i, j], rewards[i, j] = result[0], result[1]
                going[i, j] = not (result[2] or result[3])
            going[list(self._crashed)], rewards[list(self._crashed)] = False, np.nan
            act.reward(torch.from_numpy(rewards).to(self._device))
            alive = torch.from_numpy(alive).to(self._device)
            steps.append((observations, actions, torch.from_numpy(rewards), alive))
            if not going.any():
                break
        return self._stacked(steps)

    def _stacked(self, steps: list[tuple[Tensor, ...]]) -> Played:
        """Stacks the steps, with zeros up to T, so that shapes do not depend on ends of episodes."""
        missing = self._max_steps - len(steps)
        parts = []
        for column in zip(*steps, strict=True):
            part = torch.stack(column, 2).to(self._device)
            zeros = part.new_zeros(*part.shape[:2], missing, *part.shape[3:])
            parts.append(torch.cat([part, zeros], 2))
        return Played(*parts[:3], parts[3].to(parts[2].dtype))

    def close(self) -> None:
        """Closes every environment."""
        close(env for row in self._envs for env in row)

    def state_dict(self) -> dict[str, Any]:
        return {"_seeds": self._seeds.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seeds.load_state_dict(state["_seeds"])


class RiskPlayer:
    """A policy for a risk of the whole episode, in play: with a memory besides the state, `(S, n, 2)`.

    For a static objective the stock, (v - collected) / discount^t within `STOCK_LIMIT`, and discount^t;
    for ECRM with eta ahead the eta that was chosen a step before and whether this is the first step; else
    zeros.
    Without draws it plays the likeliest actions from the common v, and evaluates.

    Args:
        agent: has `policy`, `v`, `ecrm` and `cfg` (algos/cvar_pg.py).
        level: with the spreads `std` and `v_std`, where it explores. draws: `(S, T + 1, n, ...)`, normal.

    Attributes:
        v: `(S, n)`, of the running episodes. etas: the numbers of those chosen, a `(S, n)` per step.
    """

    def __init__(self, agent: Any, level: Any = None, draws: Tensor | None = None):
        self._agent, self._level, self._draws = agent, level, draws
        self.v, self.etas = torch.zeros(0), []

    def begin(self, seeds: int, episodes: int) -> None:
        agent = self._agent
        self.v = agent.v()[:, None].expand(seeds, episodes)
        if self._draws is not None:
            self.v = self.v + self._level.v_std / agent.cfg.scale * self._draws[:, 0, :, 0]
        self.etas, self._stock, self._power = [], self.v, 1.0

    def reward(self, rewards: Tensor) -> None:
        scaled = rewards / self._agent.cfg.scale
        self._stock = next_stock(self._stock, scaled, self._agent.cfg.discount)
        self._power *= self._agent.cfg.discount

    def memory(self) -> Tensor:
        agent, zeros = self._agent, torch.zeros_like(self.v)
        if agent.ecrm:
            return agent.ecrm.remembered(self.etas[-1] if self.etas else None, zeros)
        if not agent.cfg.augment:
            return torch.stack([zeros, zeros], -1)
        stock = self._stock.clamp(-STOCK_LIMIT, STOCK_LIMIT)
        return torch.stack([stock, zeros + self._power], -1)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        policy, t = self._agent.policy, len(self.etas)
        actions, eta_logits = policy(torch.cat([observations, self.memory()], -1))
        numbers = torch.zeros_like(self.v).long()
        if self._draws is None:
            self.etas.append(eta_logits.argmax(-1) if policy.counts[1] else numbers)
            return actions.argmax(-1) if policy.discrete else actions
        draws = self._draws[:, t + 1]
        uniform = torch.special.ndtr(draws)
        self.etas.append(
            policies.draw_number(eta_logits, uniform[..., -1]) if policy.counts[1] else numbers
        )
        if policy.discrete:
            return policies.draw_number(actions, uniform[..., 0])
        return actions + self._level.std * draws[..., : actions.shape[-1]]
