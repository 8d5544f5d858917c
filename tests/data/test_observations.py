"""Observations that are dictionaries, and the latest K of an episode."""

from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from small import config, train
from wording import refused, says

import corerl
from corerl.cli import main
from corerl.config import Columns, Data, Eval
from corerl.data import export, observations, tasks
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.tasks import resolve
from corerl.launch.composition import cells
from corerl.ope.policies import of_run
from corerl.policies import simulation
from corerl.policies.steering import Steered
from corerl.preferences import reward_distances
from corerl.training import expert_rewards
from corerl.training.simulator_state import load_simulator, save_simulator


class Parts(gymnasium.Env):
    """Shows its step count in a dictionary; position `(2,)` and velocity, sorted the other way than told."""

    observation_space = spaces.Dict(
        {"velocity": spaces.Box(-9, 9, (1,)), "position": spaces.Box(-9, 9, (2,))}
    )
    action_space = spaces.Box(-2, 2, (1,))

    def _show(self):
        velocity = np.array([self.count], np.float32)
        return {"velocity": velocity, "position": np.array([5, 7], np.float32)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._show(), {}

    def step(self, action):
        self.count += 1
        return self._show(), float(action[0]), False, self.count == 4, {}


gymnasium.register("Parts-v0", entry_point=Parts)


def arrays(rows: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "observations/position": rng.normal(size=(rows, 2)),
        "observations/velocity": rng.normal(size=rows),
        "next_observations/velocity": rng.normal(size=rows),
        "next_observations/position": rng.normal(size=(rows, 2)),
        "actions": rng.uniform(-1, 1, (rows, 1)),
        "rewards": rng.normal(size=rows),
        "truncated": np.arange(rows) % 4 == 3,
    }


def side_by_side(of: dict, field: str, *names: str) -> np.ndarray:
    parts = [of[f"{field}/{name}"].reshape(len(of["rewards"]), -1) for name in names]
    return np.concatenate(parts, 1).astype(np.float32)


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_parts_lie_side_by_side_by_name_and_the_order_is_a_setting_of_the_run(tmp_path, kind):
    path, given = tmp_path / f"parts.{kind}", arrays()
    if kind == "npz":
        np.savez(path, **given)
    else:
        with h5py.File(path, "w") as file:
            for name, array in given.items():
                file[name] = array
    (cfg,) = cells(["algo=iql", f"task=file/{path}", "data.action_low=-1", "data.action_high=1"])
    order = ["observations/position", "observations/velocity"]
    assert cfg.data.columns.observations == order
    dataset = own_files.load(str(path), cfg.data)
    for field in ("observations", "next_observations"):
        expected = side_by_side(given, field, "position", "velocity")
        assert np.array_equal(getattr(dataset, field), expected)
    other = Data(columns=Columns(observations=order[::-1]), action_low=-1, action_high=1)
    dataset = own_files.load(str(path), other)
    for field in ("observations", "next_observations"):
        expected = side_by_side(given, field, "velocity", "position")
        assert np.array_equal(getattr(dataset, field), expected)


def test_minaris_episodes_of_dictionaries_have_a_state_more_than_steps(tmp_path):
    path, states = tmp_path / "main_data.hdf5", np.arange(10.0).reshape(5, 2)
    with h5py.File(path, "w") as file:
        for name, array in {"goal": states + 50, "at": states}.items():
            file[f"episode_0/observations/{name}"] = array
        file["episode_0/actions"], file["episode_0/rewards"] = np.zeros((4, 1)), np.zeros(4)
        file["episode_0/terminations"] = file["episode_0/truncations"] = np.zeros(4)
    dataset = own_files.load(str(path), Data(action_low=-1, action_high=1))
    expected = np.concatenate([states, states + 50], 1)
    assert np.array_equal(dataset.observations, expected[:-1])
    assert np.array_equal(dataset.next_observations, expected[1:])


def test_chosen_episodes_keep_the_names_of_their_parts():
    given = {"observations": {"v": np.ones(8), "p": np.ones((8, 2))}, "actions": np.zeros((8, 1))}
    data = Dataset.from_arrays(**given, rewards=np.ones(8), episode=np.arange(8) // 4)
    assert data.best_episodes(0.5).parts == data.parts == (("v", 1), ("p", 2))


def test_parts_of_parts_are_read_too(tmp_path):
    path, given = tmp_path / "x.hdf5", arrays()
    deep = {name.replace("velocity", "arm/velocity"): array for name, array in given.items()}
    for field in ("observations", "next_observations"):
        deep[f"{field}/leg/velocity"] = -given[f"{field}/velocity"]
    with h5py.File(path, "w") as file:
        for name, array in deep.items():
            file[name] = array
    (cfg,) = cells(["algo=iql", f"task=file/{path}", "data.action_low=-1", "data.action_high=1"])
    order = ["arm/velocity", "leg/velocity", "position"]
    assert own_files.parts(cfg.data) == order
    dataset = own_files.load(str(path), cfg.data)
    for field in ("observations", "next_observations"):
        expected = side_by_side(deep, field, *order)
        assert np.array_equal(getattr(dataset, field), expected)


def test_environment_data_and_loaded_policy_share_an_order(tmp_path):
    """Velocity first, which is neither gymnasium's order nor the file's."""
    given = arrays()
    data = Dataset.from_arrays(
        {name: given[f"observations/{name}"] for name in ("velocity", "position")},
        given["actions"],
        given["rewards"],
        truncated=given["truncated"],
        next_observations={n: given[f"next_observations/{n}"] for n in ("position", "velocity")},
    )
    trained = corerl.train(
        "bc",
        dataset=data,
        env="gym/test_observations:Parts-v0",
        seeds=1,
        steps=2,
        root=str(tmp_path),
        hidden_width=8,
        processes=1,
    )
    agent = trained.load()
    assert agent.cfg.data.columns.observations == [
        "observations/velocity",
        "observations/position",
    ]
    first = agent.task.make_env().reset()[0]
    assert first.tolist() == [0, 5, 7]
    named = agent.act({"position": np.array([5.0, 7.0]), "velocity": np.array([0.0])})
    assert np.array_equal(named, agent.act(first))
    assert not np.array_equal(named, agent.act(first[::-1].copy()))
    loaded = agent.task.load()
    assert np.array_equal(
        loaded.observations, side_by_side(given, "observations", "velocity", "position")
    )
    with refused("velocity position"):
        agent.act({"position": np.zeros(2)})


def test_a_part_that_the_environment_has_not_is_named():
    with refused("velocity position speed"):
        observations.Flat(Parts(), ["position", "speed"])


class Arm(Parts):
    """Shows a matrix, a scalar and a number of a mode, in dictionaries that are not sorted."""

    observation_space = spaces.Dict(
        arm=spaces.Dict(velocity=spaces.Box(-9, 9, ()), position=spaces.Box(-9, 9, (2, 2))),
        mode=spaces.Discrete(3),
    )

    def _show(self):
        position = np.array([[self.count, 1], [2, 3]], np.float32)
        return {"arm": {"velocity": np.float32(7), "position": position}, "mode": 2}


gymnasium.register("NestedParts-v0", entry_point="test_observations:Arm")


def test_parts_of_parts_have_names_and_a_dictionary_is_all_of_its_own():
    assert list(observations.Flat(Arm()).parts) == ["arm/velocity", "arm/position", "mode"]
    assert observations.Flat(Arm()).reset()[0].tolist() == [7, 0, 1, 2, 3, 0, 0, 1]
    env = observations.Flat(Arm(), ["mode", "arm/position", "arm/velocity"])
    assert env.reset()[0].tolist() == [0, 0, 1, 0, 1, 2, 3, 7]
    assert observations.Flat(Arm(), ["mode", "arm"]).reset()[0].tolist() == [0, 0, 1, 7, 0, 1, 2, 3]
    for wrong in (["arm"], ["arm", "arm/position", "mode"], ["arm", "mode", "leg"]):
        with refused("arm/velocity arm/position mode"):
            observations.Flat(Arm(), wrong)


@pytest.mark.parametrize(
    ("id", "columns", "order"),
    [
        ("Parts", ["observations/velocity", "observations/position"], [0, 5, 7]),
        ("Parts", ["velocity", "position"], [0, 5, 7]),  # arrays of a npz file
        ("Parts", ["x", "y", "speed"], [5, 7, 0]),  # columns of a table, in the environment's order
        ("Parts", ["observations/state"], [5, 7, 0]),
        ("Parts", [], [5, 7, 0]),
        ("Parts", ["observations/pos", "observations/vel"], None),
        ("Parts", ["observations/velocity", "observations/pos"], None),
        (
            "NestedParts",
            ["observations/position", "observations/velocity", "observations/mode"],
            None,
        ),
        ("NestedParts", ["observations/pos", "observations/vel"], None),
    ],
)
def test_an_order_that_the_data_tells_is_the_environments_or_refused(id, columns, order):
    task = resolve("file/x.npz")
    data = Data(columns=Columns(observations=columns))
    task = replace(task, env=f"gym/test_observations:{id}-v0", data=data)
    if order is None:
        with refused("observation"):
            task.make_env()
    else:
        assert task.make_env().reset()[0].tolist() == order
    vectors = replace(task, env="gym/Pendulum-v1")
    assert vectors.make_env().observation_space.shape == (3,)


def test_a_policy_acts_at_the_environments_own_dictionaries(tmp_path):
    """In the file's order, which is not the environment's."""
    given, path = arrays(), tmp_path / "arm.npz"
    rows = len(given["rewards"])
    deep = {name: given[name] for name in ("actions", "rewards", "truncated")}
    for field in ("observations", "next_observations"):
        deep[f"{field}/arm/velocity"] = given[f"{field}/velocity"]
        deep[f"{field}/arm/position"] = np.ones((rows, 2, 2))
        deep[f"{field}/mode"] = np.eye(3)[np.arange(rows) % 3]
    np.savez(path, **deep)
    agent = corerl.train(
        "bc",
        dataset=path,
        env="gym/test_observations:NestedParts-v0",
        seeds=1,
        steps=2,
        root=str(tmp_path),
        hidden_width=8,
        processes=1,
    ).load()
    assert agent.parts == ("arm/position", "arm/velocity", "mode")
    env = agent.task.make_env()
    first, shown = env.reset()[0], env.unwrapped._show()
    assert first.tolist() == [0, 1, 2, 3, 7, 0, 0, 1]
    assert np.array_equal(agent.act(shown), agent.act(first))
    rows = {
        "mode": np.array([2, 2]),
        "arm/position": np.stack([shown["arm"]["position"]] * 2),
        "arm/velocity": np.array([7, 7]),
    }
    assert np.array_equal(agent.act(rows), agent.act(np.stack([first] * 2)))


@pytest.mark.parametrize(
    ("mine", "theirs", "fit"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["b", "a"], False),
        (["a", "b"], ["a", "c"], False),
        (["arm", "mode"], ["arm/x", "arm/y", "mode"], True),
        (["arm/x", "mode", "arm/y"], ["arm", "mode"], False),
        (["a", "b"], [], True),  # of a vector nobody knows
    ],
)
def test_parts_fit_by_name_and_order(mine, theirs, fit):
    if fit:
        return observations.check_parts("run", mine, "data", dict.fromkeys(theirs))
    with refused(f"run data {', '.join(mine)} {', '.join(theirs)} data.columns.observations"):
        observations.check_parts("run", mine, "data", theirs)


PARTS = "gym/test_observations:Parts-v0"


@pytest.fixture(scope="module")
def ordered(tmp_path_factory):
    """A run on a file in the other order than the environment's space, and one in its order."""
    path = tmp_path_factory.mktemp("ordered") / "parts.npz"
    np.savez(path, **arrays())
    made = []
    for names in (("velocity", "position"), ("position", "velocity")):
        columns = Columns(observations=[f"observations/{name}" for name in names])
        settings = {"task": f"file/{path}", "env": PARTS, "data": Data(columns=columns), "steps": 2}
        made.append(corerl.load(train(config(path.parent / names[0], "iql", **settings))))
    return made


def test_an_environment_for_a_files_run_lays_parts_as_the_file(ordered):
    for run in ordered:
        other = tasks.another(run.task, PARTS)
        shown, known = (task.make_env().reset()[0] for task in (other, run.task))
        assert shown.tolist() == known.tolist()
        simulation.check_fit(run, other)


def test_parts_in_another_order_are_refused(ordered):
    run, other = ordered
    named = "velocity position data.columns.observations"
    online = SimpleNamespace(task=resolve(PARTS), label="run")
    simulation.check_fit(online, other.task)
    with refused(named):
        simulation.check_fit(online, run.task)
    with refused(named):
        Steered(run, other)
    judged, (mine, theirs) = of_run(run), (each.task.load() for each in ordered)
    judged.check(mine)
    with refused(named):
        judged.check(theirs)
    with refused(named):
        reward_distances.distances(run, theirs)
    with refused(named):
        expert_rewards._check_spaces(mine, theirs)


def test_parts_are_vectors_or_as_their_space_has_them():
    known = observations.by_name(Arm.observation_space)
    one = {"arm/velocity": [7], "arm/position": [0, 1, 2, 3], "mode": [0, 0, 1]}
    expected = [7, 0, 1, 2, 3, 0, 0, 1]
    assert observations.flattened(one, known).tolist() == expected
    assert observations.flattened(one, {}).tolist() == expected
    assert observations.flattened(one | {"mode": 2}, known).tolist() == expected
    several = {name: [part] * 3 for name, part in one.items()}
    assert observations.flattened(several, known).tolist() == [expected] * 3
    assert observations.flattened(several | {"mode": [2, 2, 2]}, known).tolist() == [expected] * 3
    with refused("(2,)"):
        observations.flattened(several | {"mode": [2, 2]}, known)
    with refused("3 Discrete(3)"):
        observations.flattened(one | {"mode": 3}, known)


# Exported.


def test_an_exported_file_keeps_the_names_of_parts_and_reads_back_in_the_environments_order(
    tmp_path, capsys
):
    """Without names the policy would see arm/position where it learned arm/velocity."""
    env, names = (
        "env=gym/test_observations:NestedParts-v0",
        ("arm/velocity", "arm/position", "mode"),
    )
    given, path, out = arrays(), tmp_path / "arm.npz", tmp_path / "arm.hdf5"
    parts = {"arm/velocity": given["rewards"], "arm/position": np.arange(48).reshape(12, 2, 2)}
    parts["mode"] = np.eye(3)[np.arange(12) % 3]
    plain = {name: given[name] for name in ("actions", "rewards", "truncated")}
    np.savez(path, **plain, **{f"observations/{name}": part for name, part in parts.items()})
    reported = ",".join(f"observations/{name}" for name in names[::-1])
    for settings in ([env], [], [env, f"data.columns.observations=[{reported}]"]):
        assert main(["data", "export", f"file/{path}", str(out), *settings]) == 0
        (cfg,) = cells(["algo=bc", f"task=file/{out}", env])
        task = tasks.of(cfg)
        order = list(observations.wrapper(task.make_env(), observations.Flat).parts)
        expected = [parts[name].reshape(12, -1) for name in order]
        np.testing.assert_allclose(task.load().observations, np.concatenate(expected, 1), rtol=1e-6)


def test_what_a_policy_does_keeps_the_names_of_parts(tmp_path):
    given, out = arrays(), tmp_path / "played.hdf5"
    data = Dataset.from_arrays(
        {name: given[f"observations/{name}"] for name in ("velocity", "position")},
        *(given["actions"], given["rewards"]),
        truncated=given["truncated"],
    )
    env = "gym/test_observations:Parts-v0"
    tiny = {"seeds": 1, "steps": 2, "processes": 1, "hidden_width": 8}
    run = corerl.train("bc", dataset=data, env=env, root=str(tmp_path), **tiny)
    for file in (out, tmp_path / "again.hdf5"):
        what = str(run.path) if file == out else f"file/{out}"
        assert main(["data", "export", what, str(file), "--episodes", "1"]) == 0
        with h5py.File(file) as held:
            assert held["observations/velocity"][:, 0].tolist() == [0, 1, 2, 3]
            assert held["next_observations/velocity"][:, 0].tolist() == [1, 2, 3, 4]
            assert held["observations/position"][0].tolist() == [5, 7]
    (cfg,) = cells(["algo=bc", f"task=file/{out}", f"env={env}"])
    task = tasks.of(cfg)
    assert task.load().observations[0].tolist() == task.make_env().reset()[0].tolist()


def test_numbers_in_dictionaries_come_back_from_minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = resolve("gym/test_observations:NestedParts-v0").make_env()
    rows = np.stack([env.reset()[0], *(env.step(np.zeros(1))[0] for _ in range(4))])
    data = Dataset.from_arrays(
        rows[:-1],
        np.zeros((4, 1)),
        np.ones(4),
        truncated=np.arange(4) == 3,
        next_observations=rows[1:],
    )
    export.to_minari(data, "test/arm-v0", env, {"algorithm_name": "a test"})
    task = resolve("minari/test/arm-v0")
    back = task.load()
    assert back.parts == (("arm/position", 4), ("arm/velocity", 1), ("mode", 3))
    assert back.observations[0].tolist() == task.make_env().reset()[0].tolist()
    assert back.next_observations[-1].tolist() == [4, 1, 2, 3, 7, 0, 0, 1]


# History.


def test_data_and_environment_show_the_same_frames_and_episodes_begin_anew():
    env = observations.History(observations.Flat(Parts()), 3)
    steps, following, ends = [], [], []
    for _ in range(2):
        shown, over = env.reset()[0], False
        while not over:
            steps.append(shown)
            shown, _, _, over, _ = env.step(np.zeros(1))
            following.append(shown)
            ends.append(over)
    steps, following = np.array(steps), np.array(following)
    width = 3
    raw = Dataset.from_arrays(
        steps[:, -width:],
        np.zeros((8, 1)),
        np.zeros(8),
        truncated=np.array(ends),
        next_observations=following[:, -width:],
    )
    stacked = observations.with_history(raw, 3)
    assert np.array_equal(stacked.observations, steps)
    assert np.array_equal(stacked.next_observations, following)
    assert stacked.observations[4].tolist() == [5, 7, 0] * 3  # nothing of the episode before
    assert stacked.observations[1, 2::3].tolist() == [0, 0, 1]


def rows_of(order, known=True) -> Dataset:
    """Rows of two episodes, 0 to 3 and 4 to 7, in this order, some with `known` next states."""
    order = np.array(order)
    return Dataset.from_steps(
        "x",
        1 + order[:, None],
        np.zeros((8, 1)),
        np.zeros(8),
        2 + order[:, None],
        np.isin(order, [3, 7]),
        np.zeros(8),
        np.ones(8) * known,
    )


@pytest.mark.parametrize(
    ("order", "unknown", "oldest"),
    [
        (range(8), None, [0, 0, 0, 1, 4, 4, 4, 5]),
        (range(8), 1, [0, 0, 2, 2, 4, 4, 4, 5]),  # a hole
        ([0, 1, 4, 5, 6, 2, 3, 7], None, [0, 0, 4, 4, 4, 2, 2, 7]),  # leaps, and an end
        ([6, 1, 4, 2, 0, 5, 3, 7], None, [6, 1, 4, 2, 0, 5, 3, 7]),  # shuffled
    ],
)
def test_frames_begin_anew_where_rows_do_not_follow_each_other(order, unknown, oldest):
    known = np.arange(8) != unknown
    stacked = observations.with_history(rows_of(order, known), 3)
    assert (stacked.observations[:, 0] - 1).tolist() == oldest
    assert (stacked.observations[:, 2] - 1).tolist() == list(order)
    assert np.array_equal(stacked.next_observations[:, :2], stacked.observations[:, 1:])
    assert (stacked.next_observations[:, 2] - 2).tolist() == list(order)


def test_a_simulator_is_restored_with_what_it_showed():
    one, other = (observations.History(resolve("gym/Pendulum-v1").make_env(), 2) for _ in range(2))
    other.reset(seed=9)
    one.reset(seed=1)
    one.step(np.ones(1))
    load_simulator(other, save_simulator(one))
    assert np.array_equal(one.step(np.ones(1))[0], other.step(np.ones(1))[0])


def test_a_policy_reads_the_history_in_training_evaluation_loading_and_export(tmp_path):
    from corerl.commands.data_export import rollouts
    from corerl.policies.export import export

    cfg = replace(config(tmp_path, "iql", steps=8, eval=Eval(every=8, episodes=2)), history=3)
    agent = corerl.load(train(cfg))
    env, raw = agent.task.make_env(), resolve(cfg.task).make_env()
    assert env.observation_space.shape == (9,) and agent.task.load().observations.shape[1] == 9
    for seed in (3, 4):
        agent.reset()
        stacked, seen = env.reset(seed=seed)[0], raw.reset(seed=seed)[0]
        for _ in range(5):
            action = agent.act(seen)
            assert np.array_equal(action, agent.act(stacked))
            stacked, seen = env.step(action[0])[0], raw.step(action[0])[0]
    with refused("reset()"):
        agent.act(np.zeros((2, 3)))
    facts = export(agent.path, tmp_path / "policy.pt2")
    assert facts["observation_shape"] == [9] and facts["difference"] < 1e-5
    says(facts["history"], "3 observations")
    assert rollouts(agent, 1)[0].observations.shape[1] == 3


def test_images_have_no_history_here():
    env = Parts()
    env.observation_space = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    with refused("history=2"):
        observations.History(env, 2)
