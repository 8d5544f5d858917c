"""P2R: preference-based RL by reward-based RL (Wang, Liu and Jin 2023, NeurIPS, arXiv:2306.14111).

A learner that tolerates small errors in its rewards learns from preferences as well as from rewards. An
interface stands between it and a person. It returns the reward of a segment x relative to one baseline x_0,
and asks only where it must:

    B       = {theta : sum_i (theta.x_i - r_i)^2 + ridge ||theta||^2 <= least + radius^2}   of the answers r_i
    width   = max_{theta in B} |theta.x - theta^.x| = radius ||x||_{V^-1},   V = ridge I + sum_i x_i x_i'
    if width <= tolerance:  return theta^.x, and ask nothing
    otherwise:              compare x with x_0 `comparisons` times; p is the share of wins
                            return r = argmin_{|r| <= most} |sigmoid(r) - p|, and add (x, r)

Here x is the features of a segment less those of the baseline. Each new direction is asked about once, so
that the number of questions does not grow with the episodes. The learner is UCBVI, optimistic value iteration
(Azar, Osband and Munos 2017). Its rewards are a ridge regression of the answers.

    python algos/p2r.py task=risk/low-rank steps=1000
    corerl train -m algo=p2r task=risk/low-rank algo.feedback=preferences,rewards seeds=5

A step is an episode. `suboptimality` is the exact optimum less the exact mean return of the policy that
the episode used, and `regret` is its sum. `questions` counts segments that were compared. With
`feedback=rewards` the learner gets the true relative rewards, without the interface. For comparisons
that are given, take `algo=pref_pessimistic`.

Differences. The interface was read in a public summary of the paper, which has no code.
 1. Rewards are linear in features, and the class of rewards is an ellipsoid. The paper has any class.
 2. The radius is a setting. With radius = tolerance, a direction is asked about until V holds it once.
 3. Answers are not remembered by segment. Of a segment that comes again the estimate is as near.
 4. `segment=step` compares single steps, as the paper does in tabular MDPs. With `segment=episode` the
    learner gets one number per episode. `beta` adds a bonus where its rewards are uncertain.
 5. UCBVI's bonus is bonus_scale (H - 1 - h) sqrt(log(S A H k / delta) / visits), without the variance.
    With a scale of 1 every value is at its cap for thousands of episodes.
 6. The baseline is the first segment of an episode of uniform actions. The paper leaves it open.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from corerl import seeding
from corerl.algos.pref_pessimistic import features_of
from corerl.config import Settings, at_least, one_of, positive, within
from corerl.nn.learner import Sizes, Spec
from corerl.risk.finite_mdp import first_best
from corerl.risk.occupancy import best_occupancy, expected_rewards, occupancy_of
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import Learners, TabularLearner, linear_model, play


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "p2r"
    label: str = "P2R"

    feedback: str = one_of("preferences", "rewards")  # learns from preferences | true rewards
    segment: str = one_of("step", "episode")  # compares a step | an episode with the baseline
    comparisons: int = within(  # comparisons with the baseline per question
        1_000, "[1, 1000000000]"
    )
    tolerance: float = positive(0.1)  # uncertainty of a reward above which the person is asked
    radius: float = positive(0.1)  # radius of the confidence set of rewards
    ridge: float = positive(0.01)  # ridge penalty of the regressions of rewards
    bonus_scale: float = at_least(0, 0.2)  # factor of UCBVI's exploration bonus (1: as in theory)
    beta: float = at_least(0, 0.1)  # weight of the bonus for uncertain rewards
    delta: float = within(0.1, "(0, 1)")  # failure probability in UCBVI's bonus


class Regression:
    """Ridge regression of numbers on features. Attributes: `gram` (d, d) and `moments` (d,)."""

    def __init__(self, gram: np.ndarray, moments: np.ndarray):
        self.gram, self.moments = gram, moments

    def add(self, x: np.ndarray, y: float) -> None:
        """Adds an observation."""
        self.gram += np.outer(x, x)
        self.moments += y * x

    def theta(self) -> np.ndarray:
        """Returns the coefficients `(d,)`."""
        return np.linalg.solve(self.gram, self.moments)

    def norm(self, x: np.ndarray) -> np.ndarray:
        """Returns ||x|| by the inverse of the Gram matrix, `(...)` of `(..., d)`."""
        return np.sqrt(np.einsum("...d,de,...e->...", x, np.linalg.inv(self.gram), x))


class P2R(TabularLearner):
    """One learner. Attributes: `counts` (S, A, S) of transitions, and `table` (H, S) of the last episode."""

    arrays = ("counts", "table", "gram", "moments", "told_gram", "told_moments", "baseline")
    counters = ("episodes", "questions")

    def __init__(self, cfg: Config, env: Any, rng: np.random.Generator):
        self.cfg, self.mdp, self.rng = cfg, env.mdp, rng
        self.features, self.rewards = features_of(env), expected_rewards(env.mdp)
        size = self.features.shape[2]
        self.gram, self.told_gram = (cfg.ridge * np.eye(size) for _ in range(2))
        self.moments, self.told_moments = np.zeros(size), np.zeros(size)
        self.answers = Regression(self.gram, self.moments)  # the interface's
        self.reward_model = Regression(self.told_gram, self.told_moments)  # the learner's
        self.counts = np.zeros((*self.mdp.sizes, self.mdp.sizes[0]))
        self.table = np.zeros((self.mdp.horizon, self.mdp.sizes[0]), int)
        length = 1 if cfg.segment == "step" else self.mdp.horizon
        self.weights = self.mdp.discount ** np.arange(length)  # of the steps of a segment
        features, worth = self.segments(play(self.mdp, None, rng))
        self.baseline = np.append(
            features[0], worth[0]
        )  # features, and the reward that nobody sees
        self.episodes = self.questions = 0

    def episode(self) -> dict[str, float]:
        """Plans, plays once and learns from it."""
        self.episodes += 1
        self.plan()
        trajectory = play(self.mdp, self.table, self.rng)
        for state, action, successor in trajectory:
            self.counts[state, action, successor] += 1
        for features, worth in zip(*self.segments(trajectory), strict=True):
            x, relative = features - self.baseline[:-1], worth - self.baseline[-1]
            asked = self.cfg.feedback == "preferences"
            self.reward_model.add(x, self.reward(x, relative) if asked else relative)
        return {"questions": float(self.questions)}

    def segments(self, trajectory: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the features `(N, d)` and the true rewards `(N,)` of what is compared."""
        states, actions, _ = np.array(trajectory).T
        features, paid = self.features[states, actions], self.rewards[states, actions]
        if self.cfg.segment == "step":
            return features, paid
        return self.weights[None] @ features, self.weights[None] @ paid

    def reward(self, x: np.ndarray, relative: float) -> float:
        """Returns the reward of features x, both relative to the baseline. The person knows `relative`."""
        if self.cfg.radius * self.answers.norm(x) <= self.cfg.tolerance:
            return float(self.answers.theta() @ x)
        self.questions += 1
        count, most = self.cfg.comparisons, self.weights.sum()
        share = self.rng.binomial(count, 1 / (1 + np.exp(-relative))) / count
        found = float(np.clip(logit(share), -most, most))
        self.answers.add(x, found)
        return found

    def plan(self) -> np.ndarray:
        """Sets `table` by optimistic value iteration, and returns the values `(H + 1, S)`."""
        cfg, (states, actions) = self.cfg, self.mdp.sizes
        steps, visits = self.mdp.horizon, self.counts.sum(-1)
        kernel = self.counts / np.maximum(visits, 1)[..., None]
        log = np.log(states * actions * steps * self.episodes / cfg.delta)
        unsure = cfg.bonus_scale * np.sqrt(log / np.maximum(visits, 1))
        x = self.features - self.baseline[:-1] / self.weights.sum()  # sums to an episode's x
        rewards = x @ self.reward_model.theta() + cfg.beta * self.reward_model.norm(x)
        values = np.zeros((steps + 1, states))
        for h in reversed(range(steps)):
            left = steps - 1 - h
            after = np.where(visits > 0, kernel @ values[h + 1] + left * unsure, left)
            q = np.minimum(rewards + self.mdp.discount * after, left + 1)
            self.table[h] = first_best(q)
            values[h] = q.max(1)
        return values

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Returns the action of the last plan."""
        return int(self.table[t, state])

    def value(self) -> float:
        """Returns the last plan's exact mean return."""
        policy = np.eye(self.mdp.sizes[1])[self.table]
        return float((occupancy_of(self.mdp, policy) * self.rewards).sum())


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the optimum."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(seed, "p2r")) for seed in spec.identities]
    return Learners([P2R(cfg, env, rng) for rng in rngs], best_occupancy(env.mdp).value, P2R.value)


parts = tabular.learners_parts


def train(cfg: Config, run: Run) -> None:
    linear_model(run.task)  # raises where no fixed number of steps pays at most one each
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        run.log(step, agent.update())
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
