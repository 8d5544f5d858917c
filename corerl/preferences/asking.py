"""A teacher that is asked during training: when, about which segments, and what it has answered.

B-Pref's schedule (Lee et al. 2021, arXiv:2111.03026; rll-research/BPref at f3ece2e): a budget of questions,
so many at a time, about segments of the latest episodes. Candidates are drawn uniformly. Those are asked
on which the members of the reward ensemble disagree, or of which they are least certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.replay import ReplayBuffer
from corerl.config import Settings, at_least, one_of, positive, require, within
from corerl.errors import CorerlError
from corerl.nn.learner import Stateful
from corerl.preferences import teachers
from corerl.preferences.buffer import Pairs
from corerl.preferences.hindsight import Windows, World
from corerl.preferences.reward_models import MarkovReward
from corerl.training.environments import Step

ANCHOR = 10
"""Latest episodes whose mean return is the unit of `skip` and `equal`."""


@dataclass
class Queries(Settings):
    """Settings for questions during training. Part of an algorithm's `Config`, as `queries`.

    The first session draws its pairs uniformly, whatever `chooser` is.
    """

    prefix: ClassVar[str] = "algo.queries."

    teacher: str = one_of("script", "person")  # script (by true rewards) | person (you, on a page)
    budget: int = positive(1_400)  # questions per seed in total
    at_once: int = positive(128)  # questions per session (schedule can lower or raise it)
    every: int = positive(5_000)  # environment steps between sessions of questions
    schedule: str = one_of(  # constant | falling | rising number of questions per session
        "constant", "falling", "rising"
    )
    chooser: str = one_of(  # chooses pairs by uniform draws | most disagreement | most entropy
        "uniform", "disagreement", "entropy"
    )
    candidates: int = positive(10)  # number of pairs from which a question is chosen
    length: int = positive(50)  # number of steps in each compared segment
    memory: int = positive(100_000)  # segments are drawn from this many latest steps of each seed
    epochs: int = positive(200)  # largest number of epochs of reward training after a session
    stop_accuracy: float = within(0.97, "(0, 1]")  # reward training stops above this accuracy
    # The script's faults, as of `Preferences`.
    beta: float | None = at_least(  # P(win) = sigmoid(beta * return difference) (null: no noise)
        0, None
    )
    gamma: float = within(  # a myopic teacher weighs reward t of an L-step segment by gamma^(L-1-t)
        1.0, "(0, 1]"
    )
    epsilon: float = within(0.0, "[0, 1]")  # probability that a preference is reversed
    skip: float = at_least(  # a pair needs a return above this share of a usual segment's return
        0, 0.0
    )
    equal: float = at_least(  # returns tie if closer than this share of a usual segment's return
        0, 0.0
    )

    def count(self, step: int, steps: int, asked: int) -> int:
        """Returns how many questions a session at this step has."""
        left = max(1, steps - step)
        share = {"constant": 1.0, "falling": left / steps, "rising": steps / (left + 1)}
        return min(max(1, int(self.at_once * share[self.schedule])), self.budget - asked)


class Trail(Stateful):
    """True rewards and ends of the latest steps `(S, N)`, on the host: what a script judges by."""

    def __init__(self, seeds: int, steps: int):
        self.rewards = torch.zeros(seeds, steps)
        self.over = torch.zeros(seeds, steps, dtype=torch.bool)
        self.added = torch.zeros((), dtype=torch.int64)

    def add(self, step: Step) -> None:
        """Keeps a step of every seed."""
        place = int(self.added) % self.rewards.shape[1]
        self.rewards[:, place] = torch.from_numpy(step.rewards.astype(np.float32))
        self.over[:, place] = torch.from_numpy(step.terminated | step.truncated)
        self.added += 1

    def end_episodes(self, seeds: np.ndarray) -> None:
        """Ends the running episodes of these seeds `(S,)` bool at their latest step."""
        self.over[torch.from_numpy(seeds), (int(self.added) - 1) % self.over.shape[1]] = True

    def latest(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns rewards and ends `(S, n)` in the order of time, and the number of the first step."""
        added, size = int(self.added), self.rewards.shape[1]
        n = min(added, size)
        order = torch.arange(added - n, added) % size
        return self.rewards[:, order].numpy(), self.over[:, order].numpy(), added - n


def possible_starts(over: np.ndarray, length: int) -> np.ndarray:
    """Returns where a segment within one episode can start, of one seed's ends `(n,)`.

    Raises:
        CorerlError: nowhere.
    """
    inside = np.concatenate([[0], np.cumsum(over)])
    first = np.arange(len(over) - length + 1)
    found = first[inside[first + length - 1] == inside[first]]
    if not len(found):
        raise CorerlError(
            f"No episode has algo.queries.length={length} steps so far. Lower algo.queries.length, or raise "
            "algo.explore_steps to ask later."
        )
    return found


def unit_of(rewards: np.ndarray, over: np.ndarray, length: int) -> float:
    """Returns about what a segment is worth: the latest episodes' mean return * L / steps of the longest."""
    ends = np.flatnonzero(over)
    if not len(ends):
        return float(rewards.sum() * length / len(rewards))
    starts = np.concatenate([[0], ends[:-1] + 1])
    returns = [rewards[a : b + 1].sum() for a, b in zip(starts, ends, strict=True)]
    return float(np.mean(returns[-ANCHOR:]) * length / (ends - starts + 1).max())


def judged(rewards: np.ndarray, cfg: Queries, unit: float, rng: np.random.Generator) -> np.ndarray:
    """Returns labels `(n,)` of true rewards `(n, 2, L)` by B-Pref's teacher: 0, 0.5 or 1, NaN where skipped.

    The rules are those of `teachers.teach`. `unit` is what `skip` and `equal` are shares of.
    """
    plain = rewards.sum(-1)
    later = (rewards * cfg.gamma ** np.arange(rewards.shape[-1])[::-1]).sum(-1)
    labels = teachers.answers(cfg, later, plain, unit, *rng.random((2, len(rewards))))
    if cfg.skip:
        labels = np.where(plain.max(1) > cfg.skip * unit, labels, np.nan)
    return labels


class Answers(Stateful):
    """The answered pairs of every seed, `(S, P, 2, L, O + A)` on the device, and their labels `(S, P)`.

    Attributes:
        count: `(S,)` answered. asked: `()` questions so far, skipped ones included. sessions: `()`.
    """

    def __init__(
        self, cfg: Queries, sizes: tuple[int, int], seeds: int, device: torch.device | str
    ):
        self._sizes = sizes
        shape = (seeds, cfg.budget, 2, cfg.length, sum(sizes))
        self.segments = torch.zeros(shape, device=device)
        self.labels = torch.zeros(shape[:2], device=device)
        self.count = torch.zeros(seeds, dtype=torch.int64, device=device)
        self.asked, self.sessions = (torch.zeros((), dtype=torch.int64) for _ in range(2))

    def add(self, segments: Tensor, labels: np.ndarray) -> None:
        """Keeps the answered ones of `(S, n, 2, L, O + A)`. Labels `(S, n)` are NaN where skipped."""
        for i, row in enumerate(labels):
            kept = np.flatnonzero(~np.isnan(row))
            start, stop = int(self.count[i]), int(self.count[i]) + len(kept)
            self.segments[i, start:stop] = segments[i, torch.from_numpy(kept).to(segments.device)]
            self.labels[i, start:stop] = torch.from_numpy(row[kept]).to(self.labels)
            self.count[i] = stop
        self.asked += labels.shape[1]
        self.sessions += 1

    def keep(self, i: int, pair: Tensor, label: float) -> None:
        """Keeps one answer of seed number i, about a pair `(2, L, O + A)`."""
        place = int(self.count[i])
        self.segments[i, place], self.labels[i, place] = pair, label
        self.count[i] += 1

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Returns observations and actions `(S, P', 2, L, ...)`, P' being the most that a seed has."""
        return self.segments[:, : int(self.count.max())].split(self._sizes, -1)

    def draw(self, uniforms: Tensor, importance: Tensor | None = None) -> Pairs:
        """Returns pairs drawn with replacement by `uniforms` `(S, B)`, as many of each seed as it has.

        `importance` `(S, P', 2, L)` goes with them.
        """
        chosen = (uniforms * self.count[:, None]).long()
        seeds = torch.arange(len(chosen), device=chosen.device)[:, None]
        observations, actions = self.segments[seeds, chosen].split(self._sizes, -1)
        if importance is not None:
            importance = importance[seeds, chosen]
        return Pairs(observations, actions, self.labels[seeds, chosen], importance)


def doubt(reward: MarkovReward, segments: Tensor, chooser: str) -> Tensor:
    """Returns how much the answer to each pair is in doubt, `(S, n)`, of segments `(S, n, 2, L, O + A)`.

    disagreement: the standard deviation over members of the probability that the second is preferred.
    entropy: the mean over members of its entropy.
    """
    with torch.no_grad():
        flat = reward(segments.flatten(1, 3)[:, None])
        scores = flat.unflatten(-1, segments.shape[1:4]).sum(-1)  # (S, M, n, 2)
        p = torch.sigmoid(scores[..., 1] - scores[..., 0])
    if chooser == "disagreement":
        return p.std(1, correction=0)
    return torch.special.entr(p).add(torch.special.entr(1 - p)).mean(1)


@dataclass(frozen=True, eq=False)
class Questions:
    """A session's pairs: `segments` `(S, n, 2, L, O + A)`, and their true rewards `(S, n, 2, L)`."""

    segments: Tensor
    rewards: np.ndarray


def choose(
    cfg: Queries,
    trail: Trail,
    replay: ReplayBuffer,
    reward: MarkovReward,
    count: int,
    seeds: Sequence[int],
    session: int,
) -> Questions:
    """Chooses a session's questions.

    Raises:
        CorerlError: no episode is long enough.
    """
    rewards, over, begin = trail.latest()
    first = session == 0 or cfg.chooser == "uniform"
    drawn = count if first else count * cfg.candidates
    starts = []
    for i, seed in enumerate(seeds):
        rng = np.random.default_rng(seeding.derive(seed, f"queries {session}"))
        found = possible_starts(over[i], cfg.length)
        starts.append(found[rng.integers(len(found), size=(drawn, 2))])
    places = torch.from_numpy(np.array(starts))
    segments = replay.segments(places + begin, cfg.length)
    if not first:
        best = doubt(reward, segments, cfg.chooser).topk(count, 1).indices.cpu()
        rows = torch.arange(len(seeds))[:, None]
        segments, places = segments[rows, best], places[rows, best]
    steps = places[..., None] + torch.arange(cfg.length)
    judged_by = rewards[np.arange(len(seeds))[:, None, None, None], steps.numpy()]
    return Questions(segments, judged_by)


def windows(
    cfg: Queries,
    trail: Trail,
    replay: ReplayBuffer,
    world: World,
    seeds: Sequence[int],
    session: int,
) -> Iterator[Windows]:
    """Yields a session's batches for the world model, of segments as long as those that are asked about.

    Raises:
        CorerlError: no episode is long enough.
    """
    _, over, begin = trail.latest()
    shape, starts = (world.steps, world.batch_size), []
    for i, seed in enumerate(seeds):
        rng = np.random.default_rng(seeding.derive(seed, f"windows {session}"))
        found = possible_starts(over[i], cfg.length)
        starts.append(found[rng.integers(len(found), size=shape)])
    for first in torch.from_numpy(np.array(starts)).unbind(1):
        yield Windows(*replay.transitions(first + begin, cfg.length))


def answered(cfg: Queries, questions: Questions, trail: Trail, seeds: Sequence[int], session: int):
    """Returns a script's labels `(S, n)` of the questions.

    Raises:
        CorerlError: `skip` or `equal` is asked for, and episodes return nothing on average.
    """
    rewards, over, _ = trail.latest()
    labels = []
    for i, seed in enumerate(seeds):
        rng = np.random.default_rng(seeding.derive(seed, f"answers {session}"))
        unit = unit_of(rewards[i], over[i], cfg.length) if cfg.skip or cfg.equal else 0.0
        require(
            unit > 0 or not (cfg.skip or cfg.equal),
            "algo.queries.skip and .equal are shares of the mean episode return, but the latest "
            f"episodes of seed {seed} have a mean return of 0 or less. Set both settings to 0",
        )
        labels.append(judged(questions.rewards[i].astype(np.float64), cfg, unit, rng))
    return np.array(labels)
