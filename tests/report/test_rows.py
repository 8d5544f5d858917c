"""Rows of results: read from runs, grouped, and written as text and as a CSV."""

import json

from trees import write_run

from corerl.report.rows import cells, evaluated, logged, mean_std, write_rows


def test_logged_lines_come_by_seed_with_their_settings(tmp_path):
    group = write_run(tmp_path, "gym/x", "A", seeds=(0, 1))
    lines = [{"step": step, "seed": seed} for step in (1, 2) for seed in (1, 0)]
    (group / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (zero, one) = logged(tmp_path)
    assert (zero[0]["label"], zero[1], one[1]) == ("A", 0, 1)
    assert one[2] == [{"step": 1, "seed": 1}, {"step": 2, "seed": 1}]


def test_scores_come_by_run(tmp_path):
    group = write_run(tmp_path, "gym/x", "A", level=30.0, seeds=(0,), steps=2000)
    ((settings, folder, rows),) = evaluated(tmp_path)
    assert (settings["task"], folder) == ("gym/x", group)
    assert [(row["step"], row["score"]) for row in rows] == [("1000", "15.0"), ("2000", "30.0")]


def test_cells_and_their_means():
    rows = [{"k": k, "x": x} for k, x in (("a", 1.0), ("a", 3.0), ("b", 5.0))]
    found = {cell: [row["x"] for row in own] for cell, own in cells(rows, ["k"])}
    assert found == {("a",): [1.0, 3.0], ("b",): [5.0]}
    assert mean_std([1.0, 3.0], 2) == "2.00 ± 1.41"


def test_only_the_fields_are_written_and_only_floats_are_shortened(tmp_path):
    rows = [{"b": 1 / 3, "a": 1234567, "curve": []}, {"b": "x", "a": 2.0}]
    write_rows(tmp_path / "rows.csv", ("a", "b"), rows, ".3g")
    assert (tmp_path / "rows.csv").read_text() == "a,b\n1234567,0.333\n2,x\n"
    write_rows(tmp_path / "rows.csv", ("a", "b"), rows)
    assert (tmp_path / "rows.csv").read_text().endswith(f"1234567,{1 / 3!r}\n2.0,x\n")
