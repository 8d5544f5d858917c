"""Task ids: what resolves, what is suggested, which environment and which scale they name."""

import pickle

import gymnasium
import numpy as np
import pytest
from small import random_dataset
from wording import refused, says

from corerl.data import simulators, tables, tasks
from corerl.data.dataset import Dataset


def test_the_tables_are_whole():
    assert len(tables.d4rl_urls()) == 155
    assert len(tables.d4rl_references()) == 147
    assert len(tables.neorl2()) == 8
    assert tables.d4rl_urls()["hopper-medium-v2"].endswith("gym_mujoco_v2/hopper_medium-v2.hdf5")


def test_every_known_task_resolves():
    known = tasks.known_tasks()
    assert len(known) == len(set(known)) > 200
    for id in known:
        assert tasks.resolve(id).id == id


@pytest.mark.parametrize(
    ("id", "value", "score"),
    [
        ("d4rl/hopper-medium-v2", 3234.3, 100),
        ("d4rl/halfcheetah-medium-v2", 5686.0, 48.05),  # (5686 + 280.18) / 12415.18
        ("d4rl/kitchen-mixed-v0", 2, 50),
        ("neorl2/DMSD", 30.6, 0),
        ("corerl/pendulum", -1224.9, 0),
    ],
)
def test_scores(id, value, score):
    assert tasks.resolve(id).normalize(value) == pytest.approx(score, abs=0.01)
    both = tasks.resolve(id).normalize(np.array([value, value]))
    assert both == pytest.approx([score, score], abs=0.01)


def test_tasks_without_a_reference_have_no_score():
    assert tasks.resolve("gym/Hopper-v5").normalize(1.0) is None
    assert tasks.resolve("d4rl/ant-random-expert-v0").reference is None


@pytest.mark.parametrize(
    ("id", "suggestion"),
    [
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("corerl/pendulm", "corerl/pendulum"),
        ("gym/Hoper-v5", "gym/Hopper-v5"),
        ("neorl2/Pipline", "neorl2/Pipeline"),
        ("hopper-medium-v2", "d4rl/hopper-medium-v2"),
    ],
)
def test_a_mistyped_id_names_the_nearest(id, suggestion):
    with refused(f"{id} {suggestion}"):
        tasks.resolve(id)


@pytest.mark.parametrize("id", ["", "foo", "atari/Pongo", "maze/v7", "d4rl/", "minari/no version"])
def test_ids_that_are_no_tasks(id):
    if id.startswith("atari/"):
        pytest.importorskip("ale_py")
    with refused("task"):
        tasks.resolve(id)


def test_an_online_task_has_no_dataset():
    with refused("dataset"):
        tasks.resolve("gym/Hopper-v5").load()


@pytest.mark.parametrize(
    ("id", "spec", "obs"),
    [
        ("d4rl/hopper-medium-v2", "Hopper-v4", 11),
        ("d4rl/walker2d-expert-v0", "Walker2d-v4", 17),
        ("d4rl/halfcheetah-medium-replay-v2", "HalfCheetah-v4", 17),
        ("d4rl/ant-medium-v2", "Ant-v4", 111),
        ("gym/Hopper-v5", "Hopper-v5", 11),
        ("corerl/pendulum", "Pendulum-v1", 3),
    ],
)
@pytest.mark.filterwarnings("error")
def test_environments(id, spec, obs):
    env = tasks.resolve(id).make_env()
    assert env.spec.id == spec
    assert env.observation_space.shape == (obs,)
    assert (env.action_space.low == -1).all()
    assert (env.action_space.high == 1).all()
    first, _ = env.reset(seed=0)
    assert first.shape == (obs,)
    env.step(env.action_space.sample())
    env.close()


def test_ants_missing_contact_forces_come_last_and_are_zero():
    env = tasks.resolve("d4rl/ant-medium-v2").make_env()
    first, inner = env.reset(seed=0)[0], env.env.reset(seed=0)[0]
    assert first.tolist() == [*inner, *np.zeros(84)] and inner.any()


def test_hopper_pays_the_alive_bonus_on_the_step_that_falls():
    """v2's rule, which v5 changed: the reward of the last step still holds the bonus of 1."""
    env = tasks.resolve("d4rl/hopper-medium-v2").make_env()
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(np.ones(3, np.float32))
    assert reward == pytest.approx(info["x_velocity"] + 1 - 1e-3 * 3, abs=1e-6)


def test_actions_of_another_box_are_rescaled_on_the_way_in():
    env = tasks.resolve("gym/Pendulum-v1").make_env()
    env.reset(seed=0)
    env.step(np.array([-0.25], np.float32))
    assert env.unwrapped.last_u == -0.5


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (-2, 1)])
def test_actions_of_a_box_with_one_bound_of_the_unit_boxs_are_rescaled(low, high):
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.action_space = gymnasium.spaces.Box(low, high, (1,))
    scaled = simulators.unit_box(env)
    reported = [scaled.action(np.float32([x])).item() for x in (-1, 1)]
    assert reported == pytest.approx([low, high])


@pytest.mark.parametrize(("low", "high"), [(0, 5), (-1, 1)])
def test_vectors_of_whole_numbers_are_refused_as_actions(low, high):
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.action_space = gymnasium.spaces.Box(low, high, (2,), np.int64)
    with refused("int64 float32"):
        simulators.unit_box(env)


def test_actions_that_never_change_are_refused():
    """The environment was sent NaN for them."""
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.action_space = gymnasium.spaces.Box(np.float32([0, -1]), np.float32([0, 1]))
    with refused("Box([ PendulumEnv"):
        simulators.unit_box(env)


@pytest.mark.filterwarnings("error")
def test_actions_of_a_box_of_doubles_are_rescaled_without_a_warning():
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float64)
    assert simulators.unit_box(env).action(np.float32([0.5])) == 1


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.MultiDiscrete([2, 2]), gymnasium.spaces.Discrete(2, start=1)]
)
def test_actions_that_no_policy_takes_fit_no_data(space):
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.action_space = space
    assert simulators.misfit(env, random_dataset(20))


@pytest.mark.parametrize(("known", "reported"), [(3, ""), (2, "action 2")])
def test_numbers_of_the_data_are_below_the_environments_count(known, reported):
    env, observations = gymnasium.make("CartPole-v1").unwrapped, np.zeros((3, 4))
    env.action_space = gymnasium.spaces.Discrete(known)
    data = Dataset.from_arrays(observations, np.arange(3), np.zeros(3), truncated=[0, 0, 1])
    found = simulators.misfit(env, data)
    assert bool(reported) == bool(found)
    says(found, reported)


def test_discrete_actions_are_left():
    assert tasks.resolve("gym/CartPole-v1").make_env().action_space == gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("family", ["antmaze-umaze-v2", "maze2d-umaze-v1", "kitchen-mixed-v0"])
def test_an_unfaithful_simulator_is_refused_with_the_reason(family):
    with refused(f"{family}"):
        tasks.resolve(f"d4rl/{family}").make_env()


@pytest.mark.parametrize(
    ("id", "module", "install"),
    [
        ("d4rl/door-human-v1", "gymnasium_robotics", "corerl[robotics]"),
        ("neorl2/DMSD", "neorl2", "https://github.com/polixir/NeoRL2"),
    ],
)
def test_a_missing_simulator_names_what_to_install(id, module, install, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with refused(f"{module} {install}"):
        tasks.resolve(id).make_env()


class Fixed(gymnasium.Env):
    """Returns one observation and reward, to see what the Adroit wrapper makes of them."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, obs):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape)
        self.obs = obs

    def step(self, action):
        return self.obs, np.array([1.0]), False, False, {}


def test_adroit_reach_terms_are_turned_around():
    obs = np.zeros(46)
    obs[35:38] = 3, 4, 0
    assert simulators.D4RLAdroit(Fixed(obs), "door").step(None)[1] == pytest.approx(1 - 0.2 * 5)
    obs = np.zeros(46)
    obs[33:36], obs[36:39] = (1, 0, 0), (0, 0, 1)
    reward = simulators.D4RLAdroit(Fixed(obs), "hammer").step(None)[1]
    assert reward == pytest.approx(1 - 0.2 * np.sqrt(2))
    obs = np.zeros(39)
    obs[30:33], obs[33:39] = (0, 3, 4), 9  # palm - ball; palm and ball from the target
    reward = simulators.D4RLAdroit(Fixed(obs), "relocate").step(None)[1]
    assert reward == pytest.approx(1 - 0.2 * 5)


@pytest.mark.parametrize(("height", "over"), [(0.07, True), (0.08, False)])
def test_a_dropped_pen_ends_the_episode(height, over):
    obs = np.zeros(45)
    obs[26] = height
    _, reward, terminated, _, _ = simulators.D4RLAdroit(Fixed(obs), "pen").step(None)
    assert (reward, terminated) == (1.0, over)


def test_door_demonstrations_replay_to_their_recorded_return(shared):
    pytest.importorskip("gymnasium_robotics")
    import h5py

    env = tasks.resolve("d4rl/door-human-v1").make_env().env.unwrapped
    env = simulators.D4RLAdroit(env, "door")
    with h5py.File(shared / "data" / "d4rl" / "door-human-dapg-demos.hdf5") as file:
        ends = np.flatnonzero(file["timeouts"][:]) + 1
        start, end = ends[0], ends[1]
        state = {
            key: file[f"infos/init_{key}"][1].astype(float)
            for key in ("qpos", "qvel", "door_body_pos")
        }
        env.reset(seed=0, options={"initial_state_dict": state})
        total = sum(env.step(action)[1] for action in file["actions"][start:end])
        assert total == pytest.approx(file["rewards"][start:end].sum(), abs=0.5)


def test_tasks_travel_to_other_processes():
    task = tasks.resolve("d4rl/hopper-medium-v2")
    assert pickle.loads(pickle.dumps(task)) == task
