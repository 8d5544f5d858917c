"""Published tables and estimates recomputed from other people's scores of single runs."""

import math

import numpy as np
import pandas as pd
import pytest
from rliable import library, metrics

from corerl.report import stats
from corerl.report.published import read_published
from corerl.report.scorefiles import read_d3rlpy_curves, read_rebrac_profiles

ALGORITHMS = ("ReBRAC", "TD3+BC", "IQL", "SAC-RND")


@pytest.fixture(scope="module")
def rebrac(shared):
    """Without units: the paper pools AntMaze's success with returns."""
    runs = read_rebrac_profiles(shared / "data/scores/rebrac/profiles_data.json.gz")
    return runs.drop(columns="unit")


def matrix(table: pd.DataFrame, algorithm: str) -> np.ndarray:
    """(seeds, tasks)"""
    rows = table[table["algorithm"] == algorithm]
    return rows.pivot(index="seed", columns="task", values="score").to_numpy()


def test_rebrac_file_is_read_in_full(rebrac):
    assert rebrac.groupby("algorithm")["task"].nunique().to_dict() == {
        "ReBRAC": 28,
        "TD3+BC": 36,
        "IQL": 36,
        "SAC-RND": 36,
    }
    assert (rebrac.groupby(["algorithm", "task"]).size() == 10).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rebrac_estimates_and_profiles_equal_rliable(rebrac, algorithm):
    scores = matrix(rebrac, algorithm)
    expected = {
        "iqm": metrics.aggregate_iqm(scores),
        "median": metrics.aggregate_median(scores),
        "mean": metrics.aggregate_mean(scores),
        "optimality_gap": metrics.aggregate_optimality_gap(scores, gamma=100),
    }
    for metric, value in expected.items():
        found = stats.estimate(rebrac, metric, algorithm, gamma=100.0, replicates=0).value
        assert found == pytest.approx(value, abs=1e-12)
    taus = np.linspace(-10, 150, 161)
    profile = stats.profiles(rebrac[rebrac["algorithm"] == algorithm], taus, replicates=0)
    expected = library.score_distributions(scores, taus)
    np.testing.assert_allclose(profile["value"], expected, rtol=0, atol=1e-12)


def test_rebrac_probability_of_improvement_equals_rliable(rebrac):
    tasks = rebrac.groupby("algorithm")["task"].agg(set)
    for other in ALGORITHMS[1:]:
        both = rebrac[rebrac["task"].isin(tasks["ReBRAC"] & tasks[other])]
        found = stats.probability_of_improvement(both, "ReBRAC", other, replicates=0)
        x, y = matrix(both, "ReBRAC"), matrix(both, other)
        assert found.value == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-12)


def cut(x: float) -> float:
    """How the ReBRAC paper prints: three decimals cut (not rounded) to one."""
    return math.trunc(round(round(x, 3) * 10, 6)) / 10


@pytest.mark.parametrize(
    ("algorithm", "means", "both", "cells"),
    [("ReBRAC", 25, 22, 28), ("TD3+BC", 36, 34, 36), ("IQL", 36, 36, 36)],
)
def test_rebrac_paper_prints_means_and_stds_cut_to_one_decimal(
    rebrac, algorithm, means, both, cells
):
    """How many cells of the paper's tables these runs give; the others are from other runs."""
    published = read_published("d4rl_offline")
    paper = published[published["source"].str.startswith("ReBRAC paper")]
    paper = paper[paper["algorithm"] == algorithm].set_index("task")
    groups = rebrac[rebrac["algorithm"] == algorithm].groupby("task")["score"]
    ours = groups.agg(mean=lambda g: cut(g.mean()), std=lambda g: cut(g.std(ddof=1)))
    theirs = paper.loc[ours.index]
    assert len(ours) == cells
    same_mean = ours["mean"] == theirs["mean"]
    assert same_mean.sum() == means
    assert (same_mean & (ours["std"] == theirs["std"])).sum() == both


# d3rlpy-benchmarks prints means and population stds (ddof 0) over 10 seeds, to one decimal. "final"
# is the last evaluation. "best" is each seed's maximum, without the first evaluation, and for PLAS
# (1,000 evaluations) without the first 500, while only its imitator trains.

D3RLPY = {"TD3+BC": "TD3PlusBC", "PLAS+P": "PLASWithPerturbation"}


def rows_for_best(curves: pd.DataFrame) -> pd.DataFrame:
    rank = curves.groupby(["algorithm", "task", "seed"])["step"].rank(method="first")
    return curves[rank > np.where(curves["algorithm"].str.startswith("PLAS"), 500, 1)]


def cells(runs: pd.DataFrame, column: str = "score") -> pd.DataFrame:
    groups = runs.groupby(["algorithm", "task"])[column]
    return pd.DataFrame({"mean": groups.mean(), "std": groups.std(ddof=0)})


def table(shared, name: str) -> pd.DataFrame:
    file = shared / "data/scores/d3rlpy_benchmarks" / f"{name}_table.csv"
    return pd.read_csv(file, dtype=str).replace({"algo": D3RLPY})


def agreeing(printed: pd.DataFrame, ours: dict[str, pd.DataFrame], keys: list) -> int:
    """How many printed fields equal ours: `ours` maps the first word(s) of a column to cells."""
    count = 0
    for words, found in ours.items():
        at = found.loc[keys]
        count += sum(a == f"{b:.1f}" for a, b in zip(printed[words[0]], at["mean"], strict=True))
        count += sum(a == f"{b:.1f}" for a, b in zip(printed[words[1]], at["std"], strict=True))
    return count


def test_d3rlpy_d4rl_table_exactly(shared):
    curves = read_d3rlpy_curves(shared / "data/scores/d3rlpy_benchmarks/curves.npz")
    reference = pd.read_csv(shared / "reference/published/d4rl_ref_scores.csv", index_col="env")
    reference.index = "d4rl/" + reference.index
    runs = {"final": stats.final(curves), "best": stats.best(rows_for_best(curves))}
    ours = {}
    for kind, rows in runs.items():
        low, high = (rows["task"].map(reference[c]) for c in ("min", "max"))
        rows = rows.assign(normalised=100 * (rows["score"] - low) / (high - low))
        ours[f"{kind} return", f"{kind} std"] = cells(rows)
        normalised = (f"{kind} normalized return", f"{kind} normalized std")
        ours[normalised] = cells(rows, "normalised")
    printed = table(shared, "d4rl")
    keys = list(
        zip(printed["algo"], "d4rl/" + printed["env"] + "-" + printed["dataset"], strict=True)
    )
    assert len(keys) == len(set(keys)) == 149
    assert agreeing(printed, ours, keys) == 149 * 8


def test_d3rlpy_atari_table_exactly(shared):
    curves = read_d3rlpy_curves(shared / "data/scores/d3rlpy_benchmarks/curves.npz", "atari")
    ours = {
        ("final return", "final std"): cells(stats.final(curves)),
        ("best return", "best std"): cells(stats.best(rows_for_best(curves))),
    }
    printed = table(shared, "atari")
    keys = list(zip(printed["algo"], "atari/" + printed["env"], strict=True))
    assert agreeing(printed, ours, keys) == 23 * 4


def test_d3rlpy_finetuning_table_exactly(shared):
    path = shared / "data/scores/d3rlpy_benchmarks/curves.npz"
    last = stats.final(read_d3rlpy_curves(path, "finetuning"))
    last = last.assign(score=100 * last["score"])  # success rates
    printed = table(shared, "finetuning")
    count = 0
    for phase in ("pretraining", "finetuning"):
        keys = list(zip(printed["algo"], f"finetuning/{phase}_" + printed["dataset"], strict=True))
        count += agreeing(printed, {(f"{phase} score", f"{phase} std"): cells(last)}, keys)
    assert count == 6 * 4


def test_the_first_evaluation_matters_for_best(shared):
    """With it, 17 of the 172 best cells differ: the rule above is no free choice."""
    path = shared / "data/scores/d3rlpy_benchmarks/curves.npz"
    different = 0
    for group, name in (("d4rl", "d4rl"), ("atari", "atari")):
        curves = read_d3rlpy_curves(path, group)
        every, without = cells(stats.best(curves)), cells(stats.best(rows_for_best(curves)))
        printed = table(shared, name)
        task = printed["env"] + ("-" + printed["dataset"] if name == "d4rl" else "")
        keys = list(zip(printed["algo"], f"{group}/" + task, strict=True))
        a, b = every.loc[keys].round(1), without.loc[keys].round(1)
        different += (a != b).any(axis=1).sum()
    assert different == 17
