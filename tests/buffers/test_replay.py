"""Offline batches hold whole rows of the data, at the row numbers of each seed's own stream."""

import numpy as np
import pytest
import torch
from small import flatten, random_dataset
from wording import refused

from corerl import seeding
from corerl.buffers.mixed_replay import EpisodeReplay, MixedReplay
from corerl.buffers.replay import OfflineBuffer, ReplayBuffer
from corerl.data.dataset import Transitions

SEEDS = [0, 4, 9]


def rows_of(batch, transitions) -> np.ndarray:
    """The row of the data that each sample is, (S, B), found by its observation."""
    known = {row.tobytes(): i for i, row in enumerate(transitions.observations)}
    found = [[known[x.numpy().tobytes()] for x in seed] for seed in batch.observations]
    return np.array(found)


def test_a_batch_is_whole_rows_at_the_streams_numbers():
    data = random_dataset().transitions()
    buffer = OfflineBuffer(data, SEEDS, 16)
    numbers = seeding.indices(SEEDS, len(data.rewards), 16)
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


@pytest.mark.parametrize("drawn", [0, 3, seeding.BLOCK])
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


def discrete(value: float, size: int, seeds: int = 2, labels=None) -> OfflineBuffer:
    """A dataset whose observations are all `value`."""
    ones = np.ones((size, 1), np.float32)
    rows = (value * ones, ones, ones[:, 0], ones, ones[:, 0] > 2, np.arange(size))
    return OfflineBuffer(Transitions(*rows), range(seeds), 8, labels=labels)


def filled(count: int, replay: ReplayBuffer | None = None, ends: tuple[int, ...] = ()):
    """A replay of two seeds after `count` steps, with observations 2; episodes of seed 0 end early."""
    replay = ReplayBuffer(1, 1, 50, range(2), 8) if replay is None else replay
    for i in range(1, count + 1):
        over = np.array([i in ends, i == count])
        two = np.full((2, 1), 2.0, np.float32)
        replay.add((two, two, np.array([i, 10.0 * i]), two, over, ~over & over))
    return replay


def test_a_full_replay_forgets_its_oldest_steps_and_goes_on_where_it_was():
    replay, resumed = (ReplayBuffer(1, 1, 4, range(2), 64) for _ in range(2))
    filled(6, replay).sample()
    assert replay.recorded()[2].tolist() == [3, 4, 5, 6]
    assert [flags.tolist() for flags in replay.recorded(1)[4:]] == [[0, 0, 0, 1], [0] * 4]
    resumed.load_state_dict(replay.state_dict())
    for one in (replay, resumed):
        filled(1, one)
        assert one.recorded(1)[2].tolist() == [40, 50, 60, 10]
    drawn = replay.sample()
    assert set(drawn.rewards[0].tolist()) == {4, 5, 6, 1}
    assert flatten(list(resumed.sample())) == flatten(list(drawn))


@pytest.mark.parametrize(("share", "of_data"), [(0.5, 4), (0.25, 2), (0.2, 2), (1.0, 8), (0.0, 0)])
def test_a_fixed_share_of_every_batch_is_the_datas(share, of_data):
    mixture = MixedReplay(discrete(1.0, 20), filled(5), share, range(2), 8)
    for _ in range(3):
        batch = mixture.sample()
        assert batch.observations.shape == (2, 8, 1)
        assert (batch.observations == 1).sum(1).flatten().tolist() == [of_data] * 2


def test_without_a_share_data_and_replay_are_one_buffer():
    mixture = MixedReplay(discrete(1.0, 30), filled(10), None, range(2), 8)
    drawn = torch.cat([mixture.sample().observations for _ in range(500)], 1)
    assert (drawn == 1).float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert not torch.equal(drawn[0], drawn[1])


def test_a_mixture_goes_on_where_it_was():
    def make():
        return MixedReplay(discrete(1.0, 30), filled(10), None, range(2), 8)

    one, other = make(), make()
    one.sample()
    other.load_state_dict(one.state_dict())
    other._data.load_state_dict(one._data.state_dict())
    other._replay.load_state_dict(one._replay.state_dict())
    assert torch.equal(one.sample().observations, other.sample().observations)


def test_next_actions_of_a_replay_are_zero_beside_those_of_data():
    ones = np.ones((4, 1), np.float32)
    rows = (ones, ones, ones[:, 0], ones, ones[:, 0] > 2, np.arange(4), ones)
    mixture = MixedReplay(
        OfflineBuffer(Transitions(*rows), range(2), 8), filled(5), 0.5, range(2), 8
    )
    following = mixture.sample().next_actions
    assert following[:, :4].eq(1).all() and following[:, 4:].eq(0).all()


def test_labels_stay_with_their_rows():
    buffer = discrete(1.0, 20, labels=np.arange(20.0))
    buffer._rows[:, 0] = torch.arange(20.0)
    batch, labels = buffer.sample_labelled()
    assert torch.equal(batch.observations[..., 0], labels)
    assert discrete(1.0, 20).sample_labelled()[1].numel() == 0


def test_arrays_may_be_turned_round():
    turned = [x[::-1] for x in random_dataset().transitions()[:5]]
    buffer = OfflineBuffer(Transitions(*turned, np.arange(300)), SEEDS, 16, labels=turned[2])
    batch, labels = buffer.sample_labelled()
    expected = turned[2][seeding.indices(SEEDS, 300, 16).next().numpy()]
    assert (batch.rewards.numpy() == expected).all() and torch.equal(labels, batch.rewards)


@pytest.mark.parametrize("count", [1, 19, 21])
def test_labels_of_another_length_are_refused(count):
    with refused(f"({count},) 20"):
        discrete(1.0, 20, labels=np.arange(float(count)))


def episodes(label=lambda rewards: np.full(len(rewards), rewards.sum())) -> EpisodeReplay:
    return EpisodeReplay(1, 1, 6, range(2), 64, label=label)


def test_only_ended_episodes_are_sampled_with_their_labels():
    """Seed 0: rewards 1 2 | 3 | 4 5 6 running; seed 1 ends at the last step."""
    replay = filled(6, episodes(), ends=(2, 3))
    batch, labels = replay.sample_labelled()
    expected = {1.0: 3.0, 2.0: 3.0, 3.0: 3.0}
    assert dict(zip(batch.rewards[0].tolist(), labels[0].tolist(), strict=True)) == expected
    assert set(batch.rewards[1].tolist()) == {10.0 * i for i in range(1, 7)}
    assert labels[1].eq(210).all()
    with pytest.raises(IndexError, match="EpisodeReplay"):
        filled(1, replay)


def test_labels_of_a_mixture_stay_with_their_rows():
    """Those of the data are 7; of the replay's ended episodes 1 + 2 and 10 + 20 + 30."""
    data = discrete(1.0, 20, labels=np.full(20, 7.0))
    mixture = MixedReplay(data, filled(3, episodes(), ends=(2,)), 0.25, range(2), 8)
    batch, labels = mixture.sample_labelled()
    assert batch.observations[..., 0].tolist() == [[1] * 2 + [2] * 6] * 2
    assert labels.tolist() == [[7] * 2 + [3] * 6, [7] * 2 + [60] * 6]


def test_an_episode_that_a_resumed_run_cannot_go_on_with_gets_its_label_there():
    replay, resumed = filled(3, episodes(), ends=(2,)), episodes()
    resumed.load_state_dict(replay.state_dict())
    resumed.end_episodes(np.array([True, False]), np.zeros((2, 1)))
    filled(3, resumed, ends=(3,))
    assert resumed._labels[0].tolist() == [3.0, 3.0, 3.0, 6.0, 6.0, 6.0]  # 1 2 | 3 cut | 1 2 3


def test_an_episode_that_has_not_begun_gets_no_label():
    replay = filled(2, episodes(lambda rewards: rewards / rewards.max()), ends=(2,))
    replay.end_episodes(np.array([True, True]), np.zeros((2, 1)))
    assert replay._labels[:, :2].tolist() == [[0.5, 1], [0.5, 1]]


def test_a_restored_replay_draws_from_the_episodes_that_had_ended():
    replay, other = filled(4, episodes(), ends=(2,)), episodes()
    other.load_state_dict(replay.state_dict())
    assert torch.equal(other.sample_labelled()[1], replay.sample_labelled()[1])


def test_a_time_limit_ends_an_episode_too():
    replay, two, none = episodes(), np.full((2, 1), 2.0, np.float32), np.zeros(2, bool)
    for i in range(1, 5):
        replay.add((two, two, np.full(2, float(i)), two, none, np.array([i == 2, i == 3])))
    assert replay._labels[:, :4].tolist() == [[3, 3, 0, 0], [6, 6, 6, 0]]


def test_what_a_crashed_environment_gave_is_labelled_with_nothing_but_nan():
    """Its first episode never ends, and the other seeds go on."""
    replay, two, none = episodes(), np.full((2, 1), 2.0, np.float32), np.zeros(2, bool)
    for i in range(1, 4):
        rewards = np.array([i, 1.0 if i == 1 else np.nan])
        replay.add((two, two, rewards, two, none, np.array([i == 3, False])))
    _, labels = replay.sample_labelled()
    assert labels[0].eq(6).all() and labels[1].isnan().all()


def test_plain_samples_are_of_all_rows_also_of_the_episode_that_goes_on():
    assert set(filled(6, episodes(), ends=(2,)).sample().rewards[0].tolist()) == {*range(1, 7)}


def test_labels_may_be_an_array_turned_round():
    replay = filled(4, episodes(lambda rewards: np.cumsum(rewards[::-1])[::-1]), ends=(4,))
    batch, labels = replay.sample_labelled()
    to_go = {1.0: 10.0, 2.0: 9.0, 3.0: 7.0, 4.0: 4.0}
    assert dict(zip(batch.rewards[0].tolist(), labels[0].tolist(), strict=True)) == to_go


@pytest.mark.parametrize(
    "label", [np.sum, lambda rewards: rewards[:1], lambda rewards: [*rewards, 0.0]]
)
def test_labels_that_are_not_one_for_each_step_are_refused(label):
    with refused("episode rewards (4,)"):
        filled(4, episodes(label))


def test_an_episode_that_spans_a_resume_gets_its_label():
    whole, half, resumed = episodes(), episodes(), episodes()
    filled(6, whole, ends=(2, 5))
    for i in range(1, 7):
        two, over = np.full((2, 1), 2.0, np.float32), np.array([i in (2, 5), i == 6])
        (half if i < 4 else resumed).add(
            (two, two, np.array([i, 10.0 * i]), two, over, ~over & over)
        )
        if i == 3:
            resumed.load_state_dict(half.state_dict())
    for mine, theirs in zip(resumed.sample_labelled(), whole.sample_labelled(), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)
