"""Three textbook decision problems of other scales and shapes than A, B and C, with exact CVaR optima.

    inventory   costs only, in the hundreds: a shop with room for four orders none, one, two or four items
                before each of eight days, of which 0, 1, 2 or 4 are asked for
    machine     twenty-four days of a machine that wears: run it, service it, or replace it
    market      returns in hundredths: six shares of a portfolio that a calm or a volatile market moves,
                eight times

In each, at tau 0.25 and 0.5, the policies of the largest mean, of the largest iterated CVaR and of naive
distortion all fall short of the largest static CVaR (tests/envs/test_textbook_mdps.py). The kinds of problem
are those of Porteus (Foundations of Stochastic Inventory Theory, 2002), Puterman (Markov Decision
Processes, 1994) and Bauerle and Rieder (Markov Decision Processes with Applications to Finance, 2011); all
numbers are ours.
"""

import numpy as np

from corerl.risk.finite_mdp import END, FiniteMDP


def inventory(days: int = 8) -> FiniteMDP:
    """An order costs 20, an item 10. What is left costs 5 apiece and day, what is missing 60 apiece."""
    demand, chances = np.array([0, 1, 2, 4]), [0.2, 0.4, 0.3, 0.1]
    room, orders = 4, np.array([0, 1, 2, 4])
    held = np.arange(room + 1)[:, None]
    bought = np.minimum(orders, room - held)[..., None]
    ready = held[..., None] + bought
    left, missing = np.maximum(ready - demand, 0), np.maximum(demand - ready, 0)
    return FiniteMDP(
        np.broadcast_to(chances, left.shape),
        -(20 * (bought > 0) + 10 * bought + 5 * left + 60 * missing),
        left,
        horizon=days,
        states=tuple(f"{n} held" for n in range(room + 1)),
        actions=tuple(f"order {n}" for n in orders),
    )


def machine(days: int = 24) -> FiniteMDP:
    """A machine that wears: running pays 3 and fails with 0.05 to 0.4, which costs 9 and a new machine.

    A service is free and repairs one level of wear with 0.7. A replacement costs 4.
    """
    levels = 4
    wear, fails = np.arange(levels), np.array([0.05, 0.1, 0.2, 0.4])
    new, sure = np.zeros(levels, int), np.ones(levels)
    worn, repaired = np.minimum(wear + 1, levels - 1), np.maximum(wear - 1, 0)
    return FiniteMDP(
        np.stack(
            [_pairs(1 - fails, fails), _pairs(0.7 * sure, 0.3 * sure), _pairs(sure, 0 * sure)], 1
        ),
        np.broadcast_to([[3.0, -9.0], [0.0, 0.0], [-4.0, -4.0]], (levels, 3, 2)),
        np.stack([_pairs(worn, new), _pairs(repaired, wear), _pairs(new, new)], 1),
        horizon=days,
        states=tuple(f"wear {n}" for n in wear),
        actions=("run", "service", "replace"),
    )


def market(rounds: int = 8) -> FiniteMDP:
    """A share x of the money gains or loses x times what the market moves, of the money at the beginning.

    Calm, it moves by 0.04 up or 0.03 down, volatile by 0.12 or 0.1; up with 0.6 in both. It stays calm with
    0.8 and volatile with 0.7.
    """
    shares = np.array([0, 0.25, 0.5, 0.75, 1, 1.5])
    moves, up, stays = np.array([[0.04, -0.03], [0.12, -0.1]]), 0.6, np.array([0.8, 0.7])
    outcomes = _pairs(stays, 1 - stays)[:, None] * np.array([up, 1 - up])[:, None]  # (S, move, S')
    shape = (2, shares.size, 4)
    return FiniteMDP(
        np.broadcast_to(outcomes.reshape(2, 1, 4), shape),
        shares[:, None] * moves.repeat(2, 1)[:, None],
        np.broadcast_to([[[0, 1, 0, 1]], [[1, 0, 1, 0]]], shape),
        horizon=rounds,
        states=("calm", "volatile"),
        actions=tuple(f"{x:g}" for x in shares),
    )


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], -1)


def trap(length: int = 2) -> FiniteMDP:
    """0.6 at once, or 1 at the end of a path of `length` steps that every wrong action leaves for nothing.

    Random play reaches the 1 with probability 0.5 ** length, so that its value is below 0.6. Lookahead of
    `length` + 1 steps sees it (corerl/risk/effective_horizon.py).
    """
    states = np.arange(length + 1)
    following = np.where(states < length, states + 1, END)
    stays = np.stack([following, np.full(length + 1, END)], 1)
    rewards = np.zeros((length + 1, 2))
    rewards[length, 0], rewards[0, 1] = 1.0, 0.6
    return FiniteMDP(
        np.ones((length + 1, 2, 1)),
        rewards[..., None],
        stays[..., None],
        horizon=length + 1,
        states=("fork", *(f"path {n}" for n in states[1:])),
        actions=("on", "off"),
    )
