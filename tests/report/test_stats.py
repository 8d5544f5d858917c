import math

import numpy as np
import pandas as pd
import pytest
from rliable import library, metrics
from scipy import stats as scipy_stats
from wording import refused

from corerl.report import scorefiles, stats
from corerl.risk import measures

RLIABLE = {
    "iqm": metrics.aggregate_iqm,
    "median": metrics.aggregate_median,
    "mean": metrics.aggregate_mean,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def tidy(scores: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """{algorithm: {task: scores by seed}} as a score table."""
    rows = [
        (algorithm, task, seed, score)
        for algorithm, tasks in scores.items()
        for task, values in tasks.items()
        for seed, score in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["algorithm", "task", "seed", "score"])


def random_scores(rng: np.random.Generator, seeds: int, tasks: int) -> np.ndarray:
    """(seeds, tasks) with ties, with tasks of different level and spread."""
    spread = rng.uniform(0.05, 0.5, tasks)
    return np.round(rng.normal(np.linspace(0, 1.2, tasks), spread, (seeds, tasks)), 1)


def of_matrix(name: str, matrix: np.ndarray) -> pd.DataFrame:
    return tidy({name: {f"t{i:03}": list(column) for i, column in enumerate(matrix.T)}})


def iqm(table: pd.DataFrame) -> float:
    return stats.estimate(table, "iqm", replicates=0).value


@pytest.mark.parametrize("metric", stats.METRICS)
@pytest.mark.parametrize("shape", [(10, 15), (3, 1), (5, 7), (1, 4), (2, 3)])
def test_point_estimates_equal_rliable(metric, shape):
    matrix = random_scores(np.random.default_rng(1), *shape)
    expected = RLIABLE[metric](matrix)
    found = stats.estimate(of_matrix("A", matrix), metric, replicates=0).value
    assert found == pytest.approx(expected, abs=1e-12)


def test_optimality_gap_takes_its_threshold():
    matrix = 100 * random_scores(np.random.default_rng(2), 5, 6)
    expected = metrics.aggregate_optimality_gap(matrix, gamma=100)
    found = stats.estimate(of_matrix("A", matrix), "optimality_gap", gamma=100, replicates=0)
    assert found.value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("shapes", [((10, 15), (10, 15)), ((4, 6), (7, 6)), ((1, 2), (1, 2))])
def test_probability_of_improvement_equals_rliable(shapes):
    rng = np.random.default_rng(3)
    x, y = (random_scores(rng, *shape) for shape in shapes)
    table = pd.concat([of_matrix("X", x), of_matrix("Y", y)])
    found = stats.probability_of_improvement(table, "X", "Y", replicates=0)
    assert found.value == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-12)
    assert found.tasks == shapes[0][1]


def test_profiles_equal_rliable():
    matrix = random_scores(np.random.default_rng(4), 8, 9)
    taus = np.linspace(-0.5, 1.5, 21)  # meets scores exactly, where > and >= differ
    expected = library.score_distributions(matrix, taus)
    found = stats.profiles(of_matrix("A", matrix), taus)
    np.testing.assert_allclose(found["value"], expected, rtol=0, atol=1e-12)
    assert (found["low"] <= found["value"] + 1e-12).all()
    assert (found["high"] >= found["value"] - 1e-12).all()


# An end of a percentile interval estimated from B replicates has the standard error
# sqrt(p (1 - p) / B) / density; with a normal density at the 2.5% point that is 2.67 s / sqrt(B),
# where s is the replicates' standard deviation. Two independent ends differ by less than four such
# errors (summed in quadrature) but once in 16,000 times; the seeds are fixed besides.
def close(ours, theirs, ours_count, theirs_count):
    spread = (theirs[1] - theirs[0]) / (2 * 1.96)
    error = 2.67 * spread * math.sqrt(1 / ours_count + 1 / theirs_count)
    assert np.abs(np.subtract(ours, theirs)).max() < 4 * error


@pytest.mark.parametrize("metric", stats.METRICS)
def test_intervals_equal_rliables(metric):
    rng = np.random.default_rng(5)
    matrix = rng.normal(np.linspace(0, 1.2, 12), 0.3, (10, 12))
    np.random.seed(0)  # noqa: NPY002  rliable draws from the global state
    _, theirs = library.get_interval_estimates(
        {"A": matrix}, lambda m: np.array([RLIABLE[metric](m)]), reps=2000
    )
    e = stats.estimate(of_matrix("A", matrix), metric, replicates=20_000)
    close((e.low, e.high), theirs["A"].ravel(), 20_000, 2000)


def test_interval_of_the_probability_of_improvement_equals_rliables():
    rng = np.random.default_rng(6)
    x, y = rng.normal(0.1, 0.5, (8, 6)), rng.normal(0.0, 0.5, (5, 6))
    np.random.seed(0)  # noqa: NPY002
    _, theirs = library.get_interval_estimates(
        {"XY": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=500
    )
    table = pd.concat([of_matrix("X", x), of_matrix("Y", y)])
    e = stats.probability_of_improvement(table, "X", "Y", replicates=20_000)
    close((e.low, e.high), theirs["XY"].ravel(), 20_000, 500)


def test_bands_of_profiles_equal_rliables():
    matrix = np.random.default_rng(7).normal(np.linspace(0, 1.2, 6), 0.3, (5, 6))
    taus = np.array([0.3, 0.6, 0.9])
    np.random.seed(0)  # noqa: NPY002
    _, theirs = library.create_performance_profile({"A": matrix}, taus, reps=2000)
    ours = stats.profiles(of_matrix("A", matrix), taus, replicates=20_000)
    # the replicates live on a grid of 1/30, so ends may differ by one of its steps
    assert np.abs(ours[["low", "high"]].to_numpy().T - theirs["A"]).max() < 1 / 30 + 1e-9


@pytest.mark.parametrize(
    ("scores", "cut", "expected"),
    [
        ({"A": {"t": [1, 2], "s": [3, 4]}}, False, {"A": [[3, 1], [4, 2]]}),
        ({"A": {"t": [1, 2, 3]}, "B": {"t": [4]}}, False, {"A": [[1], [2], [3]], "B": [[4]]}),
        ({"A": {"t": [1, 2, 3], "u": [4, 5]}}, True, {"A": [[1, 4], [2, 5]]}),
        (
            {"A": {"t": [1, 2], "u": [3, 4]}, "B": {"t": [5, 6], "u": [7]}},
            True,
            {"A": [[1, 3], [2, 4]], "B": [[5, 7]]},
        ),
    ],
)
@pytest.mark.parametrize("kind", ["object", "category"])
def test_rliables_matrices_are_runs_by_tasks_in_any_order_of_rows(scores, cut, expected, kind):
    table = tidy(scores).sample(frac=1, random_state=0).astype({"task": kind, "algorithm": kind})
    found = stats.to_rliable(table, cut=cut)
    assert {name: matrix.tolist() for name, matrix in found.items()} == expected
    assert all(matrix.dtype == np.float64 for matrix in found.values())


def test_rliables_matrices_take_seeds_of_any_name():
    table = tidy({"A": {"t": [1.0, 2.0], "u": [3.0, 4.0]}}).assign(seed=[7, 3, 100, 20])
    assert stats.to_rliable(table)["A"].tolist() == [[2.0, 4.0], [1.0, 3.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.iloc[1:], "1 2 seeds cut=True"),
        (lambda t: t[~((t["algorithm"] == "B") & (t["task"] == "u"))], "B u"),
        (lambda t: t.assign(unit=["raw", *["normalised"] * 7]), "units"),
        (lambda t: pd.concat([t.assign(step=1), t.assign(step=2)]), "steps"),
        (lambda t: t.assign(score=np.nan), "0 nan"),
    ],
)
def test_tables_that_are_no_matrices_are_refused(change, message):
    table = tidy({a: {"t": [1.0, 2.0], "u": [3.0, 4.0]} for a in "AB"})
    with refused(message):
        stats.to_rliable(change(table))


def test_same_seed_same_interval_other_seed_another():
    table = of_matrix("A", random_scores(np.random.default_rng(8), 6, 5))
    one, again, other = (stats.estimate(table, seed=s, replicates=500) for s in (0, 0, 1))
    assert one == again
    assert one.low != other.low


def test_rows_may_come_in_any_order():
    table = of_matrix("A", random_scores(np.random.default_rng(9), 6, 5))
    assert stats.estimate(table.sample(frac=1, random_state=0)).value == iqm(table)


def test_unequal_seeds_have_rliables_estimate_of_repeated_runs():
    """The IQM cuts int(11 / 4) of 11 runs: 36 of 198 where all tasks have 66 seeds."""
    rng = np.random.default_rng(15)
    columns = [np.round(rng.normal(i, 1, n), 1) for i, n in enumerate((2, 3, 6))]
    table = tidy({"A": {f"t{i}": list(column) for i, column in enumerate(columns)}})
    repeated = np.stack([np.repeat(column, 66 // len(column)) for column in columns], axis=1)
    for metric in ("median", "mean", "optimality_gap"):
        found = stats.estimate(table, metric, replicates=0).value
        assert found == pytest.approx(RLIABLE[metric](repeated), abs=1e-12)
    middle = np.sort(repeated, axis=None)[36:-36]
    assert iqm(table) == pytest.approx(middle.mean(), abs=1e-12)
    assert metrics.aggregate_iqm(repeated) != pytest.approx(middle.mean(), abs=1e-3)


# Of 3, 3 and 5 normal scores, as computed before rliable did.
@pytest.mark.parametrize(
    ("metric", "value", "low", "high"),
    [
        ("iqm", 1.2668304551204272, 0.7506558947175161, 1.825870560921016),
        ("median", 1.6370820423606998, 0.6303841657130845, 2.084225669216795),
        ("mean", 1.2722487224780634, 0.7935439643807307, 1.717411711488668),
        ("optimality_gap", 0.289337633230509, 0.042798820094471, 0.5534392254349605),
    ],
)
def test_estimates_and_intervals_of_unequal_seeds_stay(metric, value, low, high):
    rng = np.random.default_rng(16)
    table = tidy({"A": {f"t{i}": rng.normal(i, 1, n) for i, n in enumerate((3, 3, 5))}})
    found = stats.estimate(table, metric, replicates=1000)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), abs=1e-12)


@pytest.mark.parametrize("metric", stats.METRICS)
def test_algorithms_of_the_same_scores_are_level_to_the_last_bit(metric):
    matrix = np.random.default_rng(17).normal(50, 20, (10, 15))
    other = np.random.default_rng(18).permuted(matrix, axis=0)
    values = [
        stats.estimate(of_matrix("A", m), metric, gamma=100, replicates=0).value
        for m in (matrix, other)
    ]
    assert values[0] == values[1]


def test_ragged_tasks_count_equally():
    table = tidy({"A": {"easy": [1.0] * 9, "hard": [0.0, 0.2, 0.4]}})
    assert stats.estimate(table, "mean").value == pytest.approx((1.0 + 0.2) / 2)
    # cut 3 of 12 runs' worth of weight on each side: half of each task remains
    e = stats.estimate(table)
    assert e.value == pytest.approx((1.0 + (0.5 * 0.2 + 1 * 0.4) / 1.5) / 2)
    assert (e.tasks, e.runs, e.seeds, e.n) == (2, 12, (3, 9), "3-9")


def test_repeating_every_seed_changes_no_estimate():
    few = tidy({"A": {"t0": [0.1, 0.9], "t1": [0.4, 0.6], "t2": [0.0, 1.5], "t3": [0.3, 0.7]}})
    many = tidy({"A": {t: list(g["score"]) * 3 for t, g in few.groupby("task")}})
    mixed = tidy(
        {"A": {t: list(g["score"]) * (3 if t < "t2" else 1) for t, g in few.groupby("task")}}
    )
    for metric in stats.METRICS:
        values = [stats.estimate(t, metric, replicates=0).value for t in (few, many, mixed)]
        np.testing.assert_allclose(values, values[0], atol=1e-12)


def test_ragged_interval_covers_what_it_should():
    """Coverage of the mean's interval over 300 made-up experiments, binomial error 1.3%."""
    rng = np.random.default_rng(10)
    hits = 0
    for i in range(300):
        table = tidy({"A": {"t0": rng.normal(2, 1, 25), "t1": rng.normal(-1, 1, 40)}})
        e = stats.estimate(table, "mean", replicates=400, seed=i)
        hits += e.low <= 0.5 <= e.high
    assert 0.90 < hits / 300 < 0.985


def test_a_single_seed_has_no_interval():
    table = tidy({"A": {"t0": [0.1, 0.2], "t1": [0.5]}, "B": {"t0": [0.3, 0.1], "t1": [0.2]}})
    e = stats.estimate(table, algorithm="A")
    assert e.value == iqm(table[table["algorithm"] == "A"])
    assert math.isnan(e.low) and math.isnan(e.high)
    assert math.isnan(stats.probability_of_improvement(table, "A", "B").low)
    assert stats.profiles(table, np.array([0.0]))["low"].isna().all()
    assert all(map(math.isnan, stats.mean_interval(np.array([1.0]))))


def test_nan_is_refused_by_name():
    table = tidy({"IQL": {"hopper": [1.0, math.nan]}})
    with refused("IQL 1 nan"):
        stats.estimate(table)


@pytest.mark.parametrize("value", [math.nan, None])
@pytest.mark.parametrize("column", ["algorithm", "task", "seed"])
@pytest.mark.parametrize("use", [stats.estimate, stats.final])
def test_a_run_without_a_name_is_refused_and_drops_no_row(use, column, value):
    table = tidy({"A": {"t0": [100.0, 200.0]}}).assign(step=10).astype({column: object})
    table.loc[1, column] = value
    with refused(f"1 {column}"):
        use(table)


@pytest.mark.parametrize("value", [math.nan, math.inf, "n/a", "300", None, pd.NA])
@pytest.mark.parametrize("column", ["score", "step"])
@pytest.mark.parametrize("use", [stats.estimate, stats.final])
def test_a_score_or_step_that_is_no_finite_number_is_refused_by_name(use, column, value):
    table = tidy({"A": {"t0": [100.0, 200.0]}}).assign(step=10).astype({column: object})
    table.loc[1, column] = value
    with refused(f"{column} t0 1 {value}"):
        use(table)


def test_algorithms_and_tasks_may_be_called_na(tmp_path):
    file = tmp_path / "scores.csv"
    file.write_text("algorithm,task,seed,score\nNA,None,0,1.0\nNA,None,1,2.0\nnan,None,0,3.0\n")
    table = scorefiles.read_file(file)
    assert stats.final(table)["algorithm"].tolist() == ["NA", "NA", "nan"]
    assert set(table["task"]) == {"None"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="seed"), "seed"),
        (lambda t: t.iloc[:0], "rows"),
        (lambda t: pd.concat([t, t.iloc[:1]]), "t0 0"),
        (lambda t: pd.concat([t, t.assign(algorithm="B")]), "one"),
        (lambda t: t.assign(score=np.inf), "inf"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with refused(message):
        stats.estimate(change(tidy({"A": {"t0": [0.1, 0.2]}})))


ESTIMATES = [
    stats.aggregate,
    lambda table: stats.profiles(table, np.array([1.0])),
    lambda table: stats.curves(table.assign(step=1)),
]


@pytest.mark.parametrize("use", ESTIMATES)
def test_algorithms_of_different_tasks_have_no_estimates_side_by_side(use):
    table = tidy({"IQL": {"easy": [9.0, 8.0], "hard": [1.0, 2.0]}, "BC": {"easy": [5.0, 6.0]}})
    with refused("BC"):
        use(table)
    assert len(use(table[table["task"] == "easy"])["algorithm"].unique()) == 2


@pytest.mark.parametrize("use", [*ESTIMATES, iqm])
def test_units_are_never_pooled(use):
    table = tidy({"BC": {"x": [50.0, 60.0], "y": [500.0, -900.0]}})
    table["unit"] = table["task"].map({"x": "normalised", "y": "raw"})
    with refused("units normalised raw"):
        use(table)
    use(table[table["unit"] == "raw"])


def test_a_probability_of_improvement_needs_one_unit_on_each_task():
    table = tidy({a: {"x": [50.0, 60.0], "y": [500.0, -900.0]} for a in ("A", "B")})
    table["unit"] = table["task"].map({"x": "normalised", "y": "raw"})
    assert stats.probability_of_improvement(table, "A", "B").value == 0.5
    table.loc[(table["algorithm"] == "B") & (table["task"] == "x"), "unit"] = "raw"
    with refused("units"):
        stats.probability_of_improvement(table, "A", "B")


def test_names_that_do_not_exist_are_refused():
    table = tidy({"ReBRAC": {"t0": [0.1, 0.2]}, "IQL": {"t1": [0.1, 0.2]}})
    with refused("ReBRAC"):
        stats.estimate(table, algorithm="RebRAC")
    with refused("iqr"):
        stats.estimate(table, "iqr", "IQL")
    with refused("t0"):
        stats.probability_of_improvement(table, "ReBRAC", "IQL")


def test_final_and_best_take_one_row_per_run():
    rows = [("A", "t", s, k, v) for s, k, v in [(0, 1, 5.0), (0, 2, 3.0), (1, 2, 4.0), (1, 1, 1.0)]]
    table = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    table.index = [0, 0, 1, 1]  # as left behind by a concat
    assert list(stats.final(table)["score"]) == [3.0, 4.0]
    assert list(stats.best(table)["score"]) == [5.0, 4.0]
    with refused("steps"):
        stats.estimate(table)


def test_curves_use_steps_that_all_runs_have():
    rows = [("A", t, s, k, k * 1.0) for t in "tu" for s in (0, 1) for k in (10, 20)]
    rows.append(("A", "t", 0, 30, 99.0))
    table = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])
    found = stats.curves(table)
    assert list(found["step"]) == [10, 20]
    assert list(found["value"]) == [10.0, 20.0]
    gaps = stats.curves(table, "optimality_gap", gamma=100.0)
    assert list(gaps["value"]) == [90.0, 80.0]


def test_cvar_splits_the_boundary_sample():
    samples = np.array([5.0, 1.0, 3.0, 2.0, 4.0])
    assert measures.cvar(samples, 0.5) == pytest.approx((1 + 2 + 0.5 * 3) / 2.5)
    assert measures.cvar(samples, 0.1) == 1.0
    assert measures.cvar(samples, 1.0) == pytest.approx(3.0)


def test_cvar_is_the_integral_of_the_quantile_function():
    samples = np.random.default_rng(11).gumbel(size=37)
    grid = (np.arange(200_000) + 0.5) / 200_000 * 0.23
    integral = np.quantile(samples, grid, method="inverted_cdf").mean()
    assert measures.cvar(samples, 0.23) == pytest.approx(integral, abs=1e-4)


def test_the_cvar_interval_of_one_seed_against_resampling_by_hand():
    samples = np.random.default_rng(12).normal(size=60)
    rng = np.random.default_rng(13)
    by_hand = [measures.cvar(rng.choice(samples, 60), 0.25) for _ in range(4000)]
    found = stats.cvar_of_seeds([samples], 0.25)[1:]
    close(found, np.percentile(by_hand, [2.5, 97.5]), 50_000, 4000)


@pytest.mark.parametrize("samples", [[], [[1.0]], [math.nan]])
def test_cvar_refuses_bad_samples(samples):
    with refused("finite sample"):
        measures.cvar(np.array(samples), 0.1)


@pytest.mark.parametrize("tau", [0.0, 1.1, math.nan])
def test_cvar_refuses_bad_fractions(tau):
    with refused("0 < tau <= 1"):
        measures.cvar(np.ones(3), tau)


def test_t_and_welch_intervals_equal_scipys():
    rng = np.random.default_rng(14)
    x, y = rng.normal(0, 1, 10), rng.normal(0.5, 2, 4)
    expected = scipy_stats.ttest_1samp(x, 0.0).confidence_interval()
    np.testing.assert_allclose(stats.mean_interval(x), expected)
    found = stats.welch_interval(x.mean(), x.std(ddof=1), 10, y.mean(), y.std(ddof=1), 4)
    expected = scipy_stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    np.testing.assert_allclose(found, tuple(expected))
    assert stats.welch_interval(1.0, 0.0, 3, 2.0, 0.0, 3) == (-1.0, -1.0)
    expected = scipy_stats.ttest_1samp(x, 0.0).confidence_interval(0.8)
    np.testing.assert_allclose(stats.mean_interval(x, 0.8), expected)
    found = stats.welch_interval(x.mean(), x.std(ddof=1), 10, y.mean(), y.std(ddof=1), 4, 0.8)
    expected = scipy_stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.8)
    np.testing.assert_allclose(found, tuple(expected))


@pytest.mark.parametrize(("level", "ends"), [(0.95, (0.0, 2.0)), (0.4, (1.0, 1.0))])
def test_a_bootstrap_interval_is_of_the_level_that_is_asked_for(level, ends):
    """A quarter of all replicates is 0, half of them 1, a quarter 2."""
    table = tidy({"A": {"t": [0.0, 2.0]}, "B": {"t": [1.0, 1.0]}})
    one = stats.estimate(table, "mean", "A", level=level)
    improved = stats.probability_of_improvement(table, "A", "B", level=level)
    assert (one.low, one.high) == (2 * improved.low, 2 * improved.high) == ends


def test_a_band_is_as_wide_beside_a_score_that_exploded():
    for largest in (95.0, 1e13):
        (row,) = stats.profiles(
            tidy({"A": {"t": [10.0, 50.0, 90.0, largest]}}), [60.0]
        ).itertuples()
        assert (row.low, row.high) == (0.0, 1.0)
