"""ReLOAD: a step by hand, a transcription, the linear program's optimum, plain swings, runs."""

from types import SimpleNamespace

import numpy as np
import pytest
from small import run
from wording import refused

from corerl.algos import reload
from corerl.config import Config
from corerl.envs.overheat import OverheatEnv
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import best_occupancy

DISCOUNT = 0.9


def learner(env, seed: int = 0, **own) -> reload.ReLOAD:
    return reload.ReLOAD(reload.Config(**own), env, np.random.default_rng(seed))


def random_problem(seed: int = 0):
    """Four states, three actions, a budget between the least cost and that of the best policy without one."""
    rng = np.random.default_rng(seed)
    moves, rewards = rng.dirichlet(np.ones(4), (4, 3)), rng.random((4, 3))
    costs = (rewards + 0.3 * rng.standard_normal((4, 3)))[None]
    mdp = FiniteMDP.from_matrices(moves, rewards, discount=DISCOUNT, start=np.full(4, 0.25))
    free, least = best_occupancy(mdp), best_occupancy(mdp, -costs[0])
    budget = ((free.visits * costs[0]).sum() - least.value) / 2
    return SimpleNamespace(mdp=mdp, costs=costs, budgets=np.array([budget])), moves, rewards


def test_two_steps_by_hand():
    """One state, pay and cost 1 for the first action, budget 1/2, step sizes 0.5 and 2."""
    mdp = FiniteMDP.from_matrices(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), horizon=1)
    env = SimpleNamespace(mdp=mdp, costs=np.array([[[1.0, 0.0]]]), budgets=np.array([0.5]))
    agent = learner(env, spread=0.0, eta=0.5, eta_mu=2.0)
    agent.episode()
    first = 1 / (1 + np.exp(-0.5))
    np.testing.assert_allclose(agent.policy, [[[first, 1 - first]]])
    assert agent.multipliers == [0.0]
    agent.episode()  # q = (1, 0) again, the excess was 0
    np.testing.assert_allclose(agent.multipliers, 2 * 2 * (first - 0.5))
    second = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(agent.policy, [[[second, 1 - second]]])
    agent.episode()  # q = (1 - mu, 0), optimistic: (2 (1 - mu) - 1, 0)
    mu = 4 * (first - 0.5)
    logit = 1.0 + 0.5 * (1 - 2 * mu)
    np.testing.assert_allclose(agent.policy[0, 0, 0], 1 / (1 + np.exp(-logit)))


@pytest.mark.parametrize("gradient", ["optimistic", "plain"])
def test_it_is_the_transcription(gradient):
    env, moves, rewards = random_problem()
    agent = learner(env, gradient=gradient, spread=0.0)
    theta, mu, last = np.zeros((4, 3)), 0.0, None
    cost, start = env.costs[0], np.full(4, 0.25)
    for _ in range(50):
        pi = np.exp(theta) / np.exp(theta).sum(1, keepdims=True)
        chain = np.zeros((4, 4))
        for s in range(4):
            for a in range(3):
                chain[s] += pi[s, a] * moves[s, a]
        inverse = np.linalg.inv(np.eye(4) - DISCOUNT * chain)
        priced = rewards - mu * cost
        q = priced + DISCOUNT * moves @ (inverse @ (pi * priced).sum(1))
        excess = (1 - DISCOUNT) * (start @ inverse @ (pi * cost).sum(1) - env.budgets[0])
        q_step, excess_step = q, excess
        if gradient == "optimistic" and last is not None:
            q_step, excess_step = 2 * q - last[0], 2 * excess - last[1]
        theta, mu, last = theta + 0.5 * q_step, max(0.0, mu + 0.5 * excess_step), (q, excess)
        agent.episode()
    np.testing.assert_allclose(agent.policy, np.exp(theta) / np.exp(theta).sum(1, keepdims=True))
    np.testing.assert_allclose(agent.multipliers, mu)


def last_of(env, steps: int, **own) -> np.ndarray:
    """Value, cost and multiplier of the last 400 iterations, `(400, 3)`."""
    agent = learner(env, **own)
    numbers = [agent.episode() for _ in range(steps)]
    return np.array([[n["value"], n["cost_0"], n["multiplier_0"]] for n in numbers[-400:]])


@pytest.mark.parametrize(
    ("env", "own", "steps"),
    [(random_problem()[0], {}, 2000), (OverheatEnv(), {"eta_mu": 2.0}, 2000)],
    ids=["discounted", "horizon"],
)
def test_the_last_policy_is_the_programs_optimum_and_the_plain_one_swings(env, own, steps):
    best = best_occupancy(env.mdp, costs=env.costs, budgets=env.budgets)
    assert best.multipliers[0] > 0.1, "the budget must bind"
    found = last_of(env, steps, **own)
    np.testing.assert_allclose(
        found[-1], [best.value, best.costs[0], best.multipliers[0]], atol=1e-3
    )
    assert (np.ptp(found, axis=0) < 1e-3).all()
    swings = np.ptp(last_of(env, steps, gradient="plain", **own), axis=0)
    assert (swings > 0.05).all()


def test_a_budget_that_does_not_bind_costs_nothing():
    env = OverheatEnv(budget=20.0)
    agent = learner(env)
    for _ in range(200):
        numbers = agent.episode()
    assert numbers["value"] == pytest.approx(20.0, abs=1e-3) and not agent.multipliers.any()


def test_a_budget_that_cannot_be_kept_raises_an_error(tmp_path):
    algo = reload.Config(budget=-1.0)
    with refused("budget -1 least 0"):
        run(Config(algo=algo, task="risk/overheat", steps=12, root=str(tmp_path)))


def test_a_task_without_costs_raises_an_error(tmp_path):
    with refused("risk/low-rank has no costs. budgets risk/overheat"):
        run(Config(algo=reload.Config(), task="risk/low-rank", steps=12, root=str(tmp_path)))
