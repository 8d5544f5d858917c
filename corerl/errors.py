"""One exception for every problem that the user can mend."""

import difflib
from collections.abc import Iterable


class CorerlError(Exception):
    """A problem outside the code: its message is one sentence that says what is wrong and what to do.

    The command line prints the message without a traceback and exits with status 2.
    """


class RowError(CorerlError):
    """A row of recorded steps breaks a rule. `problem` is a verb and what it holds.

    `column` is an index, several in an array of more axes, or None where a row is one number.
    """

    def __init__(
        self,
        field: str,
        row: int,
        column: int | tuple[int, ...] | None,
        problem: str,
        id: str = "",
    ):
        super().__init__(field, row, column, problem, id)
        self.field, self.row, self.column, self.problem, self.id = self.args

    def __str__(self) -> str:
        dataset = f"Dataset {self.id}, " if self.id else ""
        column = "" if self.column is None else f", column {self.column},"
        return f"{dataset}field {self.field}: row {self.row}{column} {self.problem}."


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message. The name of its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns `" Did you mean a, b?"` for a mistyped `word`, or an empty string where nothing is near."""
    known = list(known)
    # A task's id is cut short more often than mistyped.
    begun = [name for name in known if "/" in word and name.startswith(word)]
    close = (sorted(begun, key=len) or difflib.get_close_matches(word, known, n=3, cutoff=0.5))[:3]
    return f" Did you mean {', '.join(close)}?" if close else ""
