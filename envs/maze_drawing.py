"""The drawing of a maze that MD3QN's authors let the agent see, `(3, 84, 84)` (see envs/mazes.py)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from corerl.envs.mazes import Cell, Maze

CANVAS, IMAGE = 256, 84
GREY, AGENT, BLACK, YELLOW, RED = (200,) * 3, (100,) * 3, (0,) * 3, (255, 255, 0), (255, 0, 0)
EDGE = 2  # half the width of a wall, in pixels of the canvas


def draw(maze: Maze, cell: Cell, entered: frozenset[Cell]) -> np.ndarray:
    """The drawing `(3, 84, 84)` uint8. Squares that were left or are unused are grey, and walls black.

    One-way passages are yellow (down, right) or red (up, left). Squares where nobody has been keep their
    colour.
    """
    canvas = np.full((CANVAS, CANVAS, 3), 255, np.uint8)
    for gone in (entered - {cell}) | set(maze.unused):
        _fill(canvas, maze, gone, (0, 1), (0, 1), GREY, margin=EDGE)
    for wall, colour in _walls(maze):
        _fill(canvas, maze, *wall, colour, margin=EDGE)
    _triangle(canvas, maze, cell)
    for place in maze.source_of.keys() - entered:
        colour = maze.sources[maze.source_of[place]].colour
        _fill(canvas, maze, place, (0.3, 0.7), (0.3, 0.7), colour)
    small = np.tensordot(_shrink(), canvas, (1, 0)).swapaxes(0, 1)
    small = np.tensordot(_shrink(), small, (1, 0))  # (columns, rows, colours)
    return np.rint(small).astype(np.uint8).transpose(2, 1, 0).copy()


def _walls(maze: Maze) -> Iterator[tuple]:
    """Every edge that is not open both ways, as `(cell, rows, columns)` for `_fill`, and its colour."""
    for row in range(maze.size + 1):
        for column in range(maze.size + 1):
            tops = (row, column), (row - 1, column), (0, 2), (0, 0), (0, 1), column
            lefts = (row, column), (row, column - 1), (1, 3), (0, 1), (0, 0), row
            for after, before, (back, forth), rows, columns, along in (tops, lefts):
                up = (after, back) in maze.openings
                down = (before, forth) in maze.openings
                if along < maze.size and not (up and down):
                    yield (after, rows, columns), YELLOW if down else RED if up else BLACK


def _pixel(maze: Maze, cells: float) -> float:
    return CANVAS * (0.05 + 0.9 * cells / maze.size)


def _fill(canvas, maze: Maze, cell: Cell, rows, columns, colour, margin: float = 0) -> None:
    """Paints a part of a square, given in shares of its side, and `margin` pixels around it."""
    spans = [
        slice(
            round(_pixel(maze, at + span[0]) - margin),
            round(_pixel(maze, at + span[1]) + margin) + 1,
        )
        for at, span in zip(cell, (rows, columns), strict=True)
    ]
    canvas[spans[0], spans[1]] = colour


def _triangle(canvas, maze: Maze, cell: Cell) -> None:
    """The agent: from the middle of a line at 0.3 of the square's height to a base at 0.7."""
    top, bottom = (_pixel(maze, cell[0] + share) for share in (0.3, 0.7))
    middle = _pixel(maze, cell[1] + 0.5)
    for row in range(round(top), round(bottom) + 1):
        half = 0.2 * (_pixel(maze, 1) - _pixel(maze, 0)) * (row - top) / (bottom - top)
        canvas[row, round(middle - half) : round(middle + half) + 1] = AGENT


@lru_cache(1)
def _shrink() -> np.ndarray:
    """Averages over areas, `(84, 256)`: each small pixel's shares of the large ones under it."""
    edges = np.arange(IMAGE + 1) * CANVAS / IMAGE
    left = np.maximum(edges[:-1, None], np.arange(CANVAS))
    right = np.minimum(edges[1:, None], np.arange(CANVAS) + 1)
    return np.maximum(right - left, 0) * IMAGE / CANVAS
