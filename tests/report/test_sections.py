import math

import pandas as pd
import pytest

from corerl.errors import CorerlError
from corerl.report import stats
from corerl.report.load import Results
from corerl.report.published import COLUMNS as PUBLISHED
from corerl.report.scorefiles import COLUMNS
from corerl.report.sections import Options, difference, sections
from corerl.report.tables import DOWN, UP, Cell

NOTHING = pd.DataFrame(columns=PUBLISHED)


def results(cells: dict[tuple[str, str], list[list[float]]], unit: str = "normalised") -> Results:
    """{(algorithm, task): [[score at each step] of each seed]}"""
    rows = [
        (algorithm, task, seed, step, score, unit, "", "f.csv")
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
    assert "last evaluation" in last.tables[0].title
    assert "best evaluation" in best.tables[0].title


def test_collections_and_units_never_share_an_aggregate():
    one = results({("A", "d4rl/x"): [[1.0], [2.0]], ("A", "minari/x"): [[50.0], [60.0]]})
    two = results({("A", "d4rl/raw"): [[1e4], [2e4]]}, "raw")
    both = Results(pd.concat([one.scores, two.scores]), pd.DataFrame())
    found = sections(both, NOTHING, Options(replicates=10))
    assert [(s.name, s.normalised) for s in found] == [
        ("d4rl", True),
        ("minari", True),
        ("d4rl", False),
    ]
    assert found[0].aggregates.set_index("metric").loc["mean", "value"] == 1.5
    assert found[2].aggregates is None
    assert "raw returns" in found[2].notes[0]
    assert not any(r.aggregate for r in found[2].tables[0].rows)


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
    assert row["value"] == pytest.approx(stats.optimality_gap(section.runs, 100.0))
    assert row["value"] == pytest.approx(100 - section.runs["score"].mean())


def test_emphasis_is_what_welch_cannot_tell_from_the_best():
    read = results(
        {
            ("A", "d4rl/x"): [[50.0], [51.0], [52.0]],
            ("B", "d4rl/x"): [[49.5], [50.5], [51.5]],
            ("C", "d4rl/x"): [[10.0], [11.0], [12.0]],
        }
    )
    (section,) = sections(read, NOTHING, Options(replicates=10))
    assert [c.top for c in section.tables[0].rows[0].cells] == [True, True, False]


def test_single_seeds_are_noted_and_have_no_spread():
    (section,) = sections(results({("A", "d4rl/x"): [[1.0]]}), NOTHING, Options())
    assert "1 of 1 cells have a single seed" in section.notes[0]
    assert math.isnan(section.tables[0].rows[0].cells[0].std)
    assert math.isnan(section.tables[0].rows[1].cells[0].low)


def test_probability_of_improvement_over_the_baseline():
    cells = {(a, "d4rl/x"): [[v], [v + 2]] for a, v in (("A", 1.0), ("B", 2.0), ("C", 9.0))}
    (section,) = sections(results(cells), NOTHING, Options(baseline="B", replicates=10))
    found = section.improvement.set_index("x")["value"].to_dict()
    assert found == {"C": 1.0, "A": 0.25}
    with pytest.raises(CorerlError, match="'b' is not among A, B, C"):
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
        (Cell(90.0, n="1"), published(), ""),
    ],
)
def test_differences_are_marked_by_the_stated_rule(ours, theirs, mark):
    assert difference(ours, theirs) == mark


def test_published_numbers_of_the_same_protocol_stand_beside_ours():
    rows = [
        ("IQL", "d4rl/x", 10.0, 1.0, 4, 0, "last", "CORL (somewhere)", ""),
        ("IQL", "d4rl/x", 20.0, 1.0, 4, 0, "best", "CORL (somewhere)", ""),
        ("IQL", "d4rl/x", 11.0, math.nan, math.nan, math.nan, "", "IQL paper (arXiv)", "copied"),
        ("IQL", "d4rl/other", 99.0, 1.0, 4, 0, "last", "CORL (somewhere)", ""),
        ("CQL", "d4rl/x", 33.0, 1.0, 4, 0, "last", "CORL (somewhere)", ""),
    ]
    theirs = pd.DataFrame(rows, columns=PUBLISHED)
    read = results({("IQL", "d4rl/x"): [[9.0], [10.0], [11.0]]})
    (section,) = sections(read, theirs, Options(replicates=10))
    (table,) = [t for t in section.tables if t.compares]
    assert [c.name for c in table.columns] == ["IQL, ours", "CORL", "IQL paper"]
    assert [c.n for c in table.columns] == ["3", "4", ""]
    assert [c.value for c in table.rows[0].cells] == [10.0, 10.0, 11.0]
    assert any("protocol not stated; copied" in n for n in table.notes)
    assert [c.name for c in section.others[0].columns] == ["CQL, CORL"]
    (section,) = sections(read, theirs, Options(replicates=10, best=True))
    (table,) = [t for t in section.tables if t.compares]
    assert [c.value for c in table.rows[0].cells] == [10.0, 20.0]


def test_split_labels_keep_their_published_numbers():
    rows = [("IQL", "d4rl/x", 10.0, 1.0, 4, 0, "last", "CORL", "")]
    read = results({("IQL expectile=0.9", "d4rl/x"): [[9.0]], ("IQL-2", "d4rl/x"): [[9.0]]})
    (section,) = sections(read, pd.DataFrame(rows, columns=PUBLISHED), Options(replicates=10))
    assert [t.name for t in section.tables if t.compares] == ["published-iql-expectile-0-9"]
