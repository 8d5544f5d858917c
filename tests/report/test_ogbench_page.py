"""OGBench's page: its table is that of its rows, and what a GPU trained is what plays elsewhere."""

import runpy
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from corerl.algos.rebrac import ReBRAC
from corerl.data import tasks
from corerl.nn.learner import Spec
from corerl.seeding import generators

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "ogbench"
TASK = "ogbench/cube-single-play-singletask-v0"


@pytest.fixture(scope="module")
def compare():
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "compare.py")))


@pytest.fixture(scope="module")
def on_gpu():
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "on_gpu.py")))


def test_the_page_s_tables_are_those_of_its_rows(compare):
    rows, page = pd.read_csv(FOLDER / "scores.csv"), (FOLDER / "README.md").read_text()
    for line in compare.table(rows).splitlines():
        assert line in page
    for seed, part in rows.groupby("seed"):
        assert f"| seed {seed} | {' | '.join(f'{x:.0f}' for x in part['score'])} |" in page
    assert (rows["episodes"] == 50).all()


def test_a_seed_s_rate_is_the_mean_of_its_last_three_evaluations(compare):
    steps = [700_000, 800_000, 900_000, 1_000_000]
    rows = pd.DataFrame({"task": TASK, "algorithm": "ReBRAC", "seed": 3, "step": steps})
    rates = compare.rates(rows.assign(score=[0.0, 90.0, 93.0, 96.0]))
    assert rates.reset_index()[["seed", "score", "step"]].values.tolist() == [[3, 93, 1_000_000]]


def test_what_was_packed_is_the_dataset_again(on_gpu, tmp_path):
    dataset = tasks.resolve("corerl/pendulum").load()
    on_gpu.pack("corerl/pendulum", tmp_path / "packed.npz")
    with np.load(tmp_path / "packed.npz") as arrays:
        again = on_gpu.unpacked("corerl/pendulum", dict(arrays))
    for field in fields(dataset):
        np.testing.assert_equal(getattr(again, field.name), getattr(dataset, field.name))


def test_policies_are_written_for_another_machine(on_gpu, tmp_path):
    on_gpu.pack("corerl/pendulum", tmp_path / "packed.npz")
    on_gpu.train("rebrac", TASK, tmp_path / "packed.npz", tmp_path / "out", 2, "cpu", 4)
    saved = torch.load(tmp_path / "out" / "rebrac-4.pt", weights_only=True)
    assert (saved["step"], saved["seeds"]) == (4, [0, 1])
    cfg = on_gpu.settings("rebrac", TASK).algo
    fresh = ReBRAC(cfg, Spec(3, 1, generators([0, 1], "init"))).actor
    before = fresh.state_dict()["layers.0.weight"].clone()
    fresh.load_state_dict(saved["policy"])
    moved = (fresh.state_dict()["layers.0.weight"] - before).abs().max()
    assert 0 < moved <= 4 * cfg.actor_lr
