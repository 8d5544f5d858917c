"""The joint law of a maze's discounted returns under the uniform policy, by recursion over ways.

No square is entered twice, so the squares entered are a state that never recurs except by waiting, and
waiting is a geometric law: both moments of Z(state) follow from those of its successors in closed form.
Works on the map alone, and never steps an environment.
"""

from functools import lru_cache

import numpy as np

GAMMA = 0.99


def _successors(maze, cell, entered):
    """`(probability, next cell or None outside)` of each effective move; the rest is waiting."""
    law = maze.chosen.get(cell, (0.25,) * 4)
    for action, probability in enumerate(law):
        after = maze.openings.get((cell, action))
        if probability and after is not None and after not in entered:
            if not (0 <= after[0] < maze.size and 0 <= after[1] < maze.size):
                yield probability, None
            elif after not in maze.unused:
                yield probability, after


def _reward_moments(maze, cell):
    sources = len(maze.sources)
    mean, second = np.zeros(sources), np.zeros((sources, sources))
    for i, source in enumerate(maze.sources):
        if cell in source.cells:
            mean[i] = (source.low + source.high) / 2
            second[i, i] = (source.low**2 + source.low * source.high + source.high**2) / 3
    return mean, second


def joint_moments(maze, gamma: float = GAMMA):
    """Mean `(K,)` and covariance `(K, K)` of the discounted return from the start, without time limit."""
    sources = len(maze.sources)

    @lru_cache(None)
    def moments(cell, entered):
        mean, second = np.zeros(sources), np.zeros((sources, sources))
        waiting = 1.0
        for probability, after in _successors(maze, cell, entered):
            waiting -= probability
            if after is None:
                continue
            r, rr = _reward_moments(maze, after)
            m, mm = moments(after, entered | {after})
            mean += probability * (r + gamma * m)
            second += probability * (rr + gamma * (np.outer(r, m) + np.outer(m, r)) + gamma**2 * mm)
        return mean / (1 - gamma * waiting), second / (1 - gamma**2 * waiting)

    mean, second = moments(maze.start, frozenset([maze.start]))
    return mean, second - np.outer(mean, mean)


def total_probability(maze) -> float:
    """The probability that a random walk leaves the maze, rather than being caught for ever."""

    @lru_cache(None)
    def leaves(cell, entered):
        moves = list(_successors(maze, cell, entered))
        if not moves:
            return 0.0
        parts = [p * (1.0 if c is None else leaves(c, entered | {c})) for p, c in moves]
        return sum(parts) / sum(p for p, _ in moves)

    return leaves(maze.start, frozenset([maze.start]))
