"""Offline batches hold whole rows of the data, at the row numbers of each seed's own stream."""

import numpy as np
import pytest
import torch
from small import flatten, random_dataset

from corerl import streams
from corerl.buffers import OfflineBuffer

SEEDS = [0, 4, 9]


def rows_of(batch, transitions) -> np.ndarray:
    """The row of the data that each sample is, (S, B), found by its observation."""
    known = {row.tobytes(): i for i, row in enumerate(transitions.observations)}
    found = [[known[x.numpy().tobytes()] for x in seed] for seed in batch.observations]
    return np.array(found)


def test_a_batch_is_whole_rows_at_the_streams_numbers():
    data = random_dataset().transitions()
    buffer = OfflineBuffer(data, SEEDS, 16)
    numbers = streams.indices(SEEDS, len(data.rewards), 16)
    assert (len(buffer), buffer.observation_dim, buffer.action_dim) == (300, 3, 2)
    for _ in range(3):
        batch, rows = buffer.sample(), numbers.next().numpy()
        assert (rows_of(batch, data) == rows).all()
        for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
            value, expected = getattr(batch, name), getattr(data, name)[rows]
            assert value.shape == expected.shape and value.dtype == torch.float32
            np.testing.assert_array_equal(value.numpy(), expected)
        assert batch.next_actions.shape == (3, 16, 0)


def test_next_actions_are_those_of_the_following_row():
    dataset = random_dataset()
    data = dataset.transitions(next_actions=True)
    batch = OfflineBuffer(data, SEEDS, 200).sample()
    over = batch.terminated.bool().numpy()
    assert over.any() and not over.all()
    raw = {row.tobytes(): i for i, row in enumerate(dataset.observations)}
    for s, b in np.ndindex(3, 200):
        row = raw[batch.observations[s, b].numpy().tobytes()]
        following = np.zeros(2) if over[s, b] else dataset.actions[row + 1]
        np.testing.assert_array_equal(batch.next_actions[s, b].numpy(), following)


def test_seeds_see_the_same_batches_in_any_company():
    data = random_dataset().transitions()
    together, alone = OfflineBuffer(data, range(10), 8), OfflineBuffer(data, [3], 8)
    for _ in range(5):
        assert torch.equal(alone.sample().observations[0], together.sample().observations[3])


@pytest.mark.parametrize("drawn", [0, 3, streams.BLOCK])
def test_offline_buffer_resumes_with_the_next_batch(drawn):
    data = random_dataset().transitions()
    buffer, resumed = (OfflineBuffer(data, SEEDS, 8) for _ in range(2))
    for _ in range(drawn):
        buffer.sample()
    resumed.load_state_dict(buffer.state_dict())
    assert flatten(list(resumed.sample())) == flatten(list(buffer.sample()))


def test_what_it_says_to_take_is_what_it_takes():
    buffer = OfflineBuffer(random_dataset().transitions(), SEEDS, 8)
    assert buffer.nbytes == 300 * (3 + 2 + 1 + 3 + 1) * 4
