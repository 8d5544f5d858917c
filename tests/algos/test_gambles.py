"""Offline risk-sensitive learning where the answer is known: one gamble (D1) and two in a row (D2).

In D1 all objectives are one: a* = 1 - k kappa(tau). In D2 only the static objective pays for a stock: having
lost the first gamble, it has to risk more. What is greedy for the CVaR of the return to come (`naive`:
O-RAAC, CODAC) plays D1's action in the second gamble whatever happened in the first, and the best first
action before that: worse than the best two actions fixed beforehand.
"""

import numpy as np
import pytest
from risky import (
    CLOSED_LOOP,
    KAPPA,
    OPEN_LOOP,
    Learner,
    best_action,
    first_actions,
    static_cvar_in_d2,
)

TAU, SEEDS = 0.25, [0, 1, 2]
UPDATES = {"oraac": 8000, "codac": 4000, "cvar_offline": 3000}


def naive_value(tau: float) -> float:
    """Static CVaR in D2 of a_2 = a* and the a_1 that is best before it; both returns are normal."""
    second = best_action(tau)
    first = np.linspace(0, 1, 10_001)
    mean = first - first**2 / 2 + second - second**2 / 2
    return float((mean - 0.5 * KAPPA[tau] * np.hypot(first, second)).max())


def test_what_the_objectives_reach_in_two_gambles():
    for tau in (0.1, 0.25, 0.5):
        assert naive_value(tau) < OPEN_LOOP[tau] < CLOSED_LOOP[tau]
    assert naive_value(TAU) == pytest.approx(0.280, abs=5e-4)


def test_static_cvar_beats_every_policy_that_does_not_look():
    learner = Learner("cvar_offline", "risk/D2", [0], 1200)
    assert static_cvar_in_d2(learner, TAU)[0] > OPEN_LOOP[TAU] + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("algo", UPDATES)
def test_one_gamble(algo, capsys):
    found = first_actions(Learner(algo, "risk/D1", SEEDS, UPDATES[algo]))
    with capsys.disabled():
        print(f"\n{algo} in D1: a = {found.round(3)}, best {best_action(TAU):.3f}")
    np.testing.assert_allclose(found, best_action(TAU), atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("algo", UPDATES)
def test_two_gambles(algo, capsys):
    found = static_cvar_in_d2(Learner(algo, "risk/D2", SEEDS, UPDATES[algo]), TAU)
    with capsys.disabled():
        print(f"\n{algo} in D2: CVaR {found.round(4)}, open loop {OPEN_LOOP[TAU]:.4f}")
    assert (found < CLOSED_LOOP[TAU] + 0.002).all()
    if algo == "cvar_offline":
        assert (found > OPEN_LOOP[TAU] + 0.005).all()
    else:
        np.testing.assert_allclose(found, naive_value(TAU), atol=0.03)
        assert (found < OPEN_LOOP[TAU]).all()
