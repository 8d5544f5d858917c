"""corerl/goal-maze: walls hold, recordings replay, and goals are shown and end an episode."""

import numpy as np
import pytest

from corerl.data.tasks import resolve
from corerl.envs import goal_maze as maze
from corerl.training.environment_step import goal_tasks


@pytest.fixture(scope="module", params=maze.RECORDINGS)
def recorded(request):
    return request.param, maze.make(request.param)


@pytest.mark.parametrize(
    ("start", "action", "end"),
    [
        ((0, 0), (0, 1), (0, 0.75)),
        ((0, 0.5), (0, 9), (0, 1.25)),
        ((0, 4), (0, 1), (0, 4.49)),  # as far as the wall
        ((0, 1), (1, 1), (0.49, 1.75)),  # along the wall
        ((0, 0), (-1, -1), (-0.49, -0.49)),  # the outer wall
        ((1, 0), (1, 0), (1.75, 0)),
    ],
)
def test_walls_hold(start, action, end):
    moved = maze.move(np.array([start], float), np.array([action], float))
    np.testing.assert_allclose(moved[0], end)


def test_the_recorded_steps_are_the_environments(recorded):
    name, arrays = recorded
    env = resolve(f"corerl/{name}").make_env()
    env.reset(seed=0)
    for i in (0, 999, 50_000, len(arrays["rewards"]) - 1):
        env.unwrapped.position = arrays["observations"][i] + maze.MIDDLE
        following, *_ = env.step(arrays["actions"][i])
        np.testing.assert_allclose(following[:2], arrays["next_observations"][i], atol=1e-6)


def test_recordings_go_on_from_step_to_step(recorded):
    name, arrays = recorded
    episodes, steps = maze.RECORDINGS[name]
    assert len(arrays["actions"]) == episodes * steps
    assert (np.flatnonzero(arrays["truncated"]) == np.arange(1, episodes + 1) * steps - 1).all()
    inside = ~arrays["truncated"][:-1]
    same = (arrays["next_observations"][:-1] == arrays["observations"][1:]).all(1)
    assert same[inside].all() and not same[~inside].any()
    again = maze.make(name)
    assert all(x.tobytes() == again[key].tobytes() for key, x in arrays.items())


def test_no_short_recording_has_the_way_of_a_task():
    """But the long ones have some."""
    longest = {}
    for name, (episodes, _) in maze.RECORDINGS.items():
        states = maze.make(name)["observations"].reshape(episodes, -1, 2) + maze.MIDDLE
        cells = maze.cell_of(states.reshape(-1, 2)).reshape(episodes, -1)
        longest[name] = maze.DISTANCES[cells[:, :1], cells].max()
    far = [
        maze.DISTANCES[maze.cell_of(np.array(task))[0], maze.cell_of(np.array(task))[1]]
        for task in maze.TASKS
    ]
    assert min(far) == 10 and max(far) == 17
    assert longest["goal-maze-stitch"] < 10 <= 17 <= longest["goal-maze"]


def test_a_goal_stands_behind_the_state_and_ends_the_episode():
    env = resolve("corerl/goal-maze").make_env()
    assert goal_tasks(env) == 5 and env.observation_space.shape == (4,)
    for task in range(1, 6):
        observation, info = env.reset(seed=1, options={"task_id": task})
        np.testing.assert_array_equal(observation[2:], info["goal"])
        start, goal = maze.TASKS[task - 1]
        assert np.abs(observation + np.tile(maze.MIDDLE, 2) - [*start, *goal]).max() <= maze.JITTER
    for _ in range(maze.TIME_LIMIT):
        cell = maze.cell_of(observation[None, 2:] + maze.MIDDLE)
        action = maze.drive(observation[None, :2] + maze.MIDDLE, cell)[0]
        observation, reward, over, _, info = env.step(action)
        if over:
            break
        assert (reward, info["success"]) == (-1.0, 0.0)
    assert over and (reward, info["success"]) == (0.0, 1.0)


def test_a_reset_without_options_takes_the_tasks_in_turn():
    env = resolve("corerl/goal-maze-stitch").make_env()
    goals = [env.reset(seed=0)[0][2:].tolist() for _ in range(6)]
    assert goals[0] == goals[5] and len({str(goal) for goal in goals}) == 5
