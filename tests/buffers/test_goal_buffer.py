"""Goals are drawn by the law of OGBench's code, with its surprises."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from wording import refused

from corerl.buffers.goals import GoalBuffer, Goals, last_rows
from corerl.data.dataset import Dataset

LENGTHS, GAMMA, B = (4, 2), 0.6, 4000
ALWAYS = {
    "current": Goals(value_p_curgoal=1.0, value_p_randomgoal=0.0),
    "random": Goals(value_p_curgoal=0.0, value_p_randomgoal=1.0),
    "later": Goals(value_p_curgoal=0.0, value_p_randomgoal=0.0),
}


def dataset(lengths=LENGTHS, observations=None, **changed) -> Dataset:
    """Episodes whose observations are the numbers of their rows, and 0.5 more after the last."""
    size, ends = sum(lengths), np.cumsum(lengths) - 1
    rows = np.arange(size, dtype=np.float32)
    following = rows + 1
    following[ends] = rows[ends] + 0.5
    arrays = {
        "observations": np.stack([rows, -rows], 1) if observations is None else observations,
        "actions": np.zeros((size, 1), np.float32),
        "rewards": np.zeros(size, np.float32),
        "next_observations": np.stack([following, -following], 1),
        "terminated": np.zeros(size, bool),
        "truncated": np.isin(np.arange(size), ends),
        "has_next": np.ones(size, bool),
    }
    return Dataset.from_steps("goals", **(arrays | changed))


def buffer(goals: Goals, data: Dataset | None = None, seeds=(0, 3), batch: int = B) -> GoalBuffer:
    return GoalBuffer(data or dataset(), seeds, batch, goals, GAMMA)


def law(rows: torch.Tensor, goals: torch.Tensor, size: int = sum(LENGTHS)) -> np.ndarray:
    """How often each row has each goal, `(row, goal)`."""
    pairs = np.zeros((size, size))
    np.add.at(pairs, (rows.flatten().int().numpy(), goals.flatten().int().numpy()), 1)
    return pairs / pairs.sum(1, keepdims=True)


def value_law(goals: Goals) -> np.ndarray:
    batches = [buffer(goals, seeds=range(20)).sample() for _ in range(2)]
    return np.mean([law(b.observations[..., 0], b.value_goals[..., 0]) for b in batches], 0)


def geometric(t: int, last: int) -> np.ndarray:
    row = np.zeros(sum(LENGTHS))
    for k in range(1, 50):
        row[min(t + k, last)] += (1 - GAMMA) * GAMMA ** (k - 1)
    return row


def test_later_rows_are_geometric_and_pile_up_at_the_last_row():
    """The last row's only later one is itself. No episode's final state is a goal."""
    expected = np.array([*(geometric(t, 3) for t in range(4)), *(geometric(t, 5) for t in (4, 5))])
    assert expected[0, 3] == pytest.approx(GAMMA**2) and expected[3, 3] == pytest.approx(1)
    np.testing.assert_allclose(value_law(ALWAYS["later"]), expected, atol=0.01)


def test_the_uniform_law_has_half_its_weight_at_both_ends():
    """Between rows 1 and 3 it is 1/4, 1/2, 1/4."""
    found = value_law(replace(ALWAYS["later"], value_geom_sample=False))
    expected = {0: [0, 0.25, 0.5, 0.25], 1: [0, 0, 0.5, 0.5], 2: [0, 0, 0, 1], 3: [0, 0, 0, 1]}
    np.testing.assert_allclose(found[:4, :4], list(expected.values()), atol=0.01)
    np.testing.assert_allclose(found[4:, 4:], [[0, 1], [0, 1]])


def test_random_goals_are_uniform_over_all_rows():
    np.testing.assert_allclose(value_law(ALWAYS["random"]), np.full((6, 6), 1 / 6), atol=0.01)


def test_shares_are_of_the_row_itself_of_random_rows_and_of_later_ones():
    expected = 0.2 * np.eye(6) + 0.3 / 6
    expected += 0.5 * np.array(
        [*(geometric(t, 3) for t in range(4)), *(geometric(t, 5) for t in (4, 5))]
    )
    np.testing.assert_allclose(value_law(Goals()), expected, atol=0.01)


def test_goals_of_the_policy_are_drawn_apart_from_the_values():
    goals = Goals(actor_p_curgoal=0.0, actor_p_randomgoal=1.0)
    batch = buffer(goals).sample()
    assert (batch.actor_goals != batch.value_goals).any(-1).float().mean() > 0.5
    np.testing.assert_allclose(
        law(batch.observations[..., 0], batch.actor_goals[..., 0]),
        np.full((6, 6), 1 / 6),
        atol=0.06,
    )


@pytest.mark.parametrize("negative", [True, False])
def test_a_step_pays_until_the_goal(negative):
    batch = buffer(replace(Goals(), gc_negative=negative)).sample()
    at_goal = (batch.observations == batch.value_goals).all(-1).float()
    assert 0.2 < at_goal.mean() < 0.5
    assert torch.equal(batch.terminated, at_goal)
    assert torch.equal(batch.rewards, at_goal - float(negative))


def test_success_is_of_the_row_or_of_the_state():
    """Rows 0 and 1 are one state: by the row, the one is no goal of the other."""
    states = np.array([[0, 0], [0, 0], [1, 1], [2, 2], [3, 3], [4, 4]], np.float32)
    data = dataset(observations=states)
    by_row, by_state = (
        buffer(replace(Goals(), success=kind), data).sample() for kind in ("index", "state")
    )
    same = (by_row.observations == by_row.value_goals).all(-1).float()
    assert torch.equal(by_state.terminated, same)
    assert (by_row.terminated < same).any() and (by_row.terminated <= same).all()


def test_a_batch_is_rows_of_the_data():
    batch = buffer(Goals()).sample()
    rows = batch.observations[..., 0]
    assert torch.equal(batch.observations[..., 1], -rows)
    expected = torch.where((rows == 3) | (rows == 5), rows + 0.5, rows + 1)
    assert torch.equal(batch.next_observations[..., 0], expected)


def test_a_goal_may_be_some_columns():
    made = buffer(replace(Goals(), columns=[1]))
    batch = made.sample()
    assert batch.value_goals.shape == (2, B, 1) and (batch.value_goals <= 0).all()
    assert (made.state_dim, made.goal_dim, made.observation_dim) == (2, 1, 3)


def test_subgoals_are_later_rows_at_most_so_many_steps_ahead():
    """A random high goal keeps the target of its own episode; another's target stops at the goal."""
    goals = Goals(actor_p_randomgoal=0.5)
    batch = buffer(goals, dataset((9, 9)), batch=2000).sample_subgoals(3)
    rows, low, high, target = (
        x[..., 0]
        for x in (batch.observations, batch.low_goals, batch.high_goals, batch.high_targets)
    )
    last = torch.where(rows < 9, 8.0, 17.0)
    assert torch.equal(low, torch.minimum(rows + 3, last))
    own = (high > rows) & (high <= last) & (target == torch.minimum(low, high))
    assert (own | (target == low)).all()
    beyond = (high < rows) | (high > last)  # drawn at random
    assert 0.3 < beyond.float().mean() < 0.5 and torch.equal(target[beyond], low[beyond])
    stays = rows == last
    assert torch.equal(target[stays], rows[stays])


def test_a_seed_draws_the_same_in_any_company_and_goes_on_after_a_stop():
    together, alone = buffer(Goals(), seeds=(0, 3, 5)), buffer(Goals(), seeds=(3,))
    for _ in range(3):
        many, one = together.sample(), alone.sample()
        assert all(torch.equal(x[1], y[0]) for x, y in zip(many, one, strict=True))
    resumed = buffer(Goals(), seeds=(3,))
    resumed.load_state_dict(alone.state_dict())
    for x, y in zip(resumed.sample(), alone.sample(), strict=True):
        assert torch.equal(x, y)


def test_goals_come_from_an_episode_that_crosses():
    """Rows 2 and 7 are one state. From row 0 it is met once in 4 times, and the other is taken by half.

    Of goals in the other episode, a third is row 7, which has the state of row 2.
    """
    states = np.arange(10, dtype=np.float32)[:, None].repeat(2, 1)
    states[7] = states[2]
    data = dataset((5, 5), observations=states)
    goals = replace(ALWAYS["later"], augment=1.0, clusters=9)

    def reached_from_row_0(goals: Goals) -> torch.Tensor:
        batch = buffer(goals, data, seeds=range(20)).sample()
        return batch.actor_goals[batch.observations[..., 0] == 0][:, 0]

    reached = reached_from_row_0(goals)
    assert (reached > 4).float().mean().item() == pytest.approx(2 / 3 / 8, abs=0.01)
    assert set(reached[reached > 4].tolist()) == {8.0, 9.0}
    assert (reached_from_row_0(replace(goals, augment=0.0)) <= 4).all()


def test_half_of_the_goals_may_be_from_crossings():
    goals = replace(ALWAYS["later"], augment=0.5, clusters=2)
    made, twin = (buffer(goals, dataset((5, 5)), batch=2000) for _ in range(2))
    batch = made.sample()
    rows, reached = batch.observations[..., 0], batch.actor_goals[..., 0]
    crossed = ((rows < 5) != (reached < 5)).float().mean()
    assert 0 < crossed < 0.3
    twin.load_state_dict(made.state_dict())
    assert torch.equal(twin.sample().actor_goals, made.sample().actor_goals)


def test_a_last_row_without_a_next_observation_is_left_out():
    has_next = np.array([1, 1, 1, 0, 1, 0], bool)
    data = dataset(has_next=has_next)
    np.testing.assert_array_equal(last_rows(data), [2, 2, 2, 3])
    assert set(buffer(Goals(), data).sample().observations[..., 0].unique().tolist()) == {
        0,
        1,
        2,
        4,
    }


@pytest.mark.parametrize(
    ("goals", "data", "reported"),
    [
        (Goals(), {"has_next": np.array([1, 0, 1, 1, 1, 1], bool)}, "goals 1 episode"),
        (Goals(columns=[2]), {}, "algo.goals.columns=[2] goals 1"),
        (Goals(augment=0.5, clusters=7), {}, "algo.goals.clusters=7 6"),
        (Goals(columns=[]), {}, "algo.goals.columns=[] goals"),
    ],
)
def test_data_without_whole_episodes_and_columns_that_are_not_there_are_refused(
    goals, data, reported
):
    with refused(reported):
        buffer(goals, dataset(**data))
