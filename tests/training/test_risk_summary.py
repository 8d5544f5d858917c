"""What risk-sensitive runs print at their end."""

import json
from types import SimpleNamespace

import numpy as np

from corerl.training import risk_summary


def make(tmp_path, **settings):
    record = SimpleNamespace(directory=tmp_path, label="CODAC")
    cfg = SimpleNamespace(algo=SimpleNamespace(**settings))
    return SimpleNamespace(record=record, cfg=cfg, task=SimpleNamespace(id="risk/D1"))


def test_it_tells_the_objective_and_the_tails_of_the_last_evaluation(tmp_path, capsys):
    returns = np.random.default_rng(0).permutation(np.arange(1.0, 21.0)).tolist()
    lines = [
        {"step": 5, "seed": 3, "returns": [0.0]},
        {"step": 10, "seed": 3, "returns": returns},
        {"step": 10, "seed": 4, "returns": [7.0]},
    ]
    (tmp_path / "returns.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    risk_summary.print_summary(make(tmp_path, objective="naive", tau=0.1))
    first, second = capsys.readouterr().out.splitlines()
    # The worst of 20, of two, of five: 1, 1.5 and 3.
    assert first == (
        "CODAC on risk/D1, seed 3: optimised naive, tau 0.1, 20 episodes: mean 10.5, "
        "static CVaR 1 (0.05), 1.5 (0.1), 3 (0.25)"
    )
    risk_summary.print_summary(make(tmp_path, objective="naive", tau=0.5))
    assert "3 (0.25), 5.5 (0.5)\n" in capsys.readouterr().out  # the tail that counted, too
    assert "seed 4" in second and "1 episodes: mean 7, static CVaR 7 (0.05)" in second


def test_only_a_tail_has_a_tau(tmp_path, capsys):
    assert risk_summary.objective(SimpleNamespace(objective="wang", tau=None)) == "wang"
    assert risk_summary.objective(SimpleNamespace(objective="mean", tau=0.1)) == "mean"
    risk_summary.print_summary(make(tmp_path, objective="mean", tau=0.1))  # nothing was played
    assert capsys.readouterr().out == ""
