"""Groups of labellers who want different things: a mixture of linear rewards by expectation-maximisation.

Chakraborty et al. 2024 (arXiv:2402.08925). Labeller h belongs to one of U groups, with a reward theta_u each:

    E   q_h(u) proportional to w_u prod over the rankings of h of their likelihood under theta_u
    M   theta_u = the most likely reward with weights q_h(u),    w_u = mean of q_h(u)

The likelihood never falls. It may end at a local maximum, so that the best of several starts is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.preferences.label_session import pairs_of_file
from corerl.preferences.likelihood import fit

LEAST = 1e-9
"""The least weight of a ranking in a group: the likelihood's weights are positive."""
AS_GOOD = 0.01
"""Fewer groups are taken where they predict an answer so nearly as well, in nats."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """U rewards of H labellers.

    Attributes:
        theta: `(U, d)`. weights: `(U,)`, the groups' shares. members: q `(H, U)`.
        likelihoods: log-likelihood after each round, ascending.
    """

    theta: np.ndarray
    weights: np.ndarray
    members: np.ndarray
    likelihoods: tuple[float, ...]


def of_rankings(theta: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Returns the log-likelihood of each ranking under each reward, `(N, U)`."""
    utilities = ranked @ theta.T  # (N, K, U)
    left = np.logaddexp.accumulate(utilities[:, ::-1], axis=1)[:, ::-1]
    return (utilities - left).sum(1)


def mixture(
    ranked: np.ndarray,
    labellers: np.ndarray,
    groups: int,
    rng: np.random.Generator,
    *,
    bound: float | None = 10.0,
    rounds: int = 60,
    starts: int = 5,
) -> Mixture:
    """Finds rewards and members of `groups` groups.

    Args:
        ranked: `(N, K, d)` features, best first. labellers: `(N,)`, 0 to H - 1, who gave each.
        bound: of the norm of each theta. rounds: at most. starts: random ones; the likeliest is kept.

    Raises:
        CorerlError: a labeller without answers, or fewer labellers than groups.
    """
    ranked, labellers = np.asarray(ranked, np.float64), np.asarray(labellers)
    count = int(labellers.max()) + 1 if len(labellers) else 0
    require(
        len(labellers) == len(ranked) and count > 0,
        f"labellers have shape {labellers.shape}, but need one labeller for each of the "
        f"{len(ranked)} rankings",
    )
    silent = np.setdiff1d(np.arange(count), labellers)
    require(
        not silent.size,
        f"labeller {silent[0] if silent.size else ''} has no answer. Leave that labeller out",
    )
    require(
        count >= groups,
        f"{groups} groups need at least {groups} labellers, but there are only {count}. Choose fewer groups",
    )
    found = [_climb(ranked, labellers, groups, rng, bound, rounds) for _ in range(starts)]
    return max(found, key=lambda mixture: mixture.likelihoods[-1])


def _climb(ranked, labellers, groups, rng, bound, rounds) -> Mixture:
    members = rng.dirichlet(np.ones(groups), labellers.max() + 1)
    likelihoods: list[float] = []
    for _ in range(rounds):
        weights = members.mean(0)
        each = np.maximum(members[labellers], LEAST)  # (N, U)
        theta = np.stack([fit(ranked, each[:, u], bound) for u in range(groups)])
        members, value = _posterior(theta, weights, ranked, labellers)
        likelihoods.append(value)
        if len(likelihoods) > 1 and value - likelihoods[-2] < 1e-9 * abs(value):
            break
    return Mixture(theta, members.mean(0), members, tuple(likelihoods))


def _posterior(theta, weights, ranked, labellers) -> tuple[np.ndarray, float]:
    """Returns q `(H, U)` and the log-likelihood of all rankings."""
    of_labeller = np.zeros((labellers.max() + 1, len(theta)))
    np.add.at(of_labeller, labellers, of_rankings(theta, ranked))
    joint = of_labeller + np.log(np.maximum(weights, LEAST))
    top = joint.max(1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(joint - top).sum(1))
    return np.exp(joint - total[:, None]), float(total.sum())


def held_out(ranked, labellers, groups: int, rng: np.random.Generator, **options) -> float:
    """Returns the mean log-likelihood of each labeller's last fifth, fitted on the others.

    Its largest value says how many groups the answers tell apart.
    """
    order = np.argsort(labellers, kind="stable")
    place = np.empty(len(order), int)
    _, first, counts = np.unique(labellers[order], return_index=True, return_counts=True)
    place[order] = np.arange(len(order)) - np.repeat(first, counts)
    late = place >= np.ceil(0.8 * counts)[labellers]
    require(
        late.any(),
        "No labeller has the five answers that are needed to hold one out. Answer more questions",
    )
    found = mixture(ranked[~late], labellers[~late], groups, rng, **options)
    known = _posterior(found.theta, found.weights, ranked[~late], labellers[~late])[0]
    later = np.zeros((labellers.max() + 1, groups))
    np.add.at(later, labellers[late], of_rankings(found.theta, ranked[late]))
    joint = later + np.log(np.maximum(known, 1e-300))
    top = joint.max(1, keepdims=True)
    return float((top[:, 0] + np.log(np.exp(joint - top).sum(1))).sum() / late.sum())


def questions_to_decide(found: Mixture, ranked: np.ndarray, odds: float = 99.0) -> float:
    """Returns how many of these questions tell a labeller's group apart from the nearest, at these odds.

    Of pairs: the mean Kullback-Leibler divergence between the groups' answers is what one question tells.
    """
    pairs = ranked[:, 1] - ranked[:, 0]
    chances = 1 / (1 + np.exp(pairs @ found.theta.T))  # (N, U), of the answer that was given
    least = math.inf
    for u in range(len(found.theta)):
        for v in set(range(len(found.theta))) - {u}:
            p, q = (np.clip(chances[:, g], 1e-12, 1 - 1e-12) for g in (u, v))
            divergence = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
            least = min(least, divergence)
    return math.log(odds) / least if least > 0 else math.inf


# Of label files.


def segments_of(
    labellers: dict[str, dict[str, np.ndarray]], dataset: Dataset
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs that were decided `(N, 2, d)`, the better first, and who judged each `(N,)`.

    The features of a segment are the mean of its observations and actions, in standard deviations.
    """
    rows = np.concatenate([dataset.observations, dataset.actions], 1).astype(np.float64)
    rows = (rows - rows.mean(0)) / (rows.std(0) + 1e-8)
    ranked, who = [], []
    for number, file in enumerate(labellers.values()):
        for pair, label in pairs_of_file(file):
            if label != 0.5:
                order = pair if label == 0 else pair[::-1]
                steps = np.array(order)[:, None] + np.arange(int(file["length"]))
                ranked.append(rows[steps].mean(1))
                who.append(number)
    for number, name in enumerate(labellers):
        require(number in who, f"{name} has not decided any pair. Leave this labeller out")
    return np.array(ranked), np.array(who)


def describe(
    labellers: dict[str, dict[str, np.ndarray]], dataset: Dataset, most: int = 4
) -> list[str]:
    """Writes how many groups the answers tell apart, their shares, and each labeller's group."""
    ranked, who = segments_of(labellers, dataset)
    counts = range(1, min(most, len(labellers)) + 1)
    found = {u: held_out(ranked, who, u, np.random.default_rng(0)) for u in counts}
    best = min(u for u, value in found.items() if value >= max(found.values()) - AS_GOOD)
    lines = [
        f"{len(ranked)} pairs of {len(labellers)} labellers",
        "groups  held-out log-likelihood",
    ]
    lines += [f"{u:6}  {value:.4f}{'  (taken)' if u == best else ''}" for u, value in found.items()]
    fitted = mixture(ranked, who, best, np.random.default_rng(0))
    for u in range(best):
        members = [
            f"{name} {q:.0%}"
            for name, q in zip(labellers, fitted.members[:, u], strict=True)
            if q == fitted.members[list(labellers).index(name)].max()
        ]
        lines.append(f"group {u + 1}, {fitted.weights[u]:.0%}: {', '.join(members)}")
    if best > 1:
        needed = questions_to_decide(fitted, ranked)
        lines.append(
            f"{needed:.0f} questions like these identify a new labeller's group with odds of 99 to 1"
        )
    return lines
