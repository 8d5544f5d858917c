"""ELA and ELLA: planning against the exact solver, the fit and the bonus by hand, learning."""

import numpy as np
import pytest

from corerl.algos import ela
from corerl.envs.low_rank import LowRankEnv
from corerl.risk.finite_mdp import FiniteMDP, return_law
from corerl.risk.static_cvar import static
from corerl.training.tabular import Learners

ENV = LowRankEnv()
KERNEL = ENV.mdp.probabilities


def learner(seed: int = 0, **own) -> ela.ELA:
    rng = np.random.default_rng(seed)
    return ela.ELA(ela.Config(**own), ENV.mdp, ENV.features, ENV.measures, rng)


def truth() -> np.ndarray:
    """The true features."""
    kernels = np.einsum("fsad,mdt->fmsat", ENV.features, ENV.measures)
    f, _ = np.argwhere(np.abs(kernels - KERNEL).max((2, 3, 4)) < 1e-12)[0]
    return ENV.features[f]


@pytest.mark.parametrize("tau", [0.1, 0.25, 0.5, 0.75, 1.0])
def test_planning_with_the_true_model_is_the_exact_solver(tau):
    agent = learner(tau=tau)
    nothing = [np.zeros((6, 3))] * 3
    value, *agent.plan = agent.planned([(truth(), KERNEL)] * 3, nothing)
    exact = static(ENV.mdp, tau)
    assert value == pytest.approx(exact.value, abs=1e-9)
    law, _ = return_law(ENV.mdp, agent.act)
    assert law.cvar(tau) == pytest.approx(exact.value, abs=1e-9)


def test_least_squares_on_much_data_is_the_exact_planner():
    agent = learner(planner="least_squares")
    agent.counts[:] = 1e6 * KERNEL
    value, *_ = agent.planned([(truth(), KERNEL)] * 3, [np.zeros((6, 3))] * 3)
    assert value == pytest.approx(static(ENV.mdp, 0.25).value, abs=1e-3)


def test_least_squares_of_one_step_by_hand():
    """Shrunk by a ridge of 1: phi phi' / (1 + |phi|^2)."""
    agent, phi, cost = learner(planner="least_squares"), truth(), np.arange(12.0).reshape(6, 2)
    agent.counts[0, 2, 1, 3] = 1
    seen = phi[2, 1]
    expected = (phi @ seen)[..., None] * cost[3] / (1 + seen @ seen)
    np.testing.assert_allclose(agent._expected(0, phi, KERNEL, cost), expected)


def test_rewards_are_rounded_down_and_sums_of_them_to_the_nearest():
    agent = learner(unit=0.3)
    left = (ENV.mdp.probabilities * ENV.mdp.rewards).sum(-1) - 0.3 * agent.paid
    assert left.min() > -1e-9 and left.max() < 0.3 - 1e-9
    agent.cfg.unit = 0.1  # 0.3 / 0.1 is below 3
    agent.plan = np.broadcast_to(np.arange(10), (4, 6, 10)), 9
    assert agent.act(0, 0, 0.3) == 6


def test_a_bonus_makes_the_plan_more_hopeful():
    agent = learner()
    values = [
        agent.planned([(truth(), KERNEL)] * 3, [np.full((6, 3), b)] * 3)[0] for b in (0, 0.01)
    ]
    assert values[0] < values[1] <= values[0] + 3 * 0.01 / 0.25 + 1e-9


def test_a_bonus_by_hand():
    agent = learner(bonus_scale=0.02, delta=0.1)
    agent.episodes = 3
    agent.seen[1, 2, 0], agent.seen[1, 0, 1] = 4, 1
    phi = truth()
    size = np.log(64 * 4 * 3 / 0.1)
    sigma = (
        2 * size * np.eye(2) + 4 * np.outer(phi[2, 0], phi[2, 0]) + np.outer(phi[0, 1], phi[0, 1])
    )
    alpha = 4 * np.sqrt((3 + 4) * size)
    wanted = 0.02 * alpha * np.sqrt(phi[5, 2] @ np.linalg.inv(sigma) @ phi[5, 2])
    assert agent.bonus(1, phi)[5, 2] == pytest.approx(wanted)
    agent.cfg.bonus_scale = 1e6
    assert agent.bonus(1, phi).max() == 4


def test_the_fit_is_the_most_likely_of_the_class():
    agent = learner()
    for _ in range(20):
        agent.episode()
    for h in range(3):
        likelihood = np.array(
            [
                [
                    (agent.counts[h] * np.log(np.maximum(phi @ mu, 1e-300))).sum()
                    for mu in ENV.measures
                ]
                for phi in ENV.features
            ]
        )
        np.testing.assert_allclose(agent.likelihood[h], likelihood)
        f, m = np.unravel_index(likelihood.argmax(), likelihood.shape)
        phi, kernel = agent.fitted(h)
        np.testing.assert_array_equal(phi, ENV.features[f])
        np.testing.assert_allclose(kernel, ENV.features[f] @ ENV.measures[m])


def test_an_episode_gathers_what_the_algorithm_says():
    """A trajectory per step with one uniform action, and with two for every step but the first."""
    agent = learner()
    agent.episode()
    assert agent.trajectories == 5
    np.testing.assert_array_equal(agent.counts.sum((1, 2, 3)), [1, 2, 2])
    np.testing.assert_array_equal(agent.seen.sum((1, 2)), [1, 1, 1])


def test_a_trajectory_follows_the_plan_until_its_uniform_actions(monkeypatch):
    """The plan is told what was collected; here every step pays 3."""
    agent, asked, step = learner(), [], FiniteMDP.step
    monkeypatch.setattr(FiniteMDP, "step", lambda *where: (3.0, step(*where)[1]))
    agent.plan = (np.zeros(0), 0)
    agent.act = lambda t, state, collected: asked.append((t, collected)) or 0
    for uniform, expected in ((1, [(0, 0.0), (1, 3.0)]), (2, [(0, 0.0)])):
        asked.clear()
        agent._gather(2, uniform)
        assert asked == expected


def test_no_plan_hopes_for_more_than_no_shortfall():
    agent = learner()
    value, *_ = agent.planned([(truth(), KERNEL)] * 3, [np.full((6, 3), 1e3)] * 3)
    assert value == agent.budgets.max()


@pytest.mark.parametrize("planner", ["exact", "least_squares"])
def test_it_finds_the_optimum(planner):
    agent = learner(seed=1, planner=planner)
    optimum = static(ENV.mdp, 0.25).value
    agents = Learners([agent], optimum, lambda l: return_law(ENV.mdp, l.act)[0].cvar(0.25))
    losses = np.array([agents.update()["suboptimality"].item() for _ in range(150)])
    assert losses.min() > -1e-9
    assert losses[:10].mean() > 0.2
    for _ in range(100):
        agent.episode()
    assert agents.update()["suboptimality"].item() < 0.01
