"""DR-RPO: a transcription from samples, the regularised robust optimum, both limits, learning, runs."""

import numpy as np
import pytest
from reference_robust import estimate

from corerl.algos import dr_rpo
from corerl.envs.linear_shift import LinearShiftEnv
from corerl.envs.low_rank import LowRankEnv
from corerl.risk.robust import LinearModel, best_policy, policy_value
from corerl.training.tabular import Learners, StochasticPlayer, play

ENV = LowRankEnv()
MODEL = LinearModel.of(ENV.mdp, ENV.phi, ENV.mu)
KINDS = ("kl", "tv", "chi2")


def learner(seed: int = 0, env=ENV, **own) -> dr_rpo.DRRPO:
    model = LinearModel.of(env.mdp, env.phi, env.mu)
    return dr_rpo.DRRPO(dr_rpo.Config(**own), env.mdp, model, np.random.default_rng(seed))


def transcription(env, episodes, kind: str, own: dict) -> tuple[np.ndarray, np.ndarray]:
    """V (H, S) and pi (H, S, A), from lists of samples."""
    steps, (states, actions) = env.mdp.horizon, env.mdp.sizes
    rewards = (env.mdp.probabilities * env.mdp.rewards).sum(-1)
    scale, beta, ridge = (
        own.get(k, v) for k, v in {"scale": 0.5, "beta": 0.1, "ridge": 1.0}.items()
    )
    eta, value = own.get("eta", 0.1), np.zeros(states)
    values, policy = np.zeros((steps, states)), np.zeros((steps, states, actions))
    for h in reversed(range(steps)):
        seen = np.array([env.phi[trail[h][0], trail[h][1]] for trail in episodes])
        after = np.array([value[trail[h][2]] for trail in episodes])
        inverse = np.linalg.inv(seen.T @ seen + ridge * np.eye(env.phi.shape[-1]))
        for s in range(states):
            q = rewards[s].copy()
            if h < steps - 1:
                nu = estimate(kind, after, seen, inverse, value, scale, steps)
                for a, phi in enumerate(env.phi[s]):
                    bonus = sum(x * np.sqrt(inverse[i, i]) for i, x in enumerate(phi))
                    if own.get("bonus") == "joint":
                        bonus = np.sqrt(phi @ inverse @ phi)
                    q[a] = min(max(q[a] + phi @ nu + beta * bonus, 0.0), steps - h)
            if own.get("reference") == "none":
                values[h, s], policy[h, s, q.argmax()] = q.max(), 1.0
            else:
                values[h, s] = eta * np.log(np.mean(np.exp(q / eta)))
                policy[h, s] = np.exp(q / eta) / np.exp(q / eta).sum()
        value = values[h]
    return values, policy


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"scale": 0.2, "eta": 0.5, "beta": 1.0, "ridge": 0.3, "bonus": "joint"},
        {"reference": "none", "beta": 0.0},
    ],
    ids=["default", "joint", "greedy"],
)
@pytest.mark.parametrize("env", [ENV, LinearShiftEnv()], ids=["low-rank", "shift"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_transcription(kind, env, own):
    agent, rng = learner(env=env, kind=kind, **own), np.random.default_rng(1)
    episodes = [play(env.mdp, None, rng) for _ in range(40)]
    for trail in episodes:
        for h, (s, a, after) in enumerate(trail):
            agent.counts[h, s, a, after] += 1
    found = agent.plan()[:-1]
    values, policy = transcription(env, episodes, kind, own)
    error = (
        1e-5 if kind == "chi2" else 1e-10
    )  # the vertex of a parabola lies between points of the grid
    np.testing.assert_allclose(found, values, atol=error)
    if own.get("reference") == "none":
        assert set(np.unique(agent.policy)) == {0.0, 1.0}
    else:
        np.testing.assert_allclose(agent.policy, policy, atol=1e-4 if kind == "chi2" else 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_with_much_data_and_no_bonus_it_is_the_exact_optimum(kind):
    agent = learner(kind=kind, beta=0.0, eta=0.2)
    agent.counts[:] = 1e9 * ENV.mdp.probabilities
    values = agent.plan()
    exact, policy = best_policy(MODEL, kind, 0.5, 0.2)
    np.testing.assert_allclose(values, exact, atol=1e-6)
    np.testing.assert_allclose(agent.policy, policy, atol=1e-5)
    found = policy_value(MODEL, kind, 0.5, agent.policy, 0.2)
    np.testing.assert_allclose(found[0], exact[0], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_policy_is_worth_more_than_the_optimum(kind):
    """Robust and less the price of leaving the reference; the optimum's own deviations are small losses."""
    exact, policy = best_policy(MODEL, kind, 0.5, 0.2)
    rng = np.random.default_rng(0)
    for share in (0.05, 0.5, 1.0):
        for _ in range(10):
            other = (1 - share) * policy + share * rng.dirichlet(np.ones(3), (4, 6))
            worse = policy_value(MODEL, kind, 0.5, other, 0.2)[0]
            assert (worse <= exact[0] + 1e-12).all() and worse[0] < exact[0, 0] - 1e-6


def test_a_large_bonus_is_capped_at_the_steps_that_are_left():
    agent = learner(beta=1e6, reference="none")
    np.testing.assert_allclose(agent.plan()[:, 0], [4.0, 3.0, 2.0, 1.0, 0.0])


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind):
    agents = [learner(seed, kind=kind) for seed in range(3)]
    price = agents[0].cfg.price()
    optimum = MODEL.start @ best_policy(MODEL, kind, 0.5, price)[0][0]
    together = Learners(
        agents, optimum, lambda l: MODEL.start @ policy_value(MODEL, kind, 0.5, l.policy, price)[0]
    )
    lost = np.array([together.update()["suboptimality"].tolist() for _ in range(300)])
    assert lost.min() > -1e-12
    assert lost[-50:].mean() < 0.03 and lost[-50:].mean() < 0.5 * lost[:50].mean() + 1e-3
    np.testing.assert_allclose(together.regret, lost.sum(0))


def test_an_episode_is_played_by_the_policy():
    """A policy that is certain leaves its own trail in the counts, one transition a step."""
    agent = learner(reference="none")
    agent.episode()
    assert agent.counts.sum((1, 2, 3)).tolist() == [1, 1, 1, 1]
    for h, s, a, _ in np.argwhere(agent.counts):
        assert agent.policy[h, s, a] == 1.0


def test_an_evaluation_draws_the_same_actions_again_and_other_ones_in_its_next_round():
    agents = [learner(seed) for seed in (0, 1)]
    for agent in agents:
        agent.policy[:] = [0.2, 0.5, 0.3]

    def round_of(player) -> np.ndarray:
        player.begin(2, 1)
        return np.array([[p(0, 0, 0.0) for p in player.policies] for _ in range(2_000)])

    one, again = (StochasticPlayer(ENV.mdp, agents, [3, 5]) for _ in range(2))
    first, second = round_of(one), round_of(one)
    assert (round_of(again) == first).all() and (second != first).any()
    one.end()
    assert (round_of(one) == first).all()
    for column in np.concatenate([first, second], 1).T:
        np.testing.assert_allclose(np.bincount(column) / 2_000, [0.2, 0.5, 0.3], atol=0.04)
    assert (np.diff(first, axis=1) != 0).any()
