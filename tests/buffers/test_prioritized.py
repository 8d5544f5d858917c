"""The prioritised replay: what a piece is, how often a step is drawn, and what a new one counts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from graphs import is_view
from torch.utils._python_dispatch import TorchDispatchMode
from wording import refused

from corerl.buffers.prioritized import RUN, PrioritizedReplay

SEEDS = [0, 1]


def step(number: float, terminated: bool = False, truncated: bool = False):
    """The step from `number` to `number` + 1, with the reward -`number`; the second seed's are 100 more."""
    at = np.array([number, number + 100])
    both = np.ones(2)
    return (
        at[:, None],
        at[:, None] / 1000,
        -at,
        at[:, None] + 1,
        both * terminated,
        both * truncated,
    )


def filled(
    count: int, capacity: int = 8, ends: dict[int, str] | None = None, horizon: int = 0
) -> PrioritizedReplay:
    replay = PrioritizedReplay(1, 1, capacity, SEEDS, 1000, horizon=horizon)
    replay._rows.fill_(torch.nan)  # what is not there must not be read
    for number in range(count):
        kind = (ends or {}).get(number)
        replay.add(step(number, kind == "terminated", kind == "truncated"))
    return replay


@pytest.mark.parametrize(
    ("added", "ends", "start", "counted"),
    [
        (8, {}, 2, [1, 1, 1]),
        (8, {3: "terminated"}, 2, [1, 1, 0]),
        (8, {2: "terminated"}, 2, [1, 0, 0]),
        (5, {4: "terminated"}, 4, [1, 0, 0]),  # nothing has been written behind it
        (12, {}, 7, [1, 1, 1]),  # around the end of the ring
        (12, {11: "terminated"}, 11, [1, 0, 0]),  # behind it stands the oldest, 4
    ],
)
def test_a_piece_ends_with_a_terminal(added, ends, start, counted):
    replay = filled(added, ends=ends)
    places = torch.tensor([[start % 8], [start % 8]])
    pieces = replay._pieces(places, 3)
    assert pieces.counted[:, 0].tolist() == [counted, counted]
    for seed in range(2):
        first = start + 100 * seed
        assert pieces.observations[seed].item() == first
        for k in range(sum(counted)):
            assert pieces.rewards[seed, 0, k] == -(first + k)
            assert pieces.next_observations[seed, 0, k].item() == first + k + 1
            assert pieces.actions[seed, 0, k].item() == pytest.approx((first + k) / 1000)
    assert not any(x.isnan().any() for x in pieces)
    last = sum(counted) - 1
    ended = ends.get(start + last) == "terminated"
    assert (pieces.terminated * pieces.counted)[0, 0].sum() == ended


@pytest.mark.parametrize("ends", [{}, {2: "terminated"}])
def test_a_piece_of_one_step_counts_it(ends):
    pieces = filled(8, ends=ends)._pieces(torch.tensor([[2], [2]]), 1)
    assert pieces.counted.tolist() == [[[1.0]], [[1.0]]]
    assert pieces.rewards.tolist() == [[[-2.0]], [[-102.0]]]


@pytest.mark.parametrize(
    ("added", "ends", "drawn"),
    [
        (3, {}, {0}),  # two steps behind it
        (2, {}, set()),
        (7, {}, {0, 1, 2, 3, 4}),
        (7, {3: "truncated"}, {0, 1, 4}),
        (7, {3: "terminated"}, {0, 1, 2, 3, 4}),
        (7, {6: "terminated"}, {0, 1, 2, 3, 4, 5, 6}),
        (7, {6: "truncated"}, {0, 1, 2, 3, 4}),
        (7, {3: "terminated", 4: "truncated"}, {0, 1, 2, 3}),  # an episode of one step
        (7, {3: "truncated", 4: "terminated"}, {0, 1, 4}),  # opens none of the one before
        (11, {}, {3, 4, 5, 6, 7, 8}),  # 0, 1 and 2 are overwritten
        (11, {8: "truncated"}, {3, 4, 5, 6}),
        (11, {9: "terminated"}, {3, 4, 5, 6, 7, 8, 9}),
    ],
)
def test_drawn_are_steps_with_a_piece_behind_them(added, ends, drawn):
    """Two further steps of the episode, or a terminal before that; no time limit within a piece."""
    replay = filled(added, ends=ends, horizon=2)
    if not drawn:
        with refused("episode gym/X 3 steps"):
            replay.require_ready("gym/X")
    else:
        replay.require_ready("gym/X")
        pieces, places = replay.sample_pieces(2)
        for seed in range(2):
            numbers = pieces.observations[seed, :, 0].long() - 100 * seed
            assert set(numbers.tolist()) == drawn
            assert torch.equal(numbers % 8, places[seed])
    torch.testing.assert_close(replay._sums[:, 0], torch.tensor([len(drawn)] * 2).double())


def test_seeds_episodes_end_by_themselves():
    replay = PrioritizedReplay(1, 1, 8, SEEDS, 1000, horizon=2)
    for number in range(6):
        truncated = np.array([number == 3, number == 4]).astype(float)
        replay.add((*step(number)[:5], truncated))
    places = replay.sample_pieces(2)[1]
    assert [set(x.tolist()) for x in places] == [{0, 1}, {0, 1, 2}]


def test_no_piece_goes_on_from_an_episode_that_a_resumed_run_cannot_go_on_with():
    replay = filled(4, horizon=2)
    replay.end_episodes(np.array([True, False]), np.zeros((2, 1)))
    for number in range(4, 8):
        replay.add(step(number))
    drawn = [set(places.tolist()) for places in replay.sample_pieces(2)[1]]
    assert drawn == [{0, 1, 4, 5}, {0, 1, 2, 3, 4, 5}]


def test_a_step_is_drawn_in_proportion_to_its_priority():
    replay = filled(4)
    replay.prioritise(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[3.0, 5.0], [0.0, 8.0]]))
    places = torch.cat([replay.sample_pieces(1)[1] for _ in range(20)], 1)
    for seed, weights in enumerate(([3, 5, 1, 1], [1, 1, 0, 8])):
        shares = torch.bincount(places[seed], minlength=4).double() / places.shape[1]
        np.testing.assert_allclose(shares, np.array(weights) / sum(weights), atol=0.015)


def test_a_draw_of_nothing_is_the_first_step_that_may_be_drawn():
    replay = filled(RUN + 4, 2 * RUN, dict.fromkeys(range(RUN + 1), "truncated"), horizon=2)
    replay._draws = SimpleNamespace(next=lambda: torch.zeros(2, 1))
    assert replay.sample_pieces(1)[1].tolist() == [[RUN + 1], [RUN + 1]]


def test_a_seed_that_diverged_spoils_no_other():
    replay, whole = (filled(RUN + 3, RUN + 5) for _ in range(2))
    replay.prioritise(torch.tensor([[1], [1]]), torch.tensor([[np.nan], [1.0]]))
    for mine, theirs in zip(replay.sample_pieces(1)[0], whole.sample_pieces(1)[0], strict=True):
        assert torch.equal(mine[1], theirs[1])


def test_a_new_step_gets_the_largest_priority_that_there_has_been():
    replay = filled(2)
    replay.prioritise(torch.tensor([[0], [0]]), torch.tensor([[4.0], [0.5]]))
    replay.add(step(2))
    assert replay._priorities[:, :3].tolist() == [[4, 1, 4], [0.5, 1, 1]]
    replay.prioritise(torch.tensor([[0, 2]] * 2), torch.tensor([[2.0, 2.0], [0.5, 0.5]]))
    replay.add(step(3))
    assert replay._priorities[:, 3].tolist() == [4, 1]


def test_a_step_that_a_batch_holds_twice_gets_the_larger_priority():
    replay = filled(3)
    replay.prioritise(torch.tensor([[1, 0, 1]] * 2), torch.tensor([[0.5, 6, 0.25], [0.25, 6, 0.5]]))
    assert replay._priorities[:, :3].tolist() == [[6, 0.5, 1]] * 2


def test_the_first_steps_get_the_priority_that_is_given():
    replay = PrioritizedReplay(1, 1, 8, SEEDS, 10, horizon=0, priority=0.5)
    for number, larger in enumerate((0.25, 4.0)):
        replay.add(step(number))
        replay.prioritise(torch.zeros(2, 1, dtype=torch.long), torch.tensor([[0.25], [larger]]))
    replay.add(step(2))
    assert replay._priorities[:, 1:3].tolist() == [[0.5, 0.5], [0.5, 4.0]]


def test_what_it_says_of_its_rewards_and_ends():
    replay = filled(3)
    assert replay.mean_size().tolist() == [1, 101]
    assert replay.terminated.tolist() == [0, 0]
    replay.add(step(-9))  # whose first reward is 9
    assert replay.mean_size().tolist() == [3, 98.5]
    replay.add((*step(3)[:4], np.array([1.0, 0.0]), np.zeros(2)))
    replay.add(step(4, truncated=True))
    assert replay.terminated.tolist() == [1, 0]


def test_restored_it_goes_on_with_the_same_draws():
    one = filled(11, ends={9: "terminated"}, horizon=2)
    other = PrioritizedReplay(1, 1, 8, SEEDS, 1000, horizon=2)
    one.prioritise(torch.tensor([[0, 1]] * 2), torch.tensor([[3.0, 5.0]] * 2))
    one.sample_pieces(2)
    other.load_state_dict(one.state_dict())
    for _ in range(3):
        for mine, theirs in zip(one.sample_pieces(2)[0], other.sample_pieces(2)[0], strict=True):
            assert torch.equal(mine, theirs)
        one.add(step(20)), other.add(step(20))
    for mine, theirs in ((one._priorities, other._priorities), (one._open, other._open)):
        assert torch.equal(mine, theirs)
    assert other.terminated.tolist() == [1, 1]


def test_many_runs_of_priorities_are_drawn_in_proportion():
    replay = PrioritizedReplay(1, 1, 1000, SEEDS, 1000, horizon=0)
    for number in range(700):
        replay.add(step(number))
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        places = torch.randint(700, (2, 300), generator=rng)
        replay.prioritise(places, 1 + 9 * torch.rand(2, 300, generator=rng).square())
    replay.prioritise(torch.tensor([[650], [3]]), torch.tensor([[900.0], [1800.0]]))
    places = torch.cat([replay.sample_pieces(1)[1] for _ in range(50)], 1)
    assert places.max() < 700
    for seed in range(2):
        weights = replay._priorities[seed].double() / replay._priorities[seed].double().sum()
        counts = torch.bincount(places[seed], minlength=weights.shape[0]).double()
        expected = weights * places.shape[1]
        assert counts[expected == 0].sum() == 0
        chi = ((counts - expected).square() / expected)[expected > 0].sum()
        assert chi < 700 + 5 * (2 * 700) ** 0.5  # 699 degrees of freedom
    runs = replay._priorities.unflatten(1, (-1, 128))
    torch.testing.assert_close(replay._sums, runs.sum(-1, dtype=torch.float64))


def test_sums_hold_what_may_be_drawn_around_the_ends_of_runs():
    """Also where the ring is full and a step that was in the sum of its run is overwritten."""
    replay = PrioritizedReplay(1, 1, 2 * RUN, SEEDS, 10, horizon=2)
    kinds = np.random.default_rng(0).choice(
        ["", "terminated", "truncated"], 3 * RUN, p=[0.6, 0.2, 0.2]
    )
    for number, kind in enumerate(kinds):
        replay.add(step(number, kind == "terminated", kind == "truncated"))
        open_ones = (replay._priorities * replay._open).unflatten(1, (-1, RUN))
        torch.testing.assert_close(replay._sums, open_ones.sum(-1, dtype=torch.float64))


class Largest(TorchDispatchMode):
    """The most numbers that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not is_view(func) and not func._schema.is_mutable and isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_a_draw_does_not_read_the_whole_replay():
    replay = PrioritizedReplay(1, 1, 1_000_000, [0], 16, horizon=5)
    for number in range(8):
        replay.add([x[:1] for x in step(number)])
    with Largest() as made:
        _, places = replay.sample_pieces(2)
        replay.prioritise(places, torch.ones(1, 16))
        replay.add([x[:1] for x in step(3)])
    assert made.numbers < 20_000
