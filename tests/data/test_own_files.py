"""Files of one's own: every layout that people have gives the same dataset, and faults name their place."""

import os
from dataclasses import replace
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pandas
import pytest
from small import config, random_dataset
from wording import refused, says

from corerl.config import Columns, Config, Data
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.files.own_files import check
from corerl.runs.directory import _without_added, cell_directory, config_hash

DATA = random_dataset(100)
EPISODES = np.repeat(np.arange(DATA.n_episodes), DATA.episode_lengths())
PLAIN = (DATA.observations, DATA.actions, DATA.rewards)


def neorl2(path: Path) -> Data:
    obs, action, reward = PLAIN
    end = {"done": DATA.terminated[:, None], "truncated": DATA.truncated}
    np.savez(path, obs=obs, action=action, reward=reward, next_obs=DATA.next_observations, **end)
    return Data()


def d4rl(path: Path) -> Data:
    with h5py.File(path, "w") as file:
        for name, array in zip(("observations", "actions", "rewards"), PLAIN, strict=True):
            file[name] = array
        file["terminals"], file["timeouts"] = DATA.terminated, DATA.truncated
        file.create_group("infos")["qpos"] = DATA.observations
    return Data()


def minari(path: Path) -> Data:
    """A group per episode, stored in another order than they happened, with the last observation."""
    with h5py.File(path, "w") as file:
        for i in reversed(range(DATA.n_episodes)):
            rows = slice(DATA.episode_starts[i], DATA.episode_ends[i])
            group = file.create_group(f"episode_{i}")
            last = DATA.next_observations[rows][-1:]
            group["observations"] = np.concatenate([DATA.observations[rows], last])
            group["actions"], group["rewards"] = DATA.actions[rows], DATA.rewards[rows]
            group["terminations"], group["truncations"] = (
                DATA.terminated[rows],
                DATA.truncated[rows],
            )
    return Data()


def minari_with_more(path: Path) -> Data:
    """What somebody else wrote beside the episodes."""
    data = minari(path)
    with h5py.File(path, "a") as file:
        file["camera"], file["version"] = np.eye(3), 2
        file.create_group("notes")["author"] = "me"
    return data


def d4rl_with_more(path: Path) -> Data:
    """Beside the rewards of all steps, those that a log or a dictionary of observations has of its own."""
    data = d4rl(path)
    with h5py.File(path, "a") as file:
        file["infos/rewards"] = np.eye(100)
    return data


def d3rlpy_1(path: Path) -> Data:
    with h5py.File(path, "w") as file:
        for name, array in zip(("observations", "actions", "rewards"), PLAIN, strict=True):
            file[name] = array
        file["terminals"] = DATA.terminated.astype(np.float32)
        file["episode_terminals"] = (DATA.terminated | DATA.truncated).astype(np.float32)
        file["discrete_action"], file["version"] = False, "1.0"
    return Data()


def d3rlpy_2(path: Path) -> Data:
    with h5py.File(path, "w") as file:
        for i in range(DATA.n_episodes):
            rows = slice(DATA.episode_starts[i], DATA.episode_ends[i])
            for name, array in zip(("observations", "actions"), PLAIN[:2], strict=True):
                file[f"{name}_{i}"] = array[rows]
            file[f"rewards_{i}"] = DATA.rewards[rows][:, None]
            file[f"terminated_{i}"] = bool(DATA.terminated[rows][-1])
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = DATA.n_episodes, "2.1"
    return Data()


def table() -> pandas.DataFrame:
    columns = {f"obs_{i}": DATA.observations[:, i] for i in range(3)}
    columns |= {f"action[{i}]": DATA.actions[:, i] for i in range(2)}
    ends = {"terminated": DATA.terminated, "episode_id": [f"run {e}" for e in EPISODES]}
    return pandas.DataFrame(columns | {"reward": DATA.rewards} | ends)


def csv(path: Path) -> Data:
    table().to_csv(path, index=False)
    return Data()


def csv_of_other_names(path: Path) -> Data:
    names = {"obs_0": "x", "obs_1": "y", "obs_2": "v", "action[0]": "left", "action[1]": "right"}
    table().rename(columns=names | {"reward": "gain"}).to_csv(path, index=False)
    own = {"observations": ["x", "y", "v"], "actions": ["left", "right"], "rewards": "gain"}
    return Data(columns=Columns(**own))


def parquet(path: Path) -> Data:
    pytest.importorskip("pyarrow")
    table().to_parquet(path)
    return Data()


def parquet_of_lists(path: Path) -> Data:
    pytest.importorskip("pyarrow")
    rows = {"observation": list(DATA.observations), "action": list(DATA.actions)}
    ends = {"terminal": DATA.terminated, "timeout": DATA.truncated}
    pandas.DataFrame(rows | {"reward": DATA.rewards} | ends).to_parquet(path)
    return Data()


LAYOUTS = {
    neorl2: "npz",
    d4rl: "hdf5",
    d4rl_with_more: "hdf5",
    minari: "h5",
    minari_with_more: "h5",
    d3rlpy_1: "h5",
    d3rlpy_2: "h5",
    csv: "csv",
    csv_of_other_names: "csv",
    parquet: "parquet",
    parquet_of_lists: "parquet",
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_is_the_same_dataset(layout, tmp_path):
    path = tmp_path / f"log.{LAYOUTS[layout]}"
    data = layout(path)
    found = own_files.load(str(path), data)
    for field in ("observations", "actions", "rewards", "terminated", "truncated", "episode_ends"):
        np.testing.assert_array_equal(getattr(found, field), getattr(DATA, field), field)
    with_last = layout in (neorl2, minari, minari_with_more)
    cut = np.zeros_like(DATA.truncated) if with_last else DATA.truncated
    np.testing.assert_array_equal(found.has_next, ~cut)
    inside = ~(DATA.terminated | DATA.truncated)
    rows = inside | with_last
    np.testing.assert_array_equal(
        found.next_observations[rows],
        (DATA.next_observations if with_last else np.roll(DATA.observations, -1, 0))[rows],
    )


def test_what_is_written_reads_back_bit_for_bit(tmp_path):
    cut = replace(DATA, has_next=~DATA.truncated, behaviour_log_prob=DATA.rewards)
    cut = replace(cut, durations=np.arange(100) + 1)
    own_files.write(tmp_path / "x.npz", cut)
    back = own_files.load(str(tmp_path / "x.npz"), Data(action_low=-1, action_high=1))
    for field in own_files.WRITTEN:
        assert getattr(back, field).tobytes() == getattr(cut, field).tobytes(), field


def test_numbered_actions_stay_numbers():
    numbers = np.arange(100) % 4
    found = Dataset.from_arrays(DATA.observations, numbers, DATA.rewards, episode=EPISODES)
    assert found.discrete and (found.actions == numbers).all()


def test_actions_are_scaled_by_the_bounds_of_their_environment(tmp_path):
    path = tmp_path / "x.npz"
    neorl2(path)
    task = tasks.resolve(f"file/{path}")
    scaled = replace(task, data=Data(action_low=[-2, -1], action_high=[2, 3])).load()
    np.testing.assert_allclose(scaled.actions * [2, 2] + [0, 1], DATA.actions, atol=1e-6)


def test_an_environments_own_scaling_of_actions_is_part_of_it(tmp_path):
    """It takes [-1, 1], though the Pendulum inside it takes [-2, 2]."""
    gymnasium.register(
        "Scaled-v0",
        entry_point=lambda: gymnasium.wrappers.RescaleAction(
            gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(1)
        ),
    )
    np.savez(
        tmp_path / "x.npz",
        obs=DATA.observations,
        act=np.full((100, 1), 0.5),
        r=PLAIN[2],
        episode=EPISODES,
    )
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), env="gym/Scaled-v0", data=Data())
    assert (task.load().actions == 0.5).all()


def test_propensities_become_those_of_the_scaled_actions():
    """Uniform actions of [-2, 2] x [-1, 3] have the density 1/16, and those of [-1, 1]^2 1/4."""
    own, ends = np.full((100, 1), -np.log(16)), {"truncated": DATA.truncated}
    bounds = {"low": [-2, -1], "high": [2, 3]}
    scaled = Dataset.from_arrays(*PLAIN, **ends, behaviour_log_prob=own, **bounds)
    np.testing.assert_allclose(scaled.behaviour_log_prob, -np.log(4), rtol=1e-6)
    one_bound = Dataset.from_arrays(*PLAIN, **ends, behaviour_log_prob=own, low=-2, high=2)
    np.testing.assert_allclose(one_bound.behaviour_log_prob, -np.log(4), rtol=1e-6)
    for actions in (DATA.actions, np.arange(100) % 4):  # in [-1, 1] already; numbered
        same = Dataset.from_arrays(
            DATA.observations, actions, DATA.rewards, **ends, behaviour_log_prob=own
        )
        np.testing.assert_allclose(same.behaviour_log_prob, -np.log(16), rtol=1e-6)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            Data(action_low=-0.1, action_high=0.1),
            "x.npz 0 action[0] -0.1 0.1",
        ),
        (Data(action_low=-1), "data.action_low data.action_high"),
        (Data(columns=Columns(rewards="gain")), "gain data.columns.rewards"),
        (Data(sha256="0" * 64), "x.npz 000000000000"),
        (Data(columns=Columns(terminated="obs")), "x.npz 0 obs[0]"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, data, words):
    neorl2(tmp_path / "x.npz")
    with refused(words):
        own_files.load(str(tmp_path / "x.npz"), data)


def test_a_missing_file_and_an_unknown_kind(tmp_path):
    with refused("file"):
        own_files.load(str(tmp_path / "x.npz"))
    (tmp_path / "x.txt").touch()
    with refused("end"):
        own_files.load(str(tmp_path / "x.txt"))


def test_a_named_pipe_is_not_a_missing_file(tmp_path):
    os.mkfifo(tmp_path / "x.npz")
    for read in (own_files.find, own_files.checksum, own_files.load):
        with refused("not a regular file"):
            read(str(tmp_path / "x.npz"))


def test_nothing_says_where_episodes_end():
    with refused("episodes"):
        Dataset.from_arrays(*PLAIN)


def test_an_environment_that_does_not_fit(tmp_path):
    neorl2(tmp_path / "x.npz")
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), env="gym/Pendulum-v1", data=Data())
    with refused("actions (2,) (1,)"):
        task.load()


# corerl data check.


def test_every_fault_names_its_line_and_column(tmp_path):
    bad = table()
    bad.loc[17, "reward"] = np.nan
    bad["obs_1"] = bad["obs_1"].astype(object)
    bad.loc[[30, 40], "obs_1"] = "n/a!"
    bad.to_csv(tmp_path / "x.csv", index=False)
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.csv'}"), data=Data())
    findings, _, dataset = check(task)
    assert dataset is None
    found = {f.where: f.text for f in findings if f.fault}
    assert found.keys() == {"line 32, column obs_1", "line 19, column reward"}
    says(found["line 32, column obs_1"], "n/a! 2")
    says(found["line 19, column reward"], "nan")
    with refused("32 obs_1 n/a!"):
        task.load()


def test_what_looks_wrong_is_remarked(tmp_path):
    order = np.arange(100)
    order[[5, 6]] = [6, 5]  # two rows of an episode changed places
    states = np.concatenate([DATA.observations, np.full((100, 1), 70.0)], 1)
    after = np.roll(states, -1, 0)
    np.savez(
        tmp_path / "x.npz",
        observations=states[order],
        next_observations=after[order],
        actions=0.1 * DATA.actions,
        rewards=np.ones(100),
        done=DATA.terminated | DATA.truncated,
    )
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
    findings, _, dataset = check(task)
    text = "\n".join(f"{f.where}: {f.text}" for f in findings)
    assert dataset is not None and not any(finding.fault for finding in findings)
    says(text, "done row 4, next_observations: 3 observations[3]: 70 normalize_states=true % env=")


def test_a_feature_that_never_changes_is_remarked_whatever_its_rounding(tmp_path):
    states = DATA.observations.copy()
    states[:, 1] = 0.3
    assert states[:, 1].std() > 0
    np.savez(tmp_path / "x.npz", obs=states, action=PLAIN[1], reward=PLAIN[2], episode=EPISODES)
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
    texts = [f.text for f in check(task)[0] if f.where.endswith("[1]")]
    (text,) = texts
    says(text, "0.3")


def test_bytes_are_remarked_as_other_numbers_are(tmp_path):
    states = np.full((100, 2), 212, np.uint8)
    states[::2, 0] = 10
    np.savez(tmp_path / "x.npz", obs=states, action=PLAIN[1], reward=PLAIN[2], episode=EPISODES)
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
    texts = [f"{f.where}: {f.text}" for f in check(task)[0] if f.where.startswith("obs")]
    says(texts[0], "obs[1] 212", lines=0)
    for text, words in zip(texts[1:], ("obs[0] 111", "obs[1] 212"), strict=True):
        says(text, f"{words} algo.data.normalize_states=true")


@pytest.mark.parametrize(("begins", "reported"), [(1.7e9, True), (1.7e4, False)])
def test_values_that_float32_does_not_tell_apart_are_remarked(tmp_path, begins, reported):
    """Seconds of a clock were said to be the same in every row, or to need states that are normalised."""
    clock = table().assign(obs_1=begins + np.arange(100))
    clock.to_csv(tmp_path / "x.csv", index=False)
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.csv'}"), data=Data())
    (text,) = [f.text for f in check(task)[0] if f.where == "column obs_1"]
    says(text, "99 128" if reported else "17049.5")


def test_rows_out_of_order_are_remarked_beside_a_time_in_seconds(tmp_path):
    states = DATA.observations.copy()
    states[:, 2] = 1.7e9 + np.arange(100)
    arrays = {"obs": states, "next_obs": np.roll(states, -1, 0), "act": DATA.actions}
    arrays |= {"r": PLAIN[2], "truncated": DATA.truncated | DATA.terminated}
    for order, remarked in ((np.arange(100), False), (np.r_[1, 0, 2:100], True)):
        np.savez(tmp_path / "x.npz", **{key: array[order] for key, array in arrays.items()})
        task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
        rows = [f for f in check(task)[0] if "next_observations" in f.where]
        assert bool(rows) == remarked


def test_episodes_of_one_step_are_in_order(tmp_path):
    arrays = {"obs": PLAIN[0], "next_obs": PLAIN[0] + 1, "act": DATA.actions, "r": PLAIN[2]}
    np.savez(tmp_path / "x.npz", terminated=np.ones(100, bool), **arrays)
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
    assert not [f for f in check(task)[0] if "next_observations" in f.where]


def test_a_sound_file_has_no_remarks(tmp_path):
    neorl2(tmp_path / "x.npz")
    task = replace(tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data())
    assert [finding.where for finding in check(task)[0]] == ["environment"]


# Another file than a run's own.


def test_a_held_out_file_is_read_as_the_runs_own(tmp_path):
    """Its columns, its environment's bounds (Pendulum's are -2 and 2), but another checksum."""
    names = {"angle": DATA.observations, "torque": 2 * DATA.actions[:, :1], "cut": DATA.truncated}
    for name, steps in (("train", 80), ("test", 100)):
        arrays = {key: array[:steps] for key, array in names.items()}
        np.savez(tmp_path / f"{name}.npz", **arrays, reward=DATA.rewards[:steps])
    task, held_out = (f"file/{tmp_path / name}.npz" for name in ("train", "test"))
    columns = Columns(observations="angle", actions="torque", truncated="cut")
    sha = own_files.checksum(task.removeprefix("file/"))
    data = Data(columns, sha256=sha)
    own = tasks.of(config(tmp_path, task=task, env="gym/Pendulum-v1", data=data))
    assert tasks.another(own, task) is own
    found = tasks.another(own, held_out).load()
    assert len(found) == 100
    np.testing.assert_allclose(found.actions, DATA.actions[:, :1], atol=1e-6)
    tasks.another(own, held_out).make_env().close()
    assert tasks.another(own, "corerl/pendulum").env is None


# What a run is called.


def test_settings_of_files_name_no_other_run(tmp_path):
    plain, own = config(tmp_path), config(tmp_path, task="file/x.npz", env="gym/Pendulum-v1")
    assert config_hash(plain) == config_hash(replace(plain, env=None, data=Data()))
    assert not {"env", "data"} & _without_added(plain).keys()
    other = replace(own, data=Data(sha256="1"))
    assert len({cell_directory(cfg) for cfg in (own, other, replace(own, env=None))}) == 3


@pytest.mark.parametrize("name", ["../x.npz", "/data/x.npz", "~/x.npz"])
def test_a_run_stays_below_its_root(name):
    folder = cell_directory(config(Path("runs"), task=f"file/{name}"))
    assert folder.parts[:2] == ("runs", "file") and ".." not in folder.parts


def test_other_tasks_have_their_own_environment(tmp_path):
    cfg: Config = config(tmp_path, env="gym/Pendulum-v1")
    with refused("task=file/PATH"):
        tasks.of(cfg)


def test_exponents_that_overflow_are_infinite_and_no_crash(tmp_path):
    """pandas' own parser of numbers reads beyond its table of powers."""
    path = tmp_path / "a.csv"
    rows = [f"{i},0.5,11e99908318591117858{i},{int(i == 3)}" for i in range(4)]
    path.write_text("observation_0,action_0,reward,terminated\n" + "\n".join(rows) + "\n")
    with refused("2 reward inf"):
        own_files.load(str(path), Data(action_low=-1, action_high=1))
