"""Robust Bellman backup: the worst distribution of the next state, at a price or within a ball.

Nature replaces the distribution p of the next state by q, to lower the value V of what follows:

    tv, kl, chi2                  min_q  q.V + scale D(q, p)                    regularised
    tv_ball, kl_ball, chi2_ball   min_q  q.V   subject to D(q, p) <= scale      constrained

    tv     D = sum |q - p| / 2; q may move mass to any state, reachable or not
    kl     D = sum q log(q / p)
    chi2   D = sum (q - p)^2 / p

Each is solved exactly by its dual, with V_c = min(V, c):

    tv         p.V_c,  c = min V + scale
    kl         -scale log p.exp(-V / scale), the entropic risk measure
    chi2       max_c p.V_c - (p.V_c^2 - (p.V_c)^2) / (4 scale)
    tv_ball    max_c p.V_c - scale (c - min V)
    kl_ball    max_t -t log p.exp(-V / t) - t scale
    chi2_ball  max_c c - sqrt((1 + scale) p.((c - V)^+)^2)

`none` is p.V. The duals of none, tv, kl, chi2 and tv_ball need only sums over p. So they also take the
weights of a ridge regression, which may be negative and need not sum to one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from corerl.config import require
from corerl.risk.finite_mdp import END, FiniteMDP, first_best

BISECTIONS = 100
"""Halvings of the logarithm of kl_ball's t, whose first interval spans 14 decades."""


def worst_case(
    kind: str, values: np.ndarray, weights: np.ndarray, scale: float, most: float = np.inf
) -> np.ndarray:
    """Returns the worst expected value, `(...)`.

    Args:
        kind: a key of `KINDS`. scale: at least 0; above 0 for tv, kl and chi2.
        values: `(..., S)`. weights: `(..., S)`, the nominal probabilities or regression weights.
        most: the largest value possible, which kl returns where regression weights leave no probability.

    Raises:
        CorerlError: a kind that is unknown, or a scale out of range.
    """
    require(kind in KINDS, f"kind={kind} is not one of {', '.join(KINDS)}")
    priced = kind in ("tv", "kl", "chi2")
    reported = (
        f"scale={scale} must be finite and {'above 0' if priced else 'at least 0'} for {kind}"
    )
    require(np.isfinite(scale) and (scale > 0 or (scale == 0 and not priced)), reported)
    values, weights = np.broadcast_arrays(
        np.asarray(values, np.float64), np.asarray(weights, np.float64)
    )
    if kind == "none" or scale == 0:
        return (weights * values).sum(-1)
    if kind == "kl":
        return _kl(values, weights, scale, most)
    return KINDS[kind](values, weights, scale)


def _tv(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    return (weights * np.minimum(values, values.min(-1, keepdims=True) + scale)).sum(-1)


def _kl(values: np.ndarray, weights: np.ndarray, scale: float, most: float = np.inf) -> np.ndarray:
    least = np.where(weights == 0, np.inf, values).min(-1)
    tilted = np.exp(np.minimum(least[..., None] - values, 0.0) / scale)
    mean = (weights * tilted).sum(-1)
    price = -scale * np.log(np.where(mean > 0, mean, 1.0))
    return np.where(mean > 0, np.minimum(least + price, most), most)


def _chi2(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    """Tries every value as c, and between two of them the vertex of a parabola."""
    v, below, sums, squares = _cumulated(values, weights)
    above = weights.sum(-1, keepdims=True) - below

    def gain(c: np.ndarray) -> np.ndarray:
        mean = sums + above * c
        return mean - (squares + above * c**2 - mean**2) / (4 * scale)

    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = (2 * scale + sums) / (1 - above)
    end = np.append(v[..., 1:], v[..., -1:], -1)
    vertex = np.clip(np.where(np.isfinite(vertex), vertex, v), v, end)
    return np.maximum(gain(v), gain(vertex)).max(-1)


def _tv_ball(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    """Tries every value as c, since the dual is linear between two of them."""
    v, below, sums, _ = _cumulated(values, weights)
    above = weights.sum(-1, keepdims=True) - below
    return (sums + above * v - scale * (v - v[..., :1])).max(-1)


def _kl_ball(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    """Finds t by bisection: the slope of the dual is KL(q_t, p) - scale, q_t = p exp(-V / t) / mean."""
    possible = weights > 0
    least = np.where(possible, values, np.inf).min(-1, keepdims=True)
    excess = np.where(possible, values - least, 0.0)
    spread = excess.max(-1, keepdims=True)
    high = np.log(np.maximum(spread, np.finfo(float).tiny) / np.sqrt(8 * scale))
    low = high - 14 * np.log(10)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        tilted = excess / np.exp(middle)
        mean = (weights * np.exp(-tilted)).sum(-1, keepdims=True)
        mean_tilted = (weights * np.exp(-tilted) * tilted).sum(-1, keepdims=True) / mean
        too_far = -mean_tilted - np.log(mean) > scale
        low, high = np.where(too_far, middle, low), np.where(too_far, high, middle)
    t = np.exp(high)
    mean = (weights * np.exp(-excess / t)).sum(-1, keepdims=True)
    return (least + t * np.maximum(-np.log(mean) - scale, 0.0))[..., 0]


def _chi2_ball(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    """Tries every value as c, and between two of them the one where the derivative is 0."""
    least = values.min(-1, keepdims=True)
    v, below, sums, squares = _cumulated(values - least, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.maximum(squares - sums**2 / below, 0.0)
        root = (sums + np.sqrt(variance / ((1 + scale) - 1 / below))) / below
    end = np.append(v[..., 1:], np.full_like(v[..., :1], np.inf), -1)
    root = np.clip(np.where(np.isfinite(root), root, v), v, end)
    c = np.concatenate([v, root], -1)
    below, sums, squares = (np.concatenate([x, x], -1) for x in (below, sums, squares))
    norm = np.sqrt(np.maximum(below * c**2 - 2 * sums * c + squares, 0.0) * (1 + scale))
    best = np.take_along_axis(c, (c - norm).argmax(-1)[..., None], -1)
    short = np.maximum(best - (values - least), 0.0)  # recomputed without cancellation
    return (least + best)[..., 0] - np.sqrt((1 + scale) * (weights * short**2).sum(-1))


def _cumulated(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns ascending values, and the sums of w, w V and w V^2 up to each."""
    order = np.argsort(values, axis=-1, kind="stable")
    v, w = (np.take_along_axis(x, order, -1) for x in (values, weights))
    return v, *(np.cumsum(w * x, -1) for x in (1.0, v, v**2))


def _mean(values: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    return (weights * values).sum(-1)


KINDS: dict[str, Callable[..., np.ndarray]] = {
    "none": _mean,
    "tv": _tv,
    "kl": _kl,
    "chi2": _chi2,
    "tv_ball": _tv_ball,
    "kl_ball": _kl_ball,
    "chi2_ball": _chi2_ball,
}


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A finite MDP P(s'|s,a) = sum_i phi_i(s,a) mu_i(s') whose factors mu_i nature perturbs one by one.

    Attributes:
        rewards: `(S, A)` expected. features: phi, `(S, A, d)`. measures: mu, `(d, S)` or one per step.
        start: `(S,)`. steps: the horizon.
    """

    rewards: np.ndarray
    features: np.ndarray
    measures: np.ndarray
    start: np.ndarray
    steps: int
    discount: float = 1.0

    @classmethod
    def of(
        cls, mdp: FiniteMDP, features: np.ndarray | None = None, measures: np.ndarray | None = None
    ) -> LinearModel:
        """Builds the model of an MDP.

        Without factors nature perturbs every state and action by itself ((s, a)-rectangular). If episodes
        can end, the end is one more state, the last, which pays nothing.

        Raises:
            CorerlError: factors that do not give the MDP's transitions.
        """
        states, actions = mdp.sizes
        ends = int((mdp.successors == END).any())
        count = states + ends
        rewards = np.zeros((count, actions))
        rewards[:states] = (mdp.probabilities * mdp.rewards).sum(-1)
        kernel, place = np.zeros((count, actions, count)), np.indices(mdp.successors.shape)
        np.add.at(kernel, (place[0], place[1], mdp.successors), mdp.probabilities)
        kernel[states:, :, -1] = 1.0
        start = np.append(mdp.start, np.zeros(ends))
        if features is None or measures is None:
            features = np.eye(count * actions).reshape(count, actions, -1)
            measures = kernel.reshape(count * actions, count)
        _check(kernel, features, measures, ends)
        return cls(rewards, features, measures, start, mdp.steps, mdp.discount)


def _check(kernel: np.ndarray, features: np.ndarray, measures: np.ndarray, ends: int) -> None:
    states, actions, _ = kernel.shape
    d, last = len(measures), " (the last state is the end)" * ends
    require(
        features.shape == (states, actions, d) and measures.shape == (d, states),
        f"features have shape {features.shape} and measures {measures.shape}, but must have shapes (S, A, d) "
        f"and (d, S), with (S, A) = ({states}, {actions}){last}",
    )
    off = np.abs(features @ measures - kernel).max()
    reported = f"features @ measures differ from the MDP's transitions by up to {off:.3g}"
    require(
        off < 1e-9, f"{reported}. Give features and measures whose product equals the transitions"
    )


def action_values(
    model: LinearModel, kind: str, scale: float, next_value: np.ndarray, t: int = 0
) -> np.ndarray:
    """Returns r(s,a) + discount sum_i phi_i(s,a) worst_i[V], `(S, A)`: one robust Bellman backup."""
    measures = model.measures if model.measures.ndim == 2 else model.measures[t]
    worst = worst_case(kind, next_value, measures, scale)
    return model.rewards + model.discount * model.features @ worst


def best_policy(
    model: LinearModel,
    kind: str,
    scale: float,
    eta: float = 0.0,
    reference: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the robust optimum by backward induction.

    With `eta` above 0 the agent pays eta KL(pi, reference) at every step. `reference` is `(S, A)`, None for
    uniform. At 0 the policy takes the first best action.

    Returns:
        Values `(T + 1, S)` and the policy's probabilities `(T, S, A)`.
    """
    values, policy = [np.zeros(len(model.start))], []
    for t in reversed(range(model.steps)):
        q = action_values(model, kind, scale, values[0], t)
        value, probabilities = improve(q, eta, reference)
        values.insert(0, value)
        policy.insert(0, probabilities)
    return np.array(values), np.array(policy)


def improve(
    q: np.ndarray, eta: float, reference: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns max_pi pi.q - eta KL(pi, reference) `(S,)`, and the pi that reaches it `(S, A)`."""
    top = q.max(-1, keepdims=True)
    if eta == 0:
        return top[..., 0], np.eye(q.shape[-1])[first_best(q)]
    reference = np.full(q.shape, 1 / q.shape[-1]) if reference is None else reference
    weights = reference * np.exp((q - top) / eta)
    total = weights.sum(-1, keepdims=True)
    return (top + eta * np.log(total))[..., 0], weights / total


def policy_value(
    model: LinearModel,
    kind: str,
    scale: float,
    policy: np.ndarray,
    eta: float = 0.0,
    reference: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a policy's worst-case values `(T + 1, S)`, less eta KL(pi, reference) per step.

    `policy` is `(T, S, A)` probabilities.
    """
    values = [np.zeros(len(model.start))]
    for t in reversed(range(model.steps)):
        gained = action_values(model, kind, scale, values[0], t)
        if eta > 0:
            gained = gained - eta * log_ratio(policy[t], reference)
        values.insert(0, (policy[t] * gained).sum(-1))
    return np.array(values)


def log_ratio(policy: np.ndarray, reference: np.ndarray | None) -> np.ndarray:
    """Returns log(pi / reference). It is 0 where pi is 0, and infinite where the reference alone is."""
    reference = np.full(policy.shape, 1 / policy.shape[-1]) if reference is None else reference
    with np.errstate(divide="ignore"):
        ratio = np.where(policy > 0, policy, 1.0) / np.where(policy > 0, reference, 1.0)
    return np.log(ratio)
