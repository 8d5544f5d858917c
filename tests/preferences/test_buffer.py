"""Comparisons and the batches of them: every row where it belongs, each seed its own draws."""

import numpy as np
import pytest
import torch
from wording import refused

from corerl.preferences.buffer import PairBuffer, Pairs, transitions
from corerl.preferences.comparisons import Comparisons

STEPS = np.arange(12, dtype=np.float32)
GIVEN = {
    "id": "made up",
    "source": "nobody",
    "observations": np.stack([STEPS, 100 + STEPS], 1),
    "actions": STEPS[:, None] / 20,
    "next_observations": np.stack([STEPS, 100 + STEPS], 1) + 1,
    "terminated": STEPS == 11,
    "rewards": STEPS,
    "ends": np.array([5, 12]),
    "starts": np.array([[0, 5], [1, 8], [6, 2]]),
    "length": 3,
    "labels": np.array([0, 0.5, 1], np.float32),
}


def comparisons(**changed) -> Comparisons:
    return Comparisons(**(GIVEN | changed))


def test_a_batch_holds_the_rows_of_its_segments():
    buffer = PairBuffer(comparisons(), [0, 7], 40)
    batch = buffer.sample()
    assert batch.observations.shape == (2, 40, 2, 3, 2) and batch.labels.shape == (2, 40)
    rows = batch.observations[..., 0].long()
    steps = rows - rows[..., :1]
    assert (steps == torch.arange(3)).all()
    starts = {(0, 5): 0.0, (1, 8): 0.5, (6, 2): 1.0}
    found = [tuple(pair) for pair in rows[..., 0].flatten(0, 1).tolist()]
    assert set(found) == set(starts)
    assert [starts[pair] for pair in found] == batch.labels.flatten().tolist()
    assert (batch.observations[..., 1] == rows + 100).all()
    torch.testing.assert_close(batch.actions[..., 0], rows / 20)
    last = buffer.last(2)
    assert last.observations[..., 0, 0].tolist() == [[[1, 8], [6, 2]]]
    assert last.labels.tolist() == [[0.5, 1.0]]


def test_crops_are_windows_of_their_segments_each_drawn_by_itself():
    buffer = PairBuffer(comparisons(), [0], 400, crop=2)
    batch = buffer.sample()
    rows = batch.observations[0, ..., 0].long()
    assert (rows[..., 1] == rows[..., 0] + 1).all()
    whole = {0.0: (0, 5), 0.5: (1, 8), 1.0: (6, 2)}
    moved = rows[..., 0] - torch.tensor([whole[label] for label in batch.labels[0].tolist()])
    counts = torch.zeros(2, 2)
    for first, second in moved.tolist():
        counts[first, second] += 1
    assert counts.sum() == 400 and (counts > 60).all()  # four equal shares, 4.6 deviations


def test_all_segments_of_a_batch_may_be_cropped_alike():
    buffer = PairBuffer(comparisons(), [0, 1, 2], 5, crop=2, crop_alike=True)
    whole = {0.0: (0, 5), 0.5: (1, 8), 1.0: (6, 2)}
    moves = []
    for _ in range(100):
        batch = buffer.sample()
        starts = torch.tensor([[whole[label] for label in row] for row in batch.labels.tolist()])
        moved = batch.observations[..., 0, 0] - starts
        assert (moved == moved[:, :1, :1]).all()
        moves.append(moved[:, 0, 0])
    moves = torch.stack(moves)
    assert (moves.sum(0) > 25).all() and (moves.sum(0) < 75).all()
    assert (moves[:, 0] != moves[:, 1]).any(), "each seed draws its own"
    assert buffer.last(1).observations.shape == (1, 1, 2, 3, 2), "the last ones are whole"


def test_a_seed_draws_the_same_alone_and_goes_on_where_it_was_saved():
    alone, two = (PairBuffer(comparisons(), seeds, 5, crop=2) for seeds in ([7], [0, 7]))
    for _ in range(3):
        one, both = alone.sample(), two.sample()
    for mine, ours in zip(one[:3], both[:3], strict=True):
        assert torch.equal(mine[0], ours[1])
    assert not torch.equal(both.observations[0], both.observations[1])
    state = two.state_dict()
    expected = two.sample()
    again = PairBuffer(comparisons(), [0, 7], 5, crop=2)
    again.load_state_dict(state)
    assert all(map(torch.equal, again.sample()[:3], expected[:3]))


def test_transitions_are_the_steps_within_segments():
    s, a = (torch.randn(2, 3, 2, 5, n) for n in (4, 2))
    batch = transitions(Pairs(s, a, torch.ones(2, 3)))
    assert batch.observations.shape == (2, 3 * 2 * 4, 4) and batch.actions.shape == (2, 24, 2)
    row = (1 * 2 + 1) * 4 + 2  # comparison 1, second segment, step 2
    assert torch.equal(batch.observations[:, row], s[:, 1, 1, 2])
    assert torch.equal(batch.actions[:, row], a[:, 1, 1, 2])
    assert torch.equal(batch.next_observations[:, row], s[:, 1, 1, 3])
    assert not batch.terminated.any() and batch.next_actions.shape == (2, 24, 0)


def test_segments_by_value_keep_their_order():
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(4, 2, 5, 3)), rng.normal(size=(4, 2, 5, 2))
    made = Comparisons.by_value("x", "y", observations, actions, [0, 1, 0.5, 1])
    np.testing.assert_array_equal(made.segments(made.observations), observations.astype("f4"))
    np.testing.assert_array_equal(made.segments(made.actions), actions.astype("f4"))
    following = made.segments(made.next_observations)
    np.testing.assert_array_equal(following[:, :, :-1], observations[:, :, 1:].astype("f4"))
    np.testing.assert_array_equal(following[:, :, -1], observations[:, :, -1].astype("f4"))
    assert len(made.first(2)) == 2 and made.first(None) is made


def test_a_row_is_kept_once_however_many_segments_hold_it():
    many = comparisons(
        starts=np.tile(GIVEN["starts"], (50, 1)), labels=np.tile(GIVEN["labels"], 50)
    )
    assert PairBuffer(many, [0, 1, 2], 4).nbytes == 11 * (2 + 1) * 4  # none holds the last row


def test_rows_of_no_segment_are_left_out_and_move_no_other():
    few = comparisons(starts=np.array([[7, 1], [9, 1]]), labels=np.array([0.0, 1.0], np.float32))
    buffer = PairBuffer(few, [0], 20)
    assert buffer.nbytes == 8 * (2 + 1) * 4  # rows 1 to 3 and 7 to 11
    batch = buffer.sample()
    for label, segments in zip(
        batch.labels[0].tolist(), batch.observations[0, ..., 0], strict=True
    ):
        first = 7 if label == 0 else 9
        assert segments.tolist() == [[first, first + 1, first + 2], [1, 2, 3]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": np.array([0, -1, 1.0])}, "1 -1"),
        (
            {"starts": np.array([[0, 5], [1, 10], [6, 2]])},
            "1 2 10 13",
        ),
        ({"starts": np.array([[0, 5], [1, 8], [-1, 2]])}, "2 1 -1"),
        (
            {"starts": np.array([[0, 5], [3, 8], [6, 2]])},
            "1 3 6",
        ),
        ({"starts": np.array([[0, 5]])}, "1 2 3"),
        ({"actions": STEPS[:11, None]}, "actions 11"),
        ({"observations": np.where(STEPS == 4, np.nan, STEPS)[:, None]}, "observations 4"),
    ],
)
def test_bad_comparisons_are_refused_by_number(changed, message):
    with refused(message):
        comparisons(**changed)


def test_more_than_there_is_is_refused():
    with refused("3"):
        comparisons().first(4)
    with refused("4 steps"):
        PairBuffer(comparisons(), [0], 2, crop=4)
