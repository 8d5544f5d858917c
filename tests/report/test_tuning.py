"""What tuning costs: against enumeration, and against arms whose means are known."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import yaml
from wording import says

from corerl.cli import main
from corerl.report import tuning
from corerl.report.stats.tuning import bandit, expected_best


@pytest.mark.parametrize("tried", [1, 2, 3, 5])
def test_expected_best_is_the_mean_over_all_ways_to_draw(tried):
    scores = np.array([3.0, -1.0, 7.5, 7.5, 2.0])
    every = [max(draw) for draw in itertools.product(scores, repeat=tried)]
    mean, spread = expected_best(scores, tried)
    assert mean == pytest.approx(np.mean(every)) and spread == pytest.approx(np.std(every))


def test_a_bandit_of_certain_arms_knows_the_best_when_it_has_played_all():
    returns = [np.full(3, value) for value in (1.0, 5.0, 2.0, 4.0)]
    deployed = bandit(returns, arms=4, pulls=10, repeats=4000)
    assert deployed.mean[0] == pytest.approx(3.0, abs=0.1)  # any of them
    pairs = [max(pair) for pair in itertools.combinations((1.0, 5.0, 2.0, 4.0), 2)]
    assert deployed.mean[1] == pytest.approx(np.mean(pairs), abs=0.1)
    assert (deployed.mean[3:] == 5).all() and (deployed.low[3:] == 5).all()


def test_arms_are_drawn_without_replacement():
    returns = [np.full(1, float(value)) for value in range(5)]
    best = bandit(returns, arms=2, pulls=2, repeats=20_000).mean[-1]
    pairs = [max(pair) for pair in itertools.combinations(range(5), 2)]
    assert best == pytest.approx(np.mean(pairs), abs=0.03)


def test_the_bound_shrinks_with_the_root_of_an_arm_s_episodes():
    """The second arm returns -1 or 100. After -1 it is tried again once 1.5 sqrt(log t) - 1 exceeds
    1.5 sqrt(log t / (t - 2)): at t = 6, where 1.008 exceeds 1.004 (at t = 5, 0.903 and 1.099)."""
    returns = [np.zeros(2), np.array([-1.0, 100.0])]
    alpha = 1.5 / np.std([0.0, 0.0, -1.0, 100.0])
    mean = bandit(returns, alpha=alpha, pulls=6, repeats=4000).mean
    assert mean[1] == pytest.approx(49.5 / 2, abs=2) and (mean[2:5] == mean[1]).all()
    assert mean[5] == pytest.approx(49.5 * 3 / 4, abs=2)


def test_bounds_are_of_the_middle_95_percent_of_repetitions():
    returns = [np.full(1, float(value)) for value in range(100)]
    deployed = bandit(returns, arms=1, pulls=1, repeats=20_000)  # each of them as often
    assert (deployed.low[0], deployed.high[0]) == (2, 97)


def test_noisy_arms_take_more_episodes_and_are_found():
    rng = np.random.default_rng(0)
    returns = [rng.normal(mean, 3, 500) for mean in (0.0, 1.0, 2.0)]
    deployed = bandit(returns, pulls=400, repeats=400)
    truth = [r.mean() for r in returns]
    assert deployed.mean[2] < max(truth) - 0.3 < deployed.mean[-1] < max(truth) + 1e-9


def sweep(
    root, expectiles: dict[float, list[list[float]]], name: str = "IQL", label: str | None = None
) -> None:
    """Finished runs of IQL: the returns of each seed's last evaluation, by expectile."""
    for number, (expectile, seeds) in enumerate(expectiles.items()):
        cell = root / "corerl/pendulum" / f"iql-{number:08x}"
        algo = {"name": "iql", "label": name, "expectile": expectile}
        settings = {"task": "corerl/pendulum", "seeds": len(seeds), "label": label, "steps": 10}
        cell.mkdir(parents=True)
        (cell / "config.yaml").write_text(yaml.safe_dump(settings | {"algo": algo}))
        for seed, returns in enumerate(seeds):
            (cell / f"seeds-{seed}").mkdir()
            early = {"step": 5, "seed": seed, "returns": [999.0]}
            last = {"step": 10, "seed": seed, "returns": returns}
            lines = f"{json.dumps(early)}\n{json.dumps(last)}\n"
            (cell / f"seeds-{seed}/returns.jsonl").write_text(lines)
            status = json.dumps({"state": "done", "step": 10})
            (cell / f"seeds-{seed}/status.json").write_text(status)


def test_the_command_reads_a_sweep_and_writes_table_and_figure(tmp_path, capsys):
    sweep(tmp_path / "disk", {0.5: [[10.0, 20.0], [30.0, 40.0]], 0.9: [[70.0, 70.0]]})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/link").symlink_to(tmp_path / "disk")
    out = tmp_path / "out"
    paths = [str(tmp_path / "runs"), str(tmp_path / "disk")]  # one and the same
    assert main(["tuning", *paths, "--out", str(out), "--episodes", "20"]) == 0
    reported = capsys.readouterr().out
    says(reported, "IQL corerl/pendulum 2 3 10 steps")
    table = pd.read_csv(out / "IQL-corerl-pendulum.csv").set_index(["kind", "count"])
    assert table.loc[("settings", 1), "mean"] == pytest.approx((25 + 70) / 2)
    assert table.loc[("settings", 1), ["low", "high"]].tolist() == [25, 70]  # a deviation of 22.5
    assert table.loc[("settings", 2), "mean"] == pytest.approx((25 + 3 * 70) / 4)
    assert table.loc[("episodes", 1), "mean"] == pytest.approx((15 + 35 + 70) / 3, abs=3)
    assert table.loc[("episodes", 20), "mean"] == pytest.approx(70, abs=1)
    assert (out / "IQL-corerl-pendulum.png").stat().st_size > 1000


def test_small_returns_are_no_zeros(tmp_path, capsys):
    sweep(tmp_path / "runs", {0.5: [[0.004]], 0.9: [[0.008]]})
    words = [str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--episodes", "10"]
    assert main(["tuning", *words]) == 0
    *_, first, second, _, last, _, _ = capsys.readouterr().out.splitlines()
    assert first.split() == ["best", "of", "1", "settings", "0.006", "±", "0.002"]
    assert second.split() == ["best", "of", "2", "settings", "0.007", "±", "0.002"]
    assert last.split() == ["after", "10", "episodes", "0.008", "[0.008,", "0.008]"]


def test_the_steps_of_settings_are_told(tmp_path, capsys):
    sweep(tmp_path / "runs", TWO)
    command = ["tuning", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--episodes", "3"]
    assert main(command) == 0
    says(capsys.readouterr().out, "2 10 steps")
    (file, *_) = sorted(tmp_path.rglob("returns.jsonl"))
    file.write_text(file.read_text().replace('"step": 10', '"step": 2000'))
    assert main(command) == 0
    says(capsys.readouterr().out, "2 10 2k steps")


def test_a_running_seed_and_one_that_diverged_are_no_choice(tmp_path):
    sweep(tmp_path, {0.5: [[10.0], [20.0], [30.0]], 0.9: [[70.0]]})
    for seed, status in ((1, {"state": "running"}), (2, {"state": "done", "diverged": {"2": 7}})):
        (file,) = tmp_path.rglob(f"seeds-{seed}/status.json")
        file.write_text(json.dumps(status))
    ((_, policies),) = tuning.collect([tmp_path]).items()
    assert [policy.returns.tolist() for policy in policies] == [[10.0], [70.0]]


@pytest.mark.parametrize(("kept", "evaluated"), [(1, 10), (0, None)])
def test_a_seed_whose_last_evaluation_was_lost_is_left_out(tmp_path, capsys, kept, evaluated):
    sweep(tmp_path, {0.5: [[10.0], [20.0]], 0.9: [[70.0]]})
    file, *_ = sorted(tmp_path.rglob("returns.jsonl"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:kept]))
    status = {"state": "done", "step": 10, "evaluated": evaluated}
    (file.parent / "status.json").write_text(json.dumps(status))
    ((_, policies),) = tuning.collect([tmp_path]).items()
    assert [policy.returns.tolist() for policy in policies] == [[20.0], [70.0]]
    says(capsys.readouterr().err, f"{file} 0")


def test_the_last_evaluation_is_that_of_the_group(tmp_path):
    sweep(tmp_path, TWO)
    file, *_ = sorted(tmp_path.rglob("returns.jsonl"))
    early, last = file.read_text().splitlines(keepends=True)
    file.write_text(early + early.replace('"seed": 0', '"seed": 1') + last)  # seed 1's was lost
    file.parent.rename(file.parent.with_name("seeds-0-1"))
    ((_, policies),) = tuning.collect([tmp_path]).items()
    assert [policy.returns.tolist() for policy in policies] == [[10.0, 20.0], [70.0, 80.0]]


def test_one_setting_is_no_choice(tmp_path, capsys):
    sweep(tmp_path, {0.5: [[10.0], [20.0]]})
    assert main(["tuning", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    says(capsys.readouterr().err, "seeds")


TWO = {0.5: [[10.0, 20.0]], 0.9: [[70.0, 80.0]]}


def test_runs_of_two_labels_are_two_sweeps(tmp_path, capsys):
    for label in ("mine", "theirs"):
        sweep(tmp_path / label, TWO, label=label)
    assert main(["tuning", str(tmp_path), "--out", str(tmp_path / "out"), "--episodes", "3"]) == 0
    reported = capsys.readouterr().out
    for label in ("mine", "theirs"):
        assert f"{label} on corerl/pendulum: 2 settings, 2 policies" in reported
        assert (tmp_path / f"out/{label}-corerl-pendulum.csv").exists()


def test_no_label_leads_out_of_the_folder_and_none_overwrites_another(tmp_path):
    for i, label in enumerate(("../../out/BC", "out BC")):
        sweep(tmp_path / f"runs/{i}", TWO, label)
    out = tmp_path / "a/b"
    assert main(["tuning", str(tmp_path / "runs"), "--out", str(out), "--episodes", "3"]) == 0
    written = {path for path in tmp_path.rglob("*.csv")}
    assert written == {out / f"out-BC-corerl-pendulum{more}.csv" for more in ("", "-2")}


@pytest.mark.parametrize(
    "line", ["{oops", '{"seed": 0}', '{"seed": 0, "step": 1, "returns": ["a"]}']
)
def test_damaged_returns_are_a_sentence(tmp_path, capsys, line):
    sweep(tmp_path, TWO)
    (file, *_) = sorted(tmp_path.rglob("returns.jsonl"))
    file.write_text(f"{line}\n{file.read_text()}")
    assert main(["tuning", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"corerl: {file}" in capsys.readouterr().err


def test_a_line_that_a_kill_cut_is_left_out(tmp_path):
    sweep(tmp_path, TWO)
    for file in tmp_path.rglob("returns.jsonl"):
        file.write_text(file.read_text() + '{"seed": 0, "ret')
    ((_, policies),) = tuning.collect([tmp_path]).items()
    assert [policy.returns.tolist() for policy in policies] == [[10.0, 20.0], [70.0, 80.0]]
