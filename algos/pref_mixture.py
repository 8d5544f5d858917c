"""A mixture of rewards and the max-min policy, for labellers who disagree (Chakraborty et al. 2024, ICML,
arXiv:2402.08925).

One reward cannot serve labellers who want different things, and the minority loses. Expectation-maximisation
finds the groups and a reward for each from pairs whose labeller is known (corerl/preferences/groups.py). The
policy then maximises the value of the worst group, over occupancies x:

    policy=max_min          maximise min_u x . r_u, a linear program (HiGHS)
    policy=multiplicative   the same by play: the average of best policies for sum_u w_u r_u, where
                            w_u <- w_u exp(-eta J_u)
    policy=mean             the best policy for the mean reward over labellers, the usual one

    python algos/pref_mixture.py task=risk/two-groups
    corerl train -m algo=pref_mixture task=risk/two-groups algo.policy=max_min,mean algo.groups=1,2 seeds=5

A step draws a new dataset. Each labeller compares pairs of episodes of a uniform policy by the Bradley-Terry
model of its own group's reward. `worst` is the exact value of the worst true group under the policy, and
`suboptimality` what it lacks of the best max-min value. `assigned` is the share of labellers who are put with
most of their group. The environment of a custom task needs `mdp`, `group_rewards` `(U, S, A)` and `groups`
`(H,)`.

Differences. The abstract and a summary could be read. The authors' code is for language models.
 1. Rewards are linear in one feature for each state and action, or in the environment's `reward_features`.
 2. The likeliest of `starts` random starts is kept.
 3. The program is exact, where their learner is PPO on the worst group's reward.
 4. Pairs tell a reward up to a constant. It is set so that the mean over states and actions is that of the
    true rewards, because the values of groups are compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, sparse

from corerl import seeding
from corerl.algos.pref_pessimistic import features_of
from corerl.config import Settings, one_of, positive, require, within
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.nn.learner import Sizes, Spec
from corerl.preferences.groups import mixture
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import best_occupancy, flow_equations, occupancy_of, policy_of
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import FixedPolicy, Learners, TabularLearner, of_fixed_steps, play


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "pref_mixture"
    label: str = "max-min"

    objective: str = one_of("worst_group")  # value of the worst group (the only choice)
    policy: str = one_of(  # max_min (exact) | multiplicative (iterated) | mean (over labellers)
        "max_min", "multiplicative", "mean"
    )
    groups: int = within(2, "[1, 20]")  # U, number of groups of labellers in the mixture
    comparisons: int = within(100, "[1, 100000]")  # pairs that each labeller compares
    bound: float = positive(10.0)  # largest norm of a group's reward parameters theta
    rounds: int = positive(60)  # largest number of rounds of expectation-maximisation
    starts: int = positive(5)  # number of random starts (the likeliest is kept)
    eta: float = positive(0.1)  # step size of policy=multiplicative
    iterations: int = within(1_000, "[1, 100000]")  # number of iterations of policy=multiplicative


def max_min(mdp: FiniteMDP, rewards: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the visits with the largest least value over rewards `(U, S, A)`, and that value."""
    shape = mdp.sizes if mdp.horizon is None else (mdp.horizon, *mdp.sizes)
    every = np.stack([np.broadcast_to(r, shape).ravel() for r in rewards])
    flow = flow_equations(mdp)
    flow["A_eq"] = sparse.hstack([flow["A_eq"], sparse.csr_matrix((len(flow["b_eq"]), 1))])
    found = optimize.linprog(
        np.append(np.zeros(every.shape[1]), -1.0),
        A_ub=np.hstack([-every, np.ones((len(every), 1))]),
        b_ub=np.zeros(len(every)),
        bounds=[(0, None)] * every.shape[1] + [(None, None)],
        **flow,
    )
    if not found.success:
        raise CorerlError(f"The linear program for the policy has no solution: {found.message}")
    return np.maximum(found.x[:-1], 0).reshape(shape), float(found.x[-1])


def multiplicative(
    mdp: FiniteMDP, rewards: np.ndarray, eta: float, iterations: int
) -> tuple[np.ndarray, float]:
    """Returns the average visits of best policies against multiplicative weights, and their least value."""
    logits, total = np.zeros(len(rewards)), 0.0
    for _ in range(iterations):
        weights = np.exp(logits - logits.max())
        visits = best_occupancy(mdp, np.tensordot(weights / weights.sum(), rewards, 1)).visits
        total = total + visits
        logits -= eta * values(visits, rewards)
    mean = total / iterations
    return mean, float(values(mean, rewards).min())


def values(visits: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Returns the value of each reward, `(U,)`."""
    return np.array([(visits * r).sum() for r in rewards])


class MaxMin(TabularLearner):
    """One learner. Attributes: `policy` (T, S, A) of the last dataset."""

    arrays = ("policy",)

    def __init__(self, cfg: Config, env: Any, rng: np.random.Generator):
        self.cfg, self.env, self.mdp, self.rng = cfg, env, env.mdp, rng
        self.features = features_of(env)
        self.policy = np.full((self.mdp.steps, *self.mdp.sizes), 1 / self.mdp.sizes[1])
        self.episodes = 0

    def episode(self) -> dict[str, float]:
        """Draws a dataset, finds the groups and plans."""
        self.episodes += 1
        cfg, (ranked, labellers) = self.cfg, self.answers()
        options = {"bound": cfg.bound, "rounds": cfg.rounds, "starts": cfg.starts}
        found = mixture(ranked, labellers, cfg.groups, self.rng, **options)
        rewards = self.centred(np.einsum("sad,ud->usa", self.features, found.theta))
        if cfg.policy == "max_min":
            visits, planned = max_min(self.mdp, rewards)
        elif cfg.policy == "multiplicative":
            visits, planned = multiplicative(self.mdp, rewards, cfg.eta, cfg.iterations)
        else:
            best = best_occupancy(self.mdp, np.tensordot(found.weights, rewards, 1))
            visits, planned = best.visits, best.value
        self.policy[:] = policy_of(visits)
        return {
            "planned": planned,
            "worst": self.value(),
            "assigned": assigned(found.members, self.env.groups),
            "likelihood": found.likelihoods[-1],
        }

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws pairs `(N, 2, d)`, the better first, and who judged each `(N,)`."""
        labellers = np.repeat(np.arange(len(self.env.groups)), self.cfg.comparisons)
        drawn = [play(self.mdp, None, self.rng) for _ in range(2 * len(labellers))]
        trails = np.array(drawn)[..., :2].reshape(len(labellers), 2, -1, 2)
        states, actions = np.moveaxis(trails, -1, 0)  # (N, 2, T)
        paid = self.mdp.discount ** np.arange(trails.shape[2])
        group = self.env.groups[labellers][:, None, None]
        returns = (paid * self.env.group_rewards[group, states, actions]).sum(-1)
        features = (paid[:, None] * self.features[states, actions]).sum(-2)
        second = self.rng.random(len(returns)) < 1 / (1 + np.exp(returns[:, 0] - returns[:, 1]))
        features[second] = features[second][:, ::-1]
        return features, labellers

    def centred(self, rewards: np.ndarray) -> np.ndarray:
        """Gives each reward `(U, S, A)` the mean of the true rewards over states and actions."""
        shift = self.env.group_rewards.mean() - rewards.mean((1, 2), keepdims=True)
        return rewards + shift

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Draws an action of the plan."""
        return FixedPolicy(self.policy).act(t, state, rng)

    def value(self) -> float:
        """Returns the exact value of the worst true group."""
        return float(values(occupancy_of(self.mdp, self.policy), self.env.group_rewards).min())


def assigned(members: np.ndarray, groups: np.ndarray) -> float:
    """Returns the share of labellers that are put with most of their own group."""
    found = members.argmax(1)
    right = sum(np.bincount(groups[found == u]).max() for u in np.unique(found))
    return float(right / len(groups))


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the best max-min value."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(s, "pref_mixture")) for s in spec.identities]
    best = max_min(env.mdp, env.group_rewards)[1]
    return Learners([MaxMin(cfg, env, rng) for rng in rngs], best, MaxMin.value)


parts = tabular.learners_parts


def check_task(task: Task) -> None:
    """Raises CorerlError where a task has no groups of labellers, or no fixed number of steps."""
    of_fixed_steps(task)
    env = task.make_env().unwrapped
    require(
        hasattr(env, "group_rewards") and hasattr(env, "groups"),
        f"{task.id} has no groups of labellers. Its environment needs group_rewards (U, S, A) and groups "
        "(H,), as task=risk/two-groups has",
    )


def train(cfg: Config, run: Run) -> None:
    check_task(run.task)
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        metrics = agent.update()
        run.log(step, metrics | {"regret": metrics["regret"] / step})
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
