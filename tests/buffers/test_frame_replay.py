"""The replay of frames gives the n-step returns and stacks that the whole history gives."""

import numpy as np
import pytest
import torch
from wording import refused

from corerl.buffers.frame_replay import DiscreteStep, FrameReplay

SEEDS, K, DISCOUNT = 2, 2, 0.9


def history(length: int, rng) -> list[DiscreteStep]:
    """Steps of two seeds whose frames count up; episodes end by chance, each way, even at once."""
    steps = []
    ages = np.zeros(SEEDS, int)
    for time in range(length):
        terminated = rng.random(SEEDS) < 0.15
        truncated = (rng.random(SEEDS) < 0.15) & ~terminated
        frames = np.zeros((SEEDS, 3, 1, 1), np.uint8)
        for seed in range(SEEDS):
            for back in range(min(ages[seed], 2) + 1):
                frames[seed, 2 - back] = frame(time - back, seed)
        latest = [255 - frame(time, seed) for seed in range(SEEDS)]
        reached = np.concatenate([frames[:, 1:], np.uint8(latest).reshape(SEEDS, 1, 1, 1)], 1)
        steps.append(
            DiscreteStep(
                frames,
                rng.integers(5, size=SEEDS),
                np.zeros(SEEDS),
                reached,
                terminated,
                truncated,
                rng.normal(size=(SEEDS, K)).astype(np.float32),
            )
        )
        ages = np.where(terminated | truncated, 0, ages + 1)
    return steps


def frame(time: int, seed: int) -> int:
    return 1 + 2 * time + seed


def replay_of(capacity: int, n_step: int, batch_size: int = 400) -> FrameReplay:
    return FrameReplay(
        (3, 1, 1),
        torch.uint8,
        K,
        capacity,
        range(SEEDS),
        batch_size,
        discount=DISCOUNT,
        n_step=n_step,
        stack=3,
    )


def expected(steps, time: int, seed: int, n_step: int):
    """Reward `(K,)`, discount and the observation of the bootstrap, from the list of steps."""
    total = np.zeros(K)
    for ahead in range(n_step):
        step = steps[time + ahead]
        total += DISCOUNT**ahead * step.sources[seed]
        if step.terminated[seed]:
            return total, 0.0, None
        if step.truncated[seed]:
            return total, DISCOUNT ** (ahead + 1), step.next_observations[seed]
    return total, DISCOUNT**n_step, steps[time + n_step].observations[seed]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [30, 200])
def test_batches_are_those_of_the_whole_history(n_step, capacity):
    steps = history(100, np.random.default_rng(0))
    replay = replay_of(capacity, n_step)
    for step in steps:
        replay.add(step, step.sources)
    seen = drawn_as_expected(replay, steps, n_step)
    assert min(time for _, time in seen) >= 100 - capacity + 3
    possible = min(capacity - 4, 99) - n_step
    assert len(seen) > 0.9 * SEEDS * possible
    assert any(steps[time].truncated[seed] for seed, time in seen)


def drawn_as_expected(replay: FrameReplay, steps: list[DiscreteStep], n_step: int) -> set:
    """Holds a batch against the whole history; returns the seeds and times that it drew."""
    batch, seen = replay.sample(), set()
    assert batch.observations.shape == (SEEDS, 400, 3, 1, 1)
    for seed in range(SEEDS):
        for i in range(400):
            time = (int(batch.observations[seed, i, -1, 0, 0]) - 1 - seed) // 2
            step = steps[time]
            assert time + n_step < len(steps)
            reward, discount, then = expected(steps, time, seed, n_step)
            assert (
                batch.observations[seed, i].numpy().tobytes() == step.observations[seed].tobytes()
            )
            assert batch.actions[seed, i] == step.actions[seed]
            np.testing.assert_allclose(batch.rewards[seed, i], reward, rtol=1e-5, atol=1e-6)
            assert float(batch.discounts[seed, i]) == pytest.approx(discount)
            if then is not None:
                assert batch.next_observations[seed, i].numpy().tobytes() == then.tobytes()
            seen.add((seed, time))
    return seen


def test_a_restored_replay_draws_the_same_batches():
    steps = history(60, np.random.default_rng(1))
    replay, other = replay_of(25, 2, 5), replay_of(25, 2, 5)
    for step in steps[:40]:
        replay.add(step, step.sources)
    replay.sample()
    for step in steps[20:]:  # whatever it had before
        other.add(step, step.sources)
    other.load_state_dict(replay.state_dict())
    for step in steps[40:]:
        replay.add(step, step.sources)
        other.add(step, step.sources)
        for name, mine in replay.state_dict().items():
            assert not torch.is_tensor(mine) or torch.equal(mine, other.state_dict()[name]), name
        for mine, theirs in zip(replay.sample(), other.sample(), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [30, 200])
def test_an_episode_that_a_resumed_run_cannot_go_on_with_is_truncated(n_step, capacity):
    steps = history(60, np.random.default_rng(2))
    cut, seeds = next(
        (time, step.truncated)
        for time, step in enumerate(steps[40:], start=40)
        if step.truncated.any() and not step.terminated.any()
    )
    replay = replay_of(capacity, n_step)
    for step in steps[:cut]:
        replay.add(step, step.sources)
    last = steps[cut]  # when it was made, nobody knew that it would be the last
    replay.add(last._replace(truncated=np.zeros(SEEDS, bool)), last.sources)
    saved = replay.state_dict()
    on_disk = saved["ends"].clone()
    resumed = replay_of(capacity, n_step)
    resumed.load_state_dict(saved)
    resumed.end_episodes(seeds, last.next_observations)
    for step in steps[cut + 1 :]:
        resumed.add(step, step.sources)
    batch = drawn_as_expected(resumed, steps, n_step)
    assert {(seed, cut) for seed in np.flatnonzero(seeds)} <= batch

    state, again = resumed.state_dict(), replay_of(capacity, n_step)
    row = cut % capacity
    state["ends"][:, row] = on_disk[:, row]  # a file is written once
    again.load_state_dict(state)
    drawn_as_expected(again, steps, n_step)


def test_an_episode_of_more_steps_than_a_byte_counts_is_one():
    replay, resumed = replay_of(300, 1), replay_of(300, 1)
    seen, no = np.ones((SEEDS, 3, 1, 1), np.uint8), np.zeros(SEEDS, bool)
    step = DiscreteStep(seen, 1 * no, 1.0 * no, seen, no, no, np.zeros((SEEDS, K)))
    for _ in range(270):
        replay.add(step, step.sources)
    resumed.load_state_dict(replay.state_dict())
    assert resumed.state_dict()["reached"].shape[1] == 0
    assert resumed._transitions(torch.arange(250, 265).expand(SEEDS, -1)).observations.eq(1).all()


def one_step(time: int, truncated) -> DiscreteStep:
    """Of two seeds that see vectors which count up and get rewards that do."""
    seen = np.full((SEEDS, 2), time, np.float32)
    over, rewards = np.array(truncated), np.full((SEEDS, K), time, np.float32)
    return DiscreteStep(
        seen, np.zeros(SEEDS, int), rewards[:, 0], seen + 0.5, ~over & False, over, rewards
    )


def vectors(capacity: int, seeds=range(SEEDS)) -> FrameReplay:
    return FrameReplay((2,), torch.float32, K, capacity, seeds, 50, discount=DISCOUNT, n_step=3)


def test_a_replay_is_ready_as_soon_as_there_is_a_return_to_draw():
    replay = vectors(20)
    for time in range(5):
        assert not replay.ready
        step = one_step(time, [False, False])
        replay.add(step, step.sources)
    assert replay.ready and replay.sample().observations.unique().tolist() == [1.0]


def test_episodes_of_one_step_that_are_truncated_are_learned():
    replay = vectors(20)
    for time in range(50):
        step = one_step(time, [True, time % 2 == 0])
        replay.add(step, step.sources)
    batch = replay.sample()
    first = batch.observations[0, :, 0]
    assert len(first.unique()) > 10
    assert torch.equal(batch.rewards[0, :, 0], first)
    assert torch.equal(batch.next_observations[0, :, 0], first + 0.5)
    assert torch.equal(batch.discounts[0], torch.full((50,), DISCOUNT))
    times, odd = batch.observations[1, :, 0], batch.observations[1, :, 0] % 2
    torch.testing.assert_close(batch.rewards[1, :, 0], times + odd * DISCOUNT * (times + 1))
    assert torch.equal(batch.next_observations[1, :, 0], times + odd + 0.5)
    torch.testing.assert_close(batch.discounts[1], DISCOUNT ** (1 + odd))


def test_memory_for_states_reached_is_that_of_those_in_the_replay():
    replay = vectors(20)
    small = replay.nbytes
    for time in range(500):
        step = one_step(time, [time % 10 == 9, False])
        replay.add(step, step.sources)
    assert replay.nbytes == small + SEEDS * 3 * 2 * 4  # four frames, where two are needed


def test_a_checkpoint_without_states_reached_goes_on_from_those_where_steps_began():
    replay, other = vectors(20), vectors(20)
    for time in range(33):
        step = one_step(time, [time % 4 == 0, time % 3 == 0])
        replay.add(step, step.sources)
    state = replay.state_dict()
    del state["reached"]
    other.load_state_dict(state)
    mine, theirs = replay.sample(), other.sample()
    cut = mine.next_observations % 1 == 0.5
    assert cut.any()
    assert torch.equal(mine.next_observations - 0.5 * cut, theirs.next_observations)
    for one, two in zip(mine[:3], theirs[:3], strict=True):
        assert torch.equal(one, two)


def test_a_seed_keeps_the_states_that_it_reached_in_any_company():
    pair, alone = vectors(20), vectors(20, [1])
    for time in range(60):
        step = one_step(time, [time % 2 == 0, time % 7 == 0])
        pair.add(step, step.sources)
        alone.add(DiscreteStep(*(x[1:] for x in step[:7])), step.sources[1:])
    for ours, theirs in zip(pair.sample(), alone.sample(), strict=True):
        assert torch.equal(ours[1:], theirs)


def test_a_frame_is_stored_once_and_as_bytes():
    replay = FrameReplay(
        (4, 84, 84), torch.uint8, 3, 1000, [0], 32, discount=0.99, stack=4
    )  # of 1M, 7.1 GB
    assert replay.nbytes < 1000 * (84 * 84 + 50)


def test_a_replay_without_room_for_one_return_is_refused():
    with refused("8 steps 5-step"):
        replay_of(8, 5)
