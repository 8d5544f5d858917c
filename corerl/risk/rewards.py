"""Distances between two rewards, by the order that they give policies and not by their numbers.

Potential shaping r + gamma phi(s') - phi(s) and a positive scale leave the order of all policies as it
is (Ng, Harada and Russell 1999). Both distances here are blind to them:

    STARC   Skalse et al. 2024 (arXiv:2309.15257): canonicalise, scale to norm 1, half the L2 distance
    EPIC    Gleave et al. 2021 (arXiv:2006.13900): canonicalise, then Pearson's distance

Both lie in [0, 1]: 0 for rewards that agree on every policy, 1 for a reward and its negative. On a finite
MDP they are exact. On a dataset the true reward is known at its rows alone, so the potential is fitted
there (`starc_of_rows`); `epic_of_samples` asks both rewards about steps that nobody took, and so needs
them as functions.
"""

from collections.abc import Callable

import numpy as np
from scipy import linalg

from corerl.errors import CorerlError

NORMS = {"l1": 1, "l2": 2, "linf": np.inf}
ROUNDING = 1e-10
"""A canonical reward this small against the reward it came from ranks nothing."""


def value_canonical(
    rewards: np.ndarray, transitions: np.ndarray, discount: float, policy: np.ndarray | None = None
) -> np.ndarray:
    """Returns E_{s'}[r(s, a, s') + gamma V(s')] - V(s), `(S, A)`: the advantage under `policy` (VAL).

    Args:
        rewards: `(S, A)` or `(S, A, S')`. transitions: `(S, A, S')`.
        discount: below 1. policy: `(S, A)` probabilities whose value V is; None for uniform actions.

    Raises:
        CorerlError: shapes that do not fit, or a discount outside [0, 1).
    """
    transitions = np.asarray(transitions, np.float64)
    rewards = _whole(rewards, transitions.shape)
    if not 0 <= discount < 1:
        raise CorerlError(f"A distance between rewards needs a discount in [0, 1), not {discount}.")
    states, actions = transitions.shape[:2]
    policy = np.full((states, actions), 1 / actions) if policy is None else np.asarray(policy)
    expected = (transitions * rewards).sum(-1)
    following = np.einsum("sa,sat->st", policy, transitions)
    value = np.linalg.solve(np.eye(states) - discount * following, (policy * expected).sum(1))
    return expected + discount * transitions @ value - value[:, None]


def starc(
    one: np.ndarray,
    other: np.ndarray,
    transitions: np.ndarray,
    discount: float,
    *,
    norm: str = "l2",
) -> float:
    """Returns the STARC distance of two rewards `(S, A)` or `(S, A, S')` of one finite MDP.

    The canonical form is `value_canonical` for uniform actions, divided by its `norm`: `l1`, `l2` or
    `linf` (with which the distance may exceed 1). A reward that ranks nothing is 1/2 from all that do.
    """
    pair = [value_canonical(reward, transitions, discount) for reward in (one, other)]
    return _half_distance(pair, [np.asarray(one), np.asarray(other)], norm)


def epic(
    one: np.ndarray,
    other: np.ndarray,
    discount: float,
    states: np.ndarray | None = None,
    actions: np.ndarray | None = None,
) -> float:
    """Returns the EPIC distance of two rewards `(S, A, S')` (definition 4.7).

    States, actions and next states are independent, with probabilities `(S,)` and `(A,)` (uniform).

    Unlike STARC's, it knows nothing of which steps are possible.

    Raises:
        CorerlError: a reward that is constant up to shaping, to which there is no correlation.
    """
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.shape != other.shape or one.ndim != 3 or one.shape[0] != one.shape[2]:
        raise CorerlError(
            f"EPIC needs two rewards of shape (S, A, S'), not {one.shape} and {other.shape}."
        )
    states = np.full(one.shape[0], 1 / one.shape[0]) if states is None else states
    actions = np.full(one.shape[1], 1 / one.shape[1]) if actions is None else actions
    weights = np.einsum("s,a,t->sat", states, actions, states)

    def canonical(reward: np.ndarray) -> np.ndarray:
        mean = np.einsum("sat,a,t->s", reward, actions, states)
        return reward + discount * mean - mean[:, None, None] - discount * (states @ mean)

    return _pearson_distance([canonical(one), canonical(other)], [one, other], weights)


Reward = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""`reward(states (n, O), actions (n, A), next_states (n, O)) -> (n,)`."""


def epic_of_samples(
    one: Reward,
    other: Reward,
    states: np.ndarray,
    actions: np.ndarray,
    next_states: np.ndarray,
    discount: float,
    *,
    samples: int = 256,
    seed: int = 0,
) -> float:
    """Estimates EPIC's distance from rows `(N, ...)`: their steps are the coverage distribution.

    The means over actions and next states are over `samples` pairs, drawn apart from each other from the
    rows' actions and states. Costs N * samples evaluations of each reward.
    """
    rng = np.random.default_rng(seed)
    at = [rng.integers(len(x), size=samples) for x in (actions, states)]
    drawn_actions, drawn_states = actions[at[0]], states[at[1]]

    def means(reward: Reward, of: np.ndarray) -> np.ndarray:
        blocks = []
        for start in range(0, len(of), 256):
            block = of[start : start + 256]
            repeated = np.repeat(block, samples, axis=0)
            many = [
                np.tile(x, (len(block), *[1] * (x.ndim - 1))) for x in (drawn_actions, drawn_states)
            ]
            blocks.append(reward(repeated, *many).reshape(len(block), samples).mean(1))
        return np.concatenate(blocks)

    def canonical(reward: Reward) -> np.ndarray:
        overall = means(reward, drawn_states).mean()
        at_state, at_next = means(reward, states), means(reward, next_states)
        return reward(states, actions, next_states) + discount * (at_next - overall) - at_state

    uniform = np.full(len(states), 1 / len(states))
    raw = [reward(states, actions, next_states) for reward in (one, other)]
    return _pearson_distance([canonical(one), canonical(other)], raw, uniform)


def starc_of_rows(
    one: np.ndarray,
    other: np.ndarray,
    observations: np.ndarray,
    next_observations: np.ndarray,
    terminated: np.ndarray,
    discount: float,
    *,
    features: int = 256,
    seed: int = 0,
) -> float:
    """Returns the STARC distance of two rewards `(N,)` known at a dataset's rows alone.

    The canonical form is the paper's minimal one, over the rows: of all potentials that are linear in
    the observations and in `features` random Fourier features of them, the one that leaves least of the
    reward; a terminal state's potential is 0. A potential outside this family stays in the distance.

    Raises:
        CorerlError: fewer rows than features.
    """
    columns = potentials(observations, next_observations, features, seed)
    going = 1.0 - np.asarray(terminated, np.float64)[:, None]
    shaping = discount * going * columns[1] - columns[0]
    if len(shaping) <= shaping.shape[1]:
        raise CorerlError(
            f"{len(shaping)} rows are too few to fit a potential of {shaping.shape[1]} features. Give more "
            "rows."
        )
    basis = _basis(shaping)
    rewards = [np.asarray(reward, np.float64) for reward in (one, other)]
    return _half_distance([r - basis @ (basis.T @ r) for r in rewards], rewards, "l2")


def potentials(
    observations: np.ndarray, next_observations: np.ndarray, features: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a constant, the standardised observations and their random Fourier features, at s and s'."""
    observations, next_observations = (
        np.asarray(x, np.float64).reshape(len(x), -1) for x in (observations, next_observations)
    )
    mean, std = observations.mean(0), observations.std(0) + 1e-6
    rng = np.random.default_rng(seed)
    width = observations.shape[1]
    frequencies = rng.standard_normal((width, features)) / np.sqrt(width)
    phases = rng.uniform(0, 2 * np.pi, features)

    def of(x: np.ndarray) -> np.ndarray:
        x = (x - mean) / std
        return np.hstack([np.ones((len(x), 1)), x, np.cos(x @ frequencies + phases)])

    return of(observations), of(next_observations)


def _basis(columns: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis `(N, K)` of the columns. Dependent ones add nothing."""
    directions, upper, _ = linalg.qr(columns, mode="economic", pivoting=True)
    added = np.abs(np.diag(upper))
    return directions[:, added > 1e-10 * added.max()]


def _whole(rewards: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    rewards = np.asarray(rewards, np.float64)
    if rewards.shape == shape[:2]:
        rewards = rewards[..., None]
    if len(shape) != 3 or shape[0] != shape[2] or rewards.shape[:2] != shape[:2]:
        raise CorerlError(
            f"Rewards of shape {rewards.shape} and transitions of shape {shape} do not fit one MDP. "
            "Rewards must be (S, A) or (S, A, S'), and transitions (S, A, S')."
        )
    return np.broadcast_to(rewards, shape)


def _half_distance(canonical: list[np.ndarray], rewards: list[np.ndarray], norm: str) -> float:
    if norm not in NORMS:
        raise CorerlError(f"norm={norm} is not one of {', '.join(NORMS)}.")
    one, other = (
        np.zeros_like(x).ravel() if _is_rounding(x, of) else x.ravel() / _length(x, norm)
        for x, of in zip(canonical, rewards, strict=True)
    )
    return float(0.5 * np.linalg.norm(one - other))


def _length(x: np.ndarray, norm: str) -> float:
    return np.linalg.norm(x.ravel(), NORMS[norm])


def _pearson_distance(
    canonical: list[np.ndarray], rewards: list[np.ndarray], weights: np.ndarray
) -> float:
    """Returns sqrt((1 - correlation) / 2) under `weights` that sum to one."""
    spreads = [x - (weights * x).sum() for x in canonical]
    for spread, reward in zip(spreads, rewards, strict=True):
        if _is_rounding(spread, reward):
            raise CorerlError(
                "EPIC distance is undefined for a reward that is constant up to shaping."
            )
    a, b = spreads
    correlation = (weights * a * b).sum() / np.sqrt((weights * a**2).sum() * (weights * b**2).sum())
    return float(np.sqrt(np.clip((1 - correlation) / 2, 0, 1)))


def _is_rounding(canonical: np.ndarray, reward: np.ndarray) -> bool:
    return bool(np.abs(canonical).max() <= ROUNDING * max(np.abs(reward).max(), ROUNDING))
