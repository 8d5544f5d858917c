"""One exception for every problem that the user can mend."""

import difflib
from collections.abc import Iterable


class CorerlError(Exception):
    """A problem outside the code: its message is one sentence that says what is wrong and what to do.

    The command line prints the message without a traceback and exits with status 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """`" Did you mean a, b?"` for a mistyped `word`, or an empty string where nothing is near."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" Did you mean {', '.join(close)}?" if close else ""
