"""Experience of online algorithms with discrete actions: environments, exploration, replay.

An algorithm's `train` makes one `Experience`, and in each turn lets it play, draws a batch and updates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from corerl import seeding
from corerl.buffers.frame_replay import DiscreteStep, FrameReplay, Transitions
from corerl.config import Settings, one_of, positive, require, within
from corerl.data.tasks import is_atari
from corerl.errors import CorerlError
from corerl.nn.learner import Stateful
from corerl.training.environment_step import longest
from corerl.training.environments import Cut, Environments
from corerl.training.random_policy import RandomPolicy
from corerl.training.run import Run

Act = Callable[[Tensor], Tensor]
"""Greedy actions `(S, n)` int64 at observations `(S, n, ...)`."""


@dataclass
class Collect(Settings):
    """Settings for gathering experience and learning from it. Part of a `Config`, as of `DeepQ`."""

    prefix: ClassVar[str] = "algo.data."

    learning_starts: int = positive(50_000)  # number of first steps, random and without updates
    train_every: int = positive(4)  # environment steps of each seed per update
    capacity: int = positive(1_000_000)  # environment steps kept per seed
    n_step: int = positive(1)  # number of rewards summed before the bootstrap
    epsilon: float = within(0.01, "[0, 1]")  # final share of random actions
    epsilon_steps: int = positive(1_000_000)  # steps after learning_starts until epsilon is reached
    eval_epsilon: float = within(0.001, "[0, 1]")  # share of random actions in evaluations
    clip: str = one_of(  # rewards clipped to [-1, 1], none | source (each source) | total (the sum)
        "none", "source", "total"
    )
    residual: str = one_of(  # drop | last (reward outside all sources goes to the last source)
        "drop", "last"
    )
    life_loss: bool = True  # a lost life ends the episode for learning (games with lives)

    def require_turns(self, target_every: int) -> None:
        """Raises CorerlError where targets would be copied in the middle of a turn."""
        require(
            target_every % self.train_every == 0,
            f"algo.target_every={target_every} must be a multiple of "
            f"algo.data.train_every={self.train_every}",
        )

    def epsilon_at(self, step: int) -> float:
        """Returns epsilon: 1 until learning starts, then linearly down to `epsilon`."""
        left = 1 - (step - self.learning_starts) / self.epsilon_steps
        return self.epsilon + (1 - self.epsilon) * min(max(left, 0.0), 1.0)

    def rewards(self, step: DiscreteStep, by_source: bool) -> np.ndarray:
        """Returns the rewards to learn from, `(S, K)` by source, or `(S, 1)` for the total."""
        if not by_source and self.clip != "source":
            total = step.rewards[:, None].astype(np.float32)
            return total.clip(-1, 1) if self.clip == "total" else total
        sources = step.sources.copy()
        if self.residual == "last":
            sources[:, -1] += step.rewards - sources.sum(1)
        if self.clip == "source":
            sources = sources.clip(-1, 1)
        return sources if by_source else sources.sum(1, keepdims=True)


class DiscreteEnvironments(Environments):
    """One training environment per seed, with discrete actions, vectors or images, one source of
    reward or several.

    An environment with K sources has a `reward_space` of shape `(K,)` (MO-Gymnasium's name) and puts
    their rewards under `reward_vector` into every info; its reward is a number. An environment whose steps
    take time has `longest`, the largest duration of a step, and puts each step's `duration` into its info.

    Raises:
        CorerlError: actions are not numbered from 0, observations are neither vectors nor images, or a
            reward vector has another length than the reward space says.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ):
        super().__init__(make_env, seeds, device)
        inner = self._envs[0].unwrapped
        space = getattr(inner, "reward_space", None)
        self.sources = 1 if space is None else space.shape[0]
        """K."""
        self.has_vectors = space is not None
        self.longest = longest(inner)
        """The largest duration of a step, in whole units of time."""

    @property
    def actions(self) -> int:
        """The number of actions."""
        return int(self._envs[0].action_space.n)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an observation."""
        return self._observations.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The type of an observation: float32 or uint8."""
        return torch.from_numpy(self._observations).dtype

    @property
    def stack(self) -> int:
        """Frames of an observation, the latest last. Zeros before an episode's first."""
        game = self._envs[0]
        return game.unwrapped.stack if is_atari(game) else 1

    def step(self, actions: Tensor) -> DiscreteStep:
        """Steps every environment with `(S, 1)` int64."""
        step, infos = self._advance(actions[:, 0].numpy())
        return DiscreteStep(*step, self._by_source(step.rewards, infos), self._durations(infos))

    def _durations(self, infos: list[dict[str, Any]]) -> np.ndarray:
        if self.longest == 1:
            return np.ones(len(infos), np.int32)
        found = [1 if i in self._crashed else info["duration"] for i, info in enumerate(infos)]
        for duration in found:
            if duration != int(duration) or not 1 <= duration <= self.longest:
                raise CorerlError(
                    f"{self._envs[0].unwrapped} gave a step the duration {duration}. A duration "
                    f"must be a whole number from 1 to {self.longest}, the environment's attribute "
                    "`longest`."
                )
        return np.array(found, np.int32)

    def _by_source(self, rewards: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        if not self.has_vectors:
            return rewards[:, None].astype(np.float32)
        unknown = np.full(self.sources, np.nan)  # of a seed whose environment crashed
        vectors = [
            np.asarray(unknown if i in self._crashed else info["reward_vector"], np.float32)
            for i, info in enumerate(infos)
        ]
        for vector in vectors:
            if vector.shape != (self.sources,):
                raise CorerlError(
                    f"{self._envs[0].unwrapped} gave a reward vector of shape {vector.shape}, but "
                    f"announced {self.sources} sources. Give one reward for each source in every step."
                )
        return np.stack(vectors)

    @staticmethod
    def _check(env: gymnasium.Env) -> None:
        if not isinstance(env.action_space, spaces.Discrete) or env.action_space.start != 0:
            raise CorerlError(
                f"{env.unwrapped} has actions of {env.action_space}, but this algorithm needs "
                "Discrete actions from 0."
            )
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
            raise CorerlError(
                f"{env.unwrapped} has observations of {space}, but this algorithm needs vectors or images "
                "(channels, height, width)."
            )


class Experience(Stateful):
    """The environments of a run, the replay of what happened in them, and the exploration.

    Attributes:
        observation_dim: the shape of an observation. action_dim: how many actions there are.

    Args:
        cfg: its settings. run: names the task, the seeds and the device.
        batch_size, discount: of the batches.
        by_source: keep the rewards of each source apart, rather than their total.

    Raises:
        CorerlError: the task's actions or observations do not fit, or it has no reward by source.
    """

    discrete = True

    def __init__(
        self, cfg: Collect, run: Run, batch_size: int, discount: float, by_source: bool = False
    ):
        self.cfg, self._by_source = cfg, by_source
        task = run.task
        make_env = task.make_training_env if cfg.life_loss else task.make_env
        self.envs = envs = DiscreteEnvironments(make_env, run.seeds, run.device)
        self.observation_dim, self.action_dim = envs.shape, envs.actions
        if by_source:
            _check_sources(task.id, envs, cfg)
        self.replay = FrameReplay(
            envs.shape,
            envs.dtype,
            envs.sources if by_source else 1,
            min(cfg.capacity, max(run.cfg.steps, 10 * cfg.n_step)),
            run.seeds,
            batch_size,
            discount=discount,
            n_step=cfg.n_step,
            stack=envs.stack,
            longest=envs.longest,
            device=run.device,
        )
        self._draws = seeding.uniform(run.seeds, "exploration", (1, 2), run.device)

    @property
    def sources(self) -> int:
        """The number of rewards K in batches."""
        return self.envs.sources if self._by_source else 1

    def play(self, step: int, act: Act) -> None:
        """Plays the `train_every` steps up to `step`."""
        for number in range(step - self.cfg.train_every + 1, step + 1):
            self.play_one(number, act)

    def play_one(self, number: int, act: Act) -> tuple[DiscreteStep, dict[str, Tensor]]:
        """Plays and stores step `number` and returns it, and what `FrameReplay.add` does."""
        epsilon = self.cfg.epsilon_at(number)
        greedy = act(self.envs.look()) if epsilon < 1 else None
        actions = mixed(greedy, self._draws.next(), epsilon, self.envs.actions)
        played = self.envs.step(self.envs.receive(actions))
        return played, self.replay.add(played, self.cfg.rewards(played, self._by_source))

    def enough(self, step: int) -> bool:
        """Tells whether the random beginning is over and the replay can be sampled."""
        return step > self.cfg.learning_starts and self.replay.ready

    def updates(self, steps: int) -> int:
        """Returns how many updates a run of this many steps makes, at least 1."""
        every = self.cfg.train_every
        return max(1, steps // every - self.cfg.learning_starts // every)

    def sample(self) -> Transitions:
        """Samples the next batch of every seed."""
        return self.replay.sample()

    @property
    def cut(self) -> Cut | None:
        """Episodes that a resumed run cannot continue."""
        return self.envs.cut

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Ends these seeds' episodes in the replay, as `FrameReplay.end_episodes`."""
        self.replay.end_episodes(seeds, reached)

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    def metrics(self) -> dict[str, Tensor]:
        """Returns of the last training episodes `(S,)`."""
        return {"episode_return": self.envs.episode_returns}


def _check_sources(task: str, envs: DiscreteEnvironments, cfg: Collect) -> None:
    require(
        envs.has_vectors,
        f"{task} gives a single reward, but this algorithm needs a reward for each source. Choose a task "
        "such as maze/v0, or another algorithm",
    )
    require(
        cfg.clip != "total",
        "algo.data.clip=total is for a single reward. Use algo.data.clip=source",
    )


def mixed(greedy: Tensor | None, draws: Tensor, epsilon: float, count: int) -> Tensor:
    """Mixes random actions with `greedy` ones `(S, n)`, which they replace with probability `epsilon`.

    `draws` `(S, n, 2)` are uniform: whether, and by which of `count` actions. None: always.
    """
    random = (draws[..., 1] * count).long()
    if greedy is None:
        return random
    return torch.where(draws[..., 0] < epsilon, random, greedy)


class EpsilonGreedy(RandomPolicy):
    """A policy to evaluate, random with probability `epsilon`: a game without chance would otherwise
    be the same at every episode.
    """

    def __init__(self, act: Act, epsilon: float, count: int, seeds: Sequence[int], *purpose: str):
        super().__init__(seeds, *purpose)
        self._act, self._epsilon, self._count = act, epsilon, count

    def __call__(self, observations: Tensor) -> Tensor:
        draws = self.draws(torch.rand, observations, 2)
        return mixed(self._act(observations), draws, self._epsilon, self._count)
