"""What a report makes of score files: of steps they leave out, constant, small and best scores."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from wording import refused, says

from corerl.report import stats
from corerl.report.our_tables import cells
from corerl.report.page_data import _jsonable
from corerl.report.published_tables import difference


def write(path, *columns: str, head: str = "algorithm,task,seed,score,step"):
    """Writes a file of rows `A,x/t,SEED,...` given without their seeds; gives its path."""
    rows = []
    for text in columns:
        name, task, scores, *rest = text.split(",")
        for seed, score in enumerate(scores.split()):
            rows.append(",".join([name, task, str(seed), score, *rest]))
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def data(out) -> dict:
    text = (out / "index.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_unknown_steps_beside_known_ones_are_unequal(report, tmp_path):
    known = write(tmp_path / "a.csv", "A,x/t,1 2 3 4 5,1000", "B,x/t,1 2 3 4 6,1000")
    assert report(known)[2].count("*") > 1
    unknown = tmp_path / "b.csv"
    unknown.write_text("algorithm,task,seed,score\nA,x/t,5,3\n")
    _, out, text, _ = report(known, unknown)
    assert "(n=6, 1k or" in text and "unknown steps)" in text  # in one line on a wide terminal
    assert "P(A > B)" not in text
    says(text, "unknown")
    assert not [line for line in text.splitlines() if line.startswith("t ") and "*" in line]
    assert ",6,1000-?," in (out / "x" / "scores.csv").read_text()


@pytest.mark.parametrize(
    ("last", "pretrained", "budget"),
    [
        ([0, 0], 0, ()),
        ([0, 0], 500, (0,)),  # they learned from data and made no step yet
        ([-100, 1000], 500, (0, 1000)),
        ([0, 1000], 0, (1000, None)),
    ],
)
def test_no_step_yet_is_a_known_number_of_steps(last, pretrained, budget):
    runs = pd.DataFrame({"score": [1.0, 2.0], "last_step": last, "pretrained": pretrained})
    (cell,) = cells(runs.assign(algorithm="A", task="x/t")).values()
    assert cell.budget == budget


@pytest.mark.parametrize("metric", stats.METRICS)
@pytest.mark.parametrize("score", [52.9, 0.7, 100.1, -1e4 / 3])
def test_constant_scores_have_no_width(score, metric):
    rows = [("A", task, seed, score) for task in "xyz" for seed in range(7)]
    table = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "score"])
    e = stats.estimate(table, metric, gamma=100.0, replicates=300)
    assert e.low == e.high == pytest.approx(e.value, abs=1e-9)
    table.loc[0, "score"] += 1e-6
    e = stats.estimate(table, "mean", replicates=300)
    assert e.low < e.high


@pytest.mark.parametrize("score", [0.7, 52.9])
def test_seeds_that_are_all_alike_have_no_spread(score):
    for count in range(2, 12):
        runs = pd.DataFrame({"score": [score] * count, "last_step": 1, "pretrained": 0})
        (cell,) = cells(runs.assign(algorithm="A", task="x/t")).values()
        assert (cell.value, cell.std, cell.low, cell.high) == (score, 0.0, score, score)
        theirs = pd.Series({"mean": 0.8, "std": np.nan, "seeds": np.nan, "ddof": np.nan})
        assert difference(cell, theirs) == ""
    low, high = stats.mean_interval(np.array([[score, 1.0], [score, 2.0], [score, 3.0]]))
    assert low[0] == high[0] == score and low[1] < 2.0 < high[1]


def test_small_returns_are_no_zeros(report, tmp_path):
    file = write(
        tmp_path / "a.csv", "A,x/t,0.0048 0.005 0.0052,9", head="algorithm,task,seed,return,step"
    )
    _, out, text, _ = report(file)
    assert "0.0050 ± 0.0002" in text
    assert "0.0050 <sub>± 0.0002</sub>" in (out / "x-raw" / "scores.md").read_text()
    assert r"0.0050 \textcolor{gray}{$\pm$ 0.0002}" in (out / "x-raw" / "scores.tex").read_text()
    assert 'data-digits="4"' in (out / "index.html").read_text()


def test_the_page_has_the_scores_of_runs_exactly(report, tmp_path):
    _, out, _, _ = report(write(tmp_path / "a.csv", "A,x/t,12345678.9 12345678.8,9"))
    assert [run["score"] for run in data(out)["sections"][0]["runs"]] == [12345678.9, 12345678.8]
    assert _jsonable([1.23456789012345, np.float64("nan")], 7) == [1.234568, None]


def test_a_file_of_best_scores_is_not_read_as_one_of_last_scores(report, tmp_path):
    rows = ["A,x/t,90 80,1000", "A,x/t,50 70,2000", "B,x/t,10 20,2000"]
    _, out, first, _ = report(write(tmp_path / "runs.csv", *rows), "--best")
    again = (out / "scores.csv").rename(tmp_path / "again.csv")
    assert report(again, "--best")[2].split("Wrote")[0] == first.split("Wrote")[0]
    with refused("again.csv"):
        report(again)
    _, out, *_ = report(tmp_path / "runs.csv")
    assert "evaluation" not in (out / "scores.csv").read_text()


def test_a_report_of_two_units_of_one_task_reads_its_own_scores_back(report, tmp_path):
    write(tmp_path / "a.csv", "A,x/t,1 2,1000")
    raw = write(tmp_path / "b.csv", "A,x/t,700 800,1000", head="algorithm,task,seed,return,step")
    _, out, first, _ = report(tmp_path / "a.csv", raw)
    again = (out / "scores.csv").rename(tmp_path / "again.csv")
    assert report(again)[2].split("Wrote")[0] == first.split("Wrote")[0]


def test_thinned_curves_keep_the_steps_that_tasks_share(report, tmp_path):
    """Each task thinned by itself, from its own end, had none in common with the other."""
    rows = ["algorithm,task,seed,score,step"]
    for task, count in (("t", 300), ("u", 201)):
        rows += [f"A,x/{task},{s},{s + k},{1000 * k}" for s in (0, 1) for k in range(1, count + 1)]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(rows) + "\n")
    _, out, *_ = report(file)
    longer, shorter = (set(c["steps"]) for c in data(out)["sections"][0]["curves"])
    assert len(longer & shorter) > 50
    assert (max(longer), max(shorter)) == (300_000, 201_000)


@pytest.mark.parametrize("unit", ["normalised", "Normalised", ""])
def test_a_return_never_stands_for_a_score_that_is_missing(report, tmp_path, unit):
    file = tmp_path / "a.csv"
    head = "algorithm,task,seed,score,return,unit"
    file.write_text(f"{head}\nA,x/t,0,50,500,\nA,x/t,1,,480,{unit}\n")
    with refused("3"):
        report(file)
