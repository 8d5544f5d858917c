import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rliable import library, metrics
from trees import sections

from corerl.report import stats
from corerl.report.load import Results, load
from corerl.report.options import Options
from corerl.report.published import COLUMNS as PUBLISHED
from corerl.report.sections import Section

NOTHING = pd.DataFrame(columns=PUBLISHED)
REPLICATES = 200
RLIABLE = {
    "IQM": metrics.aggregate_iqm,
    "Median": metrics.aggregate_median,
    "Mean": metrics.aggregate_mean,
    "Optimality gap": lambda scores: metrics.aggregate_optimality_gap(scores, gamma=100),
}
EQUAL = {
    "A": {"x": 6, "y": 6, "z": 6},
    "B": {"x": 5, "y": 5, "z": 5},
    "C": {"x": 6, "y": 6, "z": 6},
}
UNEQUAL = {"A": {"x": 6, "y": 8}, "B": {"x": 7, "y": 7}, "C": {"x": 5, "y": 3}}


def scores(seeds: dict[str, dict[str, int]], collection: str = "d4rl") -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (a, f"{collection}/{t}", seed, 1000, rng.normal(50 + 5 * i, 10))
        for i, (a, tasks) in enumerate(seeds.items())
        for t, n in tasks.items()
        for seed in range(n)
    ]
    return pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])


@pytest.fixture(autouse=True)
def whole_lines(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def read(tmp_path):
    def of(table: pd.DataFrame) -> Results:
        file = tmp_path / "scores.csv"
        table.to_csv(file, index=False)
        return load([file])

    return of


def section_of(results: Results, **options) -> Section:
    usual = {"replicates": REPLICATES, "rliable": True}
    return sections(results, NOTHING, Options(**(usual | options)))[0]


def cells(section: Section) -> dict[str, tuple]:
    """{row: (ours, rliable's)}"""
    (table,) = [t for t in section.tables if t.name == "rliable"]
    assert [c.name for c in table.columns] == ["corerl [95% CI]", "rliable [95% CI]"]
    return {row.name: row.cells for row in table.rows}


@pytest.mark.parametrize("seeds", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_a_reviewer_gets_the_second_column_from_three_lines(read, seeds):
    section = section_of(read(scores(seeds)))
    found = cells(section)
    matrices = stats.to_rliable(section.pooled, cut=True)
    for name, function in RLIABLE.items():
        np.random.seed(0)  # noqa: NPY002  rliable draws from the global state
        values, ends = library.get_interval_estimates(
            matrices, lambda m, f=function: np.array([f(m)]), reps=REPLICATES
        )
        for algorithm in seeds:
            cell = found[f"{name}, {algorithm}"][1]
            assert cell.value == values[algorithm][0]
            np.testing.assert_array_equal([cell.low, cell.high], ends[algorithm].ravel())
    pairs = {(r.x, r.y): (matrices[r.x], matrices[r.y]) for r in section.improvement.itertuples()}
    assert len(pairs) == 2
    np.random.seed(0)  # noqa: NPY002
    values, ends = library.get_interval_estimates(
        pairs, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=REPLICATES
    )
    for x, y in pairs:
        cell = found[f"P({x} > {y})"][1]
        assert (cell.value, cell.low, cell.high) == (values[x, y][0], *ends[x, y].ravel())


def test_the_first_column_is_what_the_other_tables_show(read):
    section = section_of(read(scores(UNEQUAL)))
    known = {t.name: t for t in section.tables}
    found = cells(section)
    for row in known["scores"].rows:
        if row.aggregate:
            for algorithm, cell in zip(section.algorithms, row.cells, strict=True):
                ours = found[f"{row.name.removesuffix(' [95% CI]')}, {algorithm}"][0]
                assert (ours.value, ours.low, ours.high) == (cell.value, cell.low, cell.high)
                assert ours.n == cell.n
    for row in known["improvement"].rows:
        assert found[row.name][0] == row.cells[0]
    assert len(found) == 4 * 3 + 2


def test_with_equal_seeds_the_columns_differ_by_the_draws_alone(read):
    """An end of a 95% interval from B replicates has the standard error 2.67 s / sqrt(B)."""
    section = section_of(read(scores(EQUAL)), replicates=2000)
    for ours, theirs in cells(section).values():
        assert theirs.value == pytest.approx(ours.value, abs=1e-12)
        error = 2.67 * (ours.high - ours.low) / (2 * 1.96) * math.sqrt(2 / 2000)
        assert (
            np.abs(np.subtract([ours.low, ours.high], [theirs.low, theirs.high])).max() < 4 * error
        )


@pytest.mark.parametrize(
    ("seeds", "line"),
    [
        (EQUAL, None),
        ({"A": {"x": 4, "y": 4}, "B": {"x": 9, "y": 9}}, None),
        (UNEQUAL, "so it gets only the first seeds of each task: C 3 of 3-5, A 6 of 6-8."),
    ],
)
def test_one_line_says_which_seeds_are_left_out(report, tmp_path, seeds, line):
    file = tmp_path / "scores.csv"
    scores(seeds).to_csv(file, index=False)
    _, out, text, errors = report(file, "--rliable")
    reported = [one for one in text.splitlines() if one.startswith("rliable needs")]
    assert reported == (
        [f"rliable needs the same number of seeds on every task, {line}"] if line else []
    )
    assert errors == ""
    assert ("rliable needs" in (out / "index.html").read_text()) == bool(line)


def test_the_terminal_the_page_and_the_files_show_the_table(report, tmp_path):
    file = tmp_path / "scores.csv"
    scores(UNEQUAL).to_csv(file, index=False)
    _, out, without, _ = report(file)
    assert "rliable" not in without and not (out / "d4rl/rliable.csv").exists()
    _, out, text, _ = report(file, "--rliable")
    before, _, rest = text.partition("rliable's own intervals next to ours")
    assert without.startswith(before.rstrip()) and before.count("[95% CI]") == 5
    assert "IQM, C" in rest and "P(C > A)" in rest
    rows = pd.read_csv(out / "d4rl/rliable.csv")
    assert rows["column"].unique().tolist() == ["corerl [95% CI]", "rliable [95% CI]"]
    page = (out / "index.html").read_text()
    assert 'data-name="rliable"' in page and "IQM, C" in page and "--rliable" in page
    for cell in rows["value"]:
        assert f'data-value="{cell!r}"' in page


@pytest.mark.parametrize(
    ("best", "title"),
    [
        (False, "rliable's own intervals next to ours"),
        (True, "rliable's own intervals next to ours, best evaluation of every run"),
    ],
)
def test_its_title_says_that_the_best_evaluations_count(read, best, title):
    section = section_of(read(scores(UNEQUAL)), best=best)
    assert [t.title for t in section.tables if t.name == "rliable"] == [title]


@pytest.mark.parametrize(
    ("replicates", "reported"),
    [
        (60, "with 60 replicates, after numpy.random.seed(0)."),
        (61, "with 61 replicates (60 for probabilities), after numpy.random.seed(0)."),
    ],
)
def test_its_note_says_how_to_draw_the_same(read, monkeypatch, replicates, reported):
    monkeypatch.setattr("corerl.report.rliable_table.PAIR_REPLICATES", 60)
    section = section_of(read(scores(EQUAL)), replicates=replicates)
    (table,) = [t for t in section.tables if t.name == "rliable"]
    assert table.notes[0].startswith(
        "The second column comes from library.get_interval_estimates of rliable "
    )
    assert table.notes[0].endswith(reported)


def test_one_algorithm_of_one_seed_has_no_pairs_and_no_interval(report, tmp_path):
    file = tmp_path / "scores.csv"
    scores({"A": {"x": 1}}).to_csv(file, index=False)
    status, out, _, _ = report(file, "--rliable")
    lines = (out / "d4rl/rliable.txt").read_text().splitlines()
    rows = [line for line in lines if ", A" in line]
    assert status == 0 and len(rows) == 4
    assert all(line.count("[n/a]") == 2 for line in rows)


def test_raw_returns_and_tasks_of_one_algorithm_alone_have_no_such_table(report, tmp_path):
    raw, apart = tmp_path / "raw.csv", tmp_path / "apart.csv"
    scores(EQUAL, "gym").rename(columns={"score": "return"}).to_csv(raw, index=False)
    scores({"A": {"x": 3}, "B": {"y": 3}}).to_csv(apart, index=False)
    status, out, text, _ = report(raw, apart, "--rliable")
    assert status == 0 and "next to ours" not in text
    assert not list(out.rglob("rliable.*"))


def test_numpys_global_generator_is_as_before(read):
    results = read(scores(UNEQUAL))
    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    section_of(results)
    assert np.random.random() == expected  # noqa: NPY002


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rliable.metrics", {"arch", "absl", "pandas", "seaborn", "matplotlib"}),
        ("corerl.report.cli", {"rliable", "scipy", "pandas", "numpy"}),
        ("corerl.report.build", {"rliable.library", "arch", "absl", "seaborn"}),
    ],
)
def test_no_command_pays_for_rliables_library(module, absent):
    program = f"import sys, {module}; print(*({absent!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
