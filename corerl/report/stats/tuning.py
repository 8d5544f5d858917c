"""What it costs to choose settings by playing episodes: expected online performance, and a bandit."""

from typing import NamedTuple

import numpy as np


def expected_best(scores: np.ndarray, tried: int) -> tuple[float, float]:
    """Returns mean and standard deviation of the best of `tried` draws from `scores` `(N,)`, put back.

    Expected online performance (Kurenkov and Kolesnikov 2022, arXiv:2110.04156): the i-th smallest of N is
    the best of k with probability (i/N)^k - ((i-1)/N)^k. No sampling is involved.
    """
    ordered, edges = np.sort(scores), np.arange(len(scores) + 1) / len(scores)
    weights = np.diff(edges**tried)
    mean = float(weights @ ordered)
    return mean, float(np.sqrt(weights @ (ordered - mean) ** 2))


class Deployed(NamedTuple):
    """The true mean return of the policy deployed after 1, 2, ... episodes, `(T,)`, over repetitions.

    Also the bounds of the middle 95 % of them.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def bandit(
    returns: list[np.ndarray],
    *,
    arms: int = 8,
    pulls: int = 200,
    alpha: float = 2.0,
    repeats: int = 1000,
    seed: int = 0,
) -> Deployed:
    """Chooses among policies as an upper confidence bound would, an episode at a time.

    The evaluation of Jackson et al. 2025 (unifloral, arXiv:2504.11453): in every repetition `arms` policies
    are drawn, an episode is one of a policy's recorded returns, and the one with the highest mean so far is
    deployed. Difference: the bound's width, alpha * sqrt(log t / n), is in units of the standard deviation
    of all returns, so that no scale of rewards has to be chosen for.

    Args:
        returns: of each policy, `(episodes,)`.
    """
    rng = np.random.default_rng(seed)
    count, truth = len(returns), np.array([r.mean() for r in returns])
    unit = alpha * float(np.concatenate(returns).std())
    arms = min(arms, count)
    chosen = np.argsort(rng.random((repeats, count)), 1)[:, :arms]
    rows = np.arange(repeats)
    sums, played = np.zeros((repeats, arms)), np.zeros((repeats, arms))
    values = np.empty((pulls, repeats))
    for t in range(1, pulls + 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums / played
            index = means + unit * np.sqrt(np.log(t) / played)
        index[played == 0] = np.inf
        arm = index.argmax(1)
        policies, uniforms = chosen[rows, arm], rng.random(repeats)
        sums[rows, arm] += [
            returns[p][int(u * len(returns[p]))] for p, u in zip(policies, uniforms, strict=True)
        ]
        played[rows, arm] += 1
        seen = np.where(played > 0, sums / np.maximum(played, 1), -np.inf)
        values[t - 1] = truth[chosen[rows, seen.argmax(1)]]
    low, high = np.quantile(values, (0.025, 0.975), axis=1)
    return Deployed(values.mean(1), low, high)
