"""`make demo`: its sweeps, and that it can show what it is for."""

import re
from pathlib import Path

import pytest
import yaml

from corerl.cli import main
from corerl.config import seed_list
from corerl.launch.composition import cells
from corerl.report.load import load

ROOT = Path(__file__).parents[2]
DEMO = re.search(r"^demo: \$.*?\n\n", (ROOT / "Makefile").read_text(), re.M | re.S).group()
SWEEPS = re.findall(r"train sweep=(\w+)", DEMO)


def test_every_sweep_has_five_seeds_below_the_folder_that_is_reported():
    (reported,) = re.findall(r"corerl report (\S+)", DEMO)
    assert len(SWEEPS) == 2
    for name in SWEEPS:
        assert {tuple(seed_list(job.seeds)) for job in cells([f"sweep={name}"])} == {
            tuple(range(5))
        }
        text = (ROOT / "sweeps" / f"{name}.yaml").read_text()
        assert yaml.safe_load(text)["root"] == reported
        assert f"#   corerl train sweep={name}\n#   corerl report {reported}" in text


def test_three_algorithms_on_two_tasks_that_need_no_download():
    jobs = cells(["sweep=demo"])
    assert len({(job.label or job.algo.label, job.task) for job in jobs}) == len(jobs) == 6
    assert {job.task for job in jobs} == {"corerl/maze-stitch", "corerl/pendulum"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["corerl/maze-stitch", "corerl/pendulum"])
def test_offline_rl_beats_cloning_with_every_seed(tmp_path, task):
    command = ["train", "sweep=demo", "algo=bc,awac", f"task={task}", "seeds=[100,101]"]
    assert main([*command, f"root={tmp_path}"]) == 0
    scores = load([str(tmp_path)]).scores.query("step == 5000").groupby("algorithm")["score"]
    assert scores.min()["AWAC"] > 90 > 60 > scores.max()["BC"]
