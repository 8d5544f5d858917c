"""Estimators against the enumeration of every trajectory, intervals against their formulas."""

import math
from functools import partial

import numpy as np
import pytest
from enumerated import Enumerated
from scipy import stats
from wording import refused

from corerl.ope import intervals
from corerl.ope.distribution import ReturnLaw
from corerl.ope.estimators import ESTIMATORS, Terms
from corerl.ope.logs import Logs, Weights, effective
from corerl.risk.finite_mdp import markov, return_law

BY_WEIGHTS = tuple(name for name in ESTIMATORS if name != "fqe")


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("name", ["is", "pdis", "dr"])
def test_estimators_are_unbiased_to_rounding(name, steps):
    world = Enumerated(steps)
    terms = ESTIMATORS[name](world.logs, world.weights, world.of_model())
    assert world.probabilities @ terms.numerators.sum(1) == pytest.approx(world.value, abs=1e-14)


@pytest.mark.parametrize("name", BY_WEIGHTS)
def test_estimators_on_the_population_are_the_value(name):
    """Self-normalised ones too: over all trajectories the weights' means are 1."""
    world = Enumerated(3, seed=1)
    terms = ESTIMATORS[name](world.logs, world.weights, world.of_model())
    value = terms.of_counts(world.probabilities[None])[0]
    assert value == pytest.approx(world.value, abs=1e-14)


@pytest.mark.parametrize("name", BY_WEIGHTS)
def test_the_behaviours_own_value_is_the_mean_return(name):
    world = Enumerated(3)
    same = Weights.of(np.zeros_like(world.log_ratios))
    nothing = world.of_model()._replace(q=0 * world.rewards[world.states, 0])
    model = nothing._replace(v=nothing.q)
    terms = ESTIMATORS[name](world.logs, same, model)
    assert terms.value == pytest.approx(world.logs.returns.mean(), abs=1e-14)


def test_the_true_q_leaves_doubly_robust_less_variance():
    world = Enumerated(3, seed=2)
    following, q = np.zeros(2), []
    for _ in range(3):
        q.insert(0, world.rewards + world.logs.discount * world.transitions @ following)
        following = (world.policy * q[0]).sum(1)
    world.model = np.array(q)

    def variance(name):
        terms = ESTIMATORS[name](world.logs, world.weights, world.of_model())
        contributions = terms.numerators.sum(1)
        return world.probabilities @ (contributions - world.value) ** 2

    assert variance("dr") < 0.5 * variance("pdis") < 0.5 * variance("is")


def test_ended_episodes_keep_their_weight_and_add_nothing():
    """Two steps more, after an end, change no estimate."""
    world = Enumerated(2, seed=3)
    longer = [np.pad(x, ((0, 0), (0, 2))) for x in (world.logs.rewards, world.log_ratios)]
    alive = np.pad(world.logs.alive, ((0, 0), (0, 2)))
    logs = type(world.logs)(longer[0], alive, alive * 0, world.logs.discount)
    model = type(world.of_model())(*(np.pad(x, ((0, 0), (0, 2))) for x in world.of_model()))
    for name in BY_WEIGHTS:
        short = ESTIMATORS[name](world.logs, world.weights, world.of_model()).value
        padded = ESTIMATORS[name](logs, Weights.of(longer[1]), model).value
        assert padded == pytest.approx(short, abs=1e-14)


# ------------------------------------------------------------------------------- laws of returns


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("tau", [0.05, 0.3, 1.0])
def test_cvar_of_the_population_is_that_of_the_exact_law(normalised, tau):
    world = Enumerated(3, deterministic=True, seed=4)
    policy = world.policy.argmax(1)
    exact, _ = return_law(world.mdp, markov(policy))
    law = ReturnLaw(world.logs, world.weights, normalised=normalised)
    counts = world.probabilities[None]
    assert law._of_counts(counts, [f"cvar {tau}"])[0, 0] == pytest.approx(
        exact.cvar(tau), abs=1e-12
    )
    assert law._of_counts(counts, ["mean"])[0, 0] == pytest.approx(exact.mean, abs=1e-12)
    assert law._of_counts(counts, ["variance"])[0, 0] == pytest.approx(exact.variance, abs=1e-12)
    median = exact.values[np.searchsorted(np.cumsum(exact.probabilities), 0.5)]
    assert law._of_counts(counts, ["quantile 0.5"])[0, 0] == pytest.approx(median, abs=1e-12)


def test_a_law_is_a_law_whatever_the_weights():
    world = Enumerated(3, seed=5)
    rng = np.random.default_rng(0)
    for scale in (0.1, 3.0):
        weights = Weights.of(world.log_ratios + rng.normal(size=world.log_ratios.shape) * scale)
        for normalised in (False, True):
            law = ReturnLaw(world.logs, weights, normalised=normalised, upper=10.0)
            points = np.linspace(-1, 11, 50)
            heights = law.cdf(points)
            assert (np.diff(heights) >= 0).all() and heights[0] == 0
            assert heights[-1] == pytest.approx(1)
            assert law.law.mean == pytest.approx(law.statistic("mean"))
            if normalised:
                assert law.missing == law.beyond == 0
            else:
                assert law.missing == pytest.approx(max(0, 1 - weights.last.mean()))
                assert law.beyond == pytest.approx(max(0, weights.last.mean() - 1))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_quantile_is_not_missed_by_rounding(normalised):
    """Of ten returns the eighth reaches 0.8, although 0.1 added up eight times is less."""
    ones = np.ones((10, 1))
    logs = Logs(np.arange(1.0, 11.0)[:, None], ones > 0, np.arange(10)[:, None])
    law = ReturnLaw(logs, Weights(ones), normalised=normalised)
    found = [law.statistic(f"quantile {level}") for level in (0.1, 0.3, 0.8, 0.9, 1.0)]
    assert found == [1, 3, 8, 9, 10]


def of_returns(*returns):
    """Episodes of one step."""
    paid = np.array(returns, float)[:, None]
    return Logs(paid, np.ones(paid.shape, bool), np.arange(len(paid))[:, None])


def test_the_variance_of_large_returns_does_not_cancel():
    law = ReturnLaw(of_returns(2.0**24, 2.0**24, 2.0**24 + 2), Weights(np.ones((3, 1))))
    assert law.statistic("variance") == pytest.approx(8 / 9)


def test_mass_that_the_weights_leave_over_lies_at_the_upper_bound():
    logs, weights = of_returns(1.0, 3.0), Weights(np.full((2, 1), 0.5))
    law = ReturnLaw(logs, weights, upper=10.0)
    assert law.statistic("mean") == 0.25 * 1 + 0.25 * 3 + 0.5 * 10
    assert list(law.cdf(np.array([0.9, 1.0, 3.0, 9.9, 10.0]))) == [0, 0.25, 0.5, 0.5, 1]
    assert ReturnLaw(logs, weights).statistic("mean") == 0.25 * 1 + 0.75 * 3


def test_one_episode_has_no_interval_of_its_law():
    law = ReturnLaw(of_returns(6.0), Weights(np.ones((1, 1))))
    assert np.isnan(law.intervals(["mean", "variance"])).all()
    with refused("level=1.5 0 1"):
        law.intervals(["mean"], 1.5)


def test_an_upper_bound_below_a_return_is_refused():
    world = Enumerated(2)
    with refused("return"):
        ReturnLaw(world.logs, world.weights, upper=0.0)


# ------------------------------------------------------------------------------------- intervals


@pytest.fixture
def terms():
    rng = np.random.default_rng(0)
    return Terms(rng.exponential(size=(300, 1)))


def test_intervals_by_hand(terms):
    x = terms.numerators[:, 0]
    mean, error, width = x.mean(), x.std(ddof=1) / math.sqrt(300), np.ptp(x)
    assert intervals.interval(terms, "t") == pytest.approx(
        stats.t.interval(0.95, 299, mean, error), rel=1e-12
    )
    half = width * math.sqrt(math.log(2 / 0.05) / 600)
    assert intervals.interval(terms, "hoeffding") == pytest.approx((mean - half, mean + half))
    half = error * math.sqrt(2 * math.log(80)) + 7 * width * math.log(80) / (3 * 299)
    assert intervals.interval(terms, "bernstein") == pytest.approx((mean - half, mean + half))
    wide = intervals.interval(terms, "hoeffding", bounds=(0.0, 100.0))
    assert wide[1] - wide[0] == pytest.approx(2 * 100 * math.sqrt(math.log(40) / 600))
    ours = intervals.interval(terms, "bootstrap", replicates=20_000)
    assert ours == pytest.approx(stats.norm.interval(0.95, mean, error), abs=0.02)


def test_intervals_cover():
    """Of 400 samples of 40, about 95 % of the t and at least 95 % of the wider intervals."""
    rng = np.random.default_rng(1)
    samples = rng.random((400, 40))
    shares = {}
    for method in intervals.METHODS:
        options = {"bounds": (0.0, 1.0)} if method in ("hoeffding", "bernstein") else {}
        hit = [
            low <= 0.5 <= high
            for low, high in (
                intervals.interval(Terms(x[:, None]), method, replicates=400, **options)
                for x in samples
            )
        ]
        shares[method] = np.mean(hit)
    assert 0.92 < shares["t"] < 0.98 and 0.90 < shares["bootstrap"] < 0.98
    assert min(shares["hoeffding"], shares["bernstein"]) > 0.98


@pytest.mark.parametrize("method", intervals.BY_RANGE)
@pytest.mark.parametrize("bounds", [(0.5, 100.0), (0.0, 2.0), (10.0, -10.0)])
def test_bounds_that_a_contribution_contradicts_are_refused(terms, method, bounds):
    outside = ~((terms.contributions >= bounds[0]) & (terms.contributions <= bounds[1]))
    first = int(outside.argmax())
    with refused(f"{first} 300 {terms.contributions[first]:.6g} bounds"):
        intervals.interval(terms, method, bounds=bounds)


def test_bounds_allow_for_the_rounding_of_recorded_rewards():
    """Ten rewards of 0.1 in float32 are 1.00000001."""
    paid = np.full((20, 10), np.float32(0.1)).astype(float)
    low, high = intervals.interval(Terms(paid), "hoeffding", bounds=(0.0, 1.0))
    assert low < 1 < high


def test_normalised_weights_are_resampled_with_their_means():
    """Of equal rewards the self-normalised estimate has no spread, and the plain one has."""
    rng = np.random.default_rng(2)
    w = rng.exponential(size=(100, 1))
    normalised = Terms(np.full_like(w, 3.0), w)
    for method in ("bootstrap", "t"):
        assert intervals.interval(normalised, method) == pytest.approx((3, 3), abs=1e-12)
        low, high = intervals.interval(Terms(3.0 * w), method)
        assert high - low > 0.5
    assert all(map(math.isnan, intervals.interval(normalised, "bernstein")))


def test_draws_without_any_weight_stay_within_the_returns():
    """As of the law: such episodes count alike."""
    weights = Weights(np.array([[0.0], [0.0], [1.0]]))
    counts = np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    for logs, alone in ((of_returns(-10, -10, -10), -10), (of_returns(-4, -1, -10), -2)):
        law = ReturnLaw(logs, weights, normalised=True)
        for name in ("snis", "snpdis"):
            terms = ESTIMATORS[name](logs, weights, None)
            np.testing.assert_allclose(terms.of_counts(counts), [alone, -10])
            np.testing.assert_allclose(
                terms.of_counts(counts), law._of_counts(counts, ["mean"])[:, 0]
            )
            assert intervals.interval(terms)[1] <= logs.returns.max()


def test_linearised_contributions_agree_with_the_bootstrap():
    rng = np.random.default_rng(3)
    w = rng.exponential([0.2, 1, 5], size=(500, 3))
    terms = Terms(rng.normal(1, 1, size=w.shape), w)
    spread = intervals.resampled(terms, 5000).std()
    assert terms.contributions.mean() == pytest.approx(terms.value)
    assert terms.contributions.std(ddof=1) / math.sqrt(500) == pytest.approx(spread, rel=0.05)


def test_one_episode_has_no_interval():
    assert all(map(math.isnan, intervals.interval(Terms(np.ones((1, 1))), "t")))


# --------------------------------------------------------------------------------------- weights


def test_effective_sample_size():
    assert effective(np.ones(10)) == 10
    assert effective(np.eye(1, 10)[0]) == 1
    assert effective(np.array([1.0, 3.0])) == pytest.approx(16 / 10)
    assert effective(np.zeros(4)) == 0
    assert effective(np.full(4, 1e-200)) == effective(np.full(4, 1e200)) == 4


def test_clipping_is_counted_step_by_step():
    rng = np.random.default_rng(4)
    ratios = rng.normal(size=(1000, 5))
    clipped = Weights.of(ratios, clip=0.99)
    assert clipped.clipped >= 0.01
    plain = Weights.of(ratios)
    assert (clipped.values <= plain.values).all()
    assert clipped.values.max(0) == pytest.approx(np.quantile(plain.values, 0.99, axis=0))
    assert plain.clipped == 0


def test_an_episode_is_clipped_once_however_many_of_its_weights_are():
    ratios = np.array([[1, 1], [1, 5], [9, 1], [1, 1]])  # weights 1 1, 1 5, 9 9, 1 1; medians 1, 3
    assert Weights.of(np.log(ratios), clip=0.5).clipped == 0.5


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        (np.full((3, 2), -np.inf), "weights zero"),
        (np.full((3, 2), np.inf), "0"),
        (np.full((3, 2), np.nan), "NaN"),
        (np.full((3, 2), 800.0), "float64"),
        (np.full((3, 2), -800.0), "float64"),
    ],
)
def test_weights_that_say_nothing_are_refused(ratios, message):
    with refused(message):
        Weights.of(ratios)


@pytest.mark.parametrize("name", ["snis", "snpdis", "sndr"])
@pytest.mark.parametrize("clip", [None, 0.8])
def test_normalised_weights_need_their_ratios_only(name, clip):
    """A factor of every step's weights, however small or large, changes no estimate and no sample size."""
    world = Enumerated(3, seed=6)
    values, sizes = [], []
    for factor in (0.0, -500.0, 500.0):
        weights = Weights.of(world.log_ratios + factor, clip, relative=True)
        values.append(ESTIMATORS[name](world.logs, weights, world.of_model()).value)
        sizes.append(effective(weights.values))
    usual = Weights.of(world.log_ratios, clip)
    assert values == pytest.approx(
        [ESTIMATORS[name](world.logs, usual, world.of_model()).value] * 3
    )
    assert sizes == pytest.approx([effective(usual.values)] * 3)


def test_a_step_of_zero_weights_is_refused():
    w = np.array([[1.0, 0.0], [1.0, 0.0]])
    with refused("self-normalised"):
        Terms(w, w)


def test_draws_are_the_same_for_the_same_seed(terms):
    draw = partial(intervals.resampled, terms, 50)
    assert (draw(seed=1) == draw(seed=1)).all() and (draw(seed=1) != draw(seed=2)).any()
