"""Small decision problems whose CVaR optima are known exactly: A, B, C, coins (finite), D1, D2 (continuous).

    A   two-stage lock-in: 0 or 4 by chance, then 1 for sure or a gamble; the best choice depends on what
        was collected before, so that static, stock-blind and iterated optima differ
    B   five wagers: hold (1) or risk (4 with 0.8, -3 with 0.2), five times
    C   a hazard, discounted by 0.95: stop, or go on for 1 with 0.9, else -5 and the end
    coins  four times 1/2 for sure, or a coin that pays 0 or 1: every policy has the same mean
    D1  one step: a in [0, 1] pays a - a^2/2 + a xi/2 with xi standard normal
    D2  two such steps

As tasks they are `risk/A` ... `risk/D2`; corerl.algos.cvar_tabular solves the finite ones. Three more, of
other scales and shapes: envs/textbook_mdps.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from scipy import stats as scipy_stats

from corerl import seeding
from corerl.config import require
from corerl.envs.restorable import Restorable
from corerl.risk.finite_mdp import END, FiniteMDP


def lock_in() -> FiniteMDP:
    """A. In the first state both actions are the same."""
    return FiniteMDP(
        probabilities=[[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.7, 0.3]]],
        rewards=[[[0, 4], [0, 4]], [[1, 1], [4, -2]]],
        successors=[[[1, 1], [1, 1]], [[END, END], [END, END]]],
        horizon=2,
        states=("chance", "choice"),
        actions=("safe", "risky"),
    )


def wagers() -> FiniteMDP:
    """B."""
    return FiniteMDP(
        probabilities=[[[1.0, 0.0], [0.8, 0.2]]],
        rewards=[[[1, 1], [4, -3]]],
        successors=[[[0, 0], [0, 0]]],
        horizon=5,
        states=("table",),
        actions=("hold", "risky"),
    )


def hazard() -> FiniteMDP:
    """C."""
    return FiniteMDP(
        probabilities=[[[1.0, 0.0], [0.9, 0.1]]],
        rewards=[[[0, 0], [1, -5]]],
        successors=[[[END, END], [0, END]]],
        discount=0.95,
        states=("alive",),
        actions=("stop", "go on"),
    )


def coins() -> FiniteMDP:
    """Four tosses. Each may be declined for its mean."""
    return FiniteMDP(
        probabilities=[[[1.0, 0.0], [0.5, 0.5]]],
        rewards=[[[0.5, 0.5], [0.0, 1.0]]],
        successors=[[[0, 0], [0, 0]]],
        horizon=4,
        states=("table",),
        actions=("sure", "coin"),
    )


class FiniteEnv(Restorable):
    """A finite MDP to act in. Attributes: `mdp`. `state`, `time`: where the episode is.

    An observation is the state as a one-hot vector, followed by the time as one where there is a
    horizon, since the best action depends on it. The horizon is a true end (terminated), not a time
    limit on a longer problem. Without one an episode is cut (truncated) where the solvers cut it, so that
    it comes to an end.
    """

    kept = ("state", "time")

    def __init__(self, mdp: FiniteMDP):
        self.mdp = mdp
        states, actions = mdp.sizes
        self.observation_space = spaces.Box(0, 1, (states + (mdp.horizon or 0),), np.float32)
        self.action_space = spaces.Discrete(actions)
        self.state, self.time, self._steps = 0, 0, mdp.steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.state, self.time = self.mdp.first(self.np_random), 0
        return self._observation(), {}

    def step(self, action: int):
        reward, successor = self.mdp.step(self.state, int(action), self.np_random)
        self.time += 1
        terminated = successor == END or self.time == self.mdp.horizon
        truncated = not terminated and self.time == self._steps
        self.state = self.state if successor == END else successor
        return self._observation(), reward, terminated, truncated, {}

    def seen(self, state: int, time: int) -> np.ndarray:
        """Returns the observation of a state at a time."""
        here = np.zeros(self.observation_space.shape, np.float32)
        here[state] = 1
        if self.mdp.horizon and time < self.mdp.horizon:
            here[self.mdp.sizes[0] + time] = 1
        return here

    def _observation(self) -> np.ndarray:
        return self.seen(self.state, self.time)


class Gamble(Restorable):
    """D1 and D2: at each of `steps` steps a in [0, 1] pays a - a^2/2 + k a xi, xi standard normal.

    The action is given in [-1, 1], a = (1 + action) / 2. An observation is the share of the steps that
    are over and the return so far, which is all there is to know.
    """

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    kept = ("time", "collected")

    def __init__(self, steps: int = 1, k: float = 0.5):
        require(steps > 0, f"A gamble needs at least 1 step, not {steps}")
        self.steps, self.k = steps, k
        self.time, self.collected = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time, self.collected = 0, 0.0
        return self._observation(), {}

    def step(self, action: np.ndarray):
        a = float(np.clip((1 + np.asarray(action).item()) / 2, 0, 1))
        reward = a - a**2 / 2 + self.k * a * self.np_random.standard_normal()
        self.time += 1
        self.collected += reward
        return self._observation(), reward, self.time == self.steps, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.time / self.steps, self.collected], np.float32)


def normal_cvar(tau: float) -> float:
    """kappa: minus the CVaR_tau of a standard normal, pdf(quantile) / tau."""
    if tau == 1:
        return 0.0
    return float(scipy_stats.norm.pdf(scipy_stats.norm.ppf(tau)) / tau)


def gamble_data(
    steps: int, seed: int = 0, episodes: int = 100_000, k: float = 0.5
) -> dict[str, np.ndarray]:
    """Uniform actions in D1 or D2, as recorded steps (`Dataset.from_steps`).

    So many episodes because the value is flat: of 20,000, D1's best action at tau 0.25 is off by 0.02.
    """
    rng = np.random.default_rng(seeding.derive(seed, f"gamble {steps}"))
    a = rng.random((episodes, steps))
    rewards = a - a**2 / 2 + k * a * rng.standard_normal((episodes, steps))
    collected = np.pad(np.cumsum(rewards, 1), ((0, 0), (1, 0)))
    time = np.broadcast_to(np.arange(steps + 1) / steps, collected.shape)
    states = np.stack([time, collected], -1)
    ends = np.broadcast_to(np.arange(steps) == steps - 1, a.shape).ravel()
    return {
        "observations": states[:, :-1].reshape(-1, 2),
        "actions": (2 * a - 1).reshape(-1, 1),
        "rewards": rewards.ravel(),
        "next_observations": states[:, 1:].reshape(-1, 2),
        "terminated": ends,
        "truncated": np.zeros_like(ends),
    }


def gamble_optimum(tau: float, k: float = 0.5) -> tuple[float, float]:
    """D1's best a and its CVaR: a - a^2/2 - k kappa a is largest at a = max(0, 1 - k kappa)."""
    a = max(0.0, 1 - k * normal_cvar(tau))
    return a, a**2 / 2


def gamble_mdp(steps: int = 2, k: float = 0.5, actions: int = 100, atoms: int = 200) -> FiniteMDP:
    """The gamble with actions i / `actions` and xi replaced by its means over `atoms` equal parts.

    For the tabular solvers, with a `resolution`: a law of means keeps the mean and lifts the CVaR a
    little (for 200 atoms by 2e-4 of a standard deviation at tau 0.1).
    """
    edges = scipy_stats.norm.ppf(np.linspace(0, 1, atoms + 1))
    xi = -np.diff(scipy_stats.norm.pdf(edges)) * atoms
    a = np.linspace(0, 1, actions + 1)[:, None]
    shape = (1, actions + 1, atoms)
    return FiniteMDP(
        np.full(shape, 1 / atoms),
        (a - a**2 / 2 + k * a * xi)[None],
        np.zeros(shape, int),
        horizon=steps,
        actions=tuple(f"{x:g}" for x in a[:, 0]),
    )
