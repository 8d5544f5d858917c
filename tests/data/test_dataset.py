"""The Dataset: bookkeeping against hand-worked numbers, and refusals that say where."""

import numpy as np
import pytest
import torch
from wording import refused

from corerl.data.dataset import Dataset


def two_episodes(**changed) -> Dataset:
    """Three steps to a terminal state, then two to a time limit whose next state is unknown."""
    obs = np.arange(5, dtype=np.float32)[:, None]
    arrays = {
        "observations": obs,
        "actions": obs / 10,
        "rewards": np.array([1, 2, 4, 8, 16], np.float32),
        "next_observations": obs + 1,
        "terminated": [0, 0, 1, 0, 0],
        "truncated": [0, 0, 0, 0, 1],
        "has_next": [1, 1, 1, 1, 0],
    }
    return Dataset.from_steps("test/two", **{**arrays, **changed})


def test_episodes_are_where_the_flags_are():
    d = two_episodes()
    assert d.episode_ends.tolist() == [3, 5]
    assert d.episode_starts.tolist() == [0, 3]
    assert d.episode_lengths().tolist() == [3, 2]
    assert d.episode_returns().tolist() == [7, 24]


def test_a_recording_that_stops_inside_an_episode_is_truncated_there():
    d = two_episodes(truncated=np.zeros(5))
    assert d.truncated.tolist() == [False] * 4 + [True]
    assert d.episode_ends.tolist() == [3, 5]


def test_returns_to_go_by_hand():
    d = two_episodes()
    assert d.returns_to_go().tolist() == [7, 6, 4, 24, 16]
    assert d.returns_to_go(0.5).tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]


def test_returns_to_go_equal_a_plain_loop_on_ragged_episodes():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 30)
    n = lengths.sum()
    truncated = np.zeros(n, bool)
    truncated[np.cumsum(lengths) - 1] = True
    obs = np.zeros((n, 1))
    d = Dataset.from_steps("t", obs, obs, rng.normal(size=n), obs, np.zeros(n), truncated)
    expected, acc = np.zeros(n), 0.0
    for i in reversed(range(n)):
        acc = float(d.rewards[i]) + (0.0 if truncated[i] else 0.97 * acc)
        expected[i] = acc
    np.testing.assert_allclose(d.returns_to_go(0.97), expected, rtol=1e-5, atol=1e-6)


def test_transitions_leave_out_rows_without_a_next_state():
    t = two_episodes().transitions()
    assert t.rows.tolist() == [0, 1, 2, 3]
    assert t.terminated.tolist() == [False, False, True, False]
    assert t.next_actions is None


def test_next_actions_stay_within_the_episode():
    t = two_episodes().transitions(next_actions=True)
    assert t.rows.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(t.next_actions[:, 0], [0.1, 0.2, 0.0, 0.4], rtol=1e-6)


def test_next_actions_drop_a_time_limit_even_where_the_next_state_is_known():
    d = two_episodes(has_next=np.ones(5))
    assert d.transitions().rows.tolist() == [0, 1, 2, 3, 4]
    assert d.transitions(next_actions=True).rows.tolist() == [0, 1, 2, 3]


def test_whole_datasets_are_not_copied():
    d = two_episodes(has_next=None)
    assert np.shares_memory(d.transitions().observations, d.observations)


def test_obs_stats_are_over_transitions_with_population_std():
    mean, std = two_episodes().obs_stats(eps=0.5)
    assert mean == pytest.approx([1.5])  # rows 0 to 3, not 4
    assert std == pytest.approx([np.sqrt(1.25) + 0.5])


def test_best_episodes_keeps_whole_episodes_and_their_order():
    obs = np.arange(8.0)[:, None]
    rewards = [1, 5, 0, 0, 9, 3, 1, 1]  # returns 6, 0, 12, 2
    ends = [0, 1, 0, 1, 0, 1, 0, 1]
    d = Dataset.from_steps("t", obs, obs, rewards, obs + 1, np.zeros(8), ends)
    best = d.best_episodes(0.5)
    assert best.observations[:, 0].tolist() == [0, 1, 4, 5]
    assert best.episode_ends.tolist() == [2, 4]
    assert d.best_episodes(0.01).observations[:, 0].tolist() == [4, 5]  # at least one
    assert d.best_episodes(0.74).n_episodes == 2  # of 2.96, whole ones


def test_best_episodes_by_discounted_return_are_those_that_begin_well():
    obs = np.arange(6.0)[:, None]
    ends = [0, 0, 1, 0, 0, 1]
    d = Dataset.from_steps("t", obs, obs, [3, 0, 0, 0, 0, 9], obs + 1, np.zeros(6), ends)
    assert d.best_episodes(0.5).observations[:, 0].tolist() == [3, 4, 5]  # 9 over 3
    assert d.best_episodes(0.5, 0.6).observations[:, 0].tolist() == [3, 4, 5]  # 3.24 over 3
    assert d.best_episodes(0.5, 0.5).observations[:, 0].tolist() == [0, 1, 2]  # 2.25 below 3


@pytest.mark.parametrize("fraction", [0, 1.5, -1])
def test_best_episodes_refuses_a_wrong_fraction(fraction):
    with refused("fraction"):
        two_episodes().best_episodes(fraction)


def test_with_rewards():
    d = two_episodes().with_rewards(np.ones(5))
    assert d.episode_returns().tolist() == [3, 2]
    with refused("test/two"):
        two_episodes().with_rewards(np.ones(4))


def test_ended_by_a_reward_later_steps_are_other_episodes():
    obs = np.arange(6.0)[:, None]
    d = Dataset.from_steps(
        "t", obs, obs, [1, 4, 4, 2, 3, 4], obs + 1, np.zeros(6), [0, 0, 0, 1, 0, 1]
    )
    ended = d.ended_by(4.0)
    assert ended.terminated.tolist() == [False, True, True, False, False, True]
    assert ended.truncated.tolist() == [False, False, False, True, False, False]
    assert ended.episode_ends.tolist() == [2, 3, 4, 6]
    assert d.ended_by(5.0).episode_ends.tolist() == d.episode_ends.tolist()


def test_ended_by_a_reward_a_step_needs_no_next_state():
    """As with a `terminated` column: what follows a terminal state is not asked for."""
    obs = np.arange(6.0)[:, None]
    given = {"actions": np.zeros((6, 1)), "rewards": [0, 0, 1, 0, 0, 1]}
    cut = Dataset.from_arrays(obs, **given, truncated=[0, 0, 1, 0, 0, 1])
    before = cut.next_observations.copy()
    ended = cut.ended_by(1.0).transitions()
    theirs = Dataset.from_arrays(obs, **given, terminated=[0, 0, 1, 0, 0, 1]).transitions()
    assert ended.rewards.tolist() == [0, 0, 1, 0, 0, 1]
    assert ended.terminated.tolist() == [False, False, True, False, False, True]
    for one, two in zip(ended, theirs, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(cut.next_observations, before)


def test_ended_by_a_reward_other_ends_stay_as_they_are_recorded():
    obs = np.arange(4.0)[:, None]
    ends = ([0, 1, 0, 1], np.zeros(4), [1, 0, 1, 0])  # the last state of neither episode is known
    d = Dataset.from_steps("t", obs, obs, [0, 2, 0, 4], obs + 1, *ends)
    assert d.ended_by(4.0).transitions().rows.tolist() == [0, 2, 3]


def test_discrete_actions_are_indices():
    d = two_episodes(actions=np.array([0, 1, 2, 1, 0], np.uint8))
    assert d.discrete
    assert d.actions.dtype == np.int64
    assert d.transitions(next_actions=True).next_actions.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_by_field_and_row(field, value):
    array = np.zeros(5, np.float32) if field == "rewards" else np.zeros((5, 1), np.float32)
    array[2:] = value
    rows = 2 if field == "next_observations" else 3  # row 4 has no next observation to check
    with refused(f"test/two {field} 2 {rows}"):
        two_episodes(**{field: array})


def test_a_missing_next_observation_may_be_anything():
    following = np.zeros((5, 1), np.float32)
    following[4] = np.nan
    assert len(two_episodes(next_observations=following)) == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"actions": np.zeros((4, 1))}, "actions 4 rewards 5"),
        ({"next_observations": np.zeros((5, 2))}, "next_observations shape"),
        ({"actions": np.zeros(5)}, "actions shape"),
        ({"terminated": np.zeros(4)}, "terminated 4"),
        ({"rewards": np.zeros((5, 2))}, "rewards shape"),
    ],
)
def test_shapes_that_do_not_agree_are_refused(changed, message):
    with refused(message):
        two_episodes(**changed)


@pytest.mark.parametrize("ends", [[3, 4], [3, 3, 5], [5], [0, 3, 5], [2, 3, 5]])
def test_episode_ends_must_agree_with_the_flags(ends):
    d = two_episodes()
    arrays = {name: getattr(d, name) for name in Dataset.__dataclass_fields__}
    with refused("episode_ends"):
        Dataset(**{**arrays, "episode_ends": np.array(ends)})


def test_arrays_that_are_given_are_never_written():
    """One array may stand for two fields; where an episode ended and was cut off, it ended."""
    done = np.arange(40) % 10 == 9
    given = {"observations": np.ones((40, 2), np.float32), "actions": np.zeros((40, 1), np.float32)}
    given |= {"rewards": np.ones(40, np.float32), "terminated": done, "truncated": done}
    before = {field: array.copy() for field, array in given.items()}
    d = Dataset.from_arrays(**given)
    assert d.n_episodes == d.terminated.sum() == 4 and not d.truncated.any()
    Dataset.from_steps("t", next_observations=given["observations"], **given)
    d.transitions(next_actions=True)
    d.returns_to_go()
    for field, array in given.items():
        np.testing.assert_array_equal(array, before[field], field)


def test_rows_that_have_no_next_stay_so_without_next_observations():
    """Row 1 has none by its flag, row 2 was cut off, and the recording ends with row 4."""
    given = {"actions": np.zeros((5, 1)), "rewards": np.ones(5), "truncated": [0, 0, 1, 0, 0]}
    data = Dataset.from_arrays(np.arange(5.0), **given, has_next=[1, 0, 1, 1, 1])
    assert data.has_next.tolist() == [True, False, False, True, False]
    assert data.transitions().rows.tolist() == [0, 3]


# What a person's own arrays may be.


def steps(**changed) -> Dataset:
    """Four steps of one episode."""
    given = {"observations": np.ones((4, 2)), "actions": np.zeros((4, 1)), "rewards": np.ones(4)}
    given |= {"terminated": np.zeros(4, bool), "truncated": np.arange(4) == 3}
    return Dataset.from_arrays(**given | changed)


def test_rewards_may_be_bytes():
    sparse = np.array([0, 0, 1, 1], np.uint8)
    dataset = steps(rewards=sparse)
    assert dataset.rewards.dtype == np.float32 and dataset.rewards.tolist() == [0, 0, 1, 1]
    assert dataset.with_rewards(sparse).rewards.dtype == np.float32
    assert steps(observations=np.ones((4, 3, 2, 2), np.uint8)).observations.dtype == np.uint8


@pytest.mark.parametrize(
    "field", ["observations", "actions", "rewards", "terminated", "next_observations", "episode"]
)
def test_what_is_masked_is_no_number(field):
    """Under the mask lies anything, such as -9999."""
    shapes = {"observations": (4, 2), "next_observations": (4, 2), "actions": (4, 1)}
    hidden = np.ma.masked_array(np.zeros(shapes.get(field, 4)), mask=False)
    assert len(steps(**{field: hidden})) == 4
    hidden[1] = np.ma.masked
    with refused(f"{field}"):
        steps(**{field: hidden})


def test_a_masked_part_of_a_dictionary_is_named():
    hidden = np.ma.masked_equal([0, 1, 2, -9999], -9999)
    with refused("observations 1"):
        steps(observations={"p": np.ones((4, 2)), "v": hidden})


def test_tensors_may_have_gradients_or_be_bfloat16():
    numbers = torch.linspace(-1, 1, 4)
    dataset = steps(
        observations={"a": numbers.clone().requires_grad_(), "b": numbers[:, None].bfloat16()},
        actions=numbers[:, None].clone().requires_grad_(),
        rewards=numbers.bfloat16(),
    )
    rounded = numbers.bfloat16().float().tolist()
    assert dataset.rewards.tolist() == rounded == dataset.observations[:, 1].tolist()
    assert dataset.observations[:, 0].tolist() == dataset.actions[:, 0].tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"observations": {}}, "observations empty"),
        (
            {"observations": {"arm": {"p": np.ones(4), "v": np.ones(4)}}},
            "arm arm/p arm/v",
        ),
        ({"observations": np.ones((4, 0))}, "observations shape 4 0"),
        ({"actions": np.ones((4, 0))}, "actions shape 4 0"),
    ],
)
def test_observations_and_actions_that_are_none(changed, reported):
    with refused(reported):
        steps(**changed)
