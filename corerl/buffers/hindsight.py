"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): goals that were reached later.

For environments as in gymnasium-robotics. An observation is a dictionary of `observation`, `achieved_goal`
and `desired_goal`, and the environment has `compute_reward(achieved, desired, info)`.
"""

from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from corerl import seeding
from corerl.buffers.mixed_replay import EpisodeReplay
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.data.observations import Flat, History, wrapper


class HindsightReplay(EpisodeReplay):
    """A replay in whose batches a share of goals is replaced by what the episode came to later.

    Rows are of ended episodes. A new goal is what was achieved after this step or a later one of the episode,
    drawn uniformly (`future`). The environment computes its reward, on the host. Ends stay as recorded.

    Args:
        env: an environment of the task. share: of goals that are replaced, as 0.8 for four of five.
        seeds: the S seeds. Others as for `ReplayBuffer`.

    Raises:
        CorerlError: the environment has no such observation or no `compute_reward`.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        share: float,
        sizes: tuple[int, int],
        capacity: int,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str = "cpu",
    ):
        super().__init__(*sizes, capacity, seeds, batch_size, device, label=steps_left)
        self._share, self._achieved, self._desired, self._reward = share, *goal_columns(env)
        self._draws = seeding.uniform(seeds, "hindsight", (2, batch_size), device)

    def sample(self, count: int | None = None) -> Batch:
        """Samples the next batch of every seed.

        Raises:
            CorerlError: a seed has not ended an episode yet.
        """
        require(
            self._ended.min() > 0,
            "algo.hindsight learns from ended episodes, but no episode has ended yet. Make "
            "algo.random_steps larger than the length of an episode",
        )
        rows = self._numbers.next()[:, :count] % self._known + self._starts
        chance, place = self._draws.next()[:, :, :count].unbind(1)
        later = rows + (place * (self._labels.flatten()[rows] + 1)).long()
        reached = self._take(later).next_observations[..., self._achieved]
        return self._relabelled(self._take(rows), reached, chance < self._share)

    def _relabelled(self, batch: Batch, goals: Tensor, chosen: Tensor) -> Batch:
        """Puts goals `(S, B, G)` into the `chosen` `(S, B)` rows of a batch."""
        before, after = batch.observations.clone(), batch.next_observations.clone()
        goals = torch.where(chosen[..., None], goals, before[..., self._desired])
        before[..., self._desired] = after[..., self._desired] = goals
        achieved, wanted = (
            x.flatten(0, 1).cpu().numpy() for x in (after[..., self._achieved], goals)
        )
        paid = np.asarray(self._reward(achieved, wanted, {}), np.float32).reshape(chosen.shape)
        rewards = torch.where(chosen, torch.from_numpy(paid).to(goals), batch.rewards)
        return batch._replace(observations=before, next_observations=after, rewards=rewards)

    def state_dict(self) -> dict:
        return super().state_dict() | {"draws": self._draws.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._draws.load_state_dict(state["draws"])


def steps_left(rewards: np.ndarray) -> np.ndarray:
    """Returns how many steps follow each step of an episode."""
    return np.arange(len(rewards))[::-1]


def goal_columns(env: gymnasium.Env) -> tuple[slice, slice, Callable]:
    """Returns the columns of the achieved and the desired goal, and the function of rewards.

    Raises:
        CorerlError: the environment has none.
    """
    require(
        wrapper(env, History) is None,
        "algo.hindsight replaces the goal of one observation, but with history each of the latest "
        "observations has a goal. Set history=1 or algo.hindsight=0",
    )
    flat, reward = wrapper(env, Flat), getattr(env.unwrapped, "compute_reward", None)
    parts = {} if flat is None else flat.parts
    require(
        {"achieved_goal", "desired_goal"} <= set(parts) and reward is not None,
        "algo.hindsight needs an environment with compute_reward, and with achieved_goal and "
        f"desired_goal in its observations. {env.unwrapped} lacks one of these. Set algo.hindsight=0, "
        "or choose a task such as gym/gymnasium_robotics:FetchReach-v4",
    )
    widths = {name: spaces.flatdim(space) for name, space in parts.items()}
    ends = dict(zip(widths, np.cumsum(list(widths.values())).tolist(), strict=True))
    columns = {name: slice(ends[name] - width, ends[name]) for name, width in widths.items()}
    return columns["achieved_goal"], columns["desired_goal"], reward
