"""The environments that online training acts in: one per seed, stepped together, restored exactly.

They are stepped in this process. A step of gymnasium's MuJoCo costs 30 to 90 microseconds, less than a
message to another process; an update of one seed costs milliseconds.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from corerl import seeding
from corerl.buffers.transfer import Inbox, Outbox
from corerl.data.tasks import is_atari
from corerl.errors import CorerlError
from corerl.training.environment_step import begin, close, note_crash, refuse_durations, reset, step
from corerl.training.simulator_state import load_simulator, opaque, save_simulator


class Step(NamedTuple):
    """One step of S seeds. `next_observations` is the state reached, also where an episode ends."""

    observations: np.ndarray  # (S, O) float32
    actions: np.ndarray  # (S, A) float32
    rewards: np.ndarray  # (S,)
    next_observations: np.ndarray  # (S, O) float32
    terminated: np.ndarray  # (S,) bool, a true terminal state
    truncated: np.ndarray  # (S,) bool, the time limit alone


class Cut(NamedTuple):
    """Episodes that cannot continue in a resumed run, because their simulator could not be restored."""

    seeds: np.ndarray  # (S,) bool, the seeds whose episodes were running
    reached: np.ndarray  # (S, ...), the observation after an episode's last step


class Environments:
    """One training environment per seed.

    A seed's environment starts from that seed's `env` stream and goes on with its own generator, so
    that it meets the same initial states in whatever company. Episodes restart by themselves. Where a
    seed's environment crashes (`note_crash`), its rewards are NaN from there on, so that it counts as
    diverged and the others go on; the last one's error is raised.

    Args:
        make_env: builds one environment with vector observations and actions in [-1, 1].
        seeds: the S seeds.
        device: where the policy computes.

    Attributes:
        cut: the episodes that `load_state_dict` could not go on with; None where there are none.

    Raises:
        CorerlError: observations are not vectors, actions are not continuous, or steps have durations.
    """

    cut: Cut | None = None

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ):
        self._envs = [make_env() for _ in seeds]
        self._seeds, self._device = list(seeds), device
        self._check(self._envs[0])
        self._lives = is_atari(self._envs[0])
        self._outgoing: Outbox | None = None
        self._incoming = Inbox()
        self._crashed: set[int] = set()
        self._observations = begin(
            [(i, env, seeding.derive(self._seeds[i], "env")) for i, env in enumerate(self._envs)],
            self._crashed,
            self._seeds,
        )
        self._running, self._begun = np.zeros(len(seeds)), np.zeros(len(seeds), bool)
        self._episodes = np.zeros(len(seeds), np.int64)
        self.episode_returns = torch.full((len(seeds),), torch.nan, device=device)
        """(S,): undiscounted return of each seed's last finished episode; NaN until one has ended, and
        -inf where the environment crashed."""

    @property
    def observation_dim(self) -> int:
        return self._observations.shape[1]

    @property
    def action_dim(self) -> int:
        return self._envs[0].action_space.shape[0]

    def look(self) -> Tensor:
        """Returns the observations to act on, `(S, 1, O)` on the device."""
        now = torch.from_numpy(self._observations)
        if torch.device(self._device).type == "cpu":
            return now[:, None]
        if self._outgoing is None:
            self._outgoing = Outbox({"seen": (now.shape, now.dtype)}, self._device)
        self._outgoing.open()["seen"][:] = self._observations
        return self._outgoing.send()["seen"][:, None]

    def receive(self, actions: Tensor) -> Tensor:
        """Returns the policy's actions on the host, to step with."""
        return self._incoming.receive(actions)

    def step(self, actions: Tensor) -> Step:
        """Steps every environment with `(S, 1, A)`. NaN, from a seed that diverged, acts as 0."""
        return self._advance(np.nan_to_num(actions[:, 0].numpy()))[0]

    def _advance(self, actions: np.ndarray) -> tuple[Step, list[dict[str, Any]]]:
        before, seeds = self._observations, len(self._envs)
        after, rewards = np.empty_like(before), np.empty(seeds)
        terminated, truncated = np.zeros(seeds, bool), np.zeros(seeds, bool)
        infos = []
        for i, action in enumerate(actions):
            result = self._result(i, action)
            after[i], rewards[i], terminated[i], truncated[i], info = result
            infos.append(info)
        truncated &= ~terminated
        self._running += rewards
        self._begun[:] = True
        # A copy: the policy and the replay may still hold the array of this step.
        self._observations = after.copy()
        for i in np.flatnonzero(terminated | truncated):
            if not self._lives or infos[i]["game_over"]:  # or a life was lost, and the game goes on
                self.episode_returns[i] = self._running[i]
                self._count(i)
            self._begun[i] = False
            self._reset(i)
        return Step(before, actions, rewards, after, terminated, truncated), infos

    def _result(self, i: int, action: np.ndarray) -> tuple:
        if i not in self._crashed:
            try:
                # A copy: an environment may scale in place what it is given, and this goes to the replay.
                return step(self._envs[i], action.copy(), self._observations.shape[1:])
            except (Exception, SystemExit) as error:
                self._note_crash(i, error)
        return self._observations[i], np.nan, False, False, {}

    def _reset(self, i: int, seed: int | None = None) -> None:
        try:
            self._observations[i] = reset(self._envs[i], self._observations.shape[1:], seed)
        except (Exception, SystemExit) as error:
            self._note_crash(i, error)

    def _note_crash(self, i: int, error: BaseException) -> None:
        self.episode_returns[i] = -torch.inf
        note_crash(self._crashed, i, self._seeds, error)

    def _count(self, i: int) -> None:
        self._running[i] = 0.0
        self._episodes[i] += 1

    def state_dict(self) -> dict[str, Any]:
        """Simulators, generators and time limits included, where the simulator can be restored."""
        return {
            "observations": torch.from_numpy(self._observations),
            "running": torch.from_numpy(self._running),
            "episodes": torch.from_numpy(self._episodes),
            "begun": torch.from_numpy(self._begun),
            "episode_returns": self.episode_returns,
            "crashed": sorted(self._crashed),
            "simulators": [
                None if i in self._crashed else save_simulator(env)
                for i, env in enumerate(self._envs)
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._observations = state["observations"].numpy()
        self._running = state["running"].numpy()
        self._episodes = state["episodes"].numpy()
        self.episode_returns.copy_(state["episode_returns"])
        self._crashed = set(state["crashed"])
        going = [i for i in range(len(self._envs)) if i not in self._crashed]
        lost = [i for i in going if state["simulators"][i] is None]
        for i in set(going) - set(lost):
            load_simulator(self._envs[i], state["simulators"][i])
        begun = state.get("begun")
        self._begun = np.ones(len(self._envs), bool) if begun is None else begun.numpy().copy()
        self.cut = None
        if lost:
            self._begin_anew(lost)

    def _begin_anew(self, lost: list[int]) -> None:
        """Begins a new episode of these seeds' environments."""
        env = self._envs[lost[0]]
        print(
            f"corerl: {opaque(env) or env.unwrapped} cannot be restored in the middle of an "
            "episode (it has no state_dict and load_state_dict). A new episode starts, and the "
            "interrupted episode counts as truncated. Results differ from those of an "
            "uninterrupted run",
            file=sys.stderr,
        )
        mask = np.isin(np.arange(len(self._envs)), lost)
        self.cut = Cut(mask & self._begun, self._observations.copy())
        self._begun = self._begun & ~mask
        for i in lost:
            self._count(i)
            self._reset(i, seeding.derive(self._seeds[i], f"env/{self._episodes[i]}"))

    def close(self) -> None:
        """Closes every environment."""
        close(self._envs)

    @staticmethod
    def _check(env: gymnasium.Env) -> None:
        for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
            if not isinstance(space, spaces.Box) or len(space.shape) != 1:
                raise CorerlError(
                    f"{env.unwrapped} has {name} of {space}, but this algorithm needs vectors of numbers."
                )
        refuse_durations(env)
