"""One in-memory format for every offline dataset, and the views of it that algorithms need.

Rows are *raw* steps in the order they were recorded, so that sequence models see whole episodes;
`has_next` marks the rows that make a transition (s, a, r, s'). Episode ends are stored, never
guessed from a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from corerl.data.action_scaling import scaled_steps
from corerl.data.files import arrays
from corerl.data.files.arrays import column, floats
from corerl.data.files.checks import check
from corerl.errors import CorerlError

ROWS = (
    *("observations", "actions", "rewards", "next_observations"),
    *("terminated", "truncated", "has_next"),
)
"""Fields of a row that every dataset has."""
OPTIONAL = ("behaviour_log_prob", "durations", "unlabelled")
"""Fields of a row that not every dataset has."""


class Transitions(NamedTuple):
    """Rows (s, a, r, s', d) for temporal-difference learning. `terminated` is d.

    `rows` are their indices in the dataset, to line up per-step extras such as returns to go.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray
    rows: np.ndarray
    next_actions: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """N recorded steps in E episodes. Arrays are read, never written.

    Shapes: observations and next_observations (N, *obs_shape) float32, or uint8 for images;
    actions (N, A) float32 in [-1, 1], or (N,) int64 when discrete; rewards (N,) float32;
    terminated, truncated, has_next (N,) bool; episode_ends (E,) int64, exclusive, the last is N;
    behaviour_log_prob (N,) float32, log-probabilities (densities in [-1, 1] where actions are continuous), or
    None where they were not recorded; durations (N,) int64, the time that each step took in whole units of 1
    or more, or None where every step took one.
    Raises CorerlError, naming the field and the row, for an array that breaks this.
    """

    id: str
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray  # true terminal states only: no bootstrap
    truncated: np.ndarray  # time limit, or the end of the recording: bootstrap
    episode_ends: np.ndarray
    has_next: np.ndarray  # next_observations[i] is the state that followed
    behaviour_log_prob: np.ndarray | None = None  # of each action, under the policy that took it
    durations: np.ndarray | None = None  # semi-Markov: what follows a step of k is worth discount^k
    unlabelled: np.ndarray | None = None  # (N,) true where actions are unknown and 0
    parts: tuple[tuple[str, int], ...] = ()  # names and widths, if observations are a dictionary
    as_given: bool = False  # no bounds were given, so actions are in [-1, 1]

    def __post_init__(self):
        check(self)

    @classmethod
    def from_steps(
        cls,
        id: str,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        next_observations: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        has_next: np.ndarray | None = None,
        behaviour_log_prob: np.ndarray | None = None,
        durations: np.ndarray | None = None,
    ) -> Dataset:
        """Returns a Dataset from recorded steps, in whatever dtypes they come.

        Episodes end where terminated or truncated is set; a recording that stops inside an episode
        is marked truncated there. Rewards and flags may be (N,) or (N, 1). Without `has_next` every
        next observation is taken as real.
        """
        fields = arrays.fields(
            *(observations, actions, rewards, next_observations),
            *(terminated, truncated, has_next, behaviour_log_prob, durations),
        )
        return cls(id, **fields)

    @classmethod
    def from_arrays(
        cls,
        observations: np.ndarray | Mapping[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        next_observations: np.ndarray | Mapping[str, np.ndarray] | None = None,
        *,
        episode: np.ndarray | None = None,
        has_next: np.ndarray | None = None,
        behaviour_log_prob: np.ndarray | None = None,
        durations: np.ndarray | None = None,
        low: np.ndarray | float | None = None,
        high: np.ndarray | float | None = None,
        id: str = "arrays",
    ) -> Dataset:
        """Returns a Dataset from N recorded steps of your own, in the order in which they happened.

        Args:
            observations: (N, O) numbers, or (N, ...) bytes of images; a dictionary's parts, each (N,) or
                (N, ...), are laid side by side in its order.
            actions: (N, A) numbers, or (N,) integers where they are numbered from 0; true is 1.
            rewards: (N,).
            terminated: (N,) where an episode truly ended: nothing is worth anything after it.
            truncated: (N,) where it was cut off, by a time limit or by the recording.
            next_observations: those that followed; without them, the next row's, and none where an episode
                was cut off, so that its last row makes no transition.
            has_next: (N,) where the next observation, given or the next row's, is real; without it,
                everywhere.
            episode: (N,) numbers or names, or (N, K), several in a row; where any changes, an episode was
                cut off unless it terminated.
            behaviour_log_prob: (N,) log-densities of the actions in the units in which they are given, or
                log-probabilities of discrete ones, where they are known.
            durations: (N,) whole units of time that each step took, 1 or more; without them each took one.
            low, high: the actions that become -1 and 1; without them actions lie in [-1, 1] already.
            id: what tables call it.

        Raises:
            CorerlError: nothing says where episodes end, actions lie outside the bounds, or an array does
                not fit; it names the field and the row.
        """
        steps, parts = arrays.steps(
            *(id, observations, actions, rewards, terminated, truncated, next_observations),
            *(episode, has_next, behaviour_log_prob, durations),
        )
        dataset = cls.from_steps(id, **scaled_steps(id, steps, low, high))
        return replace(dataset, parts=parts, as_given=low is None and not dataset.discrete)

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.id!r}, {len(self):,} steps, {self.n_episodes:,} episodes, "
            f"observations {self.observations.shape[1:]}, "
            f"actions {'discrete' if self.discrete else self.actions.shape[1:]})"
        )

    @property
    def n_episodes(self) -> int:
        return len(self.episode_ends)

    @property
    def discrete(self) -> bool:
        """Actions are class indices, not vectors."""
        return self.actions.dtype.kind == "i"

    @property
    def episode_starts(self) -> np.ndarray:
        """(E,) int64: the first row of each episode."""
        return np.concatenate([np.zeros(1, np.int64), self.episode_ends[:-1]])

    def episode_lengths(self) -> np.ndarray:
        """Returns (E,) int64 steps."""
        return self.episode_ends - self.episode_starts

    def episode_returns(self) -> np.ndarray:
        """Returns (E,) float64: undiscounted sums of the raw rewards."""
        return np.add.reduceat(self.rewards, self.episode_starts, dtype=np.float64)

    def returns_to_go(self, gamma: float = 1.0) -> np.ndarray:
        """Returns (N,) float32: sum over k of gamma^k r_{i+k} to the end of the episode of row i.

        A truncated episode counts nothing after its end, which is what a decision transformer
        conditions on; it is not an estimate of the value there. A step of duration k counts as k steps.
        """
        discounts = self.discounts(gamma)
        out = self.rewards.astype(np.float64)
        longest_first = np.argsort(-self.episode_lengths(), kind="stable")
        last = self.episode_ends[longest_first] - 1
        lengths = self.episode_lengths()[longest_first]
        still_going = np.searchsorted(-lengths, -np.arange(1, lengths[0]), side="left")
        for back, n in enumerate(still_going, start=1):
            row = last[:n] - back
            out[row] += discounts[row] * out[row + 1]
        return out.astype(np.float32)

    def discounts(self, gamma: float, beyond: int = 0) -> np.ndarray:
        """Returns (N,) float64: gamma^(k - beyond) of durations k. What follows is discounted by gamma^k."""
        durations = np.ones(len(self), int) if self.durations is None else self.durations
        return np.float64(gamma) ** (durations - beyond)

    def transition_rows(self, next_actions: bool = False) -> np.ndarray:
        """Returns the indices of the rows that make a transition.

        With `next_actions`, without those whose next action was never recorded: the last row of an
        episode that does not end in a terminal state.
        """
        keep = self.has_next
        if next_actions:
            cut = np.zeros(len(self), bool)
            cut[self.episode_ends - 1] = True
            keep = keep & (self.terminated | ~cut)
        return np.flatnonzero(keep)

    def transitions(self, next_actions: bool = False) -> Transitions:
        """Returns the rows with a next observation: D4RL's `qlearning_dataset` when read from its files.

        `next_actions` adds a' from the raw rows (ReBRAC's critic penalty, SARSA); at a terminal row
        it is zero, since nothing follows. Arrays are views where no row is left out.

        Raises:
            CorerlError: no row is left.
        """
        rows = self.transition_rows(next_actions)
        if not len(rows):
            following = "action" if next_actions else "state"
            raise CorerlError(
                f"{self.id} has no transition to learn from: no step has a recorded next "
                f"{following} or ends in a terminal state. Check where its episodes end."
            )
        whole = len(rows) == len(self)

        def take(x):
            return x if whole else x[rows]

        following = None
        if next_actions:
            following = self.actions[np.minimum(rows + 1, len(self) - 1)]
            following[self.terminated[rows]] = 0
        return Transitions(
            take(self.observations),
            take(self.actions),
            take(self.rewards),
            take(self.next_observations),
            take(self.terminated),
            rows,
            following,
        )

    def obs_stats(self, eps: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and (population std + eps) of the transitions' observations, each obs_shape float32.

        As TD3+BC normalises states (Fujimoto and Gu 2021, section 5); summed in float64, because
        a float32 sum over a million rows loses the third digit.
        """
        observations = self.observations if self.has_next.all() else self.transitions().observations
        mean = observations.mean(0, dtype=np.float64)
        std = observations.std(0, dtype=np.float64)
        return mean.astype(np.float32), (std + eps).astype(np.float32)

    def best_episodes(self, fraction: float, gamma: float = 1.0) -> Dataset:
        """Returns the top `fraction` of the episodes by return, at least one, in their order.

        The filter of %BC (Chen et al. 2021, section 5.1), which keeps whole episodes; returns are
        discounted by `gamma` from each episode's beginning.
        """
        if not 0 < fraction <= 1:
            raise CorerlError(f"fraction={fraction} of the best episodes must lie in (0, 1].")
        n = max(1, int(fraction * self.n_episodes))
        returns = self.episode_returns()
        if gamma < 1:
            returns = self.returns_to_go(gamma)[self.episode_starts]
        best = np.argsort(-returns, kind="stable")[:n]
        return self.select_episodes(np.sort(best))

    def select_episodes(self, episodes: np.ndarray) -> Dataset:
        """Returns the episodes with these indices, in this order, as a Dataset of their own."""
        lengths = self.episode_lengths()[episodes]
        ends = np.cumsum(lengths)
        rows = np.arange(ends[-1]) + np.repeat(self.episode_ends[episodes] - ends, lengths)
        fields = {name: getattr(self, name) for name in (*ROWS, *OPTIONAL)}
        kept = {name: x[rows] for name, x in fields.items() if x is not None}
        return replace(self, episode_ends=ends, **kept)

    def with_rewards(self, rewards: np.ndarray) -> Dataset:
        """Returns the same steps with other rewards (N,): learned, shifted or rescaled."""
        return replace(self, rewards=floats(column(rewards), "rewards"))

    def ended_by(self, reward: float | None) -> Dataset:
        """Returns the same steps where one of this reward is terminal, and what follows another episode.

        Such a step makes a transition also where no next state was recorded: nothing bootstraps from it.
        None ends nothing.
        """
        if reward is None:
            return self
        over = self.rewards == np.float32(reward)
        terminated = self.terminated | over
        truncated = self.truncated & ~terminated
        return replace(
            self.with_ends(over),
            terminated=terminated,
            truncated=truncated,
            episode_ends=np.flatnonzero(terminated | truncated) + 1,
        )

    def with_ends(self, over: np.ndarray) -> Dataset:
        """Returns the same steps, where those of `over` `(N,)` make transitions without a next state, too.

        Nothing bootstraps from an end, and the step's own state stands for the next one.
        """
        rows = np.flatnonzero(over & ~self.has_next)
        if not len(rows):
            return self
        following = self.next_observations.copy()
        following[rows] = self.observations[rows]
        return replace(self, next_observations=following, has_next=self.has_next | over)
