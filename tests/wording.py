"""What tests ask of a text for users: the settings, names and values in it, never its sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from corerl.errors import CorerlError


def lacking(text: object, words: object) -> list[str]:
    """Returns which of `words` (separated by spaces) do not stand in the text as words of their own."""
    return [word for word in str(words).split() if not re.search(_whole(word), str(text))]


def _whole(word: str) -> str:
    before = r"(?<![\w.])" if word[0].isdigit() else r"(?<!\w)" if word[0].isalpha() else ""
    return before + re.escape(word) + (r"(?!\w|\.\d)" if word[-1].isalnum() else "")


def says(text: object, words: object, lines: int | None = None) -> None:
    """Asserts that every one of `words` stands in the text, and how many lines it has."""
    assert not (missing := lacking(text, words)), f"{missing} are not in: {text}"
    assert lines in (None, str(text).count("\n")), f"not {lines} lines: {text}"


@contextmanager
def refused(words: object = "", error: type[Exception] = CorerlError) -> Iterator:
    """Expects an error whose message names every one of `words`: the settings and values at fault."""
    with pytest.raises(error) as caught:
        yield caught
    says(caught.value, words)
