"""Settings that are chosen when a trained policy acts: `corerl evaluate RUN algo.samples=1,64`."""

import importlib
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tiny
import torch
from small import config, flatten

from corerl.cli import main
from corerl.errors import CorerlError
from corerl.launch import launch, worker
from corerl.policies.export import export
from corerl.policies.load import load
from corerl.runs.directory import cell_directory

CHOSEN = [
    (name, field.name)
    for name in tiny.LEARNERS
    for field in fields(importlib.import_module(f"corerl.algos.{name}").Config)
    if field.metadata.get("acting")
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    own = {"hidden_width": 8, "hidden_layers": 1, "samples": 2}
    cfg = config(tmp_path_factory.mktemp("acting"), "ifql", own=own, seeds=[0, 3], steps=20)
    launch.write_settings(cfg)
    assert worker.train(cfg, [0, 3], lambda *_: None) == worker.DONE
    return cell_directory(cfg)


@pytest.mark.parametrize(("name", "setting"), CHOSEN)
def test_no_update_reads_them(name, setting):
    cfg = tiny.settings(name)
    value = getattr(cfg.algo, setting)
    other = replace(cfg, algo=replace(cfg.algo, **{setting: value + 1}))
    one, two = (tiny.Short(each, updates=3).parts["agent"].state_dict() for each in (cfg, other))
    assert flatten(one) == flatten(two)


def test_there_are_some():
    assert ("ifql", "samples") in CHOSEN and ("fql", "flow_steps") not in CHOSEN


def test_every_value_is_played_and_kept(run, capsys):
    kept = run / "evaluations.jsonl"
    kept.unlink(missing_ok=True)
    command = ["evaluate", str(run), "algo.samples=1,3", "algo.flow_steps=5", "--episodes", "1"]
    assert main(command) == 0
    lines = [json.loads(line) for line in kept.open()]
    assert [(x["seed"], x["algo"]) for x in lines] == [
        (seed, {"samples": n, "flow_steps": 5}) for n in (1, 3) for seed in (0, 3)
    ]
    assert len({tuple(x["returns"]) for x in lines}) == 4
    out = capsys.readouterr().out
    assert "samples 1, flow_steps 5" in out and "samples 3, flow_steps 5" in out


def test_the_runs_own_value_is_the_run(run):
    states = torch.rand(2, 3, 3)
    own, chosen, other = (load(run, acting=x) for x in (None, {"samples": 2}, {"samples": 9}))
    for agent in (own, chosen, other):
        agent.reset(3)
    first = own(states)
    assert torch.equal(first, chosen(states)) and not torch.equal(first, other(states))
    assert other.only(3).acting == {"samples": 9} and own.acting == {}


@pytest.mark.parametrize(
    ("acting", "shown"),
    [
        ({"expectile": 0.5}, "algo.expectile"),
        ({"sampels": 3}, "algo.sampels"),
        ({"samples": 0}, "algo.samples=0"),
        ({"samples": "many"}, "algo.samples=many"),
    ],
)
def test_others_raise_with_name_and_value(run, acting, shown):
    with pytest.raises(CorerlError, match=shown):
        load(run, acting=acting)


def test_a_method_takes_none_and_settings_alone_are_no_run(run, capsys):
    assert main(["evaluate", str(run), "algo.samples=3", "--method", "fqe"]) == 2
    assert "algo.samples=3" in capsys.readouterr().err
    assert main(["evaluate", "algo.samples=3"]) == 2


def test_a_policy_that_samples_is_not_exported(run, tmp_path):
    with pytest.raises(CorerlError, match="IFQL"):
        export(run, tmp_path / "p.pt2")
    assert load(run).samples
