"""OGBench's page: its table is that of its rows."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "ogbench"
TASK = "ogbench/cube-single-play-singletask-v0"


@pytest.fixture(scope="module")
def compare():
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "compare.py")))


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
