"""Finite MDPs as arrays, and the policies and return laws of their solvers.

An MDP of your own is three arrays, in one of two forms:

    FiniteMDP.from_matrices(transitions, rewards, horizon=5)     P (S, A, S'), rewards (S, A) or (S, A, S')
    FiniteMDP(probabilities, rewards, successors, horizon=5)     K outcomes of every state and action

The second form has random rewards: outcome k of action a in state s has probability
`probabilities[s, a, k]`, pays `rewards[s, a, k]` and leads to `successors[s, a, k]`, or ends the episode
where that is `END`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corerl.config import require
from corerl.risk import measures

END = -1
"""The successor that ends the episode."""

EXACT = 1e-12
"""Returns closer than this are one: they differ by the rounding of floating-point sums."""

MOST_POINTS = 200_000
"""Different (state, collected) that one step of a law may reach; a step of so many takes seconds."""

TRUNCATION = 1e-10
"""Largest discounted reward after the step at which an endless episode is cut."""


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """S states, A actions, K outcomes.

    Attributes:
        probabilities, rewards: (S, A, K). successors: (S, A, K) integers, `END` or a state.
        start: (S,) law of the first state; None starts in state 0.
        horizon: steps after which every episode ends; None for no limit, which needs a discount below 1.
        states, actions: names for people.

    Raises:
        CorerlError: shapes that do not fit, rows that do not sum to one, unknown successors.
    """

    probabilities: np.ndarray
    rewards: np.ndarray
    successors: np.ndarray
    start: np.ndarray = None
    horizon: int | None = None
    discount: float = 1.0
    states: tuple[str, ...] = field(default=())
    actions: tuple[str, ...] = field(default=())

    def __post_init__(self):
        put = object.__setattr__  # frozen
        put(self, "probabilities", np.asarray(self.probabilities, np.float64))
        put(self, "rewards", np.asarray(self.rewards, np.float64))
        put(self, "successors", np.asarray(self.successors))
        shape = self.probabilities.shape
        require(
            len(shape) == 3 and 0 not in shape,
            f"probabilities have shape {shape}, but must have shape (S, A, K)",
        )
        start = np.eye(1, shape[0])[0] if self.start is None else np.asarray(self.start, np.float64)
        put(self, "start", start)
        put(self, "states", self.states or tuple(map(str, range(shape[0]))))
        put(self, "actions", self.actions or tuple(map(str, range(shape[1]))))
        self._check()

    @classmethod
    def from_matrices(cls, transitions: np.ndarray, rewards: np.ndarray, **options) -> FiniteMDP:
        """Builds an MDP from transition probabilities (S, A, S') and rewards (S,), (S, A) or (S, A, S').

        An episode ends with the horizon alone; an absorbing state that pays nothing is an end too.
        """
        transitions = np.asarray(transitions, np.float64)
        shape = transitions.shape
        require(
            len(shape) == 3 and shape[0] == shape[2],
            f"transitions have shape {shape}, but must have shape (S, A, S')",
        )
        rewards = np.asarray(rewards, np.float64)
        require(
            rewards.shape in (shape[:1], shape[:2], shape),
            f"rewards have shape {rewards.shape}, but must have shape {shape[:1]}, {shape[:2]} or {shape}",
        )
        rewards = rewards.reshape(rewards.shape + (1,) * (3 - rewards.ndim))
        successors = np.broadcast_to(np.arange(shape[2]), shape)
        return cls(transitions, np.broadcast_to(rewards, shape), successors, **options)

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of states and actions, (S, A)."""
        return self.probabilities.shape[:2]

    @property
    def steps(self) -> int:
        """The horizon, or where an endless episode is cut: less than 1e-10 is paid afterwards."""
        if self.horizon is not None:
            return self.horizon
        largest = max(np.abs(self.rewards).max(), TRUNCATION)
        left = TRUNCATION * (1 - self.discount) / largest
        return max(1, math.ceil(math.log(left) / math.log(self.discount)))

    def first(self, rng: np.random.Generator) -> int:
        """Draws a first state."""
        return _draw(self.start, rng)

    def step(self, state: int, action: int, rng: np.random.Generator) -> tuple[float, int]:
        """Draws a reward, and the next state or `END`."""
        k = _draw(self.probabilities[state, action], rng)
        return float(self.rewards[state, action, k]), int(self.successors[state, action, k])

    def _check(self) -> None:
        shape, names = self.probabilities.shape, ("rewards", "successors")
        for name in names:
            found = getattr(self, name).shape
            require(
                found == shape,
                f"{name} has shape {found}, but must have the shape {shape} of probabilities",
            )
        require(np.isfinite(self.rewards).all(), "rewards must be finite numbers")
        self._check_laws()
        require(
            np.issubdtype(self.successors.dtype, np.integer)
            and (self.successors >= END).all()
            and (self.successors < shape[0]).all(),
            f"successors must be whole numbers from 0 to {shape[0] - 1}, or {END} for the end",
        )
        require(0 < self.discount <= 1, f"discount={self.discount} must lie in (0, 1]")
        whole = isinstance(self.horizon, int | np.integer) and self.horizon > 0
        require(
            self.horizon is None or whole, f"horizon={self.horizon} must be a positive whole number"
        )
        require(
            self.horizon is not None or self.discount < 1,
            "An MDP without a horizon needs a discount below 1. Lower the discount, or give a horizon",
        )

    def _check_laws(self) -> None:
        sums = self.probabilities.sum(-1)
        bad = ~np.isclose(sums, 1.0, rtol=0, atol=1e-9) | (self.probabilities < 0).any(-1)
        if bad.any():
            s, a = np.argwhere(bad)[0]
            require(
                False,
                f"The probabilities of state {s}, action {a} must be non-negative and sum to one. They "
                f"sum to {sums[s, a]:.10g}, and the smallest is {self.probabilities[s, a].min():.3g}",
            )
        require(
            self.start.shape == self.probabilities.shape[:1]
            and (self.start >= 0).all()
            and math.isclose(self.start.sum(), 1.0, abs_tol=1e-9),
            "start must hold probabilities, of shape (S,), that sum to one",
        )


def _draw(probabilities: np.ndarray, rng: np.random.Generator) -> int:
    place = np.searchsorted(np.cumsum(probabilities), rng.random(), side="right")
    return int(min(place, np.flatnonzero(probabilities)[-1]))  # the sum may be a hair below one


Policy = Callable[[int, int, float], int]
"""`policy(t, state, collected) -> action`; collected is the discounted sum of the rewards so far."""


@dataclass(frozen=True)
class Law:
    """A discrete law: ascending values (n,) and their probabilities (n,)."""

    values: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.values @ self.probabilities)

    @property
    def variance(self) -> float:
        return float((self.values - self.mean) ** 2 @ self.probabilities)

    def cvar(self, tau: float) -> float:
        return float(measures.cvar_of_law(self.values, self.probabilities, tau))

    @classmethod
    def of(cls, values: np.ndarray, probabilities: np.ndarray, resolution: float = EXACT) -> Law:
        """Builds a law, with equal values merged and impossible ones left out."""
        values, probabilities = np.ravel(values), np.ravel(probabilities)
        values = np.round(values / resolution) * resolution
        values, places = np.unique(values, return_inverse=True)
        mass = np.bincount(places.ravel(), probabilities)
        return cls(values[mass > 0], mass[mass > 0])


@dataclass(frozen=True)
class Visit:
    """A point that a policy reaches: what it has collected there, how likely, what it does."""

    t: int
    state: int
    collected: float
    probability: float
    action: int


@dataclass(frozen=True)
class Solution:
    """A policy, the `value` of its own objective, and the exact law of its discounted return.

    `budget` is the maximising c of the static objective, else None.
    """

    objective: str
    tau: float
    value: float
    policy: Policy
    law: Law
    visits: list[Visit]
    budget: float | None = None

    def numbers(self) -> dict[str, Any]:
        """Returns all but the policy, for a JSON file."""
        of_law = {
            "returns": self.law.values.tolist(),
            "probabilities": self.law.probabilities.tolist(),
        }
        names = ("objective", "tau", "value", "budget")
        return {name: getattr(self, name) for name in names} | of_law


def first_best(values: np.ndarray) -> np.ndarray:
    """Returns the first of the best along the last axis, where equal means equal up to rounding."""
    scale = EXACT * np.maximum(1.0, np.abs(values).max(-1, keepdims=True))
    return (values >= values.max(-1, keepdims=True) - scale).argmax(-1)


def paid(mdp: FiniteMDP, t: int, resolution: float = EXACT) -> np.ndarray:
    """Returns the discounted rewards of step t (S, A, K), rounded where the resolution is coarse.

    Each reward is rounded by itself, so that sums, budgets and c share a lattice.
    """
    exact = mdp.discount**t * mdp.rewards
    return exact if resolution <= EXACT else np.round(exact / resolution) * resolution


def return_law(
    mdp: FiniteMDP, policy: Policy, resolution: float = EXACT, most: int = MOST_POINTS
) -> tuple[Law, list[Visit]]:
    """Returns the exact law of the discounted return under `policy`, and every point it passes through.

    Raises:
        CorerlError: a step reaches more than `most` points.
    """
    ended: list[tuple[float, float]] = []
    visits: list[Visit] = []
    current = {(int(s), 0.0): mdp.start[s] for s in np.flatnonzero(mdp.start)}
    for t in range(mdp.steps):
        following: dict[tuple[int, float], float] = {}
        pays = paid(mdp, t, resolution)
        for (state, collected), mass in sorted(current.items()):
            action = int(policy(t, state, collected))
            visits.append(Visit(t, state, collected, mass, action))
            outcomes = (x[state, action] for x in (mdp.probabilities, pays, mdp.successors))
            for p, reward, successor in zip(*outcomes, strict=True):
                total = collected + reward
                total = float(np.round(total / resolution) * resolution)
                if successor == END:
                    ended.append((total, mass * p))
                elif p > 0:
                    key = (int(successor), total)
                    following[key] = following.get(key, 0.0) + mass * p
        check_count(len(following), most, resolution)
        current = following
    ended += [(collected, mass) for (_, collected), mass in current.items()]
    values, mass = np.array(ended).T
    return Law.of(values, mass, resolution), visits


def check_count(count: int, most: int, resolution: float) -> None:
    """Raises CorerlError where there are too many different returns to list."""
    require(
        count <= most,
        f"This MDP has more than {most:,} different returns at resolution {resolution:g}. Use a "
        f"coarser resolution: algo.resolution={max(0.01, 10 * resolution):g}. Values then err by "
        "at most steps * resolution / 2",
    )


def markov(actions: np.ndarray) -> Policy:
    """Returns the policy of a table (T, S) of actions, or (S,) for every step."""
    table = np.atleast_2d(actions)
    return lambda t, state, collected: table[min(t, len(table) - 1), state]
