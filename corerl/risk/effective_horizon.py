"""Effective horizon of finite MDPs: how many steps of lookahead beyond random play choose best actions.

After Laidlaw et al. 2023 and 2024 (arXiv:2304.09853, 2312.08369). Q^1 is the action value of the policy that
plays uniformly. Q^(i+1) = r + discount * E max_a Q^i. Deep reinforcement learning tends to succeed where the
greedy policy of Q^k is optimal for a small k.
"""

import numpy as np

from corerl.risk.finite_mdp import EXACT, FiniteMDP


def lookahead_values(mdp: FiniteMDP, steps: int) -> np.ndarray:
    """Returns Q^k `(k, T, S, A)` at every time, for k from 1 to `steps`. The last is the largest k."""
    mean = (mdp.probabilities * mdp.rewards).sum(-1)
    found = np.zeros((steps, mdp.steps, *mdp.sizes))
    # The values after a step `(k, S + 1)`, of random play for the first k; 0 beyond the end.
    ahead = np.zeros((steps, mdp.sizes[0] + 1))
    for t in reversed(range(mdp.steps)):
        following = (mdp.probabilities * ahead[:, mdp.successors]).sum(-1)
        found[:, t] = mean + mdp.discount * following
        ahead[0, :-1] = found[0, t].mean(-1)
        ahead[1:, :-1] = found[:-1, t].max(-1)
    return found


def best_values(mdp: FiniteMDP) -> np.ndarray:
    """Returns the optimal action values `(T, S, A)`."""
    return lookahead_values(mdp, mdp.steps)[-1]


def effective_horizon(mdp: FiniteMDP, most: int | None = None) -> int | None:
    """Returns the smallest k for which every greedy policy of Q^k is optimal from the start.

    Args:
        most: the largest k to try. None tries up to the number of steps, where Q^k is always optimal.
    """
    most = mdp.steps if most is None else min(most, mdp.steps)
    values, best = lookahead_values(mdp, most), best_values(mdp)
    return next((k + 1 for k in range(most) if _is_optimal(mdp, values[k], best)), None)


def _is_optimal(mdp: FiniteMDP, values: np.ndarray, best: np.ndarray) -> bool:
    """Tells whether all greedy actions of `values` are best wherever a greedy policy gets."""
    scale = EXACT * max(1.0, np.abs(best).max())
    greedy = values >= values.max(-1, keepdims=True) - scale
    optimal = best >= best.max(-1, keepdims=True) - scale
    met = mdp.start > 0
    for t in range(mdp.steps):
        chosen = greedy[t] & met[:, None]
        if (chosen & ~optimal[t]).any():
            return False
        reached = mdp.successors[chosen[..., None] & (mdp.probabilities > 0)]
        met = np.isin(np.arange(mdp.sizes[0]), reached)
    return True
