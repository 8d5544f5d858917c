"""corerl/maze-stitch: walls hold, recordings replay, and no episode can be copied to the goal."""

import numpy as np
import pytest

from corerl.data import embedded
from corerl.data.tasks import resolve
from corerl.envs import stitch_maze as maze


@pytest.fixture(scope="module")
def arrays():
    return maze.make(seed=0)


@pytest.mark.parametrize(
    ("start", "action", "end"),
    [
        ((0, 0), (0, 1), (0, 0.75)),
        ((0, 0), (1, 1), (0, 0.75)),  # slides along the wall
        ((0, 0), (0, 9), (0, 0.75)),
        ((0, 0), (-1, -1), (0, 0)),  # the outer wall
        ((0, 4), (1, 0), (0.75, 4)),
        ((1, 4), (0, -1), (1, 4)),
        ((0.4, 0), (1, 0), (0.4, 0)),  # no way through to the goal below
    ],
)
def test_walls_hold(start, action, end):
    moved = maze.move(np.array([start], float), np.array([action], float))
    np.testing.assert_allclose(moved[0], end)


def test_the_recorded_steps_are_the_environments(arrays):
    env = resolve("corerl/maze-stitch").make_env()
    env.reset(seed=0)
    chosen = [0, 20_000, *np.flatnonzero(arrays["terminated"])[:3], len(arrays["rewards"]) - 1]
    for i in chosen:
        env.unwrapped.position = arrays["observations"][i] + maze.MIDDLE
        following, reward, terminated, *_ = env.step(arrays["actions"][i])
        np.testing.assert_allclose(following, arrays["next_observations"][i], atol=1e-6)
        assert (reward, terminated) == (arrays["rewards"][i], arrays["terminated"][i])


def test_no_episode_sees_both_ends(arrays):
    over = arrays["terminated"] | arrays["truncated"]
    episodes = np.split(np.arange(len(over)), np.flatnonzero(over)[:-1] + 1)
    assert max(map(len, episodes)) == maze.STEPS
    near_start = np.linalg.norm(arrays["observations"] + maze.MIDDLE - maze.START, axis=1) < 1
    assert near_start.any() and arrays["terminated"].any()
    assert not any(near_start[rows].any() and arrays["terminated"][rows[-1]] for rows in episodes)


def test_a_seed_fixes_every_array(arrays):
    again, other = maze.make(seed=0), maze.make(seed=1)
    for name, array in arrays.items():
        assert array.tobytes() == again[name].tobytes()
    assert (arrays["actions"][:1000] != other["actions"][:1000]).mean() > 0.5


def test_the_time_limit_truncates():
    env = resolve("corerl/maze-stitch").make_env()
    env.reset(seed=0)
    steps = [env.step(np.array([-1, 0], np.float32))[1:4] for _ in range(maze.TIME_LIMIT)]
    assert steps[-2:] == [(-1.0, False, False), (-1.0, False, True)]


def test_the_stored_references_are_what_the_recipe_measures():
    assert embedded.REFERENCE["maze-stitch"] == pytest.approx(
        maze.reference_returns(episodes=100), abs=0.3
    )


def test_an_environment_is_restored_to_its_next_step():
    env, other = maze.StitchMaze(), maze.StitchMaze()
    env.reset(seed=3)
    other.reset(seed=4)
    other.load_state_dict(env.state_dict())
    action = np.array([0.3, 0.8], np.float32)
    np.testing.assert_array_equal(env.step(action)[0], other.step(action)[0])
    np.testing.assert_array_equal(env.reset()[0], other.reset()[0])
