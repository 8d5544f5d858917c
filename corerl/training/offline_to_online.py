"""Offline to online in one run: updates on the data first, then steps of the environment.

One counter numbers both, so that one run directory, one curve and one resume cover them: of `steps`,
the first `pretrain_steps` are updates on the data and the others steps of the environment, each with
the updates that go with it.

    phase=offline   every step is an update on the data
    phase=both      `online.pretrain_steps` of them, then the environment
    phase=online    the environment from the first step, with the agents of `online.checkpoint` if given
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.mixed_replay import EpisodeReplay, MixedReplay
from corerl.buffers.replay import Batch, OfflineBuffer, ReplayBuffer
from corerl.config import Settings, at_least, group, positive, require, within
from corerl.errors import CorerlError
from corerl.runs import checkpoint
from corerl.training import preprocessing
from corerl.training.environments import Environments
from corerl.training.pretrained import restore
from corerl.training.run import Run

PHASES = ("offline", "online", "both")


@dataclass
class Online(Settings):
    """Settings for training on in the environment. Part of an algorithm's `Config`, beside `phase`."""

    prefix: ClassVar[str] = "algo.online."

    pretrain_steps: int = at_least(0, 0)  # updates on the data before fine-tuning (phase=both)
    checkpoint: str | None = None  # folder of the finished run to fine-tune (phase=online)
    warmup_steps: int = at_least(0, 0)  # environment steps before updates (RLPD: uniform actions)
    offline_ratio: float | None = within(  # dataset's share of a batch (null: rows equally likely)
        None, "[0, 1]"
    )
    capacity: int = positive(1_000_000)  # environment steps kept per seed (Cal-QL keeps all)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint:  # a shell adds a slash, and a name is of one run however it is spelled
            self.checkpoint = str(Path(self.checkpoint))


@dataclass
class FineTuning(Settings):
    """Settings of an algorithm that can fine-tune online. Part of its `Config`."""

    phase: str = "offline"  # offline | both (offline, then online) | online (checkpoint or scratch)
    online: Online = group(Online)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.phase in PHASES, f"algo.phase={self.phase} is not one of {', '.join(PHASES)}")
        require(
            self.phase == "online" or self.online.checkpoint is None,
            "algo.online.checkpoint names a run to fine-tune, but algo.phase="
            f"{self.phase} trains from scratch. Choose algo.phase=online",
        )
        require(
            self.phase != "both" or self.online.pretrain_steps > 0,
            "algo.phase=both needs algo.online.pretrain_steps, the number of updates on the data "
            "before online training. Set it above 0",
        )

    @property
    def learns_from_data(self) -> bool:
        """Whether training reads the task's data, for its batches or for the scale of states or rewards."""
        if self.phase != "online" or self.online.offline_ratio != 0:
            return super().learns_from_data
        scales_states = self.data.normalize_states and not self.online.checkpoint
        return scales_states or self.data.return_range

    def needed_actions(self) -> tuple[str, str]:
        if self.actions == "any" and self.phase != "offline":  # `Environments` have continuous ones
            return "continuous", f" with algo.phase={self.phase}"
        return super().needed_actions()

    def first_update(self) -> tuple[int, str]:
        if self.phase != "online":
            return super().first_update()
        return self.online.warmup_steps, "algo.online.warmup_steps"


def check_warmup(cfg: Any) -> None:
    """Raises CorerlError where the first update would find the environment's replay empty."""
    require(
        cfg.phase == "offline" or cfg.online.warmup_steps > 0,
        "algo.online.warmup_steps=0 leaves the replay empty for the first update. Set it above 0",
    )


class Phases:
    """The phases of a run: which steps pre-train and which act, and what acting needs.

    IQL, CQL, AWAC, ReBRAC, SPOT and Cal-QL act and then update, so that the newest step is in the replay.
    WSRL and RLPD choose the action, update, and then step, so that a GPU learns while the simulators run.

    Attributes:
        after: updates on the data before the first environment step.
        parts: what a resumed run must find as it was, for `run.steps`; nothing where no step acts.
        envs, replay: the environments and their transitions, on the scale that is learned.

    Args:
        cfg: the algorithm's, with `phase`, `online`, `data` and `batch_size`.
        data: of `preprocessing.load`.
        agent: what learns; a new run's is filled from `online.checkpoint`, where there is one.
        label: makes the replay an `EpisodeReplay`, and the warm-up as long as an episode at least.
        stride: steps of one call, as of `run.steps`; the switch is between two calls.
        noise: the shape of the noise that `explore` takes; None is an action's.

    Raises:
        CorerlError: the lengths do not fit, the environment is not the dataset's, or the checkpoint's
            agents do not fit (`pretrained.restore`).
    """

    def __init__(
        self,
        cfg: Any,
        run: Run,
        data: OfflineBuffer,
        agent: Any,
        *,
        label: Callable[[np.ndarray], np.ndarray] | None = None,
        stride: int = 1,
        noise: tuple[int, ...] | None = None,
    ):
        self.cfg, self.data, self._run = cfg.online, data, run
        self.parts: dict[str, Any] = {}
        lengths = {"offline": run.cfg.steps, "both": cfg.online.pretrain_steps, "online": 0}
        self.after = lengths[cfg.phase]
        if cfg.phase == "offline":
            return
        _check_lengths(self.after, run, stride)
        self.envs = Environments(partial(_make, run, cfg.data), run.seeds, run.device)
        sizes = (self.envs.observation_dim, self.envs.action_dim)
        if sizes != (data.observation_dim, data.action_dim):
            raise CorerlError(
                f"The environment of {run.task.id} has {sizes[0]} observation and {sizes[1]} "
                f"action features, but its dataset has {data.observation_dim} and "
                f"{data.action_dim}. Both must have the same numbers."
            )
        self.warmup = cfg.online.warmup_steps
        room = run.cfg.steps - self.after
        if label is None:
            room = min(cfg.online.capacity, room)
            self.replay = ReplayBuffer(
                *sizes, room, run.seeds, cfg.batch_size, run.device, "replay batch"
            )
        else:
            self.warmup = max(self.warmup, time_limit(run))
            if cfg.online.warmup_steps < room <= self.warmup:
                print(
                    f"corerl: {run.cfg.algo.label} on {run.task.id} makes no update online. The "
                    f"first update waits {self.warmup:,} environment steps for an episode to end, "
                    f"but only {room:,} of steps={run.cfg.steps:,} are left. Raise steps.",
                    file=sys.stderr,
                )
            self.replay = EpisodeReplay(
                *sizes, room, run.seeds, cfg.batch_size, run.device, "replay batch", label=label
            )
        ratio = cfg.online.offline_ratio
        self.mixture = MixedReplay(data, self.replay, ratio, run.seeds, cfg.batch_size, run.device)
        noise = noise or (sizes[1],)
        self._exploration = seeding.normal(run.seeds, "exploration", (1, *noise), run.device)
        self._learned = _Learned(cfg.data, run, agent.normalizer)
        self._clip = cfg.data.clip_actions
        self.parts = {"envs": self.envs, "replay": self.replay, "mixture": self.mixture}
        self.parts["exploration"] = self._exploration
        if cfg.online.checkpoint and not checkpoint.exists(run.checkpoint):
            restore(agent, cfg.online.checkpoint, run, (cfg.name,))

    def online(self, step: int) -> bool:
        """Tells whether this step acts in the environment."""
        return step > self.after

    def learns(self, step: int) -> bool:
        """Tells whether this step updates: all do but the warm-up's."""
        return not self.online(step) or step - self.after > self.warmup

    def left(self, step: int) -> float:
        """Returns the share of the environment's steps from this one on. 1 before them."""
        total = self._run.cfg.steps
        return min(1.0, (total - step + 1) / max(1, total - self.after))

    def act(self, step: int, explore: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Stores one step of every environment in the replay after the switch. Before it, does nothing."""
        if self.online(step):
            self.step(self.choose(explore))

    def choose(self, explore: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Calls `explore` with observations and normal noise `(S, 1, ...)`. The actions are on the host."""
        return self.envs.receive(explore(self.envs.look(), self._exploration.next()))

    def step(self, actions: Tensor) -> None:
        """Steps every environment with `(S, 1, A)`, clipped like the data's, and keeps the transitions."""
        clipped = actions.clamp(-self._clip, self._clip)
        self.replay.add(self._learned(self.envs.step(clipped)))

    def sample(self, step: int) -> Batch:
        """Samples from the data before the switch, and from the mixture after it."""
        return self.mixture.sample() if self.online(step) else self.data.sample()

    def sample_labelled(self, step: int) -> tuple[Batch, Tensor]:
        """Samples a batch and the label of each row, `(S, B)`."""
        source = self.mixture if self.online(step) else self.data
        return source.sample_labelled()

    def metrics(self) -> dict[str, Tensor]:
        """Returns of the last training episodes `(S,)`, on the environment's scale."""
        return {"episode_return": self.envs.episode_returns} if self.parts else {}


class _Learned:
    """An environment's step as the dataset's rows were prepared."""

    def __init__(self, data: preprocessing.Preprocess, run: Run, normalizer: nn.Module):
        self._data = data
        self._factor = np.float32(1)
        if data.return_range:  # the data is read once more, rather than handed through every caller
            self._factor = preprocessing.return_factor(run.dataset().ended_by(data.end_reward))
        self._normalizer = normalizer

    @cached_property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the observations, at the first step: a checkpoint may bring them."""
        return tuple(getattr(self._normalizer, x).cpu().numpy() for x in ("mean", "std"))

    def __call__(self, step):
        mean, std = self._scale
        return step._replace(
            observations=(step.observations - mean) / std,
            rewards=preprocessing.affine(step.rewards, self._factor, self._data),
            next_observations=(step.next_observations - mean) / std,
        )


class EndReward(gymnasium.Wrapper):
    """A wrapper that ends an episode at a step of this reward, as `preprocessing` does in the data."""

    def __init__(self, env: gymnasium.Env, reward: float):
        super().__init__(env)
        self._reward = np.float32(reward)  # as a dataset's rewards, where most decimals are others

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        over = terminated or np.float32(reward) == self._reward
        return observation, reward, over, truncated, info


def _make(run: Run, data: preprocessing.Preprocess) -> gymnasium.Env:
    env = run.task.make_training_env()
    return env if data.end_reward is None else EndReward(env, data.end_reward)


def time_limit(run: Run) -> int:
    """Returns the steps after which every seed has ended an episode.

    Raises:
        CorerlError: the environment has no time limit.
    """
    env = run.task.make_training_env()
    limit = env.spec and env.spec.max_episode_steps
    env.close()
    if not limit:
        raise CorerlError(
            f"{run.cfg.algo.name} waits for episodes to end, but {run.task.id} has no time limit. "
            "Register the environment with max_episode_steps."
        )
    return limit


def _check_lengths(after: int, run: Run, stride: int) -> None:
    require(
        after % stride == 0,
        f"algo.online.pretrain_steps={after} must be a multiple of {stride}, the number of "
        "updates that corerl makes at a time",
    )
    require(
        after < run.cfg.steps,
        f"algo.online.pretrain_steps={after} must be less than steps={run.cfg.steps}, which counts "
        "updates on the data and environment steps together",
    )
    every = run.cfg.eval.every
    require(
        after % every == 0 or not run.cfg.eval.episodes,
        f"algo.online.pretrain_steps={after} must be a multiple of eval.every={every}, so that the "
        "policy is scored at the switch",
    )
