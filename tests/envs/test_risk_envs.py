"""Environments with spread returns: their steps by hand, their laws by simulation, and their data."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from wording import refused

from corerl.data import tasks
from corerl.envs import low_rank, mdps, risky_pointmass, stochastic_mujoco
from corerl.envs.risky_pointmass import RiskyPointMass
from corerl.envs.statistical_arbitrage import StatisticalArbitrage
from corerl.envs.stochastic_mujoco import HAZARDS
from corerl.risk.finite_mdp import FiniteMDP, markov, return_law
from corerl.risk.solvers import iterated
from corerl.risk.static_cvar import static
from corerl.training.simulator_state import load_simulator, save_simulator

SMALL = (
    "A",
    "B",
    "C",
    "inventory",
    "machine",
    "market",
    "D1",
    "D2",
    "low-rank",
    "linear-mixture",
    "arbitrage",
    "pointmass",
)


def returns(env: gymnasium.Env, policy, episodes: int) -> np.ndarray:
    """Undiscounted returns of `policy(t) -> action`."""
    totals = np.zeros(episodes)
    for i in range(episodes):
        env.reset(seed=0 if i == 0 else None)
        over, t = False, 0
        while not over:
            _, reward, terminated, truncated, _ = env.step(policy(t))
            totals[i] += reward
            over, t = terminated or truncated, t + 1
    return totals


@pytest.mark.parametrize("name", SMALL)
def test_observations_lie_in_their_space_and_a_seed_repeats_an_episode(name):
    trails = []
    for _ in range(2):
        env = tasks.resolve(f"risk/{name}").make_env()
        env.action_space.seed(1)
        trail, over = [env.reset(seed=3)[0]], False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert observation in env.observation_space and isinstance(reward, float)
            trail += [observation, reward]
            over = terminated or truncated
        trails.append(trail)
    assert all(np.array_equal(a, b) for a, b in zip(*trails, strict=True))


@pytest.mark.parametrize("name", [*SMALL, "Hopper-stochastic-v4"])
def test_an_environment_goes_on_as_it_was_saved(name):
    env, other = (tasks.resolve(f"risk/{name}").make_env() for _ in range(2))
    env.action_space.seed(1)
    env.reset(seed=3)
    action = env.action_space.sample()
    while name in ("B", "pointmass") and env.unwrapped.time < 2:
        env.step(action)
    other.reset(seed=4)
    load_simulator(other, save_simulator(env))
    for _ in range(1 if name in ("A", "C", "D1", "D2") else 2):
        one, two = env.step(action), other.step(action)
        assert np.array_equal(one[0], two[0]) and one[1:4] == two[1:4]


# Finite.


def test_a_played_law_is_the_exact_one():
    table = np.array([[0, 0], [0, 1]])
    law, _ = return_law(mdps.lock_in(), markov(table))
    found = returns(tasks.resolve("risk/A").make_env(), lambda t: t, 4000)
    shares = [(found == value).mean() for value in law.values]
    np.testing.assert_allclose(shares, law.probabilities, atol=0.03)


def test_an_observation_tells_state_and_time():
    env = mdps.FiniteEnv(mdps.lock_in())
    np.testing.assert_array_equal(env.reset(seed=0)[0], [1, 0, 1, 0])
    observation, _, terminated, truncated, _ = env.step(0)
    np.testing.assert_array_equal(observation, [0, 1, 0, 1])
    assert not terminated and not truncated
    assert env.step(0)[2:4] == (True, False)
    endless = mdps.FiniteEnv(mdps.hazard())
    assert endless.observation_space.shape == (1,)


def test_an_episode_without_an_end_is_cut_where_the_solvers_cut_it():
    mdp = FiniteMDP.from_matrices(np.ones((1, 1, 1)), [[1.0]], discount=0.5)
    env = mdps.FiniteEnv(mdp)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(mdp.steps)]
    assert ends == [(False, False)] * (mdp.steps - 1) + [(False, True)]
    assert sum(0.5**t for t in range(mdp.steps)) == pytest.approx(2, abs=1e-9)


def test_the_low_rank_classes_hold_the_truth():
    env = low_rank.LowRankEnv()
    kernels = np.einsum("fsad,mdt->fmsat", env.features, env.measures)
    np.testing.assert_allclose(kernels.sum(-1), 1)
    assert (np.abs(kernels - env.mdp.probabilities).max((2, 3, 4)) < 1e-12).sum() == 1
    mixture = low_rank.MixtureEnv()
    models = np.einsum("md,dsat->msat", mixture.models, mixture.kernels)
    assert (np.abs(models - mixture.mdp.probabilities).max((1, 2, 3)) < 1e-12).sum() == 1
    assert (mixture.payoffs == mixture.mdp.rewards[..., 0]).all((1, 2)).sum() == 1


def test_the_low_rank_optima_are_three_policies():
    mdp = low_rank.LowRankEnv().mdp
    best, mean, nested = static(mdp, 0.75), iterated(mdp, 1.0), iterated(mdp, 0.75)
    assert best.value > nested.law.cvar(0.75) + 0.01
    assert best.value > mean.law.cvar(0.75) + 0.01
    assert mean.law.mean > nested.law.mean + 0.01


# Continuous.


def test_a_gamble_has_the_law_that_its_action_names():
    env = mdps.Gamble(2)
    found = returns(env, lambda t: np.array([0.2]), 4000)  # a = 0.6
    assert found.mean() == pytest.approx(2 * (0.6 - 0.18), abs=0.03)
    assert found.std() == pytest.approx(0.3 * np.sqrt(2), abs=0.02)


def test_the_gambles_data_follows_its_own_rule():
    data = tasks.resolve("risk/D2").load()
    a = (1 + data.actions[:, 0]) / 2
    xi = (data.rewards - a + a**2 / 2) / np.maximum(0.5 * a, 1e-6)
    assert xi[a > 0.01].mean() == pytest.approx(0, abs=0.03)
    assert xi[a > 0.01].std() == pytest.approx(1, abs=0.03)
    gained = data.next_observations[:, 1] - data.observations[:, 1]
    np.testing.assert_allclose(gained, data.rewards, atol=1e-5)
    assert data.n_episodes * 2 == len(data) and data.terminated.sum() == data.n_episodes


def test_an_arbitrage_step_by_hand():
    env = StatisticalArbitrage()
    env.reset(seed=5)
    env.price, env.held, env.time = 1.2, 4.0, 4
    noise = env.np_random.bit_generator.state
    xi = env.np_random.standard_normal()
    env.np_random.bit_generator.state = noise
    observation, reward, over, truncated, _ = env.step(np.array([0.75]))  # buys 1.5, keeps 5
    price = 1.2 + 2 * (1 - 1.2) * 0.2 + 0.2 * np.sqrt(0.2) * xi
    assert reward == pytest.approx(4 * (price - 1.2) - 0.005 * 1.5**2 - 0.5 * 25)
    assert over and not truncated
    np.testing.assert_allclose(observation, [1, price, 1], rtol=1e-6)


def test_pointmass_by_hand():
    env = RiskyPointMass(penalty=50.0, probability=1.0)
    env.reset(seed=0)
    env.position = np.array([0.5, 0.3])
    observation, reward, over, truncated, info = env.step(np.array([-1.0, 0.5]))
    assert reward == pytest.approx(-np.hypot(0.4, 0.2) - 0.1 - 50) and info["risky"]
    np.testing.assert_allclose(observation, [0.4, 0.35], rtol=1e-6)
    assert not over and not truncated
    env.position = np.array([0.13, 0.13])
    assert env.step(np.zeros(2))[1:3] == (pytest.approx(-np.hypot(0.03, 0.03) - 0.1), True)


def test_pointmass_starts_and_penalties():
    env = RiskyPointMass(evaluation=True)
    first = np.array([env.reset(seed=s)[0] for s in range(50)])
    assert (first >= 0.8).all() and (first <= 0.85).all()
    anywhere = risky_pointmass.starts(np.random.default_rng(0), 500)
    assert not risky_pointmass.in_disc(anywhere).any()
    assert anywhere.min() >= 0.1 and anywhere.max() <= 0.9
    env.position, fired = np.array([0.5, 0.5]), 0
    for _ in range(2000):
        env.position = np.array([0.5, 0.5])
        fired += env.step(np.zeros(2))[1] < -50
    assert fired / 2000 == pytest.approx(0.1, abs=0.03)


def test_pointmass_data_follows_the_environment():
    data = tasks.resolve("risk/pointmass").load()
    quiet, after, over = risky_pointmass.move(
        data.observations, data.actions, np.zeros(len(data), bool)
    )
    np.testing.assert_allclose(after, data.next_observations, atol=1e-6)
    assert (over == data.terminated).all()
    loss = quiet - data.rewards
    in_disc = risky_pointmass.in_disc(data.observations)
    assert ((np.abs(loss) < 1e-4) | ((np.abs(loss - 50) < 1e-4) & in_disc)).all()
    assert (loss[in_disc] > 1).mean() == pytest.approx(0.1, abs=0.03)


# MuJoCo.


class Scripted(gymnasium.Env):
    """Gives observations, rewards and infos from lists."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, steps):
        self.script = steps
        self.observation_space = gymnasium.spaces.Box(-9, 9, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2), {}

    def step(self, action):
        angle, reward, terminated, speed = self.script[self.at]
        self.at += 1
        return np.array([1.0, angle]), reward, terminated, False, {"x_velocity": speed}


@pytest.mark.parametrize(
    ("body", "step", "penalised"),
    [
        ("hopper", (0.11, 2.0, False, 1.0), 2.0 - 50),
        ("hopper", (-0.11, 2.0, False, 1.0), 2.0 - 50),
        ("hopper", (0.09, 2.0, False, 1.0), None),
        ("hopper", (0.3, 2.0, True, 1.0), None),  # a fall
        ("walker2d", (0.51, 2.0, False, 1.0), 2.0 - 30),
        ("walker2d", (0.49, 2.0, False, 1.0), None),
        ("halfcheetah", (9.0, 4.5, False, 5.0), -0.5 - 70),  # control cost 0.5
        ("halfcheetah", (9.0, 3.0, False, 3.9), None),
        ("halfcheetah-expert", (9.0, 4.5, False, 5.0), None),
        ("halfcheetah-expert", (9.0, 10.5, False, 11.0), -0.5 - 60),
    ],
)
def test_where_and_how_much_a_step_is_penalised(body, step, penalised):
    hazard = HAZARDS[body]
    env = stochastic_mujoco.StochasticPenalty(Scripted([step] * 2000), hazard)
    env.reset(seed=0)
    rewards = np.array([env.step(np.zeros(1))[1] for _ in range(2000)])
    fired = rewards != step[1]
    if penalised is None:
        assert not fired.any()
    else:
        assert fired.mean() == pytest.approx(hazard.probability, abs=0.02)
        np.testing.assert_allclose(rewards[fired], penalised)


@pytest.mark.parametrize("name", ["HalfCheetah-stochastic-v4", "Hopper-stochastic-v4"])
def test_data_is_relabelled_by_the_rule_of_the_environment(name):
    """Steps of a simulator, recorded without penalties, are risky in the data where they were there."""
    from corerl.data import risk
    from corerl.data.dataset import Dataset

    env = tasks.resolve(f"risk/{name}").make_env()
    hazard = HAZARDS[risk.ONLINE[name]]
    low = replace(hazard, limit=0.05, probability=1.0)  # often risky, and always penalised
    env.hazard = low
    env.action_space.seed(0)
    rows, (state, _) = [], env.reset(seed=0)
    while len(rows) < 150:
        action = env.action_space.sample()
        after, reward, terminated, truncated, info = env.step(action)
        plain = reward
        if info["penalised"]:
            plain -= low.penalty - (info["x_velocity"] if low.of_speed else 0.0)
        rows.append((state, action, plain, after, terminated, truncated, reward))
        state = env.reset()[0] if terminated or truncated else after
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    made = risk.relabelled(Dataset.from_steps("x", *columns[:6]), low, "y")
    np.testing.assert_allclose(made.rewards, columns[6], rtol=1e-4, atol=1e-4)
    assert 5 < (columns[6] < -20).sum() < 145 and made.id == "y"


def test_the_packaged_set_is_relabelled():
    plain = tasks.resolve("corerl/halfcheetah-replay-regenerated").load()
    risky = tasks.resolve("risk/halfcheetah-replay-stochastic-regenerated").load()
    changed = plain.rewards != risky.rewards
    fast = plain.rewards + 0.1 * np.square(plain.actions).sum(-1) > 4 - 1e-4
    assert (changed & ~fast).sum() == 0
    assert changed[fast].mean() == pytest.approx(0.05, abs=0.01)


def test_a_set_that_is_not_made_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    task = tasks.resolve("risk/hopper-expert-stochastic-regenerated")
    with refused("corerl/mujoco/hopper-expert"):
        task.load()
    with refused("online dataset"):
        tasks.resolve("risk/Hopper-stochastic-v4").load()
    with refused("risk/Hopper-stochastic-v4"):
        tasks.resolve("risk/Hoper-stochastic-v4")


@pytest.mark.parametrize(
    ("name", "environment", "steps", "scale"),
    [
        ("HalfCheetah-expert-stochastic-v4", "HalfCheetah-v4", 200, None),
        ("halfcheetah-medium-stochastic-v0", "HalfCheetah-v4", 200, (-57.95, 659.49)),
        ("hopper-expert-stochastic-v2", "Hopper-v4", 500, (-13.37, 1602.04)),
        ("halfcheetah-replay-stochastic-regenerated", "HalfCheetah-v4", 200, (-57.95, 659.49)),
    ],
)
def test_environments_lengths_and_scales(name, environment, steps, scale):
    task = tasks.resolve(f"risk/{name}")
    assert task.reference == scale
    env = task.make_env()
    assert env.spec.id == environment and env.spec.max_episode_steps == steps
    level = (
        "halfcheetah-expert" if name.startswith("HalfCheetah-expert") else name.partition("-")[0]
    )
    assert env.hazard == HAZARDS[level]
