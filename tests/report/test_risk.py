"""What a report says of risky tasks: CVaR, episode counts, objectives, pictures."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from trees import write_run
from wording import lacking, refused, says

from corerl.report import figures, risk, stats
from corerl.report.colours import looks
from corerl.report.load import load
from corerl.report.options import Options
from corerl.report.sections import sections
from corerl.risk import measures

GOOD, BAD = [1.0, 2.0, 3.0, 4.0], [-6.0, 2.0, 3.0, 5.0]
NAIVE = {"objective": "naive", "tau": 0.5}


def risky_run(root, algorithm: str, returns: dict[int, list[float]], **options):
    group = write_run(root, "risk/A", algorithm, seeds=tuple(returns), normalised=False, **options)
    lines = [{"step": 3000, "seed": seed, "returns": r} for seed, r in returns.items()]
    lines.insert(0, {"step": 1000, "seed": 0, "returns": [99.0] * 4})  # not the last evaluation
    (group / "returns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return group


def table(out) -> str:
    return (out / "risk-raw" / "cvar.txt").read_text()


def estimates(row: str) -> list[str]:
    """The numbers of a row without their intervals."""
    return re.sub(r"\[.*?\]( \(n=\d\))?", "", row.split("episodes)")[1]).split()


def test_the_table_of_cvar(tmp_path, report):
    risky_run(
        tmp_path / "runs", "Careful", {0: GOOD, 1: BAD}, algo={"objective": "static", "tau": 0.25}
    )
    risky_run(tmp_path / "runs", "Greedy", {0: BAD}, config="ffff0000")
    status, out, printed, _ = report(tmp_path / "runs")
    assert status == 0
    text = table(out)
    assert "A: Careful (static, tau 0.25; 2 x 4 episodes)" in text
    assert "A: Greedy (mean; 4 episodes)" in text
    rows = {line.split(" (")[0]: line for line in text.splitlines() if line.startswith("A: ")}
    # The mean of 2.5 and 1, then tails of 1 and -6.
    assert estimates(rows["A: Careful"]) == ["1.75", "-2.50", "-2.50", "-2.50", "-2.50"]
    assert rows["A: Greedy"].split()[-1] == "–" and " -6.00" in rows["A: Greedy"]
    says(text, "20 episodes")
    says(printed, "CVaR")


@pytest.mark.parametrize("seeds", [1, 4, 5])
def test_an_interval_of_few_seeds_carries_their_number(tmp_path, report, seeds):
    risky_run(tmp_path / "runs", "Careful", {seed: BAD for seed in range(seeds)})
    report(tmp_path / "runs")
    few = seeds < 5
    assert table(tmp_path / "out").count(f"] (n={seeds})") == 4 * few
    assert bool(lacking(table(tmp_path / "out"), "grey")) != (1 < seeds < 5)
    assert (f"] (n={seeds})</sub>" in (tmp_path / "out/risk-raw/cvar.md").read_text()) == few


@pytest.mark.parametrize(
    ("level", "reported", "own"), [(0.25, "naive, tau 0.25", ["-2.50"]), (1.0, "mean", ["–"])]
)
def test_iqn_is_told_by_the_level_at_which_it_chooses(tmp_path, report, level, reported, own):
    risky_run(tmp_path / "runs", "IQN", {0: GOOD, 1: BAD}, algo={"risk": level})
    risky_run(tmp_path / "runs", "Naive", {0: BAD}, config="ff", algo=NAIVE)
    _, out, _, _ = report(tmp_path / "runs")
    (row,) = (line for line in table(out).splitlines() if line.startswith("A: IQN"))
    assert row.startswith(f"A: IQN ({reported}; 2 x 4 episodes)")
    assert estimates(row)[-1:] == own


def test_a_tau_without_an_objective_is_no_tail(tmp_path, report):
    """An algorithm of one's own may call the rate of its target networks so."""
    risky_run(tmp_path / "runs", "Mine", {0: GOOD, 1: BAD}, algo={"tau": 0.005})
    report(tmp_path / "runs")
    assert "A: Mine (mean)" in table(tmp_path / "out")
    assert "own tau" not in table(tmp_path / "out")


def test_enough_episodes_are_not_warned_of(tmp_path, report):
    many = list(np.random.default_rng(0).normal(size=400))
    risky_run(tmp_path / "runs", "Careful", {0: many, 1: many})
    _, out, _, _ = report(tmp_path / "runs")
    text = table(out)
    assert "2 x 400 episodes" in text and "tail" not in text
    assert f"{measures.cvar(np.array(many), 0.05):.2f} [" in text


def test_pictures_of_returns_and_regret(tmp_path, report):
    group = risky_run(tmp_path / "runs", "Careful", {0: GOOD, 1: BAD})
    metrics = [{"step": k, "seed": s, "regret": 0.1 * k + s} for k in (1000, 2000) for s in (0, 1)]
    (group / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    status, out, _, _ = report(tmp_path / "runs")
    assert status == 0
    for name in ("returns", "regret"):
        assert (out / "risk-raw" / f"{name}.png").stat().st_size > 5000
        assert f'id="risk-raw-{name}-' in (out / "index.html").read_text()


def test_regret_that_was_logged_once_is_no_curve(tmp_path, report):
    group = risky_run(tmp_path / "runs", "Careful", {0: GOOD})
    (group / "metrics.jsonl").write_text(json.dumps({"step": 1, "seed": 0, "regret": 1}) + "\n")
    status, out, _, _ = report(tmp_path / "runs")
    assert status == 0 and not (out / "risk-raw" / "regret.png").exists()


def test_the_trade_off_of_mean_and_tail(tmp_path, report):
    """Two levels of one algorithm are two points of one line."""
    for tau, config in ((0.1, "aaaa0000"), (0.5, "bbbb0000")):
        returns, algo = {0: [0.0] * 10 + [tau] * 90, 1: [1.0] * 100}, NAIVE | {"tau": tau}
        risky_run(tmp_path / "runs", "Careful", returns, config=config, algo=algo)
    _, out, _, _ = report(tmp_path / "runs")
    assert (out / "risk-raw" / "tradeoff.png").stat().st_size > 5000
    results, options = load([tmp_path / "runs"]), Options(replicates=200)
    (section,) = sections(results, options)
    points = risk.trade_offs(risk.read_returns(section.runs), options)
    assert list(points["algorithm"]) == ["Careful", "Careful"] and list(points["tau"]) == [0.1, 0.5]
    assert points["mean"].tolist() == pytest.approx([0.545, 0.725])
    assert points["tail"].tolist() == pytest.approx([0.5, 0.5])
    assert (points["tail_low"] < 0.5).all() and (points["mean_high"] > points["mean"]).all()


def test_a_tau_that_is_no_tail_makes_no_levels_of_one_algorithm():
    names, levels = ("O-RAAC tau=0.1", "Mine tau=0.005", "Mine tau=0.01"), (0.1, math.nan, math.nan)
    returns = pd.DataFrame({"task": "risk/A", "algorithm": names, "tau": levels})
    points = risk.trade_offs(returns.assign(returns=[np.arange(9.0)] * 3), Options(replicates=10))
    assert points["algorithm"].tolist() == ["O-RAAC", "Mine tau=0.005", "Mine tau=0.01"]


def test_levels_in_one_place_share_a_label():
    ends = {f"{key}_{end}": 0.0 for key in ("mean", "tail") for end in ("low", "high")}
    places = {0.1: (0.0, 0.0), 0.4: (0.01, 0.01), 1.0: (1.0, -1.0)}
    rows = [
        ends | {"task": "risk/x", "algorithm": "Careful", "tau": tau, "mean": mean, "tail": tail}
        for tau, (mean, tail) in places.items()
    ]
    figure = figures.tradeoff(pd.DataFrame(rows))
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.1, 0.4", "1"]


def test_a_trade_off_is_drawn_at_its_numbers_in_the_order_of_its_levels():
    names = ["tau", "mean", "mean_low", "mean_high", "tail", "tail_low", "tail_high"]
    rows = [(0.5, 5.0, 4.0, 7.0, 1.0, -1.0, 1.5), (0.1, 3.0, 2.5, 4.5, 2.0, 1.0, 5.0)]
    points = pd.DataFrame(rows, columns=names).assign(task="risk/x", algorithm="Careful")
    (drawn,) = figures.tradeoff(points).axes[0].containers
    line, _, (across, up) = drawn
    assert line.get_xydata().tolist() == [[3, 2], [5, 1]]
    assert [bar.tolist() for bar in across.get_segments()] == [
        [[2.5, 2], [4.5, 2]],
        [[4, 1], [7, 1]],
    ]
    assert [bar.tolist() for bar in up.get_segments()] == [[[3, 1], [3, 5]], [[5, -1], [5, 1.5]]]


def test_a_distribution_is_of_all_seeds_and_its_dots_are_means_over_seeds():
    seeds = [np.array([4.0, 1.0]), np.array([3.0, 2.0])]
    returns = pd.DataFrame({"task": "risk/x", "algorithm": "A", "returns": seeds})
    share, dots = figures.distributions(returns, looks("A")).axes[0].lines
    assert share.get_xydata().tolist() == [[1, 0.25], [2, 0.5], [3, 0.75], [4, 1]]
    assert dots.get_xydata().tolist() == [[1.5, tau] for tau in measures.TAUS]


@pytest.mark.parametrize("count", [1, 9])
def test_a_legend_fits_its_figure(count):
    names = [f"An algorithm of some length tau={i}" for i in range(count)]
    returns = pd.DataFrame(
        {"task": "risk/x", "algorithm": names, "returns": [np.arange(30.0)] * count}
    )
    figure = figures.distributions(returns, looks(names))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_one_policy_is_no_trade_off(tmp_path, report):
    risky_run(tmp_path / "runs", "Careful", {0: GOOD, 1: BAD})
    _, out, _, _ = report(tmp_path / "runs")
    assert not (out / "risk-raw" / "tradeoff.png").exists()


def test_runs_without_returns_have_no_such_table(tmp_path, report):
    write_run(tmp_path / "runs", "risk/A", "Old", normalised=False)
    status, out, _, _ = report(tmp_path / "runs")
    assert status == 0 and not (out / "risk-raw" / "cvar.txt").exists()


def test_tasks_of_other_collections_have_no_such_table(tmp_path, report):
    group = write_run(tmp_path / "runs", "gym/Hopper-v4", "SAC", normalised=False)
    (group / "returns.jsonl").write_text('{"step": 3000, "seed": 0, "returns": [1.0]}\n')
    _, out, _, _ = report(tmp_path / "runs")
    assert not (out / "gym-raw" / "cvar.txt").exists()


def test_cvar_is_shown_of_any_task_that_it_is_asked_for(tmp_path, report):
    group = write_run(tmp_path / "runs", "gym/Hopper-v4", "SAC", seeds=(0,), normalised=False)
    (group / "returns.jsonl").write_text('{"step": 3000, "seed": 0, "returns": [1.0, 5.0]}\n')
    _, out, printed, _ = report(tmp_path / "runs", "--risk")
    text = (out / "gym-raw" / "cvar.txt").read_text()
    assert "Hopper-v4: SAC (mean) " in text
    says(text, "2 episodes")
    assert "CVaR 0.05" in text and "own tau" not in text, "a mean has no tau"
    assert "no CVaR" not in printed
    (group / "returns.jsonl").unlink()
    _, _, printed, _ = report(tmp_path / "runs", "--risk")
    says(printed, "CVaR episode")


def test_a_score_file_where_one_works_has_no_cvar(tmp_path, report, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "config.yaml").write_text("algo: of another program")
    monkeypatch.chdir(tmp_path / "project")
    Path("mine.csv").write_text(
        "algorithm,task,seed,score\nIQL,risk/x,0,1\nIQL,risk/x,1,2\n", encoding="utf-8"
    )
    _, _, printed, _ = report("mine.csv", "--risk")
    says(printed, "CVaR")


def test_a_broken_line_is_named(tmp_path):
    import pandas as pd

    from corerl.report import risk

    file = tmp_path / "scores.csv"
    runs = pd.DataFrame([("A", "risk/A", 0, 1, str(file))])
    runs.columns = ["algorithm", "task", "seed", "step", "file"]
    good = '{"step": 1, "seed": 0, "returns": [1.0, 2.0]}\n'
    (tmp_path / "returns.jsonl").write_text(good + '{"step": 1, "se')  # cut by a kill
    assert len(risk.read_returns(runs)) == 1
    (tmp_path / "returns.jsonl").write_text("{oops\n" + good)
    with refused("returns.jsonl 1"):
        risk.read_returns(runs)


def test_returns_and_regret_of_a_run_with_updates_on_the_data_are_of_the_same_step(tmp_path):
    """Its files count the 2,000 updates before the environment's first step, its scores do not."""
    algo = {"phase": "both", "online": {"pretrain_steps": 2000}}
    group = write_run(tmp_path, "risk/A", "IQL", seeds=(0,), algo=algo)
    lines = [{"step": k, "seed": 0, "returns": [float(k)], "regret": k} for k in (1000, 2000, 3000)]
    for name in ("returns.jsonl", "metrics.jsonl"):
        (group / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores = load([tmp_path]).scores
    (row,) = risk.read_returns(stats.final(scores)).itertuples()
    assert row.returns.tolist() == [3000]
    assert risk.read_regret(scores)["step"].tolist() == [-1000, 0, 1000]


def test_an_own_level_of_few_episodes_is_warned_of(tmp_path, report):
    episodes = np.arange(500.0).tolist()
    risky_run(tmp_path / "runs", "Careful", {0: episodes}, algo=NAIVE | {"tau": 0.01})
    report(tmp_path / "runs")
    says(table(tmp_path / "out"), "tau 0.01 20")
