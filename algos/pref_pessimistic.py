"""Pessimistic maximum likelihood of a linear reward from comparisons and K-wise rankings (Zhu, Jordan and
Jiao 2023, ICML, arXiv:2301.11270).

A segment x has features phi(x), the discounted sum of phi(s,a) over its steps, and the return theta.phi(x).
People rank K segments by the Plackett-Luce model, which for K = 2 is the Bradley-Terry model:

    P(x_1 > ... > x_K) = prod_k exp(theta.phi(x_k)) / sum_{j >= k} exp(theta.phi(x_j))
    theta^             = argmax of the likelihood over ||theta|| <= bound
    Sigma              = mean of (phi_j - phi_k)(phi_j - phi_k)' over the n rankings and their K(K-1)/2 pairs

Where comparisons cover badly, the greedy policy of theta^ may fail for every n. The pessimistic policy
maximises the least value over an ellipsoid around theta^:

    J(pi)  = min_theta theta.v = theta^.v - width ||v||_{(n Sigma + ridge I)^-1},   v = E_pi phi - nu

nu is a reference: only the advantage over it is uncertain. v is linear in the policy's occupancy, so the
maximum is a concave program. It is solved exactly: a linear program over occupancies finds the best policy
for finitely many theta, and the worst theta for that policy joins them until both agree (`plan`).

    python algos/pref_pessimistic.py task=risk/three-arms algo.comparisons=200
    corerl train -m algo=pref_pessimistic task=risk/three-arms algo.policy=pessimistic,likelihood seeds=5

A step draws a new dataset of `comparisons` rankings, fits and plans. Labels are drawn from the true returns.
`suboptimality` is the exact optimum less the exact mean return of the plan. `regret` is its mean over the
datasets so far. An environment with `questions` says which actions are compared (envs/three_arms.py). In any
other, segments are episodes of uniform actions. Without `reward_features` every state and action has its own.

On its own data: `fit(ranked)`, `covariance(ranked)` and `plan(mdp, features, theta, inverse, width)`.

Differences. The paper's code is not public. Its equations were read in a public text.
 1. theta is zero in directions that no comparison shows. The paper sets the sum of theta to zero, which is
    the same where one feature per action is the only such direction.
 2. The width is a number, 3 by default: `radius=fixed`. With 1 nothing is gained in the paper's example.
    `radius=theorem` takes width = C sqrt((d + log 1/delta) / gamma^2 + ridge bound^2), with C = `width`
    and gamma = 1 / (2 + e^{-L bound} + e^{L bound}), for K = 2 only.
 3. L is the largest norm of a difference of two segments that were compared. In the paper it bounds ||phi||.
 4. The ridge is that of the sum over rankings, n lambda in the paper. Only the ridge bounds directions that
    no comparison shows. With `reference=zero` every policy on three arms pays the same large amount for one
    of them. So the plan is the greedy one.
 5. Policies may be stochastic, and MDPs may have several steps.
 6. `likelihood=pairs` splits rankings into pairs (the paper's MLE_2). Both likelihoods converge, and the
    true one has the smaller variance.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, sparse

from corerl import seeding
from corerl.config import Settings, one_of, positive, require, seed_list, within
from corerl.errors import CorerlError
from corerl.nn.learner import Sizes, Spec
from corerl.preferences.likelihood import check, covariance, fit, pairs_of
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import (
    best_occupancy,
    expected_rewards,
    flow_equations,
    occupancy_of,
    policy_of,
)
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import Learners, TabularLearner, of_fixed_steps, play

GAP = 1e-7
"""Largest difference between the value of a plan and its upper bound, relative where it is large."""
MOST_CUTS = 1_000
"""Most theta of the ellipsoid's surface that a linear program of a plan holds."""


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "pref_pessimistic"
    label: str = "pessimistic MLE"

    policy: str = one_of("pessimistic", "likelihood")  # pessimistic | likelihood (greedy)
    likelihood: str = one_of(  # fits rankings (as a whole) | pairs (all pairs in rankings, MLE_2)
        "rankings", "pairs"
    )
    comparisons: int = within(200, "[1, 1000000]")  # n, number of rankings in a dataset
    ranked: int = within(2, "[2, 20]")  # K, number of segments in a ranking
    bound: float | None = positive(2.0)  # largest norm of the reward parameters (null: no bound)
    radius: str = one_of("fixed", "theorem")  # fixed (width) | theorem (width x theorem's radius)
    width: float = positive(3.0)  # radius of the ellipsoid of rewards (radius=theorem: factor)
    delta: float = within(0.1, "(0, 1)")  # failure probability in the theorem's radius
    ridge: float = positive(0.01)  # ridge added to the covariance of the data
    reference: str = one_of(  # nu, compared (the most compared segment) | mean (of segments) | zero
        "compared", "mean", "zero"
    )

    def __post_init__(self):
        super().__post_init__()
        known = self.ranked == 2 and self.bound is not None
        require(
            self.radius == "fixed" or known,
            "algo.radius=theorem needs algo.ranked=2 and a number as algo.bound. Otherwise, set "
            "algo.radius=fixed",
        )


def theorem_width(cfg: Config, ranked: np.ndarray) -> float:
    """Returns the theorem's radius in units of the norm by n Sigma + ridge I."""
    split, _ = pairs_of(*check(ranked, None))
    exponent = np.linalg.norm(split[:, 0] - split[:, 1], axis=1).max() * cfg.bound
    require(
        exponent < 300,
        f"algo.bound={cfg.bound:g} makes the theorem's radius infinite. Set a smaller bound, or "
        "algo.radius=fixed",
    )
    inverse = 2 + math.exp(-exponent) + math.exp(exponent)  # 1 / gamma
    dimension = ranked.shape[2] + math.log(1 / cfg.delta)
    return cfg.width * math.sqrt(dimension * inverse**2 + cfg.ridge * cfg.bound**2)


@dataclass(frozen=True, eq=False)
class Plan:
    """A pessimistic policy.

    Attributes:
        policy: probabilities `(T, S, A)`, without a horizon `(S, A)`. value: its J.
        gap: the largest J is at most this much more.
    """

    policy: np.ndarray
    value: float
    gap: float


def plan(
    mdp: FiniteMDP,
    features: np.ndarray,
    theta: np.ndarray,
    inverse: np.ndarray | None = None,
    width: float = 0.0,
    reference: np.ndarray | None = None,
) -> Plan:
    """Finds the policy with the largest least value over the ellipsoid.

    Args:
        features: `(S, A, d)`. theta: `(d,)`, the centre. inverse: `(d, d)`, of n Sigma + ridge I.
        width: 0 for the greedy policy. reference: nu `(d,)`; None for 0.
    """
    shape = mdp.sizes if mdp.horizon is None else (mdp.horizon, *mdp.sizes)
    features = np.asarray(features, np.float64)
    if features.shape != (*mdp.sizes, len(theta)):
        raise CorerlError(
            f"features have shape {features.shape}, but must have shape {(*mdp.sizes, len(theta))}. "
            f"The MDP has {mdp.sizes[1]} actions in each of {mdp.sizes[0]} states, and theta has "
            f"{len(theta)} numbers."
        )
    every = np.broadcast_to(features, (*shape, len(theta))).reshape(-1, len(theta))
    nu = np.zeros(len(theta)) if reference is None else reference
    flow = flow_equations(mdp)
    flow["A_eq"] = sparse.hstack([flow["A_eq"], sparse.csr_matrix((len(flow["b_eq"]), 1))])
    objective = np.append(np.zeros(len(every)), -1.0)
    bounds = [(0, None)] * len(every) + [(None, None)]
    cuts, best, upper, visits = [theta], -math.inf, math.inf, None
    while len(cuts) <= MOST_CUTS:
        worst = np.array(cuts)
        found = optimize.linprog(
            objective,
            A_ub=np.hstack([-worst @ every.T, np.ones((len(worst), 1))]),
            b_ub=-worst @ nu,
            bounds=bounds,
            **flow,
        )
        if not found.success:
            raise CorerlError(f"The linear program for the policy has no solution: {found.message}")
        occupied = np.maximum(found.x[:-1], 0)
        v = occupied @ every - nu
        pushed = np.zeros(len(theta)) if inverse is None else inverse @ v
        norm = math.sqrt(max(v @ pushed, 0.0))
        value = theta @ v - width * norm
        upper = min(upper, float(found.x[-1]))
        if value > best:
            best, visits = float(value), occupied
        if width == 0 or norm == 0 or upper - best <= GAP * max(1.0, abs(best)):
            break
        cuts.append(theta - width * pushed / norm)
    return Plan(policy_of(visits.reshape(shape)), best, max(upper - best, 0.0))


def most_compared(ranked: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the features `(d,)` of the segment that is in most rankings, the first of equals."""
    segments, place = np.unique(ranked.reshape(-1, ranked.shape[2]), axis=0, return_inverse=True)
    counts = np.bincount(place.ravel(), np.repeat(weights, ranked.shape[1]))
    return segments[counts.argmax()]


class PessimisticMLE(TabularLearner):
    """One learner. Attributes: `theta` (d,) and `policy` (T, S, A) of the last dataset."""

    arrays = ("theta", "policy")

    def __init__(self, cfg: Config, env: Any, rng: np.random.Generator):
        self.cfg, self.env, self.mdp, self.rng = cfg, env, env.mdp, rng
        self.features, self.rewards = features_of(env), expected_rewards(env.mdp)
        self.theta = np.zeros(self.features.shape[2])
        self.policy = np.full((self.mdp.steps, *self.mdp.sizes), 1 / self.mdp.sizes[1])
        self.episodes = 0

    def episode(self) -> dict[str, float]:
        """Draws a dataset, fits theta and plans."""
        self.episodes += 1
        cfg = self.cfg
        ranked, weights = self.rankings()
        split = pairs_of(ranked, weights) if cfg.likelihood == "pairs" else (ranked, weights)
        self.theta[:] = fit(*split, cfg.bound)
        summed = weights.sum() * covariance(ranked, weights) + cfg.ridge * np.eye(len(self.theta))
        width = self.width(ranked)
        nu = {
            "compared": lambda: most_compared(ranked, weights),
            "mean": lambda: weights @ ranked.mean(1) / weights.sum(),
            "zero": lambda: np.zeros(len(self.theta)),
        }[cfg.reference]()
        found = plan(self.mdp, self.features, self.theta, np.linalg.inv(summed), width, nu)
        self.policy[:] = found.policy
        return {"width": width, "planned": found.value, "gap": found.gap}

    def width(self, ranked: np.ndarray) -> float:
        """Returns the radius of the ellipsoid, 0 for the greedy policy."""
        if self.cfg.policy == "likelihood":
            return 0.0
        fixed = self.cfg.radius == "fixed"
        return self.cfg.width if fixed else theorem_width(self.cfg, ranked)

    def rankings(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws rankings by the Plackett-Luce model: different ones `(N, K, d)`, and their counts."""
        count, size = self.cfg.comparisons, self.cfg.ranked
        if hasattr(self.env, "questions"):
            arms = self.env.questions(count, size)[..., None]
            segments = np.stack([np.zeros_like(arms), arms], -1)  # in the only state
        else:
            drawn = [play(self.mdp, None, self.rng) for _ in range(count * size)]
            segments = np.array(drawn)[..., :2].reshape(count, size, -1, 2)
        states, actions = np.moveaxis(segments, -1, 0)  # (N, K, T)
        paid = self.mdp.discount ** np.arange(segments.shape[2])
        returns = (paid * self.rewards[states, actions]).sum(-1)
        features = (paid[:, None] * self.features[states, actions]).sum(-2)
        order = np.argsort(-(returns + self.rng.gumbel(size=returns.shape)), 1)
        ranked = np.take_along_axis(features, order[..., None], 1)
        different, counts = np.unique(ranked.reshape(count, -1), axis=0, return_counts=True)
        return different.reshape(-1, *ranked.shape[1:]), counts.astype(float)

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Draws an action of the plan."""
        return int(rng.choice(self.mdp.sizes[1], p=self.policy[t, state]))

    def value(self) -> float:
        """Returns the plan's exact mean return."""
        return float((occupancy_of(self.mdp, self.policy) * self.rewards).sum())


def features_of(env: Any) -> np.ndarray:
    """Returns the environment's `reward_features` `(S, A, d)`, or one for every state and action."""
    states, actions = env.mdp.sizes
    own = np.eye(states * actions).reshape(states, actions, -1)
    return np.asarray(getattr(env, "reward_features", own), np.float64)


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the optimum."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(s, "pref_pessimistic")) for s in spec.identities]
    learners = [PessimisticMLE(cfg, env, rng) for rng in rngs]
    return Learners(learners, best_occupancy(env.mdp).value, PessimisticMLE.value)


parts = tabular.learners_parts


def train(cfg: Config, run: Run) -> None:
    of_fixed_steps(run.task)  # raises where episodes differ in length
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    if seed_list(run.cfg.seeds)[0] in run.seeds:  # once, however many processes share the seeds
        print(f"{run.task.id}  {describe(cfg)}", flush=True)
    for step in run.steps(agent=agent):
        metrics = agent.update()
        run.log(step, metrics | {"regret": metrics["regret"] / step})
        run.evaluate(step, player)
        run.save(step)


def describe(cfg: Config) -> str:
    """Writes what is planned for, with the width."""
    width = f"{cfg.width:g} x the theorem's radius" if cfg.radius == "theorem" else f"{cfg.width:g}"
    planned = f"pessimistic, width {width}" if cfg.policy == "pessimistic" else "greedy, width 0"
    return f"{planned}: {cfg.comparisons} rankings of {cfg.ranked} segments in each dataset"


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
