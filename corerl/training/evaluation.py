"""Rollouts of all seeds at once: one policy call per step for every episode of every seed."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.config import require
from corerl.runs.score_rows import Episodes
from corerl.training.environment_step import begin, close, goal_tasks, note_crash, step

SUCCESS = ("success", "is_success")
"""Names in `info` of whether the episode is solved; the first that an environment has counts."""

ENDLESS = 30_000
"""Steps after which corerl warns that an episode has not ended. Atari's episodes are truncated at 27,000."""

AT_ONCE = 10
"""Environments of one seed that run together."""


def rounds(episodes: int, at_once: int = AT_ONCE) -> list[range]:
    """Returns the numbers of the episodes that are played together, round by round."""
    return [range(i, min(i + at_once, episodes)) for i in range(0, episodes, at_once)]


def _solved(info: dict[str, Any]) -> float:
    return float(next((info[name] for name in SUCCESS if name in info), np.nan))


class Evaluator:
    """A player of `episodes` episodes per seed, each in an environment of its own.

    One environment per episode, rather than a fixed number that restart as they finish, so that short
    episodes are not over-represented. The environment seeds come from each seed's stream and are the
    same at every evaluation: a curve then shows the policy's change, not the initial states'. Where an
    environment has several goals, episodes take them in turn.

    Args:
        make_env: builds one environment.
        seeds: the S seeds.
        episodes: per seed and evaluation.
        device: where the policy computes.
        at_once: environments of one seed that run together; more episodes are played in rounds.
        stream: name of the stream (corerl/seeding.py) that the environments are seeded from.

    Attributes:
        crashed: numbers of the seeds whose environment crashed in the last call.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        seeds: Sequence[int],
        episodes: int,
        device: torch.device | str = "cpu",
        at_once: int = AT_ONCE,
        stream: str = "eval",
    ):
        self._make_env, self._seeds = make_env, list(seeds)
        self._device = device
        self.crashed: set[int] = set()
        self._reported = False
        self._envs: list[list[gymnasium.Env]] = [[] for _ in seeds]
        self._rounds = rounds(episodes, at_once)
        self._env_seeds = [
            torch.randint(2**31 - 1, (episodes,), generator=seeding.generator(s, stream)).tolist()
            for s in seeds
        ]

    def __call__(self, act: Callable[[Tensor], Tensor]) -> Episodes:
        """Plays the episodes with `act: (S, n, O) -> (S, n, A)`, or `(S, n)` where they are discrete.

        A policy that draws numbers or has a memory also has `begin(S, n)`, called before the first step of
        the n episodes of each seed, and may have `end()`, called after the last; one with a memory has
        `reward(rewards)`, called after every step with `(S, n)`, 0 where one has ended.
        A NaN acts as 0, so that a diverged seed cannot stop the others. Nor can one whose environment
        crashes (`stepping.note_crash`): all its returns of this call are NaN.

        Raises:
            CorerlError: actions of another shape.
        """
        self.crashed = set()
        rounds = [self._play(act, episodes) for episodes in self._rounds]
        if hasattr(act, "end"):
            act.end()
        for episodes in rounds:
            episodes.returns[list(self.crashed)] = np.nan
        return Episodes(*(np.concatenate(parts, axis=1) for parts in zip(*rounds, strict=True)))

    def _play(self, act: Callable[[Tensor], Tensor], episodes: range) -> Episodes:
        envs = [self._take(s, len(episodes)) for s in range(len(self._envs))]
        starts = [
            (s, env, self._env_seeds[s][e])
            for s, row in enumerate(envs)
            for env, e in zip(row, episodes, strict=True)
        ]
        tasks = goal_tasks(envs[0][0])
        options = [{"task_id": e % tasks + 1} for e in episodes] * len(envs) if tasks else None
        flat = begin(starts, self.crashed, self._seeds, options)
        shape = flat.shape[1:]
        observations = flat.reshape(len(envs), len(episodes), *shape)
        returns = np.zeros(observations.shape[:2])
        lengths = np.zeros(observations.shape[:2], dtype=np.int64)
        successes = np.full(observations.shape[:2], np.nan)
        alive = [(s, e) for s in range(len(envs)) for e in range(len(episodes))]
        if hasattr(act, "begin"):
            act.begin(*observations.shape[:2])
        while alive:
            actions = self._actions(act, observations, envs[0][0].action_space)
            before = returns.copy()
            still = []
            for s, e in alive:
                if s in self.crashed:
                    continue
                try:
                    result = step(envs[s][e], actions[s, e], shape)
                    success = _solved(result[4])
                except (Exception, SystemExit) as error:
                    note_crash(self.crashed, s, self._seeds, error, " in evaluation")
                    continue
                observations[s, e], reward, terminated, truncated, _ = result
                returns[s, e] += reward
                lengths[s, e] += 1
                successes[s, e] = np.fmax(successes[s, e], success)
                if not (terminated or truncated):
                    still.append((s, e))
            alive = still
            if alive and lengths[alive[0]] == ENDLESS:  # each has made every step
                self._tell_endless(envs[0][0])
            if hasattr(act, "reward"):
                rewards = torch.as_tensor(returns - before, dtype=torch.float32)
                act.reward(rewards.to(self._device))
        return Episodes(returns, lengths, successes)

    def _tell_endless(self, env: gymnasium.Env) -> None:
        """Says once why an evaluation does not come to its end."""
        if not self._reported:
            print(
                f"corerl: an episode of {env.unwrapped} has not ended after {ENDLESS:,} steps of evaluation. "
                "If it has no end, register the environment with max_episode_steps",
                file=sys.stderr,
            )
        self._reported = True

    def _actions(
        self, act: Callable[[Tensor], Tensor], observations: np.ndarray, space: gymnasium.Space
    ) -> np.ndarray:
        """Returns the actions `(S, n, A)`, or `(S, n)` where they are discrete."""
        with torch.no_grad():
            actions = act(torch.as_tensor(observations, device=self._device))
        wanted = (*observations.shape[:2], *space.shape)
        require(
            actions.shape == wanted,
            f"act() returned actions of shape {tuple(actions.shape)} for observations of shape "
            f"{observations.shape}. Return shape {wanted}: seeds, "
            f"episodes{', and then the action' if space.shape else ''}",
        )
        return actions.nan_to_num().cpu().numpy()

    def _take(self, seed_index: int, count: int) -> list[gymnasium.Env]:
        envs = self._envs[seed_index]
        while len(envs) < count:
            envs.append(self._make_env())
        return envs[:count]

    def close(self) -> None:
        """Closes every environment."""
        close(env for row in self._envs for env in row)
