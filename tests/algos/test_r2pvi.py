"""R2PVI, DRPVI and PEVI: a transcription sample by sample, the robust optimum, the shifted dynamics, runs."""

import dataclasses
from itertools import product

import numpy as np
import pytest
from reference_robust import estimate
from wording import refused

from corerl.algos import r2pvi
from corerl.data.tasks import resolve
from corerl.envs import mdps
from corerl.envs.linear_shift import LinearShiftEnv
from corerl.envs.low_rank import LowRankEnv
from corerl.risk.robust import LinearModel, best_policy, policy_value
from corerl.training.tabular import linear_model, play

SHIFT, LOW_RANK = LinearShiftEnv(), LowRankEnv()
KINDS = ("none", "ball", "tv", "kl", "chi2")


def learner(env=LOW_RANK, seed: int = 0, **own) -> r2pvi.R2PVI:
    model = LinearModel.of(env.mdp, env.phi, env.mu)
    return r2pvi.R2PVI(r2pvi.Config(**own), env.mdp, model, np.random.default_rng(seed))


DEFAULTS = {"scale": 0.1, "beta": 1.0, "ridge": 0.1}


def transcription(env, episodes, kind: str, own: dict) -> np.ndarray:
    """Q of every step (H, S, A), from lists of samples."""
    steps, (states, actions) = env.mdp.horizon, env.mdp.sizes
    rewards = (env.mdp.probabilities * env.mdp.rewards).sum(-1)
    scale, beta, ridge = (own.get(name, value) for name, value in DEFAULTS.items())
    q, value, d = np.zeros((steps, states, actions)), np.zeros(states), env.phi.shape[-1]
    for h in reversed(range(steps)):
        seen = np.array([env.phi[trail[h][0], trail[h][1]] for trail in episodes])
        after = np.array([value[trail[h][2]] for trail in episodes])
        inverse = np.linalg.inv(seen.T @ seen + ridge * np.eye(d))
        nu = np.zeros(d)
        if h < steps - 1:
            least = after if own.get("least") == "data" else value
            nu = estimate(kind, after, seen, inverse, least, scale, steps)
        known = rewards
        if own.get("rewards") == "learned":
            paid = np.array([rewards[trail[h][0], trail[h][1]] for trail in episodes])
            known = env.phi @ (inverse @ (seen.T @ paid))
        for s, a in product(range(states), range(actions)):
            phi = env.phi[s, a]
            lengths = [phi[i] ** 2 * inverse[i, i] for i in range(d)]
            penalty = sum(np.sqrt(lengths))
            if own.get("penalty") == "authors":
                penalty = np.sqrt(sum(lengths))
            if kind == "none":
                penalty = np.sqrt(phi @ inverse @ phi)
            q[h, s, a] = min(max(known[s, a] + phi @ nu - beta * penalty, 0.0), steps - h)
        value = q[h].max(1)
    return q


@pytest.mark.parametrize(
    ("env", "own"),
    [
        (SHIFT, {}),
        (SHIFT, {"penalty": "authors", "rewards": "learned", "beta": 0.3}),
        (SHIFT, {"least": "data"}),
        (LOW_RANK, {"scale": 0.5, "beta": 0.2, "ridge": 2.0}),
        (LOW_RANK, {"scale": 0.3, "beta": 0.0}),
    ],
    ids=["shift", "authors", "least-of-data", "low-rank", "no-penalty"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_transcription(kind, env, own):
    agent, rng = learner(env, kind=kind, **own), np.random.default_rng(1)
    episodes = [play(env.mdp, None, rng) for _ in range(30)]
    for trail in episodes:
        for h, (s, a, after) in enumerate(trail):
            agent.counts[h, s, a, after] += 1
    values, wanted = agent.plan(), transcription(env, episodes, kind, own)
    error = (
        1e-5 if kind == "chi2" else 1e-10
    )  # the vertex of a parabola lies between points of the grid
    np.testing.assert_allclose(values[:-1], wanted.max(-1), atol=error)
    chosen = np.take_along_axis(wanted, agent.table[..., None], -1)[..., 0]
    np.testing.assert_allclose(chosen, wanted.max(-1), atol=error)


@pytest.mark.parametrize("env", [SHIFT, LOW_RANK], ids=["shift", "low-rank"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_much_data_and_no_penalty_it_is_the_robust_optimum(kind, env):
    agent = learner(env, kind=kind, scale=0.5, beta=0.0)
    agent.counts[:] = 1e9 * env.mdp.probabilities
    values = agent.plan()
    exact, _ = best_policy(agent.model, agent.cfg.divergence(), 0.5)
    np.testing.assert_allclose(values, exact, atol=1e-6)
    found = policy_value(agent.model, agent.cfg.divergence(), 0.5, agent.policy())
    np.testing.assert_allclose(found[0], exact[0], atol=1e-6)


def test_a_discount_counts():
    env = LowRankEnv()
    env.mdp = dataclasses.replace(env.mdp, discount=0.8)
    agent = learner(env, kind="kl", scale=0.5, beta=0.0)
    agent.counts[:] = 1e9 * env.mdp.probabilities
    exact, _ = best_policy(agent.model, "kl", 0.5)
    np.testing.assert_allclose(agent.plan(), exact, atol=1e-6)
    assert exact[0, 0] < best_policy(learner().model, "kl", 0.5)[0][0, 0] - 0.1


def test_a_penalty_by_hand():
    """Lambda = diag(4, 1), off-diagonal 1: the inverse is [[1, -1], [-1, 4]] / 3."""
    inverse, phi = np.array([[1.0, -1.0], [-1.0, 4.0]]) / 3, np.array([[[0.25, 0.75]]])
    parts = 0.25 * np.sqrt(1 / 3), 0.75 * np.sqrt(4 / 3)
    joint = (0.25**2 - 2 * 0.25 * 0.75 + 4 * 0.75**2) / 3
    wanted = {"factors": sum(parts), "authors": np.hypot(*parts), "joint": np.sqrt(joint)}
    for form, value in wanted.items():
        assert r2pvi.uncertainty(phi, inverse, form)[0, 0] == pytest.approx(value)


def test_a_ridge_regression_by_hand():
    """Two transitions of one feature: weights are 1 / (2 + ridge) each."""
    counts = np.zeros((1, 1, 3))
    counts[0, 0, [0, 2]] = 1
    inverse, weights = r2pvi.regression(counts, np.ones((1, 1, 1)), 0.5)
    assert inverse == pytest.approx(1 / 2.5)
    np.testing.assert_allclose(weights, [[0.4, 0.0, 0.4]])


def test_the_shifted_dynamics():
    """x1 with all signs up: 1/2 to x5; at q = 0.4 a fifth goes to the fail state instead."""
    up, down = 15, 0
    assert SHIFT.mdp.actions[up] == "++++"
    nominal = SHIFT.mdp.probabilities
    np.testing.assert_allclose(nominal[0, up], [0, 0.4995, 0, 0.0005, 0.5])
    np.testing.assert_allclose(nominal[1, down], [0, 0, 0.8991, 0.0009, 0.1])
    np.testing.assert_allclose(SHIFT.shifted(0.4).probabilities[0, up], [0, 0.5, 0, 0.2, 0.3])
    np.testing.assert_allclose(SHIFT.shifted(0.4).probabilities[1:], nominal[1:])
    rewards = SHIFT.mdp.rewards[:, up, 0]
    np.testing.assert_allclose(rewards, [0, 0.5, 0.5, 0, 1])
    best = [best_policy(LinearModel.of(SHIFT.shifted(q)), "none", 0.0) for q in (0.0, 1.0)]
    assert [policy[0, 0].argmax() for _, policy in best] == [up, down]
    assert [values[0, 0] for values, _ in best] == pytest.approx([1.62475, 1.125], abs=5e-4)
    with refused("q=1.5 0 1"):
        SHIFT.shifted(1.5)


def test_robust_plans_lose_less_under_the_shift():
    """Means of 20 seeds at q = 1 and q = 0: total variation against PEVI, the authors' figure in one line."""
    found = {}
    for kind in ("tv", "none"):
        agents = [learner(SHIFT, seed, kind=kind) for seed in range(20)]
        for agent in agents:
            for trail in (play(SHIFT.mdp, None, agent.rng) for _ in range(100)):
                for h, (s, a, after) in enumerate(trail):
                    agent.counts[h, s, a, after] += 1
            agent.plan()
        models = [LinearModel.of(SHIFT.shifted(q)) for q in (0.0, 1.0)]
        found[kind] = [
            np.mean([policy_value(m, "none", 0.0, agent.policy())[0, 0] for agent in agents])
            for m in models
        ]
    assert found["tv"][1] > found["none"][1] + 0.3 and found["tv"][0] < found["none"][0] - 0.1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("risk/D1", "MDP"),
        ("risk/C", "steps"),
        ("risk/B", "rewards 1 2.6 0"),
    ],
)
def test_tasks_that_do_not_fit_raise_an_error(task, message):
    with refused(f"{task} {message}"):
        linear_model(resolve(task))


def test_a_task_without_features_has_one_for_every_state_and_action():
    _, model = linear_model(resolve("risk/linear-mixture"))
    assert model.features.shape == (6, 3, 18)
    coins = mdps.coins()
    agent = r2pvi.R2PVI(
        r2pvi.Config(kind="tv"), coins, LinearModel.of(coins), np.random.default_rng(0)
    )
    assert agent.episode()["nominal"] == pytest.approx(2.0)


def test_a_report_names_what_is_optimised():
    assert [r2pvi.Config(kind=kind).objective for kind in ("none", "kl")] == ["mean", "robust"]
