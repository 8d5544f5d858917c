"""Windows with goals: every start and goal that the law allows, alike, and nothing beyond the goal."""

import numpy as np
import pytest
import torch
from test_goal_buffer import dataset
from wording import refused

from corerl.buffers.trajectories import TrajectoryBuffer

LENGTHS, HISTORY, FUTURE = (6, 2, 4), 2, 3


def buffer(**own) -> TrajectoryBuffer:
    return TrajectoryBuffer(
        dataset(LENGTHS),
        **{"seeds": (0, 3), "batch_size": 4000, "history": HISTORY} | own,
        future=FUTURE,
    )


def test_starts_and_goals_are_drawn_alike():
    """Episodes of rows 0 to 5, 6 to 7 and 8 to 11: a start has 2 later rows, a goal is among them."""
    batch = buffer().sample()
    starts, goals = (x[..., 0].flatten().int() for x in (batch.observations[:, :, 0], batch.goals))
    allowed = {0: [2, 3, 4, 5], 1: [3, 4, 5], 2: [4, 5], 3: [5], 8: [10, 11], 9: [11]}
    for start, ends in allowed.items():
        chosen = goals[starts == start]
        assert len(chosen) / len(goals) == pytest.approx(1 / len(allowed), abs=0.02)
        shares = [(chosen == end).float().mean().item() for end in ends]
        assert shares == pytest.approx([1 / len(ends)] * len(ends), abs=0.05)


def test_windows_are_rows_of_one_episode_and_end_before_the_goal():
    batch = buffer().sample()
    states, goals = batch.achieved[..., 0], batch.goals[..., 0]
    steps = torch.arange(HISTORY + FUTURE)
    assert torch.equal(batch.observations, batch.achieved[:, :, :HISTORY])
    expected = (states[..., :1] + steps < goals[..., None]).float()
    assert torch.equal(batch.valid, expected) and (batch.valid[..., :HISTORY] == 1).all()
    assert (states - states[..., :1] == steps)[batch.valid > 0].all()
    assert batch.actions.shape == (2, 4000, HISTORY, 1)


def test_goals_may_be_columns():
    batch = buffer(columns=[1]).sample()
    assert torch.equal(batch.achieved[:, :, :HISTORY], batch.observations[..., 1:])
    assert batch.goals.shape[-1] == 1 and (batch.goals <= 0).all()


def test_a_seed_draws_the_same_alone_and_goes_on():
    both, alone = buffer(), buffer(seeds=(3,))
    for mine, other in zip(alone.sample(), both.sample(), strict=True):
        assert torch.equal(mine[0], other[1])
    state = both.state_dict()
    resumed = buffer()
    resumed.load_state_dict(state)
    assert all(map(torch.equal, both.sample(), resumed.sample()))


def test_episodes_that_are_too_short_are_refused():
    assert len(np.unique(buffer(history=5).sample().observations[:, :, 0, 0])) == 1
    with refused("algo.history=6"):
        buffer(history=6)
