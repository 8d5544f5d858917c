"""A minute of the campaign: every reader on bytes that hypothesis damages, and a few killed runs."""

from collections import Counter
from collections.abc import Iterator

import campaign
import pytest
import readers
import trials
from damage import Reader, damaged, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMPOSED = {
    "corerl train, command line": 1,
    "corerl train -m, command line": 1,
    "a sweep's file": 1,
}
"""Hydra takes a second to compose one of these."""
KINDS = [(kind, COMPOSED.get(kind, 12)) for kind in readers.KINDS]


@pytest.mark.parametrize(("kind", "examples"), KINDS)
def test_damaged_bytes_are_refused_in_a_sentence(tmp_path, kind, examples):
    if "Parquet" in kind:
        pytest.importorskip("pyarrow")
    reader = readers.make(kind, tmp_path)
    whole, expected = reader.file.read_bytes(), outcome(reader.read())

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(draw=st.randoms(use_true_random=False, note_method_calls=False))
    def hold(draw):
        reported = campaign.judge(reader, damaged(whole, draw), expected)
        assert reported in ("refused", "same", "read"), f"{kind}: {reported}"

    hold()


def test_the_judge_sees_what_is_wrong(tmp_path):
    """A campaign that finds nothing must be able to find something."""
    reader = readers.make("checkpoint", tmp_path)
    whole, expected = reader.file.read_bytes(), outcome(reader.read())

    def raising():
        raise KeyError("loop")

    def reported(read, content: bytes = whole, checked: bool = True) -> str:
        return campaign.judge(Reader(reader.file, read, checked), content, expected)

    assert reported(raising) == "traceback: KeyError: 'loop'"
    assert reported(lambda: 1) == "other data"
    assert reported(lambda: 1, checked=False) == "read"
    assert reported(reader.read) == "same"
    assert reported(reader.read, whole[:-1]) == "refused"


def test_a_reader_that_dies_is_a_finding_and_the_rest_is_read(monkeypatch):
    def lost(kind, first, count, at, results):
        for i in range(first, first + count):
            at.value = i
            if i in (2, 5):
                raise SystemExit(9)
            results.send((kind, i, "refused"))

    monkeypatch.setattr(campaign, "_read_batch", lost)
    found = list(campaign.read_damaged("checkpoint", 0, 6))
    assert [number for _, number, _ in found] == list(range(6))
    assert [f for f in found if f[2] != "refused"] == [
        ("checkpoint", number, "crash: exit status 9") for number in (2, 5)
    ]


def test_a_stopped_campaign_goes_on_and_does_nothing_twice(tmp_path, monkeypatch):
    done = Counter()

    def findings(piece) -> Iterator[campaign.Finding]:
        done.update([piece])
        if done.total() == 3:
            raise KeyboardInterrupt
        yield from ((piece.kind, i, "same") for i in range(piece.count))

    monkeypatch.setattr(campaign.Piece, "findings", findings)
    todo = campaign.pieces(6000, 0, 0, only="pickle")
    with pytest.raises(KeyboardInterrupt):
        campaign.work(todo, tmp_path)
    assert sum(campaign.gathered(todo, tmp_path)[0].values(), Counter()).total() == 500
    campaign.work(todo, tmp_path)
    campaign.work(todo, tmp_path)
    counts, wrong, _ = campaign.gathered(todo, tmp_path)
    assert {kind: count["same"] for kind, count in counts.items()} == {
        "pickle of an array": 3000,
        "pickle of a list": 3000,
    }
    assert not wrong and sorted(done.values()) == [1] * 23 + [2]


@pytest.mark.parametrize("number", [0, 1])
def test_killed_runs_end_as_if_nothing_had_happened(number):
    assert {reported for *_, reported in trials.killed_run("BC", number)} <= {"same"}


def test_a_damaged_run_goes_on_or_is_refused():
    ((_, _, reported),) = trials.damaged_run("BC", 0)
    assert reported in ("same", "refused", "read")
