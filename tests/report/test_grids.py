"""Cells of a grid beside published ones, on made-up numbers; and the shipped grid itself."""

import json
import math
from pathlib import Path

import grid_figure
import grids
import pandas as pd
import pytest
import yaml
from wording import refused, says

from corerl.report.drawing import GREY


def runs(cells: dict[str, list[float]], algorithm: str = "BC", task: str = "neorl2/DMSD", **more):
    rows = [
        {"algorithm": algorithm, "task": task, "cell": cell, "seed": seed, "return": value, **more}
        for cell, values in cells.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


THEIRS = runs({"lr=1": [10.0, 12.0, 14.0], "lr=2": [20.0, 22.0, 24.0], "lr=3": [5.0, 5.0, 5.0]})


def test_a_difference_and_its_interval():
    rows = grids.compare(runs({"lr=1": [13.0, 15.0, 17.0], "lr=2": [30.0, 32.0, 34.0]}), THEIRS)
    # Both sides have the variance 4: the standard error is sqrt(8 / 3), with 4 degrees of freedom.
    half = 2.776445 * math.sqrt(8 / 3)
    assert rows["difference"].tolist() == [3.0, 10.0]
    assert rows["low"].tolist() == pytest.approx([3 - half, 10 - half], abs=1e-5)
    assert rows["high"].tolist() == pytest.approx([3 + half, 10 + half], abs=1e-5)


def test_the_table_tells_cells_apart_by_their_intervals():
    ours = runs({"lr=1": [13.0, 15.0, 17.0], "lr=2": [30.0, 32.0, 34.0], "lr=3": [6.0]})
    text = grids.markdown(grids.compare(ours, THEIRS))
    below = grids.markdown(grids.compare(runs({"lr=2": [10.0, 12.0, 14.0]}), THEIRS))
    assert "| **-10.0 [-14.5, -5.5]** |" in below and "exclude 0: 1 of 1." in below
    assert "| lr=1 | 15.0 ± 2.0 (3) | 12.0 ± 2.0 (3) | +3.0 [-1.5, +7.5] |" in text
    assert "| lr=2 | 32.0 ± 2.0 (3) | 22.0 ± 2.0 (3) | **+10.0 [+5.5, +14.5]** |" in text
    assert "| lr=3 | 6.0 (1) | 5.0 ± 0.0 (3) | +1.0 |" in text  # one seed has no interval
    assert "Intervals that exclude 0: 1 of 2. Rank correlation (Spearman) of 3 cells: 1.00." in text


def test_a_cell_s_name_ends_no_cell_of_the_table():
    theirs = THEIRS.assign(cell="a|b")
    assert "| a\\|b | 1.0 (1) |" in grids.markdown(grids.compare(runs({"a|b": [1.0]}), theirs))


def test_the_rank_correlation_counts_cells_in_their_order():
    ours = runs({"lr=1": [20.0, 20.0], "lr=2": [10.0, 10.0], "lr=3": [0.0, 0.0]})
    rows = grids.compare(ours, THEIRS)
    assert grids.rank_correlation(rows) == pytest.approx(0.5)  # ranks 3 2 1 against 2 3 1
    assert math.isnan(grids.rank_correlation(rows[:2]))
    says(grids.markdown(rows[:2]), "cells")


def test_tasks_and_algorithms_are_not_mixed_and_updates_are_told():
    theirs = pd.concat([THEIRS, runs({"lr=1": [1.0, 2.0]}, "TD3+BC", "neorl2/Fusion")])
    ours = pd.concat(
        [
            runs({"lr=1": [11.0, 11.5]}, updates=1_000_000),
            runs({"lr=1": [1.0, 2.0]}, "TD3+BC", "neorl2/Fusion", updates=50_000),
        ]
    )
    first, second = grids.markdown(grids.compare(ours, theirs)).split("\n\n**")
    assert "BC on neorl2/DMSD" in first and "after 1,000,000 updates" in first
    assert "TD3+BC on neorl2/Fusion" in second and "after 50,000 updates" in second
    ours["updates"] = [1, 1_000_000, 50_000, 50_000]
    first, _ = grids.markdown(grids.compare(ours, theirs)).split("\n\n**")
    assert "after 1 to 1,000,000 updates" in first
    ours = pd.concat([ours[:2], runs({"lr=2": [9.0, 9.5]}, updates=7)])
    assert "after 1 to 1,000,000 updates" in grids.markdown(grids.compare(ours, theirs))


def test_the_figure_has_every_seed_of_both_and_hollow_dots_where_updates_are_missing():
    ours = runs({"lr=1": [13.0, 17.0]}, updates=100)
    ours = pd.concat([ours, runs({"lr=2": [30.0, 31.0]}, updates=7)])
    figure = grid_figure._draw(grids.compare(ours, THEIRS), ours, THEIRS)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["lr=2\n(7 updates)", "lr=1"]
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    drawn = [(line.get_xdata().tolist(), line.get_markerfacecolor()) for line in dots]
    color = dots[2].get_color()
    assert drawn == [
        ([30.0, 31.0], "white"),
        ([20.0, 22.0, 24.0], GREY),
        ([13.0, 17.0], color),
        ([10.0, 12.0, 14.0], GREY),
    ]
    means = [line.get_xdata()[0] for line in axis.lines if line.get_marker() != "o"]
    assert means == [30.5, 22.0, 15.0, 12.0]


def test_two_algorithms_rows_are_of_one_height_and_told_apart():
    both = pd.concat(
        [runs({"lr=1": [13.0], "lr=2": [9.0]}), runs({"alpha=1": [9.0]}, algorithm="TD3+BC")]
    )
    figure = grid_figure._draw(grids.compare(both, both), both, both)
    heights = [axis.get_ylim()[1] - axis.get_ylim()[0] for axis in figure.axes]
    assert heights == pytest.approx([2.2, 2.2])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["BC, ours", "TD3+BC, ours", "published"]


def test_compare_writes_the_figure(tmp_path, capsys):
    for name, rows in (("ours", runs({"lr=1": [13.0, 17.0]})), ("theirs", THEIRS)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [str(tmp_path / name) for name in ("ours.csv", "theirs.csv", "a/grid.png")]
    assert grids.main(["compare", files[0], "--published", files[1], "--figure", files[2]]) == 0
    assert Path(files[2]).read_bytes().startswith(b"\x89PNG")


def test_a_cell_that_nobody_published_is_refused():
    with refused("BC lr=9 neorl2/DMSD"):
        grids.compare(runs({"lr=9": [1.0, 2.0]}), THEIRS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.drop(columns="cell"), "cell"),
        (lambda rows: rows.assign(**{"return": "high"}), "2 high"),
        (lambda rows: pd.concat([rows, rows[:1]]), "11"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, change, problem):
    change(THEIRS).to_csv(tmp_path / "scores.csv", index=False)
    with refused(problem):
        grids.read(tmp_path / "scores.csv")


def write_run(
    folder, algo: dict, seed: int, state: str, steps: int = 100, label: str = "BC"
) -> None:
    folder.mkdir(parents=True)
    settings = {"task": "neorl2/DMSD", "label": None, "seeds": [7, 42], "steps": steps}
    settings["algo"] = {"label": label} | algo
    (folder.parent / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "status.json").write_text(json.dumps({"state": state}))
    head = "task,algorithm,config,seed,step,return,score,episodes,length,return_std,success\n"
    row = "neorl2/DMSD,{label},abc,{seed},{step},{value},0,1000,100,3.0,\n"
    text = head + "".join(
        row.format(label=label, seed=seed, step=s, value=s / 3) for s in (50, steps)
    )
    (folder / "scores.csv").write_text(text)


def test_finished_runs_are_collected_under_the_published_names(tmp_path):
    algo = {"name": "bc_neorl2", "hidden_layers": 3, "lr": 5e-4}
    write_run(tmp_path / "a" / "seeds-7", algo, 7, "done")
    write_run(tmp_path / "a" / "seeds-42", algo, 42, "running")
    write_run(tmp_path / "b" / "seeds-7", {"name": "iql"}, 7, "done")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a").symlink_to(tmp_path / "a")
    assert (
        grids.main(["collect", str(tmp_path / "runs"), "--out", str(tmp_path / "scores.csv")]) == 0
    )
    (row,) = grids.read(tmp_path / "scores.csv").to_dict("records")
    assert (row["cell"], row["seed"], row["updates"]) == ("actor_layers=3 actor_lr=0.0005", 7, 100)
    assert row["return"] == 33.333 and row["episodes"] == 1000
    published = grids.published()
    assert row["cell"] in set(published["cell"][published["algorithm"] == "BC"])


@pytest.mark.parametrize(
    ("table", "algo", "label", "cell"),
    [
        (
            "cql_neorl2",
            {"name": "cql_official", "order": "in_turn", "threshold": -1.0, "weight": 5.0}
            | {"importance_sampling": True},
            *("CQL", "lagrange_thresh=-1 min_q_version=3 min_q_weight=5"),
        ),
        (
            "edac_neorl2",
            {"name": "edac", "order": "critic_last", "critics": 50, "eta": 1.0},
            *("EDAC", "eta=1 num_critics=50"),
        ),
    ],
)
def test_only_runs_with_the_benchmarks_settings_are_of_its_grid(
    tmp_path, capsys, table, algo, label, cell
):
    write_run(tmp_path / "a" / "seeds-7", algo, 7, "done", label=label)
    write_run(tmp_path / "b" / "seeds-7", algo | {"order": "joint"}, 7, "done", label=label)
    (row,) = grids.collect(tmp_path).to_dict("records")
    assert row["cell"] == cell
    published = grids.published()
    assert cell in set(published["cell"][published["algorithm"] == label])
    reported = capsys.readouterr().err
    says(reported, f"{tmp_path / 'b'} {table}")


def test_a_copy_of_a_group_of_seeds_does_not_count_again(tmp_path):
    algo = {"name": "bc_neorl2", "hidden_layers": 3, "lr": 5e-4}
    for name in ("seeds-7", "seeds-7.bak"):
        write_run(tmp_path / "a" / name, algo, 7, "done")
    assert grids.collect(tmp_path)["seed"].tolist() == [7]


def test_a_label_may_be_called_na(tmp_path):
    algo = {"name": "bc_neorl2", "hidden_layers": 3, "lr": 5e-4}
    write_run(tmp_path / "a" / "seeds-7", algo, 7, "done", label="NA")
    assert grids.collect(tmp_path)["algorithm"].tolist() == ["NA"]


def test_what_is_no_finished_run_of_ours_is_skipped_and_named(tmp_path, capsys):
    algo = {"name": "bc_neorl2", "hidden_layers": 3, "lr": 5e-4}
    write_run(tmp_path / "a" / "seeds-7", algo, 7, "done")
    write_run(tmp_path / "a" / "seeds-42", algo, 42, "done")
    lost = tmp_path / "a" / "seeds-42" / "scores.csv"
    lost.unlink()
    write_run(tmp_path / "a" / "seeds-210", algo, 210, "done")
    diverged = tmp_path / "a" / "seeds-210" / "scores.csv"
    diverged.write_text(diverged.read_text().replace(f"{100 / 3},", ","))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("model: resnet\n")
    assert grids.collect(tmp_path)["seed"].tolist() == [7]
    reported = capsys.readouterr().err
    says(reported, f"{lost}")
    says(reported, f"210 {diverged}")
    says(reported, "settings")


def test_a_seed_that_diverged_and_has_no_row_is_named(tmp_path, capsys):
    algo = {"name": "bc_neorl2", "hidden_layers": 3, "lr": 5e-4}
    write_run(tmp_path / "a" / "seeds-7_42", algo, 7, "done")
    assert grids.collect(tmp_path)["seed"].tolist() == [7]
    file = tmp_path / "a" / "seeds-7_42" / "scores.csv"
    says(capsys.readouterr().err, f"42 {file} 100 steps")


def test_seeds_of_unlike_settings_are_not_one_cell():
    ours = runs({"lr=1": [1.0, 2.0]})
    with refused("abc abd"):
        grids.compare(ours.assign(config=["abc", "abd"]), THEIRS)
    assert len(grids.compare(ours.assign(config="abc"), THEIRS)) == 1


def test_nothing_finished_is_a_sentence(tmp_path, capsys):
    assert grids.main(["collect", str(tmp_path), "--out", str(tmp_path / "scores.csv")]) == 1
    says(capsys.readouterr().err, "bc_neorl2 td3_bc_neorl2")


def test_the_shipped_grid_is_whole_and_agrees_with_the_released_scores(shared):
    rows = grids.published()
    cells = rows.groupby(["algorithm", "task"])["cell"].nunique().groupby("algorithm").unique()
    assert {name: counts.tolist() for name, counts in cells.items()} == {
        "BC": [6],
        "CQL": [16],
        "EDAC": [4],
        "TD3+BC": [9],
    }
    assert (rows.groupby(["algorithm", "task", "cell"])["seed"].agg(set) == {7, 42, 210}).all()
    released = pd.read_csv(shared / "data/scores/neorl2/final_scores.csv")
    released = released[released["algo"].isin(["bc", "td3bc", "cql", "edac"])]
    assert sorted(rows["return"]) == pytest.approx(sorted(released["reward_mean"]), abs=6e-4)
    best = rows[(rows["algorithm"] == "BC") & (rows["task"] == "neorl2/DMSD")]
    best = best[best["cell"] == "actor_layers=2 actor_lr=0.001"].set_index("seed")["return"]
    assert best.round(1).to_dict() == {7: 574.5, 42: 567.8, 210: 548.6}


def test_our_rows_of_that_grid_fit_it():
    scores = Path(__file__).parents[2] / "results/reproduced/neorl2_protocol/scores.csv"
    ours = grids.read(scores)
    seeds = ours.groupby(["algorithm", "task", "cell"])["seed"].agg(set)
    assert len(seeds["BC"]) == 12 and all(run == {7, 42, 210} for run in seeds["BC"])
    assert (ours["episodes"] == 1000).all()
    page = scores.with_name("README.md").read_text()
    fewer = ours[ours["updates"] != 1_000_000]
    cells = ["alpha=0.05 policy_noise=2.5", "alpha=0.1 policy_noise=0.5"]
    assert fewer["cell"].tolist() == [cell for cell in cells for _ in range(3)]
    assert set(fewer["task"]) == {"neorl2/DMSD"} and set(fewer["updates"]) == {841_000}
    assert "841,000 updates (1/1.2)" in page.split("\n\n")[2]
    complete = seeds["TD3+BC"]["neorl2/Simglucose"]
    assert len(complete) == 9 and all(run == {7, 42, 210} for run in complete)
    assert grids.markdown(grids.compare(ours, grids.published())) in page
