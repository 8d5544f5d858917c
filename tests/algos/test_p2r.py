"""P2R: a transcription, the reduction with certain answers, the bound on questions, learning, runs."""

import math

import numpy as np
import pytest

from corerl.algos import p2r
from corerl.envs.low_rank import LowRankEnv
from corerl.envs.three_arms import ThreeArmsEnv
from corerl.risk.occupancy import best_occupancy
from corerl.training.tabular import play

ENV = LowRankEnv()
OPTIMUM = best_occupancy(ENV.mdp).value
SEGMENTS = ("step", "episode")
CERTAIN = 10**9
"""Answers to one question that leave hardly an error."""


def learner(seed: int = 0, env=ENV, **own) -> p2r.P2R:
    return p2r.P2R(p2r.Config(**own), env, np.random.default_rng(seed))


def one_hot(place: int, size: int) -> np.ndarray:
    return np.eye(size)[place]


class Transcription:
    """The interface and the learner once more, from lists, for features of every state and action."""

    def __init__(self, cfg: p2r.Config, first: list[tuple[int, int, int]]):
        self.cfg, (self.states, self.actions) = cfg, ENV.mdp.sizes
        self.size, self.steps = self.states * self.actions, ENV.mdp.horizon
        self.paid = (ENV.mdp.probabilities * ENV.mdp.rewards).sum(-1)
        self.asked, self.heard, self.met = [], [], []
        self.first, self.first_paid = self.segments(first)[0]

    def segments(self, trail):
        each = [
            (one_hot(s * self.actions + a, self.size), self.paid[s, a].item()) for s, a, _ in trail
        ]
        return each if self.cfg.segment == "step" else [tuple(map(sum, zip(*each, strict=True)))]

    def fitted(self, seen):
        gram = self.cfg.ridge * np.eye(self.size) + sum(np.outer(x, x) for x, _ in seen)
        return np.linalg.inv(gram), np.linalg.inv(gram) @ sum(y * x for x, y in seen)

    def answer(self, x, relative, rng):
        if self.asked:
            inverse, theta = self.fitted(self.asked)
        else:
            inverse, theta = np.eye(self.size) / self.cfg.ridge, np.zeros(self.size)
        if self.cfg.radius * math.sqrt(x @ inverse @ x) <= self.cfg.tolerance:
            return theta @ x
        share = rng.binomial(self.cfg.comparisons, 1 / (1 + math.exp(-relative)))
        share /= self.cfg.comparisons
        most = 1 if self.cfg.segment == "step" else self.steps
        y = -most if share == 0 else most if share == 1 else math.log(share / (1 - share))
        self.asked.append((x, min(max(y, -most), most)))
        return self.asked[-1][1]

    def learn(self, trail, rng):
        self.met += trail
        for features, paid in self.segments(trail):
            x = features - self.first
            self.heard.append((x, self.answer(x, paid - self.first_paid, rng)))

    def plan(self, episode):
        inverse, theta = self.fitted(self.heard)
        values, table = np.zeros((self.steps + 1, self.states)), np.zeros((self.steps, self.states))
        for h in reversed(range(self.steps)):
            for s in range(self.states):
                q = []
                for a in range(self.actions):
                    each = 1 if self.cfg.segment == "step" else self.steps
                    x = one_hot(s * self.actions + a, self.size) - self.first / each
                    after = [t for i, j, t in self.met if (i, j) == (s, a)]
                    left, value = self.steps - 1 - h, float(self.steps - 1 - h)
                    if after:
                        kinds = self.size * self.steps * episode
                        log = math.log(kinds / self.cfg.delta)
                        value = np.mean(values[h + 1][after])
                        value += self.cfg.bonus_scale * left * math.sqrt(log / len(after))
                    bonus = self.cfg.beta * math.sqrt(x @ inverse @ x)
                    q.append(min(theta @ x + bonus + value, left + 1))
                values[h, s], table[h, s] = max(q), np.argmax(np.round(q, 12))
        return values, table


@pytest.mark.parametrize("segment", SEGMENTS)
def test_the_learner_is_the_transcription(segment):
    agent = learner(3, segment=segment, comparisons=50, beta=0.3)
    rng = np.random.default_rng(3)
    other = Transcription(agent.cfg, play(ENV.mdp, None, rng))
    for k in range(1, 40):
        agent.episode()
        trail = play(ENV.mdp, agent.table, rng)
        if k > 1:
            np.testing.assert_array_equal(agent.table, other.plan(k)[1])
        other.learn(trail, rng)
        assert agent.questions == len(other.asked)
    agent.episodes += 1
    np.testing.assert_allclose(agent.plan(), other.plan(40)[0], atol=1e-9)


def test_one_question_by_hand():
    """Arms 1 and 2 differ by 0.1; the features of their difference have length sqrt(2)."""
    agent = learner(env=ThreeArmsEnv(), comparisons=CERTAIN, ridge=0.5, tolerance=0.1, radius=0.1)
    x = np.array([1.0, -1.0, 0.0])
    assert agent.answers.norm(x) == pytest.approx(math.sqrt(2 / 0.5))
    assert agent.reward(x, 0.1) == pytest.approx(0.1, abs=1e-3) and agent.questions == 1
    assert agent.answers.norm(x) == pytest.approx(math.sqrt(2 / 2.5))
    assert agent.reward(x, 0.1) == pytest.approx(0.1 * 2 / 2.5, abs=1e-3) and agent.questions == 1
    assert agent.reward(np.array([0.0, 0.0, 1.0]), 5.0) == 1.0, "no step pays more than 1"


@pytest.mark.parametrize("segment", SEGMENTS)
def test_with_certain_answers_it_is_the_learner_of_rewards(segment):
    """The reduction: rewards are the true relative ones, and so are all plans."""
    own = {"segment": segment, "ridge": 1e-9, "beta": 0.0, "comparisons": CERTAIN}
    asks, knows = learner(**own), learner(**own, feedback="rewards")
    for _ in range(200):
        knows.table[...] = asks.table
        for agent in (asks, knows):
            agent.episodes += 1
            agent.plan()
        trail = play(ENV.mdp, asks.table, np.random.default_rng(asks.episodes))
        for agent in (asks, knows):
            for s, a, t in trail:
                agent.counts[s, a, t] += 1
            for features, worth in zip(*agent.segments(trail), strict=True):
                x, relative = features - agent.baseline[:-1], worth - agent.baseline[-1]
                found = agent.reward(x, relative) if agent is asks else relative
                assert found == pytest.approx(relative, abs=2e-3)
                agent.reward_model.add(x, found)
        np.testing.assert_allclose(asks.plan(), knows.plan(), atol=0.05)
    assert asks.questions and not knows.questions


@pytest.mark.parametrize("segment", SEGMENTS)
def test_questions_keep_the_elliptical_bound_and_stop(segment):
    """n <= d log(1 + n L^2 / (d ridge)) / log(1 + c^2), the paper's eluder dimension of a linear class."""
    agent = learner(segment=segment)
    counted = []
    for k in range(1_000):
        agent.episode()
        if k in (299, 999):
            counted.append(agent.questions)
    d, longest = 18, 2.0 if segment == "step" else 2 * ENV.mdp.horizon**2
    bound = max(
        n for n in range(1, 1_000)
        if n <= d * math.log(1 + n * longest / (d * agent.cfg.ridge)) / math.log(2)
    )  # fmt: skip
    assert counted[-1] <= bound
    assert counted[1] - counted[0] <= 4 and counted[1] < 60, "while 700 episodes are played"
    assert segment == "episode" or counted[1] == d - 1, (
        "every other step is compared with the first"
    )


@pytest.mark.parametrize("segment", SEGMENTS)
def test_a_wider_set_asks_more(segment):
    few, many = learner(segment=segment), learner(segment=segment, radius=0.5)
    for _ in range(200):
        few.episode()
        many.episode()
    assert many.questions > 1.5 * few.questions


@pytest.mark.parametrize("segment", SEGMENTS)
def test_it_learns_the_optimum(segment):
    agent = learner(1, segment=segment, comparisons=10_000)
    lost = []
    for _ in range(1_500):
        agent.episode()
        lost.append(OPTIMUM - agent.value())
    assert min(lost) > -1e-9
    assert np.mean(lost[:20]) > 0.15 and np.mean(lost[-200:]) < 0.06


def test_values_are_optimistic_with_the_stated_widths():
    agent = learner(bonus_scale=1.0, beta=1.0)
    for _ in range(60):
        agent.episode()
        relative = OPTIMUM - ENV.mdp.horizon * agent.baseline[-1]
        assert ENV.mdp.start @ agent.plan()[0] >= relative
