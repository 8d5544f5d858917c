import math

import numpy as np
import pandas as pd
import pytest
from trees import sections
from wording import lacking, refused, says

from corerl.algos import cfgrl, cfgrl_ogbench
from corerl.report import stats
from corerl.report.formats import to_text
from corerl.report.load import Results, load
from corerl.report.options import Options
from corerl.report.published import COLUMNS as PUBLISHED
from corerl.report.published import read_published
from corerl.report.published_tables import difference
from corerl.report.scorefiles import COLUMNS
from corerl.report.tables import DOWN, UP, Cell

NOTHING = pd.DataFrame(columns=PUBLISHED)


def results(cells: dict[tuple[str, str], list[list[float]]], unit: str = "normalised") -> Results:
    """{(algorithm, task): [[score at each step] of each seed]}"""
    rows = [
        (algorithm, task, seed, step, score, unit, "", "f.csv", 0)
        for (algorithm, task), seeds in cells.items()
        for seed, curve in enumerate(seeds)
        for step, score in enumerate(curve)
    ]
    return Results(pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame())


def published(**changes) -> pd.Series:
    row = {"mean": 50.0, "std": 2.0, "seeds": 4.0, "ddof": 1.0}
    return pd.Series(row | changes)


def cell(mean: float, std: float, n: int) -> Cell:
    half = {5: 2.7764}[n] * std / math.sqrt(n)  # Student's t at 97.5%, 4 degrees of freedom
    return Cell(mean, std, mean - half, mean + half, str(n))


def test_the_last_evaluation_is_the_headline_and_best_only_on_demand():
    read = results({("A", "d4rl/x"): [[9.0, 1.0], [5.0, 3.0]]})
    (last,) = sections(read, NOTHING, Options(replicates=10))
    (best,) = sections(read, NOTHING, Options(replicates=10, best=True))
    assert last.tables[0].rows[0].cells[0].value == 2.0
    assert best.tables[0].rows[0].cells[0].value == 7.0
    says(last.tables[0].title, "last")
    says(best.tables[0].title, "best")


def test_collections_and_units_never_share_an_aggregate():
    one = results({("A", "d4rl/x"): [[1.0], [2.0]], ("A", "minari/x"): [[50.0], [60.0]]})
    two = results({("A", "d4rl/raw"): [[1e4], [2e4]]}, "raw")
    both = Results(pd.concat([one.scores, two.scores]), pd.DataFrame())
    found = sections(both, NOTHING, Options(replicates=10))
    assert [(s.name, s.scored) for s in found] == [
        ("d4rl", True),
        ("minari", True),
        ("d4rl", False),
    ]
    assert found[0].aggregates.set_index("metric").loc["mean", "value"] == 1.5
    assert found[2].aggregates is None
    says(found[2].notes[0], "raw")
    assert not any(r.aggregate for r in found[2].tables[0].rows)


def test_a_section_has_no_anchor_that_the_page_has():
    found = sections(
        results({("A", "data/x"): [[1.0]], ("A", "how/x"): [[1.0]]}), NOTHING, Options()
    )
    assert [s.folder for s in found] == ["data-2", "how-2"]


def test_nested_task_names_belong_to_the_first_part():
    found = sections(results({("A", "minari/D4RL/door/human-v2"): [[1.0]]}), NOTHING, Options())
    assert [s.name for s in found] == ["minari"]


def test_aggregates_are_over_shared_tasks_and_say_so():
    read = results(
        {
            ("A", "d4rl/x"): [[1.0], [2.0]],
            ("A", "d4rl/y"): [[80.0], [90.0]],
            ("B", "d4rl/x"): [[5.0], [6.0]],
        }
    )
    (section,) = sections(read, NOTHING, Options(replicates=10))
    values = section.aggregates[section.aggregates["metric"] == "mean"].set_index("algorithm")
    assert values["value"].to_dict() == {"A": 1.5, "B": 5.5}
    assert "1 of 2 tasks" in section.notes[0] and "B lacks 1" in section.notes[0]
    assert section.algorithms == ["B", "A"]  # by the metric


def test_aggregates_are_the_statistics_of_the_runs():
    read = results({("A", f"d4rl/{t}"): [[t * 10.0 + s] for s in range(4)] for t in range(5)})
    (section,) = sections(read, NOTHING, Options(replicates=100))
    row = section.aggregates.set_index("metric").loc["optimality_gap"]
    gap = stats.estimate(section.runs, "optimality_gap", gamma=100.0, replicates=0)
    assert row["value"] == pytest.approx(gap.value)
    assert row["value"] == pytest.approx(100 - section.runs["score"].mean())


def emphasised(*columns: list[float], steps: list[int] | None = None, **options) -> list[bool]:
    """Which of these algorithms' scores on one task are emphasised."""
    read = results(
        {(name, "d4rl/x"): [[x] for x in xs] for name, xs in zip("ABCD", columns, strict=False)}
    )
    if steps is not None:
        read.scores["step"] = read.scores["algorithm"].map(dict(zip("ABCD", steps, strict=False)))
    (section,) = sections(read, NOTHING, Options(replicates=10, **options))
    cells = dict(zip(section.algorithms, section.tables[0].rows[0].cells, strict=True))
    return [cells[name].top for name in "ABCD"[: len(columns)]]


def test_emphasis_is_for_the_best_and_what_is_level_with_it():
    best, level, below = (
        [50.0, 51, 52, 53, 54],
        [49.5, 50.5, 51.5, 52.5, 53.5],
        [10.0, 11, 12, 13, 14],
    )
    assert emphasised(best, level, below) == [True, True, False]


def test_a_mean_far_below_is_not_emphasised_for_its_spread():
    best, wide = [25.0, 25.5, 24.5, 26, 25], [0.0, 30, 5, 20, 6]
    low, high = stats.welch_interval(25.2, 0.57, 5, 12.2, 12.3, 5)
    assert low < 0 < high
    assert emphasised(best, wide) == [True, False]


def test_a_mean_inside_the_interval_of_the_best_still_differs_where_welch_says_so():
    """Half-widths: Student's of the best 1.963, Welch's of the difference 1.932."""
    best, near = [50.0, 51, 52, 53, 54], np.array([-0.5, -0.5, 0, 0.5, 0.5])
    assert emphasised(best, list(50.08 + near)) == [True, True]
    assert emphasised(best, list(50.05 + near)) == [True, False]


def test_few_seeds_are_not_emphasised_beside_the_best():
    assert emphasised([50.0, 51, 52, 53, 54], [49.0, 52, 54]) == [True, False]
    assert emphasised([50.0, 52, 54], [49.5, 50.5, 51.5, 52.5, 53.5]) == [True, False]
    assert emphasised([50.0, 50, 50], [50.0, 50, 50], [49.0, 49, 49]) == [True, True, False]


def test_nothing_is_emphasised_between_unequal_steps_unless_asked_for():
    best, other = [50.0, 51, 52, 53, 54], [10.0, 11, 12, 13, 14]
    assert emphasised(best, other, steps=[3000, 2000]) == [False, False]
    assert emphasised(best, other, steps=[3000, 2000], unequal=True) == [True, False]
    assert emphasised(best, other, steps=[3000, 3000]) == [True, False]


def test_of_aggregates_the_best_is_emphasised_and_of_the_gap_the_lowest():
    """C lacks y, where A and B ran unequal numbers of steps: no aggregate rests on it."""
    levels = {"Ax": 60.0, "Bx": 10.0, "Cx": 30.0, "Ay": 60.0, "By": 10.0}
    read = results({(k[0], f"d4rl/{k[1]}"): [[v], [v + 2]] for k, v in levels.items()})
    read.scores["step"] = np.where(
        read.scores["algorithm"] + read.scores["task"] == "Ad4rl/y", 9, 1
    )
    (section,) = sections(read, NOTHING, Options(replicates=10))
    rows = [row for row in section.tables[0].rows if row.aggregate]
    assert section.algorithms == ["A", "C", "B"]
    assert {row.metric: [cell.top for cell in row.cells] for row in rows} == {
        metric: [True, False, False] for metric in stats.METRICS
    }


def test_unequal_steps_are_said_and_have_no_probability_of_improvement():
    read = results(
        {(a, "d4rl/x"): [[v], [v + 1.0]] for a, v in (("A", 9.0), ("B", 5.0), ("C", 1.0))}
    )
    read.scores["step"] = read.scores["algorithm"].map({"A": 3000, "B": 2000, "C": 3000})
    (section,) = sections(read, NOTHING, Options(replicates=10))
    scores, better = section.tables
    assert [column.steps for column in scores.columns] == ["3k", "2k", "3k"] and scores.steps == ""
    assert any("--unequal" in note for note in scores.notes)
    assert not any(cell.top for row in scores.rows for cell in row.cells)
    assert list(section.improvement["y"]) == ["C"]
    assert any(not lacking(note, "steps B") for note in better.notes)
    (section,) = sections(read, NOTHING, Options(replicates=10, unequal=True))
    assert list(section.improvement["y"]) == ["B", "C"]


def test_steps_that_all_share_are_said_once():
    read = results({("A", "d4rl/x"): [[0.0, 1.0], [0.0, 2.0]]})
    read.scores["step"] *= 5000
    (section,) = sections(read, NOTHING, Options(replicates=10))
    text = to_text(section.tables[0])
    assert text.count("5k steps") == 1 and "5k steps" in text.splitlines()[0]


def test_success_rates_and_returns_never_share_an_aggregate():
    one = results({("A", "corerl/mujoco/x"): [[10.0], [12.0]]})
    two = results({("A", "corerl/metaworld/y"): [[80.0], [90.0]]}, "success")
    read = Results(pd.concat([one.scores, two.scores], ignore_index=True), pd.DataFrame())
    found = sections(read, NOTHING, Options(replicates=10))
    assert [(s.heading, s.folder) for s in found] == [
        ("corerl", "corerl"),
        ("corerl (success rates)", "corerl-success"),
    ]
    means = [s.aggregates.set_index("metric").loc["mean", "value"] for s in found]
    assert means == [11.0, 85.0]


def test_single_seeds_are_noted_and_have_no_spread():
    (section,) = sections(results({("A", "d4rl/x"): [[1.0]]}), NOTHING, Options())
    says(section.notes[0], "1")
    assert math.isnan(section.tables[0].rows[0].cells[0].std)
    assert math.isnan(section.tables[0].rows[1].cells[0].low)


def test_probability_of_improvement_over_the_baseline():
    cells = {(a, "d4rl/x"): [[v], [v + 2]] for a, v in (("A", 1.0), ("B", 2.0), ("C", 9.0))}
    (section,) = sections(results(cells), NOTHING, Options(baseline="B", replicates=10))
    found = section.improvement.set_index("x")["value"].to_dict()
    assert found == {"C": 1.0, "A": 0.25}
    with refused("b A B C"):
        sections(results(cells), NOTHING, Options(baseline="b"))


@pytest.mark.parametrize(
    ("ours", "theirs", "mark"),
    [
        (cell(60.0, 2.0, 5), published(), UP),
        (cell(40.0, 2.0, 5), published(), DOWN),
        (cell(51.0, 2.0, 5), published(), ""),
        # Welch: half-width 2.365 * sqrt(0.8 + 1) = 3.2 at 6.6 degrees of freedom
        (cell(53.0, 2.0, 5), published(), ""),
        (cell(53.5, 2.0, 5), published(), UP),
        # a std printed with ddof 0 widens: sqrt(4/3) * 2, half-width 3.55
        (cell(53.5, 2.0, 5), published(ddof=0.0), ""),
        # without std or seeds: our t interval, half-width 2.48
        (cell(53.0, 2.0, 5), published(std=math.nan), UP),
        (cell(52.0, 2.0, 5), published(seeds=math.nan), ""),
        (cell(53.0, 2.0, 5), published(seeds=1.0), UP),
        (Cell(90.0, n="1"), published(), ""),
    ],
)
def test_differences_are_marked_by_the_stated_rule(ours, theirs, mark):
    assert difference(ours, theirs) == mark


def theirs(*rows: tuple) -> pd.DataFrame:
    """Rows of algorithm, task, mean, std, seeds, protocol, source, notes, steps."""
    names = ["algorithm", "task", "mean", "std", "seeds", "protocol", "source", "notes", "steps"]
    return pd.DataFrame(rows, columns=names).assign(ddof=0.0, metric="score")[PUBLISHED]


def test_published_numbers_of_the_same_protocol_stand_beside_ours():
    rows = theirs(
        ("IQL", "d4rl/x", 10.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan),
        ("IQL", "d4rl/x", 20.0, 1.0, 4, "best", "CORL (somewhere)", "", math.nan),
        ("IQL", "d4rl/x", 11.0, math.nan, math.nan, "", "IQL paper (arXiv)", "copied", math.nan),
        ("IQL", "d4rl/other", 99.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan),
        ("CQL", "d4rl/x", 33.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan),
    )
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    (section,) = sections(read, rows, Options(replicates=10))
    (table,) = [t for t in section.tables if t.compares]
    assert [c.name for c in table.columns] == ["IQL, ours", "CORL", "IQL paper"]
    assert [c.n for c in table.columns] == ["3", "4", ""]
    assert [c.value for c in table.rows[0].cells] == [10.0, 10.0, 11.0]
    assert any("protocol not stated; copied" in n for n in table.notes)
    assert [c.name for c in section.others[0].columns] == ["CQL, CORL"]
    (section,) = sections(read, rows, Options(replicates=10, best=True))
    (table,) = [t for t in section.tables if t.compares]
    assert [c.value for c in table.rows[0].cells] == [10.0, 20.0]


def test_no_comparison_is_written_over_another_or_to_a_name_too_long():
    names = ("IQL (a+b)", "IQL (a b)", "others", "CQL", "中" * 150)
    rows = theirs(*((name, "d4rl/x", 9.0, 1.0, 4, "last", "CORL", "", 1) for name in names))
    read = results({(name, "d4rl/x"): [[9.0], [8.0]] for name in names if name != "CQL"})
    (section,) = sections(read, rows, Options(replicates=10))
    found = [table.name for table in [*section.tables, *section.others] if "pub" in table.name]
    assert len(found) == len(set(found)) == 5 and "published-iql--a-b-2" in found
    assert max(map(len, found)) < 100


@pytest.mark.parametrize(("other", "reported"), [("copied", "; copied"), ("tuned", "")])
def test_a_sources_note_is_told_where_all_its_numbers_have_it(other, reported):
    tasks = (("d4rl/x", "copied"), ("d4rl/y", other))
    rows = theirs(*(("IQL", t, 9.0, 1.0, 4, "last", "CORL (there)", n, 1) for t, n in tasks))
    read = results({("IQL", t): [[9.0], [10.0]] for t, _ in tasks})
    (section,) = sections(read, rows, Options(replicates=10))
    (table,) = [t for t in section.tables if t.compares]
    assert f"CORL: there; last{reported}." in table.notes


@pytest.mark.parametrize(
    ("steps", "unequal", "mark", "shown"),
    [
        (1_000_000, False, DOWN, "1M"),
        (10_000, False, "", "10k"),
        (math.nan, False, "", "unstated"),
        (10_000, True, DOWN, "10k"),
    ],
)
def test_a_difference_from_published_numbers_needs_their_steps(steps, unequal, mark, shown):
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, "last", "CORL (somewhere)", "", steps)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    read.scores["step"] = 1_000_000
    (section,) = sections(read, theirs(row), Options(replicates=10, unequal=unequal))
    (table,) = [t for t in section.tables if t.compares]
    assert table.rows[0].cells[1].mark == mark
    assert [column.steps for column in table.columns] == ["1M", shown]


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(
    ("protocol", "mark", "head"),
    [
        ("last, best of 4 configurations", DOWN, "CORL"),
        ("at step 100,000", DOWN, "CORL"),
        ("", "", "CORL"),
        ("training episodes at 1M steps", "", "CORL, training episodes at 1M steps"),
        ("mean of the last 10 evaluations", "", "CORL, mean of the last 10 evaluations"),
    ],
)
def test_another_protocol_is_named_and_not_marked(protocol, mark, head, unequal):
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, protocol, "CORL (somewhere)", "", 100_000)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    read.scores["step"] = 100_000
    (section,) = sections(read, theirs(row), Options(replicates=10, unequal=unequal))
    (table,) = [t for t in section.tables if t.compares]
    assert (table.rows[0].cells[1].mark, table.columns[1].name) == (mark, head)
    assert f"{head}: somewhere; {protocol or 'protocol not stated'}." in table.notes
    (section,) = sections(read, theirs(("BC", *row[1:])), Options(replicates=10))
    assert [c.name for c in section.others[0].columns] == [f"BC, {head}"]


@pytest.mark.parametrize("protocol", ["best iteration", "Best of all evaluations"])
def test_the_best_is_marked_beside_the_best(protocol):
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, protocol, "CORL (somewhere)", "", 1)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    read.scores["step"] = 1
    (section,) = sections(read, theirs(row), Options(replicates=10, best=True))
    (table,) = [t for t in section.tables if t.compares]
    assert (table.rows[0].cells[1].mark, table.columns[1].name) == (DOWN, "CORL")


def test_nobodys_steps_are_no_equal_steps():
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    read.scores["step"] = 0
    for unequal, mark in ((False, ""), (True, DOWN)):
        (section,) = sections(read, theirs(row), Options(replicates=10, unequal=unequal))
        (table,) = [t for t in section.tables if t.compares]
        assert table.rows[0].cells[1].mark == mark


def test_a_variant_stands_beside_its_own_published_numbers():
    """`IQL AW` is published too, so that its rows are no split of IQL's; what is published of neither is."""
    names = ("IQL", "IQL AW")
    rows = theirs(*((n, "d4rl/x", 10.0 * len(n), 1.0, 4, "last", "S", "", 1) for n in names))
    read = results(
        {(n, "d4rl/x"): [[9.0], [10.0]] for n in ("IQL AW", "IQL AW beta=3", "IQL beta=3")}
    )
    (section,) = sections(read, rows, Options(replicates=10))
    found = {t.columns[0].name: t.rows[0].cells[1].value for t in section.tables if t.compares}
    values = {"IQL AW": 60.0, "IQL AW beta=3": 60.0, "IQL beta=3": 30.0}
    assert found == {f"{name}, ours": value for name, value in values.items()}
    assert not section.others


def test_cfgrls_numbers_on_ogbench_stand_beside_the_code_that_made_them():
    """Its authors ran another file there than on ExORL, which is `algo=cfgrl`."""
    task = "ogbench/scene-play-singletask-v0"
    read = results({(a.Config().label, task): [[9.0], [8.0]] for a in (cfgrl, cfgrl_ogbench)})
    (section,) = sections(read, read_published("ogbench"), Options(replicates=10))
    (table,) = [t for t in section.tables if t.compares]
    assert table.columns[0].name == "CFGRL (OGBench), ours"
    assert table.rows[0].cells[1].value == 17.0


def test_published_numbers_on_tasks_of_others_alone_make_no_table(report, tmp_path):
    rows = theirs(*((n, "d4rl/x", 30.0, 1.0, 4, "last", "S", "", 1) for n in ("IQL", "BC")))
    read = results({("IQL", "d4rl/x"): [[9.0]], ("BC", "d4rl/y"): [[9.0]]})
    (section,) = sections(read, rows, Options(replicates=10))
    assert [t.name for t in section.tables if t.compares] == ["published-iql"]
    read.scores.to_csv(tmp_path / "mine.csv", index=False)
    rows.to_csv(tmp_path / "theirs.csv", index=False)
    status, out, _, _ = report(tmp_path / "mine.csv", "--published", tmp_path / "theirs.csv")
    assert status == 0 and not (out / "d4rl/published-bc.txt").exists()


def test_no_published_number_hides_behind_another_of_its_source():
    def row(mean, source, steps, protocol="last"):
        return "IQL", "d4rl/x", mean, 1.0, 4, protocol, source, "", steps

    rows = theirs(
        row(50.0, "Smith (2020)", 1e6),
        row(95.0, "Smith (2023)", 1e6),
        row(1.0, "Lee (here)", 5e3),
        row(2.0, "Lee (here)", 1e6),
        row(3.0, "Lee (here)", 1e6, "last, tuned"),
        row(4.0, "Wu (there)", 1e6),
        row(5.0, "Xu", math.nan, ""),
        row(6.0, "Xu", math.nan, ""),
    )
    heads = ["Smith (2020)", "Smith (2023)", "Lee (here), 5k steps"]
    heads += [
        "Lee (here), 1M steps, last",
        "Lee (here), 1M steps, last, tuned",
        "Wu",
        "Xu",
        "Xu [2]",
    ]
    for name, part in (("IQL", "tables"), ("BC", "others")):
        read = results({(name, "d4rl/x"): [[9.0], [10.0]]})
        (section,) = sections(read, rows, Options(replicates=10))
        (table,) = [t for t in getattr(section, part) if t.name.startswith("published")]
        cells = dict(zip((c.name for c in table.columns), table.rows[0].cells, strict=True))
        shown = {n.removeprefix("IQL, "): c.value for n, c in cells.items() if n != "IQL, ours"}
        assert shown == dict(zip(heads, (50.0, 95.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), strict=True))


def test_published_numbers_in_another_unit_stay_out():
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0]]}, "raw")
    (section,) = sections(read, theirs(row), Options(replicates=10))
    assert not [t for t in section.tables if t.compares]


def test_normalised_scores_of_antmaze_stand_beside_success_rates():
    row = ("IQL", "d4rl/x", 90.0, 1.0, 4, "last", "CORL (somewhere)", "", math.nan)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0]]}, "success")
    (section,) = sections(read, theirs(row), Options(replicates=10))
    (table,) = [t for t in section.tables if t.compares]
    assert table.rows[0].cells[1].value == 90.0


def test_a_name_of_ones_own_is_no_published_algorithm(tmp_path):
    """What the report itself splits keeps its numbers, whatever it is named after."""
    rows = theirs(*((n, "d4rl/x", 10.0, 1.0, 4, "last", "S", "", 1) for n in ("BC", "IQL")))
    own = ("BC with my trick", "BC (mine)", "BC lr=1 warm", "BC lr=1 tau=2")
    (section,) = sections(results({(n, "d4rl/x"): [[9.0]] for n in own}), rows, Options())
    assert [t.columns[0].name for t in section.tables if t.compares] == ["BC lr=1 tau=2, ours"]
    for name in ("old", "new"):
        text = f"algorithm,task,seed,score,config\nIQL,d4rl/x,0,1,{name}\nIQL,d4rl/x,1,2,{name}\n"
        (tmp_path / f"{name}.csv").write_text(text)
    (section,) = sections(load([tmp_path / "old.csv", tmp_path / "new.csv"]), rows, Options())
    found = sorted(t.columns[0].name for t in section.tables if t.compares)
    assert found == ["IQL (new), ours", "IQL (old), ours"]


def test_split_labels_keep_their_published_numbers():
    rows = theirs(("IQL", "d4rl/x", 10.0, 1.0, 4, "last", "CORL", "", math.nan))
    read = results({("IQL expectile=0.9", "d4rl/x"): [[9.0]], ("IQL-2", "d4rl/x"): [[9.0]]})
    (section,) = sections(read, rows, Options(replicates=10))
    assert [t.name for t in section.tables if t.compares] == ["published-iql-expectile-0-9"]
