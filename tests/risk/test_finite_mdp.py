"""Finite MDPs as arrays: what is refused, and the law of a policy's return."""

import numpy as np
import pytest
from wording import refused

from corerl.envs import mdps
from corerl.risk.finite_mdp import END, FiniteMDP, Law, first_best, markov, return_law

GOOD = {
    "probabilities": [[[0.5, 0.5], [1.0, 0.0]]],
    "rewards": [[[1.0, 2.0], [0.0, 0.0]]],
    "successors": [[[0, END], [0, 0]]],
    "horizon": 2,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"probabilities": [[[0.5, 0.5], [0.9, 0.0]]]},
            "0 action 1 0.9",
        ),
        ({"probabilities": [[[1.5, -0.5], [1, 0]]]}, "0 action"),
        ({"probabilities": [[0.5, 0.5]]}, "S A K"),
        ({"rewards": [[[1.0], [0.0]]]}, "rewards 1 2 shape"),
        ({"rewards": [[[np.nan, 2], [0, 0]]]}, "rewards"),
        ({"successors": [[[0, 1], [0, 0]]]}, "0"),
        ({"successors": [[[0, -2], [0, 0]]]}, "0"),
        ({"start": [0.5]}, "start"),
        ({"horizon": 0}, "horizon=0"),
        ({"horizon": 2.0}, "horizon=2.0"),
        ({"horizon": None}, "horizon discount 1"),
        ({"discount": 0.0}, "discount=0.0"),
        ({"discount": 1.5}, "discount=1.5"),
    ],
)
def test_what_is_no_mdp_is_refused(changes, message):
    FiniteMDP(**GOOD)
    with refused(message):
        FiniteMDP(**(GOOD | changes))


def test_matrices_and_starts_that_are_no_laws_are_refused():
    transitions = np.full((2, 2, 2), 0.5)
    transitions[1, 0, 1] = 0.4
    with refused("1 action 0 0.9"):
        FiniteMDP.from_matrices(transitions, np.zeros((2, 2)), horizon=1)
    with refused("rewards (2, 3) (2,) (2, 2)"):
        FiniteMDP.from_matrices(np.full((2, 2, 2), 0.5), np.zeros((2, 3)), horizon=1)
    with refused("start"):
        FiniteMDP.from_matrices(
            np.full((2, 2, 2), 0.5), np.zeros((2, 2)), start=[1.5, -0.5], horizon=1
        )


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 2, 2)])
def test_rewards_of_matrices_may_leave_out_what_they_do_not_depend_on(shape):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=shape)
    mdp = FiniteMDP.from_matrices(np.full((2, 2, 2), 0.5), rewards, horizon=1)
    for s, a, t in np.ndindex(2, 2, 2):
        assert mdp.rewards[s, a, t] == rewards[(s, a, t)[: len(shape)]]
        assert mdp.successors[s, a, t] == t


def test_the_law_of_a_policy_by_hand():
    """Twice the first action: 1 + 1, 1 + 2 or, with an end, 2."""
    law, visits = return_law(FiniteMDP(**GOOD), markov(np.array([0])))
    np.testing.assert_allclose(law.values, [2, 3])
    np.testing.assert_allclose(law.probabilities, [0.75, 0.25])
    assert [(v.t, v.collected, v.probability) for v in visits] == [(0, 0, 1), (1, 1, 0.5)]
    assert law.mean == pytest.approx(2.25) and law.variance == pytest.approx(0.1875)
    assert law.cvar(0.8) == pytest.approx((0.75 * 2 + 0.05 * 3) / 0.8)


def test_the_law_of_a_policy_is_what_is_sampled():
    mdp, rng = mdps.wagers(), np.random.default_rng(0)
    law, _ = return_law(mdp, markov(np.array([[1], [1], [0], [1], [0]])))
    sums = np.zeros(4000)
    for i in range(len(sums)):
        sums[i] = sum(mdp.step(0, a, rng)[0] for a in (1, 1, 0, 1, 0))
    shares = [(sums == value).mean() for value in law.values]
    np.testing.assert_allclose(shares, law.probabilities, atol=0.03)


def test_equal_values_of_a_law_are_one_atom():
    law = Law.of(np.array([0.1 + 0.2, 0.3, 1.0]), np.array([0.25, 0.25, 0.5]))
    np.testing.assert_allclose(law.values, [0.3, 1.0])
    np.testing.assert_allclose(law.probabilities, [0.5, 0.5])


def test_points_that_cannot_be_reached_are_not_visited():
    mdp = FiniteMDP([[[1.0, 0.0]]], [[[1.0, 9.0]]], [[[0, 0]]], horizon=2)
    _, visits = return_law(mdp, markov(np.array([0])))
    assert [(v.t, v.collected) for v in visits] == [(0, 0), (1, 1)]


def test_the_first_of_values_that_differ_by_rounding_is_the_best():
    values = [[0.3, 0.1 + 0.2, 0.0], [1e6 * 0.3, 1e6 * (0.1 + 0.2), 0.0], [1.0, 1 + 1e-9, 0.0]]
    assert first_best(np.array(values)).tolist() == [0, 0, 1]


def test_an_endless_mdp_is_cut_where_nothing_is_left():
    mdp = mdps.hazard()
    assert mdp.discount**mdp.steps * 5 / (1 - mdp.discount) <= 1e-10
