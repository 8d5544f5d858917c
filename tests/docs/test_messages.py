"""Messages read at first sight, and all of them stand in one reviewed file."""

import messages
import prose
import pytest

REVIEWED = (
    "algos",
    "buffers",
    "data",
    "envs",
    "preferences",
    "recipes",
    "risk",
    "runs",
    "training",
)
"""The rooms of which every message is short and plain."""


def test_every_message_has_been_reviewed():
    reviewed = messages.SNAPSHOT.read_text(encoding="utf-8")
    assert reviewed == messages.snapshot(), "run python tests/messages.py and read its diff"


@pytest.mark.parametrize("room", REVIEWED)
def test_a_message_reads_at_first_sight(room):
    files = [file for file in messages.sources() if room in file.relative_to(messages.ROOT).parts]
    found = [
        text for file in files for text, comment in messages.texts(file.read_text()) if not comment
    ]
    assert found and [p for text in found for p in prose.problems(text)] == []


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
