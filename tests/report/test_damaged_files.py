"""What a damaged byte makes of the files of a report: a sentence that names the file."""

import json
from pathlib import Path

import grids
import numpy as np
import pytest
from trees import write_run

from corerl.errors import CorerlError
from corerl.ope import results
from corerl.report import rewards, risk
from corerl.report.load import load
from corerl.report.published import read_published
from corerl.report.scorefiles import read_d3rlpy_curves, read_rebrac_profiles

TASK = "d4rl/hopper-medium-v2"
BOMB = "a: &a [1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
SETTINGS = (
    *(BOMB, "x: " + "y" * 2_000_000),
    *(
        "algo: text",
        "task: 3",
        "label: [a]",
        "steps: many",
        "a: *b",
        "- 1",
        "[" * 3000,
        "[" * 99_999 + "]" * 99_999,
    ),
    *(
        "algo: {online: 3}",
        "algo: {phase: both, online: {pretrain_steps: x}}",
        b"\xff\xfe",
        "a: \0",
    ),
)
LINES = (
    *("3", "[]", "{}", '{"seed": 0, "step": 1}', '{"seed": 0, "step": 1, "returns": 3}'),
    *('{"seed": 0, "step": 1, "returns": ["a"]}', '{"seed": [0], "step": 1, "returns": []}'),
    *(b"\xff", "[" * 3000, '{"seed": 0, "step": 1, "returns": [[1], [2, 3]]}'),
)


def write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refused(read, *names: str) -> None:
    with pytest.raises(CorerlError) as caught:
        read()
    assert "\n" not in str(caught.value) and all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("content", SETTINGS)
def test_settings(tmp_path, content):
    group = write_run(tmp_path, TASK, "IQL")
    write(group.parent / "config.yaml", content)
    refused(lambda: load([tmp_path]), "config.yaml")


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": 3},
        {"seeds": ["a"]},
        {"diverged": {"0": "x"}},
        {"steps": "many"},
        {"evaluated": "x"},
    ],
)
def test_status(tmp_path, changed):
    path = write_run(tmp_path, TASK, "IQL") / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    refused(lambda: load([tmp_path]), "status.json")


@pytest.mark.parametrize("content", LINES)
def test_returns(tmp_path, content):
    group = write_run(tmp_path, TASK, "CVaR")
    write(group / "returns.jsonl", content if isinstance(content, bytes) else content + "\n")
    if isinstance(content, bytes):
        write(group / "returns.jsonl", content + b"\n")
    runs = load([tmp_path]).scores
    refused(lambda: risk.read_returns(runs), "returns.jsonl")


def test_a_line_that_a_kill_cut_is_left_out(tmp_path):
    group = write_run(tmp_path, TASK, "CVaR", seeds=(0,))
    line = json.dumps({"seed": 0, "step": 3000, "returns": [1.0, 2.0]})
    (group / "returns.jsonl").write_text(f"{line}\n{line[:30]}")
    (row,) = risk.read_returns(load([tmp_path]).scores).itertuples()
    assert row.returns.tolist() == [1, 2]


@pytest.mark.parametrize("tau", ["low", True])
def test_an_objective(tmp_path, tau):
    algo = {"objective": "static", "tau": tau}
    refused(lambda: risk._objective(tmp_path, {"algo": algo}), "config.yaml")


def test_curves_are_held_against_their_checksums(tmp_path):
    """A header of fewer rows leaves numpy with a shorter array and no word of it."""
    path, key = tmp_path / "a.npz", "d4rl/IQL/hopper/online"
    np.savez(path, **{key: np.zeros((3, 2)), f"{key}/steps": np.array([1, 2])})
    assert len(read_d3rlpy_curves(path)) == 6
    whole = path.read_bytes()
    assert whole.count(b"(3, 2)") == 1
    path.write_bytes(whole.replace(b"(3, 2)", b"(2, 2)"))
    refused(lambda: read_d3rlpy_curves(path), "a.npz", "CRC")
    path.write_bytes(whole[:-30])
    refused(lambda: read_d3rlpy_curves(path), "a.npz", "BadZipFile")
    np.savez(path, **{key: np.zeros(3), f"{key}/steps": np.array([1, 2])})
    refused(lambda: read_d3rlpy_curves(path), "a.npz")


def test_profiles(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 20)
    refused(lambda: read_rebrac_profiles(path), "a.json.gz")
    path = tmp_path / "b.json"
    for content in ("[" * 100_000, '{"a": 3}', '{"a": {"b": {"c": 3}}}'):
        path.write_text(content)
        refused(lambda: read_rebrac_profiles(path), "b.json")


@pytest.mark.parametrize("content", [b"\xff", b'a,b\n1,2,3\n"', b"a,b\n1,2\n1,2,3\n", b"", b'"'])
def test_published_numbers(tmp_path, content):
    (tmp_path / "mine.csv").write_bytes(content)
    refused(lambda: read_published(str(tmp_path / "mine.csv")), "mine.csv")
    refused(lambda: grids.read(tmp_path / "mine.csv"), "mine.csv")


HEAD = b"seed,data,starc,rank,linear\n"


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"seed,data\n0,x\n", HEAD + b"0,x,a,1,1\n", HEAD + b"z,x,0.3,1,1\n"],
)
def test_distances_of_rewards(tmp_path, content):
    path = write_run(tmp_path, TASK, "IPL").parent / "reward_distances.csv"
    path.write_bytes(content)
    runs = load([tmp_path]).scores
    refused(lambda: rewards.read(runs), "reward_distances.csv")


@pytest.mark.parametrize("content", [b"\xff", b"seed,method\n0,fqe\n"])
def test_estimates_of_policies(tmp_path, content):
    path = tmp_path / "ope.csv"
    path.write_bytes(content)
    refused(lambda: results.read(path), "ope.csv")
    columns = [*results.Row._fields, *results.KEYS]
    row = dict.fromkeys(columns, "1")
    results._write_table(path, columns, [row])
    assert results.read(path) == [row]
    path.write_text(path.read_text() + "1,2\n")
    refused(lambda: results.read(path), "ope.csv")
