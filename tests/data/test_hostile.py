"""Data that is not what it says: no reader fills a gap, changes a value or runs what a file names."""

import json
import sys
import warnings

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer
from wording import refused

from corerl.data import action_scaling, d4rl, embedded, neorl2, simulators, tasks
from corerl.data import minari as reader
from corerl.errors import CorerlError

ID = "corerl/hostile-v0"


# Values.


def d4rl_file(path, n=6, **changed):
    arrays = {
        "observations": np.zeros((n, 2), np.float32),
        "actions": np.zeros((n, 2), np.float32),
        "rewards": np.zeros(n, np.float32),
        "terminals": np.zeros(n, bool),
        "timeouts": np.arange(n) == n - 1,
    } | changed
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return path


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e300])
def test_an_action_that_is_no_number_is_not_clipped_to_one(tmp_path, value):
    actions = np.zeros((6, 2))
    actions[4, 1] = value
    with refused("a.hdf5 actions 4 1"):
        d4rl.read(d4rl_file(tmp_path / "a.hdf5", actions=actions))
    with refused("4 1"):
        action_scaling.unit_actions(actions, -2, 2)


@pytest.mark.parametrize(("beyond", "clipped"), [(3.0, 1), (-3.0, -1)])
def test_actions_beyond_the_box_are_clipped_as_before(beyond, clipped):
    actions = np.array([[beyond, -0.5]])
    assert action_scaling.unit_actions(actions, -1, 1).tolist() == [[clipped, -0.5]]


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (-4, 1)])
def test_a_box_with_one_bound_of_the_unit_boxs_is_scaled(low, high):
    actions = np.array([[low], [(low + high) / 2], [high]])
    assert action_scaling.unit_actions(actions, low, high).tolist() == [[-1], [0], [1]]


@pytest.mark.parametrize("key", ["terminals", "timeouts"])
@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        (np.nan, "3 nan"),
        (2.0, "3 2.0"),
        (-1, "3 -1"),
        (1j, "complex128"),
        (b"False", "real"),
    ],
)
def test_a_flag_is_0_or_1(tmp_path, key, flag, shown):
    flags = np.zeros(6, type(flag) if isinstance(flag, bytes) else np.result_type(flag))
    flags = flags.astype("S5") if isinstance(flag, bytes) else flags
    flags[3] = flag
    with refused(f"a.hdf5 {key} {shown}"):
        d4rl.read(d4rl_file(tmp_path / "a.hdf5", **{key: flags}))


def test_flags_may_be_written_as_numbers(tmp_path):
    flags = np.array([0, 1, 0, 0, 0, 1], np.float64)
    assert d4rl.read(d4rl_file(tmp_path / "a.hdf5", terminals=flags)).terminated.sum() == 2


def test_infinity_by_rounding_is_found_with_its_column(tmp_path):
    observations = np.zeros((6, 2))
    observations[2, 1] = 1e300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with refused("observations 2 1 inf"):
            d4rl.read(d4rl_file(tmp_path / "a.hdf5", observations=observations))


@pytest.mark.parametrize("key", ["obs", "action", "reward", "done"])
@pytest.mark.parametrize("dtype", [np.complex128, "U3"])
def test_only_real_numbers_are_read(tmp_path, key, dtype):
    rows = {k: np.zeros((4, 1)) for k in neorl2.KEYS} | {key: np.zeros((4, 1)).astype(dtype)}
    np.savez(tmp_path / "a.npz", **rows)
    with refused("a.npz"):
        neorl2.read(tmp_path / "a.npz")


def test_a_numbered_action_counts_from_0(tmp_path):
    with refused("1 -3 0"):
        d4rl.read(d4rl_file(tmp_path / "a.hdf5", actions=np.array([0, -3, 0, 0, 0, 1])))


def test_an_array_that_claims_more_than_its_file_is_not_read(tmp_path):
    path = d4rl_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", (10**9,), np.float32, chunks=(6,))[0] = 1
    with refused("rewards 4,000,000,000"):
        d4rl.read(path)


def test_a_shape_is_held_against_its_episode_before_it_is_read(folder):
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/terminations"]
        file.create_dataset("episode_0/terminations", (167772166,), bool, chunks=(6,))[0] = True
    with refused("terminations shape"):
        reader.load(ID)


@pytest.mark.parametrize("place", [0, 1])
def test_an_npz_is_held_against_its_checksums_and_its_names(tmp_path, place):
    path = tmp_path / "a.npz"
    rows = {k: np.zeros((4, 1)) for k in neorl2.KEYS} | {"done": np.ones(4), "extra": np.ones(3)}
    np.savez(path, **rows)
    whole = path.read_bytes()
    for old, new in ((b"(4, 1)", b"(3, 1)"), (b"extra.npy", b"extrb.npy")):
        parts = whole.split(old)
        changed = old.join(parts[: place + 1]) + new + old.join(parts[place + 1 :])
        path.write_bytes(changed)
        with refused("a.npz"):
            neorl2.read(path)


def test_no_entry_of_an_npz_swallows_the_next(tmp_path):
    """A comment's length in the directory, of which zip files keep no checksum."""
    path, second = tmp_path / "a.npz", b"PK\x01\x02"
    rows = {k: np.zeros((4, 1)) for k in neorl2.KEYS} | {"done": np.ones(4), "extra": np.ones(3)}
    np.savez(path, **rows)
    whole = path.read_bytes()
    at = whole.rindex(second, 0, whole.rindex(second))  # the last but one
    entry = len(whole) - 22 - whole.rindex(second)
    path.write_bytes(whole[: at + 32] + bytes([entry, 0]) + whole[at + 34 :])
    assert len(np.load(path).files) == len(rows) - 1
    with refused("6 7"):
        neorl2.read(path)


def test_rows_that_were_never_written_are_no_zeros(tmp_path):
    path = d4rl_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", (6,), np.float32)
    with refused("rewards"):
        d4rl.read(path)


@pytest.mark.parametrize("left_out", ["last_observations", "terminals", "actions"])
def test_a_broken_packaged_file_is_named(tmp_path, left_out):
    arrays = {
        "observations": np.zeros((4, 1)),
        "actions": np.zeros((4, 1)),
        "rewards": np.zeros(4),
        "terminals": np.zeros(4, bool),
        "timeouts": np.arange(4) == 3,
        "last_observations": np.zeros((1, 1)),
    }
    del arrays[left_out]
    with h5py.File(tmp_path / "p.hdf5", "w") as file:
        for key, array in arrays.items():
            file[key] = array
    with refused("p.hdf5"):
        embedded.read(tmp_path / "p.hdf5", "corerl/p")


# Minari.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(0)
    episodes = [
        EpisodeBuffer(
            observations=rng.normal(size=(n + 1, 3)).astype(np.float32),
            actions=rng.uniform(-2, 2, (n, 1)).astype(np.float32),
            rewards=rng.normal(size=n),
            terminations=np.arange(n) == n - 1,
            truncations=np.zeros(n, bool),
            infos={},
        )
        for n in (5, 3)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            ID,
            episodes,
            env=gymnasium.make("Pendulum-v1"),
            algorithm_name="t",
            author="t",
            author_email="t@t",
            code_permalink="t",
        )
    return tmp_path / ID / "data"


def change(folder, **entries):
    path = folder / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"total_steps": 9}, "episodes 8 steps 9"),
        ({"total_steps": 10**12}, "hostile-v0"),
        ({"total_steps": 7}, "episodes 8 steps 7"),
        ({"total_episodes": 1}, "episodes 5 steps 8"),
        ({"total_episodes": 3}, "episode_2"),
        ({"total_steps": -1}, "hostile"),
    ],
)
def test_metadata_that_counts_otherwise_is_refused(folder, entries, message):
    change(folder, **entries)
    with refused(message):
        reader.load(ID)


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("observations", (6, 1)),
        ("observations", (6, 4)),
        ("observations", (1, 3)),
        ("observations", (7, 3)),
        ("actions", (1, 1)),
        ("actions", (5, 2)),
        ("actions", (5,)),
        ("rewards", (5, 1)),
        ("terminations", (1,)),
        ("truncations", (6,)),
    ],
)
def test_nothing_is_broadcast(folder, field, shape):
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file[f"episode_0/{field}"]
        file[f"episode_0/{field}"] = np.zeros(shape)
    with refused("episode 0 shape"):
        reader.load(ID)


def test_a_flag_of_an_episode_is_0_or_1(folder):
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_1/truncations"]
        file["episode_1/truncations"] = np.array([0, np.nan, 0])
    with refused("truncations 1 nan"):
        reader.load(ID)


CALLED = []


def planted(**_):
    """Stands for os.system."""
    CALLED.append(True)
    return gymnasium.make("Pendulum-v1")


def spec(**changed) -> str:
    return json.dumps(json.loads(EnvSpec("Pendulum-v1", "x:y").to_json()) | changed)


FOREIGN = {"name": "W", "entry_point": f"{__name__}:planted", "kwargs": {}}


@pytest.mark.parametrize(
    "changed",
    [
        {"entry_point": f"{__name__}:planted"},
        {"entry_point": "os:system", "kwargs": {"command": "true"}},
        {
            "entry_point": "gymnasium.envs.classic_control.pendulum:PendulumEnv",
            "additional_wrappers": [FOREIGN],
        },
    ],
)
@pytest.mark.parametrize("key", ["env_spec", "eval_env_spec"])
def test_what_a_dataset_names_is_not_run(folder, changed, key):
    change(folder, **{key: spec(**changed)})
    with refused("trust=true"):
        tasks.resolve(f"minari/{ID}").make_env()
    assert not CALLED


def test_what_gymnasium_knows_is_run_and_what_is_trusted(folder):
    tasks.resolve(f"minari/{ID}").make_env().close()
    change(folder, env_spec=spec(entry_point=f"{__name__}:planted"))
    tasks.resolve(f"minari/{ID}", trust=True).make_env().close()
    assert CALLED.pop()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entry_point": 3}', "null"])
def test_a_specification_that_is_none_is_a_sentence(folder, text):
    change(folder, env_spec=text)
    with refused("hostile"):
        tasks.resolve(f"minari/{ID}").make_env()


# Environments.

MODULE = """
import gymnasium, sys
from gymnasium.envs.registration import register

class Raises(gymnasium.Env):
    def __init__(self): raise ZeroDivisionError("by nothing")

class Exits(gymnasium.Env):
    def __init__(self): sys.exit(3)

register("Raises-v0", Raises)
register("Exits-v0", Exits)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "strange_world.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("strange_world", None)
    for name in ("Raises-v0", "Exits-v0"):
        gymnasium.registry.pop(name, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strange_world:Nope-v0", "strange_world:Nope-v0"),
        ("strange_world:Raises-v0", "strange_world.py"),
        ("strange_world:Exits-v0", "SystemExit 3 strange_world.py"),
        ("no_such_module:Nope-v0", "no_such_module"),
        ("os:Nope", "os:Nope"),
        ("strange_world:", "environment"),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_sentence(module, name, message):
    with refused(message) as caught:
        tasks.resolve(f"gym/{name}").make_env()
    assert "\n" not in str(caught.value)


def test_where_an_environment_exits_is_told_also_where_exit_is_wrapped(module, monkeypatch):
    original = sys.exit

    def exit(code):
        original(code)

    monkeypatch.setattr(sys, "exit", exit)
    with refused("SystemExit 3 strange_world.py"):
        tasks.resolve("gym/strange_world:Exits-v0").make_env()


def test_a_task_of_5000_characters_is_a_short_sentence():
    for task in ("gym/" + "x" * 5000, "x" * 5000, "minari/" + "x" * 5000 + "-v0"):
        with refused("characters") as caught:
            tasks.resolve(task)
        assert len(str(caught.value)) < 1000


def test_neorl2_without_its_files_says_how_to_install_it(monkeypatch):
    def half(name):
        raise CorerlError("DMSD cannot run here: No module named 'neorl2.envs.terminated'.")

    monkeypatch.setattr(simulators, "_import", lambda *_: None)
    monkeypatch.setattr(simulators, "make", half)
    with refused("neorl2.envs.terminated"):
        tasks.resolve("neorl2/DMSD").make_env()
