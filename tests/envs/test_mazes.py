"""The mazes pay, end and look as described; the law of v0 to v2 is that of an exact recursion."""

import itertools

import numpy as np
import pytest
from exact_mazes import joint_moments, total_probability
from wording import refused

from corerl.envs import mazes

# Means, standard deviations and correlations from s0 of the uniform policy, from an independent
# enumeration of all paths with geometric waiting times (5 or 6 digits were kept).
KNOWN = {
    "v0": (
        (0.05971, 0.193896, 0.19033, 0.285495),
        (0.106366, 0.337608, 0.194507, 0.288505),
        (0.9721, 0.5508, -0.5555, 0.5635, -0.5683, -0.9683),
    ),
    "v1": ((0.725939, 1.179651), (0.394157, 0.621628), (-0.8750,)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_map_has_the_exact_law_that_is_known(name):
    mean, covariance = joint_moments(mazes.MAZES[name])
    std = np.sqrt(np.diag(covariance))
    correlation = (covariance / np.outer(std, std))[np.triu_indices(len(mean), 1)]
    for ours, theirs in zip((mean, std, correlation), KNOWN[name], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=6e-5)


@pytest.mark.parametrize("name", KNOWN)
def test_every_random_walk_leaves(name):
    assert total_probability(mazes.MAZES[name]) == pytest.approx(1)


@pytest.mark.parametrize("name", ["v0", "v1", "v2", "v3"])
def test_episodes_follow_the_exact_law(name):
    """1,000 episodes of the uniform policy, every mean within four of its standard errors."""
    env = mazes.make(f"{name}-vector")
    rng = np.random.default_rng(0)
    env.reset(seed=1)
    returns = []
    for _ in range(1000):
        env.reset()
        total = np.zeros(len(env.maze.sources))
        for step in itertools.count():
            _, reward, terminated, truncated, info = env.step(rng.integers(4))
            assert reward == pytest.approx(info["reward_vector"].sum())
            total += 0.99**step * info["reward_vector"]
            if terminated or truncated:
                break
        returns.append(total)
    mean, covariance = joint_moments(env.maze)
    error = np.sqrt(np.diag(covariance) / len(returns))
    assert (np.abs(np.mean(returns, 0) - mean) < 4 * error).all()
    empirical = np.cov(np.array(returns).T)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(empirical - covariance) < 0.2 * scale).all()


def walk(env, actions):
    """The reward vectors and the ends of a given way from the start."""
    env.reset(seed=0)
    return [env.step(action)[1:] for action in actions]


UP, LEFT, DOWN, RIGHT = range(4)


def test_one_way_passages_and_entered_squares_hold():
    env = mazes.make("v1-vector")
    steps = walk(env, [UP, RIGHT, LEFT, DOWN, UP, RIGHT])
    paid = [step[3]["reward_vector"].tolist() for step in steps]
    assert paid[0] == [0, 0] and 0.2 <= paid[1][0] <= 0.6 and paid[1][1] == 0
    assert paid[2] == [0, 0] and paid[3] == [0, 0]  # entered before; down to (1, 1) pays nothing
    assert paid[4] == [0, 0]  # one way
    assert 0.2 <= paid[5][0] <= 0.6


def test_leaving_ends_and_pays_nothing_and_time_truncates():
    env = mazes.make("v0")
    steps = walk(env, [RIGHT, DOWN, DOWN, DOWN])
    assert [step[1] for step in steps] == [False, False, False, True]
    assert steps[1][0] > 0.5 and steps[3][0] == 0
    waits = walk(env, [UP] * 150)
    assert [step[2] for step in waits] == [False] * 149 + [True]
    assert not any(step[1] for step in waits)


def test_a_maze_of_one_s_own_may_take_as_well_as_pay():
    loss, gain = (
        mazes.Source((255, 0, 0), *law, (cell,))
        for law, cell in (((-1, -0.5), (0, 1)), ((1, 2), (1, 1)))
    )
    env = mazes.MazeEnv(mazes.Maze(2, (0, 0), (loss, gain), "1,1 2,1", "0,1"), vector=True)
    paid = np.array([step[3]["reward_vector"] for step in walk(env, [RIGHT, DOWN])])
    assert -1 <= paid[0, 0] <= -0.5 and 1 <= paid[1, 1] <= 2 and (paid[[0, 1], [1, 0]] == 0).all()
    assert env.reward_space.low.tolist() == [-1, 0] and env.reward_space.high.tolist() == [0, 2]


def test_bounds_are_of_discounted_returns():
    env = mazes.make("v3-vector")
    assert env.maze.bounds == ("<0.2", ">0.7", ">0.7")
    assert env.meets_bounds(np.array([0.1, 0.8, 0.9]))
    assert not env.meets_bounds(np.array([0.3, 0.8, 0.9]))
    assert not env.meets_bounds(np.array([0.1, 0.8, 0.7]))
    assert "success" not in walk(env, [UP] * 150)[148][3]
    assert walk(env, [UP] * 150)[149][3]["success"] is False


def test_an_episode_that_leaves_succeeds_by_its_discounted_returns_also_once_restored():
    """The gain is worth 1 at once and 0.99 after a wait; below is an unused square, beyond the way out."""
    gain = mazes.Source((0, 255, 0), 1, 1, ((0, 1),))
    maze = mazes.Maze(2, (0, 0), (gain,), "1,1", "0,1 0,2", unused=((1, 1),), bounds=(">0.995",))
    env, other = (mazes.MazeEnv(maze, vector=True) for _ in range(2))
    for way, success in (([RIGHT, DOWN], True), ([UP, RIGHT], False)):
        assert "success" not in walk(env, way)[-1][3]
        other.reset(seed=1)
        other.load_state_dict(env.state_dict())
        for one in (env, other):
            _, paid, left, cut, info = one.step(RIGHT)
            assert (paid, left, cut, info["success"]) == (0, True, False, success)
    last = walk(env, [UP] * 148 + [RIGHT, RIGHT])[-1]
    assert last[1:3] == (True, False)  # it leaves in the last step that there is time for


def test_drawings_show_the_way():
    env = mazes.make("v1")
    first, _ = env.reset(seed=0)
    assert first.shape == (3, 84, 84) and first.dtype == np.uint8
    side = 0.9 * 84 / 5

    def colour(image, row, column):
        centre = [round(0.05 * 84 + side * (at + 0.5)) for at in (row, column)]
        return image[:, centre[0], centre[1]].tolist()

    assert colour(first, 0, 1) == [175, 255, 175] and colour(first, 1, 0) == [255, 175, 175]
    assert colour(first, 0, 2) == [200] * 3 and colour(first, 0, 0) == [100] * 3
    second = env.step(RIGHT)[0]
    assert colour(second, 0, 0) == [200] * 3 and colour(second, 0, 1) == [100] * 3
    assert (second[:, 40:] == first[:, 40:]).all()


def test_a_restored_episode_goes_on(tmp_path):
    env, other = mazes.make("v0-vector"), mazes.make("v0-vector")
    walk(env, [RIGHT, DOWN])
    other.reset(seed=5)
    other.load_state_dict(env.state_dict())
    for action in (UP, LEFT, DOWN, DOWN):
        mine, theirs = env.step(action), other.step(action)
        assert (mine[0] == theirs[0]).all() and mine[1:4] == theirs[1:4]


def test_a_maze_that_does_not_exist_is_refused():
    with refused("v7 v6"):
        mazes.make("v7")
