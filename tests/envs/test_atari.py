"""Atari: frames are gymnasium's, rewards are split by the authors' rule, lives and saves hold."""

import gymnasium
import numpy as np
import pytest
from wording import refused

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from corerl.data import tasks
from corerl.envs import atari

SPLITS = [
    ("AirRaid", 25, (0, 0, 0, 25)),
    ("AirRaid", 125, (100, 0, 0, 25)),
    ("Asteroids", 20, (20, 0, 0)),
    ("Asteroids", 50, (0, 50, 0)),
    ("Asteroids", 100, (0, 0, 100)),
    ("Asteroids", 70, (20, 50, 0)),
    ("Asteroids", 150, (0, 50, 100)),
    ("Asteroids", 200, (0, 0, 100)),
    ("Gopher", 20, (20, 0)),
    ("Gopher", 120, (20, 100)),
    ("Gopher", 80, (0, 0)),
    ("MsPacman", 10, (10, 0, 0)),
    ("MsPacman", 50, (0, 50, 0)),
    ("MsPacman", 210, (10, 0, 100)),
    ("MsPacman", 1600, (0, 0, 100)),
    ("Pong", -1, (-1, 0)),
    ("Pong", 1, (0, 1)),
    ("Pong", 0, (0, 0)),
    ("UpNDown", 10, (10, 0, 0)),
    ("UpNDown", 100, (0, 100, 0)),
    ("UpNDown", 110, (10, 100, 0)),
    ("UpNDown", 400, (0, 0, 200)),
    ("UpNDown", 410, (10, 0, 200)),
    ("UpNDown", 20, (0, 0, 0)),
]


@pytest.mark.parametrize(("game", "reward", "parts"), SPLITS)
def test_rewards_are_taken_apart_in_order(game, reward, parts):
    assert tuple(atari.by_source(reward, atari.SOURCES[game])) == parts


def actions(env, count):
    return np.random.default_rng(0).integers(env.action_space.n, size=count)


@pytest.mark.parametrize("game", ["MsPacman", "UpNDown"])
def test_frames_and_rewards_are_those_of_gymnasium(game):
    import ale_py

    gymnasium.register_envs(ale_py)
    theirs = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    theirs = gymnasium.wrappers.AtariPreprocessing(theirs, noop_max=0, frame_skip=4)
    env = tasks.resolve(f"atari/{game}").make_env()
    assert env.action_space == theirs.action_space
    (mine, _), (frame, _) = env.reset(seed=0), theirs.reset(seed=0)
    expected = np.zeros((4, 84, 84), np.uint8)
    expected[-1] = frame
    total = 0.0
    for action in actions(env, 150):
        assert (mine == expected).all()
        mine, reward, terminated, truncated, info = env.step(action)
        frame, their_reward, over, _, _ = theirs.step(action)
        expected = np.concatenate([expected[1:], frame[None]])
        assert (reward, terminated, truncated) == (their_reward, over, False)
        split = atari.by_source(reward, atari.SOURCES[game])
        assert (info["reward_vector"] == split).all()
        total += reward
    assert total > 0


def test_an_episode_ends_with_a_life_and_the_game_goes_on():
    env = tasks.resolve("atari/MsPacman").make_training_env()
    env.reset(seed=0)
    for action in actions(env, 2000):
        observation, _, terminated, _, info = env.step(action)
        if terminated:
            break
    assert terminated and not info["game_over"] and info["lives"] == 2
    first, _ = env.reset()
    assert (first[:3] == 0).all() and (first[3] == observation[3]).any()
    assert env.step(0)[4]["lives"] == 2
    whole = tasks.resolve("atari/MsPacman").make_env()
    whole.reset(seed=0)
    lives = [whole.step(action)[2:5:2] for action in actions(env, 2000)[:400]]
    assert min(info["lives"] for _, info in lives) < 3
    assert all(terminated == info["game_over"] for terminated, info in lives)


def test_a_reset_begins_a_new_game_where_lives_are_no_ends(monkeypatch):
    env = tasks.resolve("atari/Pong").make_env()
    start, _ = env.reset(seed=1)
    for action in actions(env, 60):
        env.step(action)
    again, _ = env.reset()
    assert (start == again).all()
    monkeypatch.setattr(atari, "LIMIT", 3)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_sticky_actions_are_chance_and_their_seed_repeats():
    def frames(name, seed):
        env = tasks.resolve(name).make_env()
        env.reset(seed=seed)
        return np.stack([env.step(action)[0][-1] for action in actions(env, 40)])

    assert (frames("atari/Pong", 1) == frames("atari/Pong", 2)).all()
    sticky = frames("atari/Pong-sticky", 1)
    assert (sticky == frames("atari/Pong-sticky", 1)).all()
    assert (sticky != frames("atari/Pong-sticky", 2)).any()


def test_a_game_without_a_table_has_one_reward():
    env = tasks.resolve("atari/Breakout").make_env()
    assert not hasattr(env, "reward_space")
    env.reset(seed=0)
    assert "reward_vector" not in env.step(0)[4]


def test_an_unknown_game_names_the_nearest():
    with refused("atari/MsPakman atari/MsPacman"):
        tasks.resolve("atari/MsPakman")


def test_without_the_emulator_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    with refused("corerl[atari]"):
        tasks.resolve("atari/Pong").make_env()
