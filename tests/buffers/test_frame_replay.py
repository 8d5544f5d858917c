"""The replay of frames gives the n-step returns and stacks that the whole history gives."""

import numpy as np
import pytest
import torch

from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.errors import CorerlError

SEEDS, K, DISCOUNT = 2, 2, 0.9


def history(length: int, rng) -> list[DiscreteStep]:
    """Steps of two seeds whose frames count up; episodes end by chance, each way."""
    steps = []
    ages = np.zeros(SEEDS, int)
    for time in range(length):
        terminated = rng.random(SEEDS) < 0.15
        truncated = (rng.random(SEEDS) < 0.15) & ~terminated & (ages > 0)
        frames = np.zeros((SEEDS, 3, 1, 1), np.uint8)
        for seed in range(SEEDS):
            for back in range(min(ages[seed], 2) + 1):
                frames[seed, 2 - back] = frame(time - back, seed)
        steps.append(
            DiscreteStep(
                frames,
                rng.integers(5, size=SEEDS),
                np.zeros(SEEDS),
                frames,
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
    """Reward `(K,)`, discount and the time of the bootstrap, from the list of steps."""
    total = np.zeros(K)
    for ahead in range(n_step):
        step = steps[time + ahead]
        if step.truncated[seed]:
            return total, DISCOUNT**ahead, time + ahead
        total += DISCOUNT**ahead * step.sources[seed]
        if step.terminated[seed]:
            return total, 0.0, None
    return total, DISCOUNT**n_step, time + n_step


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [30, 200])
def test_batches_are_those_of_the_whole_history(n_step, capacity):
    steps = history(100, np.random.default_rng(0))
    replay = replay_of(capacity, n_step)
    for step in steps:
        replay.add(step, step.sources)
    batch = replay.sample()
    assert batch.observations.shape == (SEEDS, 400, 3, 1, 1)
    seen = set()
    for seed in range(SEEDS):
        for i in range(400):
            time = (int(batch.observations[seed, i, -1, 0, 0]) - 1 - seed) // 2
            step = steps[time]
            assert not step.truncated[seed], "its next observation is not stored"
            assert time >= 100 - capacity + 3 and time + n_step < 100
            reward, discount, then = expected(steps, time, seed, n_step)
            assert (
                batch.observations[seed, i].numpy().tobytes() == step.observations[seed].tobytes()
            )
            assert batch.actions[seed, i] == step.actions[seed]
            np.testing.assert_allclose(batch.rewards[seed, i], reward, rtol=1e-5, atol=1e-6)
            assert float(batch.discounts[seed, i]) == pytest.approx(discount)
            if then is not None:
                mine, theirs = batch.next_observations[seed, i], steps[then].observations[seed]
                assert mine.numpy().tobytes() == theirs.tobytes()
            seen.add((seed, time))
    possible = min(capacity - 4, 99) - n_step
    truncated = sum(step.truncated.sum() for step in steps[-possible - n_step :])
    assert len(seen) > 0.9 * (SEEDS * possible - truncated)


def test_a_restored_replay_draws_the_same_batches():
    steps = history(60, np.random.default_rng(1))
    replay, other = replay_of(25, 2, 5), replay_of(25, 2, 5)
    for step in steps[:40]:
        replay.add(step, step.sources)
    replay.sample()
    other.load_state_dict(replay.state_dict())
    for step in steps[40:]:
        replay.add(step, step.sources)
        other.add(step, step.sources)
        for mine, theirs in zip(replay.sample(), other.sample(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_frame_is_stored_once_and_as_bytes():
    replay = FrameReplay(
        (4, 84, 84), torch.uint8, 3, 1000, [0], 32, discount=0.99, stack=4
    )  # of 1M, 7.1 GB
    assert replay.nbytes < 1000 * (84 * 84 + 50)


def test_a_replay_without_room_for_one_return_is_refused():
    with pytest.raises(CorerlError, match="replay of 8 steps is too small for 5-step returns"):
        replay_of(8, 5)
