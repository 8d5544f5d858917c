"""The run directory: named by content, written atomically, restored exactly, refused when damaged."""

import errno
import json
import os
import resource
import signal
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from graphs import is_view
from small import config, flatten
from torch.utils._python_dispatch import TorchDispatchMode
from wording import refused

import corerl
from corerl.algos import bc, cal_ql, rlpd, td3_bc
from corerl.config import Config, Data, Eval, Wandb
from corerl.nn.learner import Stateful
from corerl.runs import checkpoint, config_labels, files, provenance
from corerl.runs.directory import (
    cell_directory,
    config_hash,
    group_name,
    seeds_of_group,
    settings,
)
from corerl.runs.log import Log
from corerl.runs.score_rows import STEP_OF
from corerl.training.run import Run

STATE = {
    "loop": {"step": 7, "sums": {"loss": torch.tensor([1.5, torch.nan])}, "diverged": {3: 40}},
    "state": {
        "agent": {
            "moments": [torch.zeros(2, 3), torch.arange(6.0).view(2, 3).T],
            "count": torch.tensor(3),
            "empty": {},
        },
        "noise": {"generators": torch.arange(5, dtype=torch.uint8), "position": 256},
        "nothing": None,
        "flags": [True, 0.1, "text/with.dots"],
    },
}


# Checkpoints.


def test_a_checkpoint_returns_nested_state_exactly(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save_checkpoint(path, STATE)
    loaded = checkpoint.load_checkpoint(path)
    assert flatten(loaded) == flatten(STATE)
    assert loaded["loop"]["diverged"] == {3: 40}  # keys stay integers
    assert loaded["state"]["agent"]["moments"][1].dtype == torch.float32
    assert loaded["state"]["agent"]["empty"] == {} and loaded["state"]["nothing"] is None


def test_one_number_of_a_wider_tensor_is_saved(tmp_path):
    one = torch.arange(6.0).view(2, 3)[1:, 1]  # contiguous, with a stride of 3
    checkpoint.save_checkpoint(tmp_path / "c", {"one": one})
    assert checkpoint.load_checkpoint(tmp_path / "c")["one"].tolist() == [4.0]


def test_tensors_that_share_memory_are_saved_apart(tmp_path):
    rows = torch.arange(6.0)
    checkpoint.save_checkpoint(tmp_path / "c", {"all": rows, "part": rows[2:4]})
    loaded = checkpoint.load_checkpoint(tmp_path / "c")
    assert loaded["all"].tolist() == rows.tolist() and loaded["part"].tolist() == [2.0, 3.0]


class LargestCopy(TorchDispatchMode):
    """The most numbers that were in one new tensor."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not is_view(func):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_saving_copies_no_more_than_one_seed_of_one_tensor(tmp_path):
    rows = torch.randn(4, 1000, 8)
    state = {"replay": rows[:, :900], "agent": torch.randn(4, 500), "step": torch.tensor(3)}
    with LargestCopy() as made:
        checkpoint.save_checkpoint(tmp_path / "c", state)
    assert made.numbers <= 900 * 8
    assert flatten(checkpoint.load_checkpoint(tmp_path / "c")) == flatten(state)


def test_every_type_of_number_comes_back_and_others_can_read_it(tmp_path):
    kinds = (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
    state = {kind: torch.arange(3).to(getattr(torch, kind)) for kind in kinds}
    state |= {
        "one": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "turned": torch.arange(6).view(2, 3).T,
    }
    checkpoint.save_checkpoint(tmp_path / "c", state)
    other = safetensors.torch.load_file(tmp_path / "c")
    for found in (
        checkpoint.load_checkpoint(tmp_path / "c"),
        {k.strip("/"): v for k, v in other.items()},
    ):
        assert found.keys() == state.keys()
        for name, tensor in state.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("keep", [0, 1, 7, 100, -1])
def test_a_truncated_checkpoint_is_refused_in_a_sentence(tmp_path, keep):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes()[:keep])
    with refused("damaged delete") as caught:
        checkpoint.load_checkpoint(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path):
    import safetensors.torch

    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "c")
    with refused("damaged"):
        checkpoint.load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(("name", "value"), [("__version__", "99.5"), ("FORMAT", 99)])
def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch, name, value):
    path = tmp_path / "c"
    with monkeypatch.context() as other:
        other.setattr(corerl if name == "__version__" else checkpoint, name, value)
        checkpoint.save_checkpoint(path, STATE)
    with refused(value):
        checkpoint.load_checkpoint(path)


class Part:
    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Agent(Stateful):
    def __init__(self):
        self.cfg, self.online, self.target = "settings", Part(), Part()


def test_stateful_keeps_every_part_with_state_and_nothing_else():
    agent, other = Agent(), Agent()
    agent.online.value, agent.target.value = 1, 2
    assert agent.state_dict() == {"online": {"value": 1}, "target": {"value": 2}}
    other.load_state_dict(agent.state_dict())
    assert (other.online.value, other.target.value) == (1, 2)


# Writing.


@pytest.fixture
def written(tmp_path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    files.write_atomically(path, b"old")
    return path


def fail(number: int):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_sentence_and_the_old_file_is_whole(written, monkeypatch, call, number):
    monkeypatch.setattr(files.os, call, fail(number))
    with refused("disk command"):
        files.write_atomically(written, b"new")
    assert written.read_bytes() == b"old"
    assert list(written.parent.iterdir()) == [written], "no half-written file is left"


def test_appending_to_a_full_disk_is_a_sentence():
    with refused("/dev/full"):
        files.append_lines(Path("/dev/full"), ["a line"])


def test_a_disk_that_fills_leaves_no_half_line(tmp_path):
    log = tmp_path / "log.jsonl"
    files.append_lines(log, ["before"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # three bytes of the line find room
    try:
        with refused("File"):
            files.append_lines(log, ["a line"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    files.append_lines(log, ["after"])
    assert log.read_text() == "before\nafter\n"


def test_lines_after_one_that_a_kill_cut_are_lines_of_their_own(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n{"st')
    files.append_lines(log, ['{"step": 2}'])
    assert log.read_text().splitlines() == ['{"step": 1}', '{"st', '{"step": 2}']


@pytest.mark.parametrize("root", ["/dev/null/runs", "/proc/none"])
def test_a_folder_that_cannot_be_is_a_sentence(root):
    with refused(f"{root}/status.json"):
        files.write_atomically(Path(root) / "status.json", b"new")


def test_nobody_sees_half_a_file(written, monkeypatch):
    seen = []
    replace = os.replace

    def look(part, path):
        seen.append((Path(path).read_bytes(), Path(part).read_bytes()))
        replace(part, path)

    monkeypatch.setattr(files.os, "replace", look)
    files.write_atomically(written, b"new")
    assert seen == [(b"old", b"new")] and written.read_bytes() == b"new"


def test_files_are_found_where_links_lead_and_each_folder_once(tmp_path):
    for name in ("runs/b/x", "disk/c/x", "disk/c/y", "disk/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "runs/a").symlink_to(tmp_path / "runs/b")  # has a path of its own
    (tmp_path / "runs/b/up").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/c").symlink_to(tmp_path / "disk/c")
    (tmp_path / "runs/d").symlink_to(tmp_path / "nowhere")
    found = [
        path.relative_to(tmp_path).as_posix() for path in files.below(tmp_path / "runs", "x", "y")
    ]
    assert found == ["runs/b/x", "runs/c/x", "runs/c/y"]
    assert not files.below(tmp_path / "nowhere", "x")


def test_json_that_is_not_json_is_a_sentence(tmp_path):
    path = tmp_path / "status.json"
    assert files.read_json(path) is None
    path.write_text('{"state": "do')
    with refused("status.json JSON"):
        files.read_json(path)


# Resuming cuts what came after the checkpoint.

METRICS = [json.dumps({"step": step, "seed": seed}) for step in (10, 20, 30) for seed in (0, 1)]
SCORES = ["task,algorithm,config,seed,step,return,score,episodes,length,return_std"] + [
    f'corerl/pendulum,"10% BC, mine",0a1b2c3d,{seed},{step},-100.5,1.5,10,200.0,3.5'
    for step in (1000, 2000, 3000)
    for seed in (0, 1)
]


def cut(tmp_path, text: str, step: int, step_of) -> str:
    path = tmp_path / "lines"
    path.write_text(text)
    Log(path).cut_after(step, step_of)
    return path.read_text()


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (10, 2), (19, 2), (20, 4), (30, 6), (99, 6)])
def test_metrics_after_the_checkpoint_are_cut(tmp_path, step, kept):
    text = "".join(line + "\n" for line in METRICS)
    assert cut(tmp_path, text, step, STEP_OF["metrics.jsonl"]).splitlines() == METRICS[:kept]


@pytest.mark.parametrize(("step", "kept"), [(0, 1), (1000, 3), (2500, 5), (3000, 7)])
def test_scores_after_the_checkpoint_are_cut_and_the_header_stays(tmp_path, step, kept):
    text = "".join(line + "\n" for line in SCORES)
    assert cut(tmp_path, text, step, STEP_OF["scores.csv"]).splitlines() == SCORES[:kept]


def test_a_last_line_cut_anywhere_is_dropped(tmp_path):
    # Also where its rest still reads as a line of an earlier step: "...,0,3000" cut to "...,0,30".
    whole = "".join(line + "\n" for line in SCORES[:-1])
    for length in range(1, len(SCORES[-1]) + 1):
        assert cut(tmp_path, whole + SCORES[-1][:length], 2000, STEP_OF["scores.csv"]) == "".join(
            line + "\n" for line in SCORES[:5]
        )
    assert cut(tmp_path, SCORES[0][:20], 0, STEP_OF["scores.csv"]) == ""


def test_there_may_be_nothing_to_cut(tmp_path):
    Log(tmp_path / "absent").cut_after(10, STEP_OF["scores.csv"])
    assert not (tmp_path / "absent").exists()


# Names.

SAME = {
    "root": "elsewhere",
    "seeds": 10,
    "device": "cuda",
    "compile": "graph",
    "processes": 7,
    "save_every": 3,
    "log_every": 3,
    "wandb": Wandb(mode="online"),
    "table": "iql",
}
OTHER = {
    "task": "corerl/other",
    "steps": 41,
    "eval": Eval(every=20, episodes=3),
    "label": "mine",
    "own": {"expectile": 0.8},
}


@pytest.mark.parametrize("name", SAME)
def test_settings_that_change_no_number_keep_the_name(name):
    cfg = replace(config("runs"), **{name: SAME[name]})
    assert config_hash(cfg) == config_hash(config("runs"))


@pytest.mark.parametrize(
    "named",
    [
        lambda low: {"action_range": [low, 0.5]},
        lambda low: {"data": Data(action_low=low, action_high=[1, 1])},
        lambda low: {"data": Data(action_low=[low, low], action_high=1)},
    ],
)
def test_a_bound_is_one_setting_with_and_without_a_point(named):
    """As corerl.train gives an array's numbers, and the command line what was typed."""
    whole, with_point = (config_hash(config("runs", **named(low))) for low in (-1, -1.0))
    assert whole == with_point != config_hash(config("runs", **named(-0.5)))


@pytest.mark.parametrize("name", OTHER)
def test_settings_that_change_numbers_change_the_name(name):
    assert config_hash(config("runs", **{name: OTHER[name]})) != config_hash(config("runs"))


def test_every_setting_of_the_algorithm_is_in_the_name():
    default = config("runs")
    names = {config_hash(default)}
    for name, value in vars(default.algo).items():
        other = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v * 0.9 + 0.01}
        if type(value) in other:
            names.add(config_hash(config("runs", own={name: other[type(value)](value)})))
    numeric = [v for v in vars(default.algo).values() if type(v) in (bool, int, float)]
    assert len(names) == 1 + len(numeric)


HIDDEN = {"activation": "gelu", "layer_norm": True}
ADDED = {
    bc: {"best_discount": 0.9} | HIDDEN,
    td3_bc: {"actor_layers": 3} | HIDDEN,
}
WITH = {"best_discount": {"best": 0.1}}  # what a setting needs beside it


# The names as they were before the settings marked `added` came.
@pytest.mark.parametrize(("algo", "name"), [(bc, "88e2af2e"), (td3_bc, "ed26950e")])
def test_an_added_setting_leaves_older_names_as_they_are(algo, name):
    cfg = Config(algo=algo.Config(), task="d4rl/hopper-medium-v2")
    assert config_hash(cfg) == name
    assert {s.name for s in fields(cfg.algo) if s.metadata.get("added")} == ADDED[algo].keys()
    for setting, value in ADDED[algo].items():
        base = replace(cfg.algo, **WITH.get(setting, {}))
        changed = replace(base, **{setting: value})
        assert config_hash(replace(cfg, algo=changed)) != config_hash(replace(cfg, algo=base))
        assert setting in settings(cfg)["algo"]  # what a run writes down is complete


# As they were while `critic_subsample` was called `asked`, at its default and at 1.
@pytest.mark.parametrize(
    ("algo", "default", "one"),
    [(rlpd, "cdc16786", "4799adc6"), (cal_ql, "58fac304", "09c2ca0c")],
)
def test_a_renamed_setting_leaves_older_names_as_they_are(algo, default, one):
    cfg = Config(algo=algo.Config(), task="d4rl/hopper-medium-v2")
    assert config_hash(cfg) == default
    cfg.algo.critic_subsample = 1
    assert config_hash(cfg) == one
    assert settings(cfg)["algo"]["critic_subsample"] == 1


def test_a_report_knows_a_setting_by_one_name():
    old, new = ({"algo": {"name": "rlpd", key: 2}} for key in ("asked", "critic_subsample"))
    flat = config_labels.flatten
    assert flat(old) == flat(new) == {"algo.name": "rlpd", "algo.critic_subsample": 2}


def test_runs_that_differ_in_a_file_are_named_by_the_start_of_its_checksum():
    known = [("CPL", "t", {"algo.preferences.sha256": digit * 64}) for digit in "ab"]
    named = [f"CPL preferences.sha256={digit * 8}" for digit in "ab"]
    assert config_labels.names(known) == named


def test_runs_are_named_by_the_fewest_settings_that_tell_them_apart():
    """Of tables that differ in many settings one is enough; of a grid every one of its axes is."""
    tables = [
        {"algo.lr": 1, "algo.width": 1, "steps": 1},
        {"algo.lr": 2, "algo.width": 2, "steps": 2},
    ]
    grid = [{"algo.lr": lr, "algo.width": 1, "steps": steps} for lr in (1, 2) for steps in (1, 2)]
    known = [("A", "t", flat) for flat in tables] + [("B", "t", flat) for flat in grid]
    named = ["B lr=1 steps=1", "B lr=1 steps=2", "B lr=2 steps=1", "B lr=2 steps=2"]
    assert config_labels.names(known) == ["A lr=1", "A lr=2", *named]


def test_the_cell_is_named_by_task_algorithm_and_settings():
    cfg = config("runs")
    assert cell_directory(cfg) == Path(f"runs/corerl/pendulum/iql-{config_hash(cfg)}")


@pytest.mark.parametrize(
    ("seeds", "name"),
    [
        ([3], "seeds-3"),
        ([0, 1, 2], "seeds-0-2"),
        (list(range(10)), "seeds-0-9"),
        ([0, 2, 3], "seeds-0_2_3"),
        ([7, 3], "seeds-7_3"),
        ([3, 5], "seeds-3_5"),
    ],
)
def test_groups_are_named_by_their_seeds_and_read_back(seeds, name):
    assert group_name(seeds) == name
    assert seeds_of_group(name) == seeds


def test_the_environment_says_what_ran():
    facts = provenance.environment()
    assert facts["corerl"] == corerl.__version__ and facts["torch"] == torch.__version__
    assert facts["cores"] >= 1 and facts["cpu"]
    json.dumps(facts)


def test_a_gpu_is_named_only_where_a_run_is_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"H100 {device}")
    assert provenance.environment("cpu")["gpu"] is None
    assert provenance.environment("cuda:1")["gpu"] == "H100 cuda:1"
    run = Run(config(tmp_path, eval=Eval(episodes=0)), [0], lambda *_: None)
    run.device = torch.device("cuda:0")
    next(run.steps())
    assert files.read_json(run.directory / "env.json")["gpu"] == "H100 cuda:0"


def test_a_repository_around_an_installed_package_is_not_its_revision(tmp_path, monkeypatch):
    file = tmp_path / "site-packages" / "provenance.py"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(provenance, "__file__", str(file))

    def git(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert provenance.environment()["git"] is None
    git("add", ".")
    git("commit", "-m", "a clone of ours")
    assert provenance.environment()["git"]


def test_a_machine_without_git_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.environment()["git"] is None
