"""Datasets under learned rewards: rows, pieces, sums over episodes, scales, buffers."""

from types import SimpleNamespace

import numpy as np
import torch
from small import random_dataset
from wording import refused

from corerl.algos import dt
from corerl.config import Settings
from corerl.data.dataset import Dataset
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.relabelling import (
    RelabelledBuffer,
    Rows,
    blocks,
    compared_rows,
    episode_returns,
    returns_to_go,
    rows_of,
    scaled,
    sequences,
    transitions,
)
from corerl.training.preprocessing import Preprocess
from corerl.training.windows import load_windows

O, A = 3, 2
ENDS = np.array([3, 13, 14, 24])


def dataset() -> Dataset:
    """Episodes of 3, 10, 1 and 10 steps; the second ends in a terminal."""
    rng = np.random.default_rng(0)
    n = ENDS[-1]
    ended = np.isin(np.arange(n) + 1, ENDS)
    terminated = np.arange(n) == 12
    observations = rng.normal(size=(n, O))
    return Dataset.from_steps(
        "test/walk",
        *(
            observations,
            rng.uniform(-1, 1, (n, A)),
            rng.normal(size=n),
            np.roll(observations, -1, 0),
        ),
        *(terminated, ended & ~terminated),
    )


def test_episodes_lose_the_step_without_a_successor_and_keep_their_ends():
    """D4RL's own filter: a timed-out episode's last step has no next state."""
    data = dataset()
    has_next = ~data.truncated
    data = Dataset.from_steps(
        data.id,
        *(data.observations, data.actions, data.rewards, data.next_observations),
        *(data.terminated, data.truncated, has_next),
    )
    rows = rows_of(data, clip_actions=0.5)
    assert rows.episode_ends.tolist() == [2, 12, 21]  # the episode of one step is gone
    assert rows.terminated.nonzero()[0].tolist() == [11]
    assert np.abs(rows.actions).max() == 0.5
    np.testing.assert_array_equal(rows.observations, data.observations[has_next])


def test_rows_end_where_the_buffer_does():
    data, cfg = dataset(), SimpleNamespace(algo=Settings(), history=1)
    run = SimpleNamespace(dataset=lambda: data, cfg=cfg, seeds=[0], device="cpu")
    ends = Preprocess(end_reward=float(data.rewards[6]))
    rows, buffer, _ = transitions(run, ends, 4)
    assert rows.episode_ends.tolist() == [3, 7, 13, 14, 24]
    assert len(buffer) == 24 and rows.terminated.nonzero()[0].tolist() == [6, 12]


def test_blocks_cut_every_thousand_rows_whatever_ends_there():
    n = 2500
    ended = np.arange(1, n + 1) % 300 == 0
    data = Dataset.from_steps(
        "test/long",
        *(np.zeros((n, O)), np.zeros((n, A)), np.zeros(n), np.zeros((n, O))),
        *(ended, np.zeros(n, bool)),
    )
    rows = rows_of(data)
    assert rows.episode_ends.tolist() == [*range(300, 2500, 300), 2500]
    cut = blocks(rows)
    assert cut.episode_ends.tolist() == [1000, 2000] and len(cut.actions) == 2000
    with refused("24"):
        blocks(rows_of(dataset()))


def test_segments_have_one_length():
    with refused("shape (2,)"):
        Comparisons.of_dataset(dataset(), [[4, 14], [9, 4]], [4, 3], [0, 1], "test")


def test_compared_segments_are_pieces_in_their_order():
    data = dataset()
    compared = Comparisons.of_dataset(data, [[4, 14], [9, 4]], 4, [0, 1], "test")
    rows = compared_rows(compared)
    order = [*range(4, 8), *range(14, 18), *range(9, 13), *range(4, 8)]
    assert rows.episode_ends.tolist() == [4, 8, 12, 16]
    assert rows.terminated.nonzero()[0].tolist() == [11]
    np.testing.assert_array_equal(rows.observations, data.observations[order])
    np.testing.assert_array_equal(rows.actions, data.actions[order])


def test_sums_over_episodes():
    rewards = torch.tensor([[1.0, 2.0, 4.0, 8.0], [0.0, 0.0, 0.0, -1.0]])
    ends = np.array([3, 4])
    assert episode_returns(rewards, ends).tolist() == [[7.0, 8.0], [0.0, -1.0]]
    assert returns_to_go(rewards, ends).tolist() == [[7.0, 6.0, 4.0, 8.0], [0.0, 0.0, 0.0, -1.0]]


def test_returns_of_a_million_rows_do_not_cancel():
    rewards = torch.full((1, 1_000_000), 1.1)
    ends = np.arange(1000, 1_000_001, 1000)
    expected = torch.full((1, 1000), 1.1, dtype=torch.float64) * 1000
    torch.testing.assert_close(episode_returns(rewards, ends).double(), expected, rtol=1e-6, atol=0)


def test_learned_rewards_are_scaled_by_each_seeds_own_returns():
    rewards = torch.tensor([[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 10.0]])
    ends = np.array([3, 4])  # returns 6 and 0; 0 and 10
    data = Preprocess(return_range=True, reward_shift=0.5)
    expected = rewards * torch.tensor([[1000 / 6], [100.0]]) + 0.5
    torch.testing.assert_close(scaled(rewards, ends, data), expected)
    data = Preprocess(return_range=True, reward_shift=-1.0)
    rewards = torch.tensor([[1.0, 2.0, 3.0, -4.0]])  # returns 6 and -4
    expected = (rewards + torch.tensor([4 / 3, 4 / 3, 4 / 3, 4.0])) * 100 - 1
    torch.testing.assert_close(scaled(rewards, ends, data, spread_worst=True), expected)


def test_rewards_that_tell_no_episodes_apart_are_refused():
    with refused("episodes"):
        scaled(torch.ones(2, 4), np.array([2, 4]), Preprocess(return_range=True))


def test_a_relabelled_buffer_gives_each_seed_its_own_rewards_and_keeps_them():
    transitions = random_dataset().transitions()
    size = len(transitions.rewards)

    def made():
        return RelabelledBuffer(transitions, [3, 7], 16)

    buffer, other = made(), made()
    buffer.rewards.copy_(torch.arange(2 * size).view(2, size))
    rows_of = {tuple(row): i for i, row in enumerate(transitions.observations)}
    buffer.sample()
    other.load_state_dict(buffer.state_dict())
    for batch in (buffer.sample(), other.sample()):
        for s in range(2):
            found = [rows_of[tuple(x.numpy())] for x in batch.observations[s]]
            assert batch.rewards[s].tolist() == [s * size + i for i in found]
    assert torch.equal(buffer.sample().rewards, other.sample().rewards)


def test_windows_are_normalised_by_the_numbers_that_act():
    """A pressure in pascal: its mean in float32 is off by a part of so small a deviation."""
    rng = np.random.default_rng(0)
    states = (101_325.003 + 0.02 * rng.standard_normal((50, 1))).astype(np.float32)
    ends = np.arange(50) == 49
    data = Dataset.from_arrays(states, np.zeros((50, A)), np.ones(50), truncated=ends)
    run = SimpleNamespace(seeds=[0], device="cpu", dataset=lambda: data)
    run.cfg = SimpleNamespace(algo=dt.Config(context=1, batch_size=4), history=1)
    made = [load_windows(run.cfg.algo, run)[1:]]
    cut = Rows(data.observations, data.actions, data.terminated, data.episode_ends)
    made.append(sequences(run, cut, 4, 1, return_scale=1.0))
    for buffer, normalizer in made:
        seen = buffer.windows(torch.arange(50)[None]).observations[0, :, 0]
        assert torch.equal(seen, normalizer(torch.from_numpy(states)))
