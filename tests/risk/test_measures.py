"""CVaR of discrete laws, against Rockafellar and Uryasev's maximum and a normal's closed form."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from wording import refused

from corerl.report import stats
from corerl.risk import measures


def maximum(values, mass, tau):
    """max_c c - E[(c - X)^+] / tau; the maximum is at an atom."""
    return max(c - np.maximum(c - values, 0) @ mass / tau for c in values)


@pytest.mark.parametrize("tau", [0.01, 0.3, 0.5, 0.999, 1.0])
def test_a_law_against_the_maximum(tau):
    rng = np.random.default_rng(0)
    for _ in range(20):
        values, mass = rng.normal(size=7).round(1), rng.dirichlet(np.ones(7))
        mass[rng.integers(7)] = 0
        mass /= mass.sum()
        assert measures.cvar_of_law(values, mass, tau) == pytest.approx(maximum(values, mass, tau))


def test_the_atom_at_the_boundary_is_split():
    assert measures.cvar_of_law([4.0, -2.0], [0.7, 0.3], 0.5) == pytest.approx(
        (0.3 * -2 + 0.2 * 4) / 0.5
    )
    assert measures.cvar_of_law([5.0, 5.0], [0.5, 0.5], 0.1) == 5.0


def test_many_laws_at_once_are_each_alone():
    rng = np.random.default_rng(1)
    values, mass = rng.normal(size=(2, 3, 4)), rng.dirichlet(np.ones(4), (2, 3))
    found = measures.cvar_of_law(values, mass, 0.4)
    for place in np.ndindex(2, 3):
        assert found[place] == pytest.approx(maximum(values[place], mass[place], 0.4))


def test_samples_are_a_law_of_equal_masses():
    samples = np.random.default_rng(2).normal(size=37)
    for tau in (0.05, 0.1, 0.25):
        law = measures.cvar_of_law(samples, np.full(37, 1 / 37), tau)
        assert (
            measures.cvar(samples, tau)
            == law
            == pytest.approx(maximum(samples, 1 / 37 + 0 * samples, tau))
        )


def test_a_normal_sample():
    samples = np.random.default_rng(3).normal(size=200_000)
    tail = -scipy_stats.norm.pdf(scipy_stats.norm.ppf(0.1)) / 0.1
    assert measures.cvar(samples, 0.1) == pytest.approx(tail, abs=0.02)


@pytest.mark.parametrize("mass", [[0.5, 0.4], [1.5, -0.5]])
def test_what_is_no_law_is_refused(mass):
    with refused("probabilities one"):
        measures.cvar_of_law([0.0, 1.0], mass, 0.5)


@pytest.mark.parametrize("tau", [0.0, 1.01, -1.0])
def test_a_tail_outside_its_range_is_refused(tau):
    with refused("0 < tau <= 1"):
        measures.cvar_of_law([0.0, 1.0], [0.5, 0.5], tau)


# Over seeds.


def test_the_mean_over_seeds_and_its_interval_by_hand():
    """Seeds, then their episodes, drawn with replacement one replicate at a time."""
    rng = np.random.default_rng(4)
    samples = [rng.normal(m, 1, n) for m, n in ((0, 40), (1, 60), (0.5, 50))]
    value, low, high = stats.cvar_of_seeds(samples, 0.25, replicates=4000)
    assert value == pytest.approx(np.mean([measures.cvar(s, 0.25) for s in samples]))
    by_hand = [
        np.mean([measures.cvar(rng.choice(samples[i], len(samples[i])), 0.25) for i in drawn])
        for drawn in rng.integers(3, size=(2000, 3))
    ]
    np.testing.assert_allclose((low, high), np.percentile(by_hand, [2.5, 97.5]), atol=0.06)
    assert high - low > 0.5


def test_a_seed_drawn_twice_has_other_episodes_each_time():
    """Of three seeds alike only episodes vary: the mean of 150, by the normal approximation."""
    episodes = np.linspace(-1, 1, 50)
    found = stats.cvar_of_seeds([episodes] * 3, 1.0)[1:]
    half = scipy_stats.norm.ppf(0.975) * episodes.std() / np.sqrt(150)
    np.testing.assert_allclose(found, (-half, half), rtol=0.04)


def test_a_seed_of_one_episode_has_no_interval():
    samples = np.random.default_rng(5).normal(size=200)
    for given in ([samples, np.ones(1)], [np.ones(1)]):
        value, low, high = stats.cvar_of_seeds(given, 0.1)
        assert np.isfinite(value) and np.isnan([low, high]).all()
