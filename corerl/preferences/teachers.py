"""Scripted teachers: the true rewards judge pairs of segments, as a perfect or a fallible human would.

They compare what segments return, or, with `judge`, how well their actions were chosen. A person who sees a
slow start of a good runner may well prefer it to the last steps of a fall; the return cannot, because a state
from which little can be had counts against the actions taken there. Regret sets it right (Knox et al. 2022,
arXiv:2206.02231), and it is what CPL takes labels to be (Hejna et al. 2024, arXiv:2310.13639). In place of
the t-th reward stands, for a segment from s_0 to s_L,

    judge=return       r_t
    judge=regret       r_t + V(s_t+1) - V(s_t), which sums to the return + V(s_L) - V(s_0)
    judge=advantage    r_t + discount * V(s_t+1) - V(s_t), the advantage where s_t+1 follows from s_t, a_t

with V fitted to the data (`preferences/values.py`) and 0 after a true end. The first is minus Knox et al.'s
regret of a deterministic segment and Hejna et al.'s label `rl_sum`, with the values of the policy of their
SAC; as their values are discounted and the sum is not, a share 1 - discount of every V is left in it, and
segments in good states keep an edge. The second has none left, and is nearest to their `rl_dir`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from corerl import seeding
from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError
from corerl.preferences import values
from corerl.preferences.comparisons import Comparisons

if TYPE_CHECKING:
    from corerl.preferences.sources import Preferences

PAIRS = 2_000  # compared where nobody says how many
ROUNDS = 100  # of new pairs for those that a teacher skips, before it counts as never answering


def teach(dataset: Dataset, cfg: Preferences) -> Comparisons:
    """Comparisons of random segments, judged by B-Pref's teacher (Lee et al. 2021, section 4.1).

    A segment's sum R runs over its true rewards. In this order, as in the authors' code:

     1. a pair is skipped, and another drawn, unless max R > skip * x;
     2. it is a tie where |R1 - R2| < equal * x, or where the sums of 3 are the same number;
     3. the sums judged by are of gamma^(L-1-t) r_t: later steps count more;
     4. the second is preferred where its sum is larger, or with probability sigmoid(beta (R2 - R1));
     5. with probability epsilon the preference, not a tie, is turned round.

    x is the mean return of the dataset's episodes * L / (steps of its longest episode): about what a
    segment is worth. With the default settings this is the oracle.

    Differences from B-Pref, each with its reason:
     1. Its training code multiplies its thresholds by `skip` and `equal` twice, so that 0.1 acts as 0.01;
        here they act once, as its paper says.
     2. x is over a dataset, where there are no last ten training episodes.
     3. Equal sums are a tie even with `equal=0`, instead of a preference for the first.
     4. `discount`, which B-Pref does not have, weighs r_t by discount^t besides.
     5. `judge` (the module's docstring), which it does not have either, puts another number in r_t's place.

    The pairs depend on the dataset, `seed` and `length` alone, except for those that are skipped: the
    first n of more pairs are those of n pairs, and teachers that skip nothing judge the same pairs.

    With `ranked` K > 2 it ranks K segments by these sums, and with `beta` by Plackett and Luce's model: by
    beta R plus a Gumbel number for each.

    Raises:
        CorerlError: no episode has `length` steps; a threshold is asked for and episodes return nothing
            on average; or hardly any segment is worth enough to be compared.
    """
    pairs = cfg.pairs or PAIRS
    sums = Sums(dataset, cfg)
    if cfg.ranked > 2:
        starts = _ranked(cfg, sums, questions(dataset, cfg, pairs))
        return Comparisons.of_dataset(dataset, starts, cfg.length, np.zeros(pairs), name(cfg))
    starts, kept = _draw(dataset, cfg, sums, pairs)
    labels = _labels(cfg, sums, starts, kept)
    return Comparisons.of_dataset(dataset, starts, cfg.length, labels, name(cfg))


def questions(dataset: Dataset, cfg: Preferences, count: int) -> np.ndarray:
    """Returns the first rows `(count, ranked)` of segments to rank, in no order.

    Raises:
        CorerlError: no episode has `length` steps.
    """
    possible = _possible(dataset, cfg)
    rng = np.random.default_rng(seeding.derive(cfg.seed, f"preferences/rankings of {cfg.ranked}"))
    return possible[rng.integers(len(possible), size=(count, cfg.ranked))]


def _ranked(cfg: Preferences, sums: Sums, starts: np.ndarray) -> np.ndarray:
    """Returns the rows with the best first."""
    utility = sums.judged(starts)
    if cfg.beta is not None:
        rng = np.random.default_rng(seeding.derive(cfg.seed, "preferences/choices"))
        utility = cfg.beta * utility + rng.gumbel(size=starts.shape)
    return np.take_along_axis(starts, np.argsort(-utility, 1, kind="stable"), 1)


def name(cfg: Preferences) -> str:
    """Names it `teacher`, with the settings that differ from the oracle's: `teacher(epsilon=0.1)`."""
    oracle = {
        "ranked": 2,
        "judge": "return",
        "beta": None,
        "gamma": 1.0,
        "epsilon": 0.0,
        "skip": 0.0,
        "equal": 0.0,
        "discount": 1.0,
    }
    reported = [
        f"{key}={found if isinstance(found, str) else f'{found:g}'}"
        for key, value in oracle.items()
        if (found := getattr(cfg, key)) != value
    ]
    if cfg.judge != "return":
        reported += [
            f"values.{f.name}={found:g}"
            for f in fields(cfg.values)
            if (found := getattr(cfg.values, f.name)) != f.default
        ]
    return f"teacher({', '.join(reported)})" if reported else "teacher"


class Sums:
    """The sums of rewards, or of what `judge` puts in their place, by which a teacher compares segments."""

    def __init__(self, dataset: Dataset, cfg: Preferences):
        self._rewards = worth(dataset, cfg)
        steps = np.arange(cfg.length)
        self._steps = steps
        self._weights = cfg.gamma ** steps[::-1] * cfg.discount**steps
        self.unit = 0.0
        if cfg.skip or cfg.equal:
            mean = float(dataset.episode_returns().mean())
            require(
                mean > 0,
                "algo.preferences.skip and .equal are shares of the mean episode return, but "
                f"episodes of {dataset.id} return {mean:.4g} on average. Set both settings to 0",
            )
            self.unit = mean * cfg.length / float(dataset.episode_lengths().max())

    def plain(self, starts: np.ndarray) -> np.ndarray:
        """Returns R, the sums of rewards, of the segments that start at `starts` (...)."""
        return self._rewards[starts[..., None] + self._steps].sum(-1)

    def judged(self, starts: np.ndarray) -> np.ndarray:
        """Returns the sums of rule 3 of `teach`, for segments that start at `starts` (...)."""
        return (self._rewards[starts[..., None] + self._steps] * self._weights).sum(-1)


def worth(dataset: Dataset, cfg: Preferences) -> np.ndarray:
    """Returns what each row counts, `(N,)` float64: its reward, or as `judge` says."""
    rewards = dataset.rewards.astype(np.float64)
    if cfg.judge == "return":
        return rewards
    before, after = values.fit(dataset, cfg.values, cfg.seed)
    return rewards + (1.0 if cfg.judge == "regret" else cfg.values.discount) * after - before


def segment_starts(dataset: Dataset, length: int) -> np.ndarray:
    """Returns the rows at which a segment of `length` steps can start within one true episode.

    All rows of such a segment make transitions, so that the next observation of each is real.
    """
    stop = np.repeat(dataset.episode_ends, dataset.episode_lengths())
    rows = np.arange(len(dataset))
    lost = np.concatenate([[0], np.cumsum(~dataset.has_next)])
    fits = np.flatnonzero(rows + length <= stop)
    return fits[lost[fits + length] == lost[fits]]


def _possible(dataset: Dataset, cfg: Preferences) -> np.ndarray:
    possible = segment_starts(dataset, cfg.length)
    require(
        len(possible) > 0,
        f"no episode of {dataset.id} has a segment of {cfg.length} steps "
        f"(the longest has {dataset.episode_lengths().max()}). Lower "
        f"algo.preferences.length={cfg.length}",
    )
    return possible


def _draw(
    dataset: Dataset, cfg: Preferences, sums: Sums, pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Starts (P, 2) of the pairs that are answered, uniform over all starts, and their numbers (P,)."""
    possible = _possible(dataset, cfg)
    rng = np.random.default_rng(seeding.derive(cfg.seed, "preferences/segments"))
    answered, numbers = [], []
    for round in range(ROUNDS):
        drawn = possible[rng.integers(len(possible), size=(pairs, 2))]
        worth = np.arange(pairs)
        if cfg.skip:
            worth = np.flatnonzero(sums.plain(drawn).max(1) > cfg.skip * sums.unit)
        answered.append(drawn[worth])
        numbers.append(round * pairs + worth)
        if sum(map(len, numbers)) >= pairs:
            return np.concatenate(answered)[:pairs], np.concatenate(numbers)[:pairs]
    raise CorerlError(
        f"algo.preferences.skip={cfg.skip:g} leaves {sum(map(len, numbers))} of {ROUNDS * pairs} "
        f"pairs of segments of {dataset.id}, but {pairs} are needed. Lower algo.preferences.skip."
    )


def _labels(cfg: Preferences, sums: Sums, starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Labels (P,). Chance belongs to a pair's number, so that more pairs change none before them."""
    chance = [
        np.random.default_rng(seeding.derive(cfg.seed, f"preferences/{purpose}")).random(
            numbers[-1] + 1
        )[numbers]
        for purpose in ("choices", "mistakes")
    ]
    return answers(cfg, sums.judged(starts), sums.plain(starts), sums.unit, *chance).astype(
        np.float32
    )


def answers(
    cfg: Any,
    judged: np.ndarray,
    plain: np.ndarray,
    unit: float,
    choice: np.ndarray,
    mistake: np.ndarray,
) -> np.ndarray:
    """Returns labels `(P,)` of 0, 0.5 and 1 by rules 2, 4 and 5 of `teach`.

    Args:
        cfg: has beta, epsilon and equal. judged, plain: sums of both segments, `(P, 2)`. unit: x.
        choice, mistake: uniform numbers, `(P,)`.
    """
    first, second = judged.T
    labels = (choice < chance_of(second - first, cfg.beta)).astype(np.float64)
    labels = np.where(mistake < cfg.epsilon, 1 - labels, labels)
    ties = (np.abs(plain[:, 0] - plain[:, 1]) < cfg.equal * unit) | (first == second)
    return np.where(ties, 0.5, labels)


def chance_of(difference: np.ndarray, beta: float | None) -> np.ndarray:
    """Returns the chance that what is better by `difference` is preferred: sigmoid(beta x difference).

    Without beta it is 0, 1/2 or 1.
    """
    if beta is None:
        return 0.5 * (1 + np.sign(difference))
    # sigmoid(x) = (1 + tanh(x / 2)) / 2, which overflows nowhere
    return 0.5 + 0.5 * np.tanh(0.5 * beta * difference)
