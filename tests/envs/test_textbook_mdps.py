"""Inventory, machine and market: their steps by hand, and that only the static optimum is optimal."""

import numpy as np
import pytest

from corerl.data import tasks
from corerl.envs import textbook_mdps
from corerl.risk.finite_mdp import return_law
from corerl.risk.solvers import iterated, naive
from corerl.risk.static_cvar import attainable, static

NAMES = ("inventory", "machine", "market")


def outcomes(mdp, state: int, action: int) -> set[tuple[float, float, int]]:
    """Probability, reward and next state of each."""
    columns = (x[state, action] for x in (mdp.probabilities, mdp.rewards, mdp.successors))
    rows = {
        (round(float(p), 9), round(float(r), 9), int(s)) for p, r, s in zip(*columns, strict=True)
    }
    return {row for row in rows if row[0] > 0}


@pytest.mark.parametrize(
    ("name", "state", "action", "wanted"),
    [  # one held, two ordered for 40: 3, 2, 1 left, or one missing
        ("inventory", 1, 2, {(0.2, -55, 3), (0.4, -50, 2), (0.3, -45, 1), (0.1, -100, 0)}),
        # there is room for one of four
        ("inventory", 3, 3, {(0.2, -50, 4), (0.4, -45, 3), (0.3, -40, 2), (0.1, -30, 0)}),
        ("inventory", 4, 3, {(0.2, -20, 4), (0.4, -15, 3), (0.3, -10, 2), (0.1, 0, 0)}),
        ("machine", 1, 0, {(0.9, 3, 2), (0.1, -9, 0)}),
        ("machine", 3, 0, {(0.6, 3, 3), (0.4, -9, 0)}),
        ("machine", 2, 1, {(0.7, 0, 1), (0.3, 0, 2)}),
        ("machine", 2, 2, {(1, -4, 0)}),
        ("market", 0, 5, {(0.48, 0.06, 0), (0.12, 0.06, 1), (0.32, -0.045, 0), (0.08, -0.045, 1)}),
        ("market", 1, 2, {(0.42, 0.06, 1), (0.18, 0.06, 0), (0.28, -0.05, 1), (0.12, -0.05, 0)}),
    ],
)
def test_a_step_by_hand(name, state, action, wanted):
    assert outcomes(getattr(textbook_mdps, name)(), state, action) == wanted


@pytest.mark.parametrize("tau", [0.25, 0.5])
@pytest.mark.parametrize("name", NAMES)
def test_only_the_static_optimum_is_optimal(name, tau):
    """What comes next is worse by more than 0.3 % of the range of returns, the bound on learned policies."""
    mdp = tasks.resolve(f"risk/{name}").make_env().unwrapped.mdp
    returns = attainable(mdp)[1]
    others = (static(mdp, 1.0), iterated(mdp, tau), naive(mdp, tau))
    best = static(mdp, tau)
    assert return_law(mdp, best.policy)[0].cvar(tau) == pytest.approx(best.value)
    assert best.value - max(s.law.cvar(tau) for s in others) > 0.003 * np.ptp(returns)
