"""Files of one's own that cannot be read as they are: each is refused in a sentence that names the place."""

import gzip
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas
import pytest
from small import random_dataset
from wording import lacking, refused, says

from corerl.cli import main
from corerl.config import Columns, Data
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.files.own_files import check
from corerl.errors import CorerlError
from corerl.launch.composition import cells

DATA = random_dataset(100)
PLAIN = (DATA.observations, DATA.actions, DATA.rewards)
EPISODES = np.arange(100) // 20
ENDS = (20, 40, 60, 80, 100)


def table(**changed) -> pandas.DataFrame:
    columns = {f"obs_{i}": DATA.observations[:, i] for i in range(3)}
    columns |= {f"action_{i}": DATA.actions[:, i] for i in range(2)}
    return pandas.DataFrame(columns | {"reward": DATA.rewards, "episode": EPISODES} | changed)


def csv(path: Path, **changed) -> Path:
    table(**changed).to_csv(path, index=False)
    return path


def npz(path: Path, **changed) -> Path:
    arrays = dict(zip(("observations", "actions", "rewards"), PLAIN, strict=True))
    arrays |= {"terminals": DATA.terminated, "timeouts": DATA.truncated}
    np.savez(path, **arrays | changed)
    return path


def faults(path: Path, data: Data | None = None) -> dict[str, str]:
    """Returns what `corerl data check` finds; training refuses the file too."""
    task = replace(tasks.resolve(f"file/{path}"), data=data or Data())
    found = {finding.where: finding.text for finding in check(task)[0] if finding.fault}
    with pytest.raises(CorerlError):
        task.load()
    return found


def test_a_file_may_be_named_as_its_task_and_a_task_is_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    csv(tmp_path / "x.csv")
    assert main(["data", "check", "file/x.csv"]) == 0
    assert main(["data", "check", "d4rl/hopper-medium-v2"]) == 2
    says(capsys.readouterr().err, "d4rl/hopper")


def test_an_episode_may_be_called_NA(tmp_path):
    names = np.array(["EU", "NA", "n/a", "null", "None"])[EPISODES]
    found = own_files.load(str(csv(tmp_path / "x.csv", episode=names)))
    assert tuple(found.episode_ends) == ENDS and found.has_next.sum() == 95


def test_a_row_without_an_episode_is_refused_by_its_line(tmp_path):
    first_only = np.where(np.arange(100) % 20 == 0, EPISODES, np.nan)
    path = csv(tmp_path / "x.csv", episode=first_only)
    ((where, text),) = faults(path).items()
    assert where == "line 3, column episode"
    says(text, "nan 95 episode")
    with refused("x.csv 3 episode"):
        own_files.load(str(path))
    with refused("episode 1"):
        Dataset.from_arrays(*PLAIN, episode=[0, None] + [1] * 98)


def test_an_episode_changes_where_any_of_its_columns_does(tmp_path):
    trial = {"subject": np.arange(100) // 40, "trial": np.arange(100) // 20 % 2}
    path = csv(tmp_path / "x.csv", **trial)
    found = own_files.load(str(path), Data(columns=Columns(episode=["subject", "trial"])))
    assert tuple(found.episode_ends) == ENDS


@pytest.mark.parametrize("word", ["n/a", "NA", "null"])
def test_a_word_among_numbers_is_named(tmp_path, word):
    reward = DATA.rewards.astype(object)
    reward[7] = word
    found = faults(csv(tmp_path / "x.csv", reward=reward))
    assert found.keys() == {"line 9, column reward"}
    says(*found.values(), word)


def test_a_number_that_is_written_as_none_is_not_finite(tmp_path):
    reward = DATA.rewards.astype(object)
    reward[7], reward[8] = "NAN", "inf"
    found = faults(csv(tmp_path / "x.csv", reward=reward))
    assert found == {"line 9, column reward": "NAN is not finite (2 such rows)."}


@pytest.mark.parametrize("end", ["csv", "csv.gz"])
def test_lines_count_blank_ones_and_those_within_cells(tmp_path, end):
    names = EPISODES.astype(str).astype(object)
    names[:20] = "the\nfirst"
    path = tmp_path / f"x.{end}"
    lines = table(episode=names, done=2 * (np.arange(100) == 30)).to_csv(index=False).split("\n")
    lines[1:1], lines[5:5] = ["", "  "], [""]
    text = "\n".join(lines)
    path.write_bytes(gzip.compress(text.encode()) if end == "csv.gz" else text.encode())
    line = next(i for i, line in enumerate(lines, 1) if line.endswith(",2"))
    assert line != 32  # as it would be without them
    assert list(faults(path)) == [f"line {line}, column done"]


def test_a_cell_too_long_to_count_lines_by_leaves_the_number_of_the_row(tmp_path):
    names = EPISODES.astype(str).astype(object)
    names[:20] = "x" * 200_000
    path = csv(tmp_path / "x.csv", episode=names, done=2 * (np.arange(100) == 30))
    assert list(faults(path)) == ["row 30, column done"]


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"done": np.where(np.arange(100) == 19, 2, 0)}, "done"),
        ({"action_1": np.where(np.arange(100) == 19, 1.7, 0)}, "action_1"),
        ({"reward": np.where(np.arange(100) == 19, 1e39, 0)}, "reward"),
    ],
)
def test_what_makes_no_dataset_is_told_by_line_and_column(tmp_path, changed, where):
    path = csv(tmp_path / "x.csv", **changed)
    ((found, text),) = faults(path).items()
    assert found == f"line 21, column {where}" and text
    with refused(f"x.csv 21 {where}"):
        own_files.load(str(path))


def test_an_entry_of_an_array_is_told_by_row_and_name(tmp_path):
    observations = DATA.observations.reshape(100, 1, 3).astype(np.float64)
    observations[5, 0, 2] = 1e39
    (where,) = faults(npz(tmp_path / "x.npz", observations=observations))
    assert where == "row 5, observations[2]"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rewards": np.float64(1)}, "rewards"),
        ({"observations": DATA.observations[:0]}, "observations"),
    ],
)
def test_no_array_of_rows_is_refused_by_name(tmp_path, changed, words):
    says(faults(npz(tmp_path / "x.npz", **changed))["file"], words)


def test_a_header_alone_has_no_rows(tmp_path):
    path = tmp_path / "x.csv"
    table()[:0].to_csv(path, index=False)
    says(faults(path)["file"], "obs_0")


@pytest.mark.parametrize("rewards", [[], np.float64(1)])
def test_arrays_without_rows_are_refused(rewards):
    with refused("rewards"):
        Dataset.from_arrays([], [], rewards, episode=[])
    with refused("actions 0 rewards 100"):
        Dataset.from_arrays(PLAIN[0], np.float64(1), PLAIN[2], episode=EPISODES)


def test_a_list_of_episodes_is_told_to_be_laid_one_after_the_other():
    alike, others = np.split(np.arange(100), 5), np.split(np.arange(100), [30, 70])
    for rows in (alike, others):
        episodes = [[array[i] for i in rows] for array in PLAIN]
        with refused("rewards numpy.concatenate episode"):
            Dataset.from_arrays(*episodes, [DATA.terminated[i] for i in rows])
    ragged = [DATA.observations[i] for i in others]
    for observations in (ragged, {"a": DATA.rewards, "b": ragged}):
        with refused("observations numpy.concatenate"):
            Dataset.from_arrays(observations, *PLAIN[1:], episode=EPISODES)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_than_commas_is_named(tmp_path, separator):
    path = tmp_path / "x.csv"
    for decimal in ".,":
        table().to_csv(path, index=False, sep=separator, decimal=decimal)
        ((where, text),) = faults(path).items()
        assert where == "file"
        says(text, f"{separator!r}")


@pytest.mark.parametrize(("written", "values"), [("0.5,", 8), ("0,5", 8), ("0,5,0,5", 10)])
def test_rows_of_more_values_than_names_are_refused(tmp_path, written, values):
    """They were read with every name moved on: decimal commas as whole numbers, and nothing was wrong."""
    path = csv(tmp_path / "x.csv", episode=7)
    path.write_text(path.read_text().replace(",7\n", f",{written}\n"))
    says(faults(path)["file"], f"7 {values}")


def test_times_and_missing_lists_of_parquet_are_told_as_such(tmp_path, monkeypatch):
    """They were taken for a broken file."""
    path = tmp_path / "x.parquet"
    path.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    times = table(obs_0=pandas.date_range("2024-01-01", periods=100))
    lists = table(obs=[*DATA.observations[1:].tolist(), None])
    for read, where, reported in (
        (times, "row 0, column obs_0", "2024-01-01 00:00:00 100"),
        (lists.drop(columns=["obs_0", "obs_1", "obs_2"]), "file", "0 3"),
    ):
        monkeypatch.setattr(pandas, "read_parquet", lambda *_, table=read, **__: table)
        says(faults(path)[where], reported)


def test_what_there_is_to_name_is_told(tmp_path):
    path = tmp_path / "x.csv"
    table().rename(columns={"reward": "gain", "obs_1": "speed"}).to_csv(path, index=False)
    words = "data.columns.rewards=NAME speed gain"
    says(faults(path)["rewards"], words)
    with refused(words):
        own_files.load(str(path))


@pytest.mark.parametrize(("largest", "more"), [(1000, "989"), (10**12, "999,999,999,989")])
def test_actions_that_are_never_taken_are_counted_where_they_are_many(tmp_path, largest, more):
    path = npz(tmp_path / "x.npz", actions=largest * (np.arange(100) % 2))
    task = replace(tasks.resolve(f"file/{path}"), data=Data())
    text = f"never taken: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and {more} more."
    found = check(task)[0]
    assert text in {finding.text for finding in found}
    assert any(finding.fault for finding in found) == (largest > 2**14)


def test_a_broken_file_of_ones_own_is_not_to_be_deleted(tmp_path):
    npz(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:500])
    (text,) = faults(tmp_path / "x.npz").values()
    assert text.endswith(": repair it.") and "delete" not in text


# What could be read and not trained on.


@pytest.mark.parametrize("rows", [1, 100])
def test_single_steps_that_are_cut_are_nothing_to_learn_from(tmp_path, rows):
    path = csv(tmp_path / "x.csv", episode=np.arange(100))
    path.write_text("\n".join(path.read_text().split("\n")[: rows + 1]))
    task = replace(tasks.resolve(f"file/{path}"), data=Data())
    assert len([finding for finding in check(task)[0] if finding.fault]) == 1
    with refused("x.csv"):
        task.load().obs_stats()


def test_no_next_action_is_said_where_it_is_needed():
    data = Dataset.from_steps("six", *PLAIN, PLAIN[0], np.zeros(100), np.ones(100))
    assert len(data.transitions().rows) == 100
    with refused("next action"):
        data.transitions(next_actions=True)


def test_observations_that_no_algorithm_takes_are_a_fault(tmp_path):
    path = npz(tmp_path / "x.npz", observations=DATA.observations[:, None])
    found = check(replace(tasks.resolve(f"file/{path}"), data=Data()))[0]
    (fault,) = [finding.text for finding in found if finding.fault]
    says(fault, "1x3 3")


def test_pictures_are_for_an_algorithm_of_ones_own(tmp_path, capsys):
    pictures = np.zeros((100, 3, 4, 4), np.uint8)
    path = npz(tmp_path / "x.npz", observations=pictures)
    assert main(["data", "check", str(path)]) == 0
    reported = capsys.readouterr().out
    says(reported, "3x4x4")
    says(reported, "algo=my_algo.py task=")


@pytest.mark.parametrize(
    ("episode", "reported"),
    [
        ({"episode": [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]}, ("line 42", 2)),
        ({"episode": list("aabbccddaa")}, ("line 82", 1)),
        ({"episode": list("aabbccddee")}, None),
        ({"subject": [1] * 4 + [2] * 6, "episode": [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]}, None),
    ],
)
def test_an_episode_that_comes_back_is_remarked(tmp_path, episode, reported):
    path = csv(tmp_path / "x.csv", **{name: np.repeat(x, 10) for name, x in episode.items()})
    columns = Columns(episode=list(episode))
    task = replace(tasks.resolve(f"file/{path}"), data=Data(columns=columns))
    back = [f for f in check(task)[0] if f.where.endswith("column episode")]
    if reported is None:
        assert not back
    else:
        (finding,) = back
        assert finding.where == f"{reported[0]}, column episode" and not finding.fault
        assert (f"({reported[1]} such rows)" in finding.text) == (reported[1] > 1)


def test_done_is_remarked_in_any_case(tmp_path):
    path = tmp_path / "x.csv"
    table().drop(columns="episode").assign(DONE=DATA.terminated).to_csv(path, index=False)
    task = replace(tasks.resolve(f"file/{path}"), data=Data())
    says(" ".join(finding.text for finding in check(task)[0]), "DONE")


@pytest.mark.parametrize("other", ["state", "s", "a", "r"])
def test_numbered_columns_are_read_before_a_column_of_a_vague_name(tmp_path, other):
    path = csv(tmp_path / "x.csv", **{other: "idle"})
    task = replace(tasks.resolve(f"file/{path}"), data=Data())
    findings, _, data = check(task)
    np.testing.assert_array_equal(data.observations, DATA.observations)
    np.testing.assert_array_equal(data.actions, DATA.actions)
    reported = [f for f in findings if not lacking(f.text, f"{other} NAME")]
    assert len(reported) == 1 and not any(finding.fault for finding in findings)


def test_a_column_and_numbered_ones_that_may_both_be_meant_are_refused(tmp_path):
    path = csv(tmp_path / "x.csv", action=np.arange(100) % 2)
    both = "data.columns.actions=action data.columns.actions=[action_0,action_1]"
    says(faults(path)["file"], f"action action_0 {both}")
    for named, discrete in (("action", True), (["action_0", "action_1"], False)):
        found = own_files.load(str(path), Data(columns=Columns(actions=named)))
        assert found.discrete == discrete


@pytest.mark.parametrize(
    ("name", "reported", "ends"),
    [("dones", None, 1), ("Done", None, 1), ("dones", "dones", 5), ("terminals", None, 5)],
)
def test_a_done_that_is_truncated_too_is_a_time_limit(tmp_path, name, reported, ends):
    """SB3's `dones` are set at both ends; D4RL's `terminals`, and what the user names, are true ends."""
    over, cut = (np.isin(np.arange(100) + 1, ends) for ends in (ENDS, ENDS[:4]))
    arrays = dict(zip(("observations", "actions", "rewards"), PLAIN, strict=True))
    np.savez(tmp_path / "x.npz", **arrays, **{name: over}, timeouts=cut)
    task = replace(
        tasks.resolve(f"file/{tmp_path / 'x.npz'}"), data=Data(columns=Columns(terminated=reported))
    )
    data = task.load()
    assert data.terminated.sum() == ends and (data.terminated | data.truncated).sum() == 5
    remarked = [f for f in check(task)[0] if not lacking(f.text, f"4 {name} truncated")]
    assert bool(remarked) == (ends == 1)


@pytest.mark.parametrize("name", ["x", "my file (v2)", "a,b", "it's", 'a"b', "~é=[1]"])
def test_the_command_that_is_printed_trains_on_the_file(tmp_path, capsys, name):
    path = csv(tmp_path / f"{name}.csv")
    assert main(["data", "check", str(path), "data.columns.observations=[obs_0,obs_1]"]) == 0
    reported = capsys.readouterr().out.partition("corerl train ")[2]
    (cell,) = cells(shlex.split(reported))
    assert cell.task == f"file/{path}" and cell.data.columns.observations == ["obs_0", "obs_1"]
    assert ("'" in reported.split()[1]) == (name != "x")


# Bounds of actions, and kinds of numbers.


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ([-1, 0], [1, 0], "1 0"),
        (1, -1, "0 1 -1"),
        ([-1, -1, -1], 1, "[-1, -1, -1] 2"),
        ("low", 1, "low"),
        (-2, None, "low high"),
        (None, 2, "low high"),
    ],
)
def test_bounds_that_are_none_are_refused(low, high, words):
    actions = np.stack([DATA.actions[:, 0], np.zeros(100)], 1)
    with refused(words):
        Dataset.from_arrays(PLAIN[0], actions, PLAIN[2], episode=EPISODES, low=low, high=high)


SWITCH = np.arange(100) % 3 == 0


def test_true_and_false_are_the_numbers_1_and_0(tmp_path):
    observations, _, rewards = PLAIN
    ends = {"terminated": DATA.terminated, "truncated": DATA.truncated}
    table().drop(columns=["action_0", "action_1"]).assign(action=SWITCH).to_csv(
        tmp_path / "x.csv", index=False
    )
    for found in (
        Dataset.from_arrays(observations, SWITCH, rewards, **ends),
        Dataset.from_arrays(observations, SWITCH[:, None], rewards, **ends),
        Dataset.from_steps("x", observations, SWITCH, rewards, observations, **ends),
        own_files.load(str(npz(tmp_path / "x.npz", actions=SWITCH))),
        own_files.load(str(tmp_path / "x.csv")),
    ):
        assert found.actions.dtype == np.int64 and (found.actions == SWITCH).all()
    found = Dataset.from_arrays(observations, SWITCH, rewards, **ends, low=0, high=1)
    assert (found.actions == 2 * SWITCH[:, None] - 1).all()


def test_several_of_true_and_false_a_row_are_refused_without_bounds(tmp_path):
    path = csv(tmp_path / "x.csv", action_0=SWITCH, action_1=~SWITCH)
    with refused("2"):
        own_files.load(str(path))
    found = own_files.load(str(path), Data(action_low=0, action_high=1))
    assert (found.actions == 2 * np.stack([SWITCH, ~SWITCH], 1) - 1).all()


def test_numbered_actions_as_floats_are_remarked(tmp_path):
    path = tmp_path / "x.npz"

    def reported(actions, **data):
        task = tasks.resolve(f"file/{npz(path, actions=actions)}")
        findings = check(replace(task, data=Data(**data)))[0]
        return [f for f in findings if not lacking(f.text, "discrete 1.0")]

    (remark,) = reported(SWITCH.astype(np.float64))
    assert not remark.fault
    says(remark.text, "0 1 continuous")
    (fault,) = reported(3.0 * SWITCH[:, None])
    assert fault.fault
    says(fault.text, "3 [-1, 1]")
    assert reported(3.5 * SWITCH) == reported(SWITCH * 2.0 - 1) == reported(DATA.actions) == []
    assert reported(SWITCH.astype(np.float64), action_low=0, action_high=1) == []


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminals"])
@pytest.mark.parametrize("dtype", [np.complex128, "M8[s]"])
def test_what_is_no_real_number_is_not_cast_to_one(tmp_path, field, dtype):
    with np.load(npz(tmp_path / "x.npz")) as file:
        arrays = dict(file)
    changed = arrays[field].astype(np.int64).astype(dtype)
    path = npz(tmp_path / "x.npz", **{field: changed})
    with refused("real"):
        own_files.load(str(path))
    assert faults(path)
