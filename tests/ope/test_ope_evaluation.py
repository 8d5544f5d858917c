"""From a policy and a dataset to a table: known values, known supports, and what is refused."""

import argparse
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from wording import lacking, refused, says

from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.envs import cartpole
from corerl.ope import behaviour, kernels
from corerl.ope.evaluation import _impossible, _too_few, judge
from corerl.ope.fqe import FQE, Settings
from corerl.ope.judgement import IMPOSSIBLE, Options
from corerl.ope.logs import Logs
from corerl.ope.policies import Policy, distance, of_run
from corerl.ope.selection_report import _as_judged

torch.set_num_threads(1)


def chain(rng, episodes=1000, steps=3, chance=0.5):
    """The state is the time; action 1 pays 1; it is taken with probability `chance`."""
    actions = (rng.random((episodes, steps)) < chance).astype(np.int64)
    times = np.tile(np.arange(steps, dtype=np.float32), (episodes, 1))
    last = times == steps - 1
    return Dataset.from_steps(
        "test/chain",
        times.reshape(-1, 1),
        actions.ravel(),
        actions.ravel().astype(np.float32),
        times.reshape(-1, 1) + 1,
        last.ravel(),
        np.zeros(last.size, bool),
        behaviour_log_prob=np.log(np.where(actions == 1, chance, 1 - chance)).ravel(),
    )


def constant(*chances):
    """Policies that take action 1 this often."""

    def probabilities(x):
        return np.stack([np.tile([1 - p, p], (len(x), 1)) for p in chances])

    return Policy(list(range(len(chances))), probabilities=probabilities, sizes=(1, 2))


METHODS = ("is", "pdis", "snis", "snpdis", "dr", "sndr", "fqe", "cdf", "sncdf")
QUICK = Settings(steps=600, lr=1e-2, hidden_width=16, hidden_layers=1, polyak=0.1, batch_size=128)


def test_every_method_finds_the_value_and_says_what_it_rests_on():
    dataset = chain(np.random.default_rng(0))
    options = Options(discount=1.0, finite=True, fqe=QUICK, statistics=("mean", "cvar 0.5"))
    result = judge(constant(0.5, 0.8), dataset, METHODS, options)
    for name in METHODS:
        np.testing.assert_allclose(result.of(name), [1.5, 2.4], atol=0.2)
    assert "recorded" in result.facts["propensities"]
    # The lower half of a binomial's law.
    mass = stats.binom.pmf(np.arange(4), 3, 0.8)
    lower = (mass[0] * 0 + mass[1] * 1 + (0.5 - mass[0] - mass[1]) * 2) / 0.5
    assert result.of("sncdf", "cvar 0.5")[1] == pytest.approx(lower, abs=0.15)
    by = {(r.seed, r.method, r.statistic): r for r in result.rows}
    assert by[0, "is", "mean"].ess == pytest.approx(1000)  # the behaviour itself
    # E[w]^2 / E[w^2] of three steps: 1 / (2 * (0.8^2 + 0.2^2))^3
    assert by[1, "is", "mean"].ess == pytest.approx(1000 / 1.36**3, rel=0.1)
    assert by[1, "pdis", "mean"].ess > by[1, "is", "mean"].ess
    assert math.isnan(by[1, "fqe", "mean"].ess)
    for row in result.rows:
        assert row.low - 1e-9 <= row.value <= row.high + 1e-9


def test_fqe_alone_asks_its_critics_at_first_states_only():
    dataset, policy, asked = chain(np.random.default_rng(0)), constant(0.5, 0.8), []

    def probabilities(x):
        asked.append(len(x))
        return policy.probabilities(x)

    counted, options = (
        replace(policy, probabilities=probabilities),
        Options(fqe=replace(QUICK, steps=5)),
    )
    alone = judge(counted, dataset, ["fqe"], options).of("fqe")
    rows, starts = len(dataset.transitions().actions), len(dataset.episode_starts)
    assert rows > starts and sum(asked) <= rows + 2 * starts
    np.testing.assert_array_equal(alone, judge(policy, dataset, ["fqe", "dr"], options).of("fqe"))


def test_a_fitted_behaviour_is_near_the_recorded_one():
    dataset = chain(np.random.default_rng(1), chance=0.3)
    found = behaviour.fitted(dataset, steps=300, hidden_width=16)
    np.testing.assert_allclose(found.log_prob, dataset.behaviour_log_prob, atol=0.1)
    assert "held-out" in found.source
    hidden = replace(dataset, behaviour_log_prob=None)
    with refused("propensities"):
        judge(constant(0.5), hidden, ["is"])


def test_what_does_not_look_at_the_state_knows_the_fitted_rows_alone():
    numbers, held = np.array([0, 0, 0, 1, 1, 1]), np.arange(6) >= 4
    vectors = np.array([-1.0, 1.0, -1.0, 1.0, 0.5, 0.5])
    found = []
    for actions in (numbers, vectors[:, None]):
        zeros, ends = np.zeros((6, 1)), [0, 0, 0, 1, 0, 1]
        dataset = Dataset.from_steps("test/two", zeros, actions, zeros, zeros, ends, np.zeros(6))
        found.append(behaviour._constant(dataset, held))
    np.testing.assert_allclose(found[0], np.log(np.where(numbers == 0, 4, 2) / 6))  # 3 + 1, 1 + 1
    np.testing.assert_allclose(found[1], stats.truncnorm.logpdf(vectors, -1, 1), rtol=1e-4)


def test_a_fitted_gaussian_behaviour():
    rng = np.random.default_rng(2)
    s = rng.uniform(-1, 1, (4000, 1)).astype(np.float32)
    noise = rng.normal(size=s.shape)
    a = (0.5 * s + 0.1 * noise).astype(np.float32)
    over = np.ones(len(s), bool)
    dataset = Dataset.from_steps("test/gaussian", s, a, s[:, 0], s, over, ~over)
    found = behaviour.fitted(dataset, steps=1500, hidden_width=32, lr=3e-3)
    true = stats.norm.logpdf(noise[:, 0]) - np.log(0.1)
    assert np.abs(found.log_prob - true).mean() < 0.1


def test_a_fitted_behaviour_has_no_mass_beyond_the_bounds():
    """Actions of a normal around 0.8 that was drawn again beyond the bounds: a third of it is lost."""
    law = stats.truncnorm(-1.8 / 0.5, 0.2 / 0.5, 0.8, 0.5)
    a = law.rvs((4000, 1), random_state=0).astype(np.float32)
    s, over = np.zeros_like(a), np.ones(len(a), bool)
    dataset = Dataset.from_steps("test/bound", s, a, s[:, 0], s, over, ~over)
    found = behaviour.fitted(dataset, steps=1500, hidden_width=8, lr=3e-3)
    assert np.abs(found.log_prob - law.logpdf(a[:, 0])).mean() < 0.1


def test_a_fitted_behaviour_does_not_know_few_rows_by_heart():
    rng, n = np.random.default_rng(3), 200
    s, a = rng.normal(size=(n, 3)), rng.uniform(-1, 1, (n, 2))
    cut = np.arange(n) % 20 == 19
    dataset = Dataset.from_steps("test/few", s, a, s[:, 0], s, np.zeros(n), cut)
    found = behaviour.fitted(dataset, steps=1000, hidden_width=64, lr=3e-3).log_prob
    assert np.abs(found - behaviour._constant(dataset, cut & False)).mean() < 1


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_kernels_are_densities_within_the_bounds(name):
    grid = np.linspace(-1, 1, 20_001)[:, None]
    for wanted in (-1.0, 0.3, 0.95, 1.0, 1.1):
        for h in (0.2, 0.7, 5.0):
            logs = kernels.log_kernel(grid, wanted + 0 * grid, np.array([h]), name)
            assert np.trapezoid(np.exp(logs), grid[:, 0]) == pytest.approx(1, abs=1e-3)
    density = np.exp(kernels.log_kernel(grid, 0.3 + 0 * grid, np.array([0.1]), name))
    assert np.trapezoid(density * grid[:, 0], grid[:, 0]) == pytest.approx(0.3, abs=1e-3)
    assert (kernels.log_kernel(grid, 9.0 + 0 * grid, np.array([0.1]), name) == -np.inf).all()


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_a_policy_at_a_bound_loses_no_weight(name):
    """Three steps that always pay 1, in two features: the return is 3 wherever the policy acts."""
    rng = np.random.default_rng(4)
    a = rng.uniform(-1, 1, (60_000, 2)).astype(np.float32)
    last = np.arange(len(a)) % 3 == 2
    dataset = Dataset.from_steps(
        "test/paid",
        *(a, a, np.ones(len(a)), a, last, ~last & False),
        behaviour_log_prob=np.full(len(a), 2 * np.log(0.5)),
    )
    for wanted in ([1.0, -1.0], [0.9, 0.0]):
        policy = Policy(
            [0], actions=lambda x, w=wanted: np.tile(np.float32(w), (1, len(x), 1, 1)), sizes=(2, 2)
        )
        options = Options(discount=1.0, bandwidth=2.0, kernel=name, interval="t")
        (row,) = judge(policy, dataset, ["pdis"], options).rows
        assert row.high - row.low < 0.5
        assert row.value == pytest.approx(3, abs=row.high - row.low)


def test_kernel_weights_find_the_value_of_one_action():
    """Reward -(a - s)^2, policy a = s + 0.3, uniform behaviour: -0.09 less the kernel's variance."""
    rng = np.random.default_rng(3)
    s = rng.uniform(-0.3, 0.3, (40_000, 1)).astype(np.float32)
    a = rng.uniform(-1, 1, s.shape).astype(np.float32)
    over = np.ones(len(s), bool)
    dataset = Dataset.from_steps(
        "test/bandit",
        *(s, a, -((a - s) ** 2)[:, 0], s, over, ~over),
        behaviour_log_prob=np.full(len(s), np.log(0.5)),
    )
    policy = Policy([0], actions=lambda x: (x + 0.3)[None, :, None], sizes=(1, 1))
    result = judge(policy, dataset, ["is", "snis"], Options(bandwidth=0.1, interval="t"))
    width = 0.1 * a.std()
    for name in ("is", "snis"):
        assert result.of(name)[0] == pytest.approx(-0.09 - width**2, abs=0.006)
    assert "gaussian kernel" in result.facts["density"]


@pytest.mark.parametrize(
    ("settings", "constant"),
    [
        ({"steps": 29_999}, "10,000"),
        ({"steps": 30_000}, None),
        ({"steps": 299, "polyak": 0.1, "discount": 0.9}, "100"),
        ({"steps": 10, "horizon": 5}, None),
    ],
)
def test_too_few_updates_of_an_endless_critic_are_told(settings, constant):
    reported = _too_few(Settings(**settings))
    assert not lacking(reported, constant) if constant else reported == ""


def test_clipping_is_told():
    dataset = chain(np.random.default_rng(4))
    result = judge(constant(0.95), dataset, ["is"], Options(discount=1.0, clip=0.8))
    plain = judge(constant(0.95), dataset, ["is"], Options(discount=1.0))
    assert result.rows[0].clipped > 0 and plain.rows[0].clipped == 0
    assert result.rows[0].value < plain.rows[0].value


@pytest.mark.parametrize(("chance", "note"), [(0.5, ""), (0.8, "above 1"), (0.2, "below 1")])
def test_a_law_whose_weights_do_not_sum_to_one_says_so(chance, note):
    """Of 60 recorded actions 36 are 1, where half was expected."""
    actions = np.repeat([1, 0], [36, 24])
    dataset = replace(
        chain(np.random.default_rng(0), episodes=60, steps=1),
        actions=actions,
        rewards=actions.astype(np.float32),
        behaviour_log_prob=np.full(60, np.log(0.5), np.float32),
    )
    for row in judge(constant(chance), dataset, ["cdf"]).rows:
        assert not lacking(row.note, note) and (row.note == "") == (note == "")
    share = abs(2 * (0.6 * chance + 0.4 * (1 - chance)) - 1)
    assert not note or f"total probability is {share:.2g}" in row.note
    assert all(row.note == "" for row in judge(constant(chance), dataset, ["sncdf"]).rows)


# ------------------------------------------------------------------------------------- episodes


def with_cut_episodes() -> Dataset:
    dataset = chain(np.random.default_rng(5), episodes=10)
    terminated, truncated = dataset.terminated.copy(), dataset.truncated.copy()
    # The second episode's recording stops after its second step: the third begins another.
    terminated[[5]], truncated[[4, 5]] = False, [True, True]
    return Dataset.from_steps(
        "test/cut",
        *(dataset.observations, dataset.actions, dataset.rewards, dataset.next_observations),
        *(terminated, truncated),
        behaviour_log_prob=dataset.behaviour_log_prob,
    )


def test_episodes_that_are_cut_are_refused_or_left_out():
    cut = with_cut_episodes()
    with refused("2 11 episodes --horizon 1"):
        Logs.of(cut)
    kept = Logs.of(cut, leave_out_cut=True)
    assert (kept.episodes, kept.cut) == (9, 2)
    assert Logs.of(cut, horizon=1).episodes == 11
    with refused("episode 3 steps"):
        Logs.of(cut, horizon=4)


@pytest.mark.parametrize("finite", [False, True])
def test_fqe_alone_needs_no_whole_episodes(finite):
    cut, options = with_cut_episodes(), Options(finite=finite, fqe=replace(QUICK, steps=3))
    (row,) = judge(constant(0.5), cut, ["fqe"], options).rows
    assert row.episodes == 11
    (row,) = judge(constant(0.5), cut, ["fqe"], replace(options, leave_out_cut=True)).rows
    assert row.episodes == 9
    with refused("fqe"):
        judge(constant(0.5), cut, ["fqe", "dr"], options)


def test_returns_are_discounted_and_end_at_the_horizon():
    dataset = chain(np.random.default_rng(6), episodes=50)
    paid = dataset.actions.reshape(-1, 3)
    np.testing.assert_allclose(Logs.of(dataset, 0.5).returns, paid @ [1, 0.5, 0.25])
    np.testing.assert_allclose(Logs.of(dataset, 0.5, 2).returns, paid[:, :2] @ [1, 0.5])


@pytest.mark.parametrize("field", ["durations", "unlabelled"])
def test_steps_with_durations_and_episodes_without_actions_are_refused(field):
    dataset = chain(np.random.default_rng(0), episodes=4)
    given = {"durations": np.full(len(dataset), 2), "unlabelled": np.arange(len(dataset)) < 3}
    dataset = replace(dataset, **{field: given[field]})
    words = {"durations": "durations", "unlabelled": "without actions"}
    with refused(f"test/chain {words[field]}"):
        judge(constant(0.5), dataset, ["is"])
    with refused(f"test/chain {words[field]}"):
        FQE(constant(0.5), dataset, QUICK)


def test_a_deterministic_policy_that_nobody_followed_is_refused():
    dataset = chain(np.random.default_rng(7), episodes=20, chance=0.05)
    with refused("weights zero"):
        judge(constant(1.0), dataset, ["snis"])


def test_unknown_methods_and_settings_are_refused():
    dataset = chain(np.random.default_rng(8), episodes=5)
    with refused("fqr fqe"):
        judge(constant(0.5), dataset, ["fqr"])
    with refused("behaviour=guessed"):
        Options(behaviour="guessed")
    with refused("level=1.5"):
        Options(level=1.5)


# ------------------------------------------------------------------- recorded propensities


def test_cartpoles_propensities_are_its_controllers():
    """Importance weights of a policy with the same controller's gains and no chance find its value."""
    arrays = cartpole.make(seed=0)
    assert np.exp(-arrays["behaviour_log_prob"]).mean() == pytest.approx(2, abs=0.05)  # E[1/p] = K
    dataset = Dataset.from_steps(
        "corerl/cartpole",
        *(arrays[k] for k in list(arrays)[:6]),
        behaviour_log_prob=arrays["behaviour_log_prob"],
    )
    gains, random = cartpole.CONTROLLERS["mediocre"]

    def probabilities(x):
        best = (x @ gains > 0).astype(int)
        return ((1 - random) * np.eye(2)[best] + random / 2)[None]

    policy = Policy([0], probabilities=probabilities, sizes=(4, 2))
    options = Options(discount=1.0, horizon=None, leave_out_cut=True)
    result = judge(policy, dataset, ["snpdis", "pdis"], options)
    true = cartpole.returns(gains, random, 300)
    (row,) = [r for r in result.rows if r.method == "snpdis"]
    assert row.low - 1 < true < row.high + 1


def test_an_estimate_that_nobody_can_earn_is_marked():
    """Of 8 episodes one is all ones, so its weight is far above 8: the estimate is beyond 3."""
    actions = np.zeros((8, 3), np.int64)
    actions[0] = 1
    whole = chain(np.random.default_rng(9), episodes=8, chance=0.1)
    likely = np.log(np.where(actions.ravel() == 1, 0.1, 0.9)).astype(np.float32)
    rewards = actions.ravel().astype(np.float32)
    dataset = replace(whole, actions=actions.ravel(), rewards=rewards, behaviour_log_prob=likely)
    both = judge(constant(0.99, 0.1), dataset, ["is"], Options(discount=1.0))
    row, own = both.rows
    assert list(both.impossible("is")) == [True, False]
    assert row.value == pytest.approx(3 * 9.9**3 / 8, rel=1e-5)
    says(row.note, "episodes")
    assert own.note == ""


def test_rounding_is_not_beyond_any_possible_return():
    """Every reward is 1, and so every estimate the one return that there is."""
    whole = chain(np.random.default_rng(0), episodes=30, steps=20)
    dataset = replace(whole, rewards=np.ones(600, np.float32))
    policy, options = constant(*np.linspace(0.3, 0.7, 8)), Options(interval="t")
    for discount in (0.99, 1.0):
        result = judge(policy, dataset, ["snis", "snpdis"], replace(options, discount=discount))
        assert all(row.note == "" for row in result.rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_no_reward_takes_away_is_0_also_without_an_end(sign):
    rewards = sign * np.ones(3)
    assert _impossible("fqe", sign * 5.0, rewards, np.inf, 1.0) == ""
    assert _impossible("fqe", -sign * 5.0, rewards, np.inf, 1.0).startswith(IMPOSSIBLE)


def test_weights_too_small_for_a_number_are_normalised_all_the_same():
    """A policy that takes the recorded actions with chance e^-400 each."""
    dataset = chain(np.random.default_rng(0), episodes=4)
    policy = Policy(
        [0], probabilities=lambda x: np.tile(np.exp([-400.0, -400.0]), (1, len(x), 1)), sizes=(1, 2)
    )
    result = judge(policy, dataset, ["snis", "snpdis", "sncdf"])
    for name in ("snis", "snpdis", "sncdf"):
        assert result.of(name) == pytest.approx(Logs.of(dataset, 0.99).returns.mean())
    assert all(row.ess == pytest.approx(4) for row in result.rows)
    with refused("float64"):
        judge(policy, dataset, ["snis", "is"])


def test_what_was_recorded_after_the_horizon_can_be_earned():
    """The last of three steps pays 1: an endless critic says 0.25 at the first, whatever the horizon."""
    whole = chain(np.random.default_rng(11), episodes=64)
    rewards = np.tile(np.array([0, 0, 1], np.float32), 64)
    options = Options(discount=0.5, horizon=1, fqe=QUICK)
    result = judge(constant(0.5), replace(whole, rewards=rewards), ["fqe"], options)
    assert result.of("fqe") == pytest.approx(0.25, abs=0.05)
    assert not result.impossible("fqe").any()


def test_the_data_is_judged_by_the_steps_of_the_estimate():
    dataset = chain(np.random.default_rng(12), episodes=8)
    recorded = dataset.rewards.reshape(8, 3).mean(0)

    def value(method, **given):
        options = {"horizon": 2, "finite": None, "leave_out_cut": False} | given
        return _as_judged(method, 0.5, dataset, argparse.Namespace(**options))

    both = recorded[0] + recorded[1] / 2
    assert value("fqe") == pytest.approx(both + recorded[2] / 4)
    assert value("is") == value("fqe", finite=True) == pytest.approx(both)


def test_the_distance_from_the_recorded_actions():
    rng = np.random.default_rng(5)
    dataset = chain(rng, chance=0.3)
    recorded = dataset.actions.mean()
    np.testing.assert_allclose(
        distance(constant(1.0, 0.0, 0.5), dataset, rows=10**6), [1 - recorded, recorded, 0.5]
    )
    actions = np.stack([rng.normal(size=500), 10 * rng.normal(size=500)], 1).astype(np.float32)
    states = np.arange(500, dtype=np.float32)[:, None]
    ends = np.arange(500) % 10 == 9
    dataset = Dataset.from_steps(
        "test/far", states, actions, states[:, 0], states + 1, ends, np.zeros(500, bool)
    )
    far = np.stack([actions, np.tile(actions.mean(0), (500, 1)), actions + 2 * actions.std(0)])
    policy = Policy([0, 1, 2], actions=lambda x: far[:, x[:, 0].astype(int), None], sizes=(1, 2))
    np.testing.assert_allclose(distance(policy, dataset), [0, 1, 2], atol=1e-5)
    assert distance(policy, dataset, rows=20)[2] == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize(("epsilon", "share"), [(None, 0.06), (0.3, 0.3), (0.0, 0.0)])
def test_a_random_action_may_be_the_best_one_too(epsilon, share):
    agent = SimpleNamespace(
        remembers=False,
        shapes=((1,), 3, None),
        seeds=[0],
        device="cpu",
        task=resolve("gym/CartPole-v1"),
        greedy=lambda x: (
            2 * (x[..., 0] > 0).long(),
            0.06,
        ),  # 0 or 2, random as often when evaluated
    )
    found = of_run(agent, epsilon=epsilon).probabilities(np.array([[-1.0], [1.0]], np.float32))
    best, other = 1 - 2 * share / 3, share / 3
    np.testing.assert_allclose(found, [[[best, other, other], [other, other, best]]], atol=1e-12)
