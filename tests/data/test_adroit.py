"""The hand's sparse tasks: what success is, and how demonstrations are relabelled."""

import numpy as np
import pytest
from wording import refused

from corerl.data import adroit, tasks
from corerl.data.dataset import Dataset


def door(hinge: list[float]) -> np.ndarray:
    observations = np.zeros((len(hinge), 39), np.float32)
    observations[:, 28] = hinge
    return observations


def test_an_episode_ends_at_its_first_success():
    after = [0.1, 1.4, 1.5, 0.2, 0.3, 1.35]  # two episodes of three steps
    data = Dataset.from_steps(
        "adroit/door-binary",
        door([0, 0.1, 1.4, 0, 0.2, 0.3]),
        np.zeros((6, 28)),
        np.ones(6),
        door(after),
        terminated=np.zeros(6),
        truncated=[0, 0, 1, 0, 0, 1],
        has_next=[1, 1, 1, 1, 1, 0],  # so that the last row's success is not known of
    )
    new = adroit.relabel(data, "door")
    assert new.rewards.tolist() == [-1, 0, -1, -1, -1]
    assert new.terminated.tolist() == [False, True, False, False, False]
    assert new.truncated.tolist() == [False, False, False, False, True]
    assert new.observations[:, 28] == pytest.approx([0, 0.1, 0, 0.2, 0.3])


def test_an_end_of_the_file_that_is_no_success_leads_to_no_other_episode():
    """D4RL's next state of a terminal row is the next episode's first one."""
    data = Dataset.from_steps(
        "adroit/door-binary",
        door([0, 0.1, 0.2, 0.3, 1.3]),
        np.zeros((5, 28)),
        np.ones(5),
        door([0.1, 0.2, 0.3, 1.3, 1.4]),
        terminated=[0, 1, 0, 0, 1],
        truncated=np.zeros(5),
    )
    new = adroit.relabel(data, "door")
    assert new.has_next.tolist() == [True, False, True, True, True]
    assert new.truncated.tolist() == [False, True, False, False, False]
    assert new.terminated.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("hand", adroit.HANDS)
def test_success_is_the_environments_own(hand):
    """From states between the start and the goal, of which some are goals and some are not."""
    pytest.importorskip("gymnasium_robotics")
    env = adroit.make_env(f"{hand}-binary")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    seen = []
    for share in np.linspace(0, 1.2, 13):
        env.reset(seed=0)
        towards_goal(env.unwrapped, hand, share)
        action = rng.uniform(-0.1, 0.1, env.action_space.shape)
        observation, reward, terminated, _, info = env.step(action)
        seen.append(adroit.solved(hand, observation))
        assert (reward, terminated) == ((0, True) if seen[-1] else (-1, False))
        assert info["success"] == seen[-1]
    assert {True, False} == set(map(bool, seen))


def test_a_dropped_pen_ends_no_episode():
    """D4RL's ends, and those of the binary tasks do not (philipjball/mj_envs at ce2d73b)."""
    pytest.importorskip("gymnasium_robotics")
    env = adroit.make_env("pen-binary")
    env.reset(seed=0)
    env.unwrapped.data.qpos[-6] += 0.3  # its slide that points down
    observation, reward, terminated, truncated, _ = env.step(np.zeros(24))
    assert observation[26] < 0.075
    assert (reward, terminated, truncated) == (-1, False, False)


def towards_goal(env, hand: str, share: float) -> None:
    """Moves the object that share of its way."""
    if hand == "door":
        env.data.qpos[env.door_hinge_addrs] = share * 1.5
    elif hand == "relocate":
        target = env.data.site_xpos[env.target_obj_site_id]
        env.data.qpos[-6:-3] += share * (target - env.data.xpos[env.obj_body_id])
    else:
        # Angles at which the pen points where the target of this seed does, found by trying many.
        env.data.qpos[-3:] = share * np.array([-0.47, -2.15, 0.0])


def test_a_hand_without_a_binary_task_is_refused():
    with refused("adroit/hammer-binary"):
        tasks.resolve("adroit/hammer-binary")
    assert tasks.resolve("adroit/door-binary").scored_by_success


def test_the_demonstrations_of_the_door(shared, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(shared / "data"))
    data = tasks.resolve("adroit/door-binary").load()
    assert data.n_episodes == 25
    assert data.terminated.sum() == 7
    assert (data.rewards[data.terminated] == 0).all()
    assert (data.rewards[~data.terminated] == -1).all()
