"""A minute of the campaign: every reader on bytes that hypothesis damages, and a few killed runs."""

from collections import Counter

import campaign
import pytest
import readers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KINDS = 17


@pytest.fixture(scope="module")
def every(tmp_path_factory) -> list[tuple[readers.Reader, bytes, object]]:
    """Each reader with the valid file's bytes and what is read of them."""
    found = readers.all_readers(tmp_path_factory.mktemp("files"))
    return [(reader, reader.file.read_bytes(), readers.outcome(reader.read())) for reader in found]


@pytest.mark.parametrize("number", range(KINDS))
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(draw=st.randoms(use_true_random=False, note_method_calls=False))
def test_damaged_bytes_are_refused_in_a_sentence(every, number, draw):
    assert len(every) == KINDS
    reader, whole, expected = every[number]
    told = campaign.judge(reader, readers.damaged(whole, draw), expected)
    assert told in ("refused", "same", "read"), f"{reader.name}: {told}"


def test_the_judge_sees_what_is_wrong(every):
    """A campaign that finds nothing must be able to find something."""
    reader, whole, expected = every[0]

    def raising():
        raise KeyError("loop")

    assert (
        campaign.judge(reader._replace(read=raising), whole, expected)
        == "traceback: KeyError: 'loop'"
    )
    assert campaign.judge(reader._replace(read=lambda: 1), whole, expected) == "other data"
    assert campaign.judge(reader._replace(read=lambda: 1, checked=False), whole, expected) == "read"
    assert campaign.judge(reader, whole, expected) == "same"
    assert campaign.judge(reader, whole[:-1], expected) == "refused"


def test_a_reader_that_dies_or_hangs_is_a_finding(monkeypatch):
    """The processes that read are replaced where one is lost, and nothing is counted twice."""

    def lost(number, first, count, at, results):
        for i in range(first, first + count):
            at.value = i
            if (number, i) == (1, 2):
                raise SystemExit(9)
            results.send((str(number), i, "refused"))

    monkeypatch.setattr(campaign, "_read_batch", lost)
    told = []
    campaign.read_damaged(4 * KINDS, 2, lambda *found: told.append(found))
    assert len(told) == 4 * KINDS and len({found[:2] for found in told}) == 4 * KINDS
    assert [found[1:] for found in told if found[2] != "refused"] == [(2, "crash: exit status 9")]


def test_killed_runs_end_as_if_nothing_had_happened(capfd):
    counts = Counter()
    campaign.kill_runs(2, lambda kind, number, told: counts.update([told]))
    assert set(counts) == {"same"}
