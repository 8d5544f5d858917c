"""Hindsight: which goals a row gets, with which chances, what they pay, and what is refused."""

import gymnasium
import numpy as np
import pytest
import tiny
import torch
from gymnasium import spaces
from wording import refused

from corerl.buffers.hindsight import HindsightReplay, goal_columns, steps_left
from corerl.data.observations import Flat, History
from corerl.launch.composition import cells

SEEDS, B, LENGTHS = 2, 4000, (5, 3, 4)


class Line(gymnasium.Env):
    """A point on a line. Its place is what is achieved, and pays 0 near the goal and -1 elsewhere."""

    def __init__(self):
        parts = {"observation": 2, "achieved_goal": 1, "desired_goal": 1}
        boxes = {name: spaces.Box(-np.inf, np.inf, (n,)) for name, n in parts.items()}
        self.observation_space = spaces.Dict(boxes)
        self.action_space = spaces.Box(-1, 1, (1,))

    @staticmethod
    def compute_reward(achieved, desired, info):
        return -(np.abs(achieved - desired)[..., 0] > 0.5).astype(np.float32)


def replay(share: float) -> HindsightReplay:
    """Episodes of 5, 3 and 4 steps, and 2 steps of one that runs. The place is the number of the step."""
    made = HindsightReplay(Flat(Line()), share, (4, 1), 20, range(SEEDS), B)
    step = 0
    for length in (*LENGTHS, 2):
        for i in range(length):
            # Parts lie by name: achieved, desired, observation.
            before = np.array([[step, 99, step, 7]] * SEEDS, np.float32)
            after = np.array([[step + 1, 99, step + 1, 7]] * SEEDS, np.float32)
            over = np.full(SEEDS, i == length - 1 and length != 2)
            never, action = np.zeros(SEEDS, bool), np.full((SEEDS, 1), step / 20, np.float32)
            made.add((before, action, np.full(SEEDS, -1.0), after, never, over))
            step += 1
    return made


def test_goals_are_what_was_achieved_later_in_the_episode():
    """Uniform over this step and those after it; the last step of an episode has one."""
    batch = replay(1.0).sample()
    row, goal = batch.observations[..., 0], batch.observations[..., 1]
    assert row.max() == sum(LENGTHS) - 1, "the running episode is not drawn"
    ends = np.cumsum(LENGTHS)
    for step in range(int(ends[-1])):
        found = goal[row == step]
        last = ends[np.searchsorted(ends, step, side="right")]
        possible = torch.arange(step + 1, int(last) + 1)
        counts = torch.tensor([(found == g).sum() for g in possible]).float()
        assert counts.sum() == len(found)
        expected = len(found) / len(possible)
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < [1e-9, 10.8, 13.8, 16.3, 18.5][len(possible) - 1], step  # 0.1 %


def test_both_observations_show_the_goal_and_the_reward_is_the_environments():
    batch = replay(1.0).sample()
    goal = batch.observations[..., 1]
    assert torch.equal(goal, batch.next_observations[..., 1])
    reached = batch.next_observations[..., 0] == goal
    assert torch.equal(batch.rewards, reached.float() - 1)
    assert 0.2 < reached.float().mean() < 0.6
    assert (batch.observations[..., 2] == batch.observations[..., 0]).all(), "the rest is as it was"
    assert torch.allclose(batch.actions[..., 0], batch.observations[..., 0] / 20)


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_a_share_of_goals_is_replaced(share):
    made = replay(share)
    batch = made.sample()
    kept = batch.observations[..., 1] == 99
    assert kept.float().mean().item() == pytest.approx(1 - share, abs=0.02)
    assert (batch.rewards[kept] == -1).all()
    again = made.sample()
    assert not torch.equal(batch.observations, again.observations)
    assert (replay(share).sample().observations == batch.observations).all(), "seeds decide"
    if share:
        assert not torch.equal(*batch.observations)


def test_steps_left_by_hand():
    assert steps_left(np.zeros(3)).tolist() == [2, 1, 0]


def test_columns_are_found_by_name():
    achieved, desired, _ = goal_columns(
        Flat(Line(), ["observation", "desired_goal", "achieved_goal"])
    )
    assert (achieved, desired) == (slice(3, 4), slice(2, 3))
    with refused("algo.hindsight history=1"):  # each of the latest observations has a goal
        goal_columns(History(Flat(Line()), 2))


def test_what_has_no_goals_or_no_ended_episode_is_refused():
    with refused("algo.hindsight achieved_goal desired_goal compute_reward"):
        tiny.Short(tiny.settings("td3", hindsight=0.5))
    made = HindsightReplay(Flat(Line()), 1.0, (4, 1), 20, range(SEEDS), B)
    with refused("algo.random_steps"):
        made.sample()


def test_capacity_must_hold_the_run():
    with refused("algo.capacity=300 steps=400"):
        cfg = tiny.settings("td3", hindsight=0.5)
        cfg.steps = 400
        tiny.Short(cfg)


def test_fetch_trains_and_resumes():
    pytest.importorskip("gymnasium_robotics")
    task = "task=gym/gymnasium_robotics:FetchReach-v4"
    small = ["algo.hidden_width=8", "algo.batch_size=8", "algo.random_steps=60", "steps=80"]
    (cfg,) = cells(["algo=td3", task, "algo.hindsight=0.8", "device=cpu", *small])
    run = tiny.Short(cfg, seeds=(0, 1))
    assert len(run.metrics) == 20
    replayed = run.parts["replay"]
    batch = replayed.sample()
    near = (batch.next_observations[..., :3] - batch.next_observations[..., 3:6]).norm(
        dim=-1
    ) < 0.05
    assert torch.equal(batch.rewards, near.float() - 1)
    rows = [one.clone() for one in replayed._rows[:, : len(replayed)]]
    saved = replayed.state_dict() | {"rows": rows}
    following = replayed.sample()
    replayed.load_state_dict(saved)
    assert all(map(torch.equal, following, replayed.sample()))
