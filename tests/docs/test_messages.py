"""Messages read at first sight, and all of them stand in one reviewed file."""

import ast

import messages
import prose
import pytest

NOT_PROSE = ("usage: corerl", "α alpha", "recomputed from")
"""What a text begins with that nobody reads as sentences."""


def test_every_message_has_been_reviewed():
    reviewed = messages.SNAPSHOT.read_text(encoding="utf-8")
    assert reviewed == messages.snapshot(), "run python tests/messages.py and read its diff"


@pytest.mark.parametrize("file", messages.sources(), ids=lambda file: file.stem)
def test_a_message_reads_at_first_sight(file):
    found = [text for text, _ in messages.texts(file.read_text()) if not text.startswith(NOT_PROSE)]
    assert [problem for text in found for problem in prose.problems(text)] == []


def test_the_snapshot_holds_what_users_see():
    source = '''
class Config:
    """No message of four words."""
    lr: float = 0.1  # step of the optimiser
def check(x):
    raise CorerlError(f"lr={x} must not be negative.")
'''
    expected = [("lr: step of the optimiser", True), ("lr={...} must not be negative.", False)]
    assert list(messages.texts(source)) == expected


@pytest.mark.parametrize("file", messages.sources(), ids=lambda file: file.stem)
def test_a_docstring_opens_with_short_sentences(file):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]
    opened = [(ast.get_docstring(node) or "").split("\n\n")[0] for node in nodes]
    opened = [text.replace("; ", ", ") if "arXiv" in text else text for text in opened]  # citations
    assert [problem for text in opened for problem in prose.problems(text)] == []
