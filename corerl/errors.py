"""One exception for every problem that the user can mend."""

import difflib
from collections.abc import Iterable


class CorerlError(Exception):
    """A problem outside the code: its message is one sentence that says what is wrong and what to do.

    The command line prints the message without a traceback and exits with status 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns `" Did you mean a, b?"` for a mistyped `word`, or an empty string where nothing is near."""
    known = list(known)
    # A task's id is cut short more often than mistyped.
    begun = [name for name in known if "/" in word and name.startswith(word)]
    close = (sorted(begun, key=len) or difflib.get_close_matches(word, known, n=3, cutoff=0.5))[:3]
    return f" Did you mean {', '.join(close)}?" if close else ""
