"""The page of SAC's million steps: its rows are the runs', and its tables are those of its rows."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from trees import write_run

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "sac"


@pytest.fixture(scope="module")
def compare():
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "compare.py")))


def test_rows_are_a_run_s_own_with_its_first_weights_and_training_episodes(compare, tmp_path):
    changed = {"old": {}, "new": {"init": "glorot"}, "fixed": {"learn_temperature": False}}
    for name, algo in changed.items():
        group = write_run(
            tmp_path / name, "gym/X-v4", "SAC", seeds=(3, 4), steps=2000, state="running"
        )
        file = group.parent / "config.yaml"
        settings = yaml.safe_load(file.read_text()) | {"seeds": [3, 4], "label": None}
        settings["algo"] |= {"label": "SAC"} | algo
        file.write_text(yaml.safe_dump(settings))
        steps = range(500, 3000, 500)  # those after the last evaluation belong to none
        lines = [{"step": k, "seed": s, "episode_return": s * k} for k in steps for s in (3, 4)]
        (group / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    rows = compare.collect(tmp_path)
    names = ["SAC as Tianshou's", "SAC init=glorot", "SAC init=torch"]
    assert rows["algorithm"].tolist() == [name for name in names for _ in range(4)]
    assert rows["return"].tolist() == [280.0, 530.0, 290.0, 540.0] * 3
    assert rows["training"].tolist() == [3 * 750.0, 3 * 1750.0, 4 * 750.0, 4 * 1750.0] * 3


def test_the_page_s_tables_are_those_of_its_rows(compare):
    ours, page = pd.read_csv(FOLDER / "curves.csv"), (FOLDER / "README.md").read_text()
    for line in compare.table(ours, compare.published()).splitlines():
        assert not line.startswith("|") or line in page


def test_published_means_are_those_of_the_published_curves(compare):
    last = pd.read_csv(compare.THEIRS).query("step == 1_000_000").groupby("task")["return"]
    table = pd.read_csv(FOLDER.parents[1] / "published/published.csv")
    theirs = table["source"].str.startswith(("SimbaV2 (", "Tianshou ("))
    rows = table[theirs].set_index("task")
    assert rows["mean"].to_dict() == pytest.approx(last.mean().round(2).to_dict())
    assert rows["std"].to_dict() == pytest.approx(last.std().round(2).to_dict())
    assert (last.size() == 10).all() and (rows["seeds"] == 10).all()
