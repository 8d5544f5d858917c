"""The benchmark drives the algorithms' own loops and counts every update of every seed."""

import io
import time

import pytest
import torch
from small import OFFLINE
from wording import refused, says

from corerl.algos import bc, iql, rlpd, sac
from corerl.bench import bench, measure_rates, stopwatch
from corerl.bench.stopwatch import Case, Measured
from corerl.cli import main
from corerl.config import Config
from corerl.errors import CorerlError

TINY = {"hidden_width": 8, "batch_size": 8}


@pytest.fixture
def quick(monkeypatch):
    """Windows of a twentieth of a second."""
    steps = stopwatch.Stopwatch.steps

    def short(self, *, stride=1, seconds=0.05, **state):
        yield from steps(self, stride=stride, seconds=seconds, **state)

    monkeypatch.setattr(stopwatch.Stopwatch, "steps", short)


@pytest.mark.parametrize("algo", OFFLINE)
def test_every_algorithm_can_be_measured(quick, algo):
    found = stopwatch.measure(Case(algo, TINY, seeds=2, size=1000), iter(range(3)))
    assert len(found.rates) == 3 and all(rate > 10 for rate in found.rates)
    assert found.ran == "off" and found.start > 0 and not found.memory


@pytest.mark.parametrize("algo", ["bc_neorl2", "orpo_sac", "qcs", "reload_sac"])
def test_what_an_algorithm_needs_on_the_synthetic_data_is_there(quick, algo):
    stopwatch.measure(Case(algo, {"batch_size": 8}, size=1000), iter(()))


def test_rates_of_the_sweeps_go_on_after_what_cannot_be_measured(monkeypatch, capsys):
    def measured(processes, case, windows):
        if case.algo == "iql":
            raise CorerlError("no")
        return Measured([3.0], "compile", 0.0, 0)

    jobs = [Config(algo=iql.Config()), Config(algo=bc.Config(batch_size=8))]
    monkeypatch.setattr(measure_rates, "sweeps", lambda: ["one"])
    monkeypatch.setattr(measure_rates, "cells", lambda arguments: jobs)
    monkeypatch.setattr(measure_rates, "measure_processes", measured)
    measure_rates.measure("cpu")
    found = capsys.readouterr()
    assert [line.split(",")[0] for line in found.out.splitlines()] == ["algo", "bc"]
    says(found.err, "iql")


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_memory_is_counted_of_each_case_alone(monkeypatch, device):
    """Also of the first in a process, before which the GPU has no counters, and of a second."""
    card = {"begun": False, "held": 5, "peak": 0}

    def reset(which):
        assert card["begun"] and torch.device(which).type == "cuda"
        card["peak"] = card["held"]

    def train(cfg, run):
        card["held"] += 3
        card["peak"] = max(card["peak"], card["held"])

    of_torch = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda _: None,
        "init": lambda: card.update(begun=True),
        "empty_cache": lambda: card.update(held=0),
        "reset_peak_memory_stats": reset,
        "max_memory_reserved": lambda which: card["peak"] if torch.device(which) else 0,
    }
    for name, function in of_torch.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(bc, "train", train)
    cases = [Case("bc", TINY, device, "off") for _ in range(2)]
    assert [stopwatch.measure(case, iter(())).memory for case in cases] == [3, 3]


def test_the_rate_counts_updates_of_all_seeds_per_second(monkeypatch):
    rates = []
    job = Config(algo=bc.Config(), task="gym/HalfCheetah-v4")
    watch = stopwatch.Stopwatch(job, [0, 1, 2], 1000, iter(range(1)), rates.append)
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)  # 10 ms at every look
    calls = sum(1 for _ in watch.steps(stride=2, seconds=1.0)) - 8  # without the warm-up
    assert calls == pytest.approx(100, abs=2)
    assert rates == [pytest.approx(3 * 2 * calls, rel=0.03)]


@pytest.mark.parametrize(
    ("algo", "before"), [(bc.Config(), 0), (sac.Config(), 10_000), (rlpd.Config(), 5_000)]
)
def test_steps_before_the_first_update_are_not_timed(algo, before):
    watch = stopwatch.Stopwatch(
        Config(algo=algo, task="gym/HalfCheetah-v4"), [0], 1000, iter(()), print
    )
    assert len(list(watch.steps())) == before + 8


def test_serving_gives_one_rate_per_line(quick, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("go\ngo\n"))
    settings = [f"{name}={value}" for name, value in TINY.items()]
    arguments = ["--algo", "bc", "--compile", "off", "--size", "1000", "--set", *settings]
    assert main(["bench", "--serve", *arguments]) == 0
    ready, *rates = capsys.readouterr().out.split()
    assert ready == "ready" and len(rates) == 2 and all(float(rate) > 10 for rate in rates)


def test_the_table_shows_a_row_per_combination(capsys, monkeypatch):
    asked = []

    def measured(processes, case, windows):
        asked.append((case.algo, case.compile, case.seeds, processes, windows))
        return Measured([100.0, 300.0, 200.0], "off", 1.0, 0)

    monkeypatch.setattr(bench, "measure_processes", measured)
    arguments = ["--algo", "bc", "iql", "--compile", "off", "--seeds", "1", "5", "--windows", "3"]
    assert main(["bench", *arguments]) == 0
    assert asked == [(algo, "off", seeds, 1, 3) for algo in ("bc", "iql") for seeds in (1, 5)]
    text = capsys.readouterr().out
    assert text.count(" 200 ") == 4 and "torch" in text


def test_the_table_says_how_updates_ran_and_why_not_otherwise(capsys, monkeypatch):
    found = Measured([100.0], "off", 1.0, 0, "compiling failed: no compiler")
    monkeypatch.setattr(bench, "measure_processes", lambda *_: found)
    assert main(["bench", "--algo", "bc", "--compile", "compile", "--seeds", "1", "2"]) == 0
    text = capsys.readouterr().out
    assert text.count("compile: off") == 2
    assert text.count("bc, compile: compiling failed: no compiler\n") == 1


def test_settings_are_of_their_fields_types():
    """PyYAML reads 1e-4 as a text."""
    assert bench._settings("bc", ["lr=1e-4", "hidden_width=8", "layer_norm=false"]) == {
        "lr": 1e-4,
        "hidden_width": 8,
        "layer_norm": False,
    }


def test_processes_are_measured_together():
    (rate,) = stopwatch.measure_processes(1, Case("bc", TINY, size=1000), windows=1).rates
    assert rate > 10


def test_a_process_that_fails_ends_the_measurement(capfd):
    wrong = Case("bc", {"hidden_width": "wide"}, size=1000)
    with refused("process"):
        stopwatch.measure_processes(2, wrong, windows=1)
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algo", "iqll"], "iqll iql"),
        (["--size", "10"], "--size 10 1000 episode"),
        (["--windows", "0"], "--windows 0"),
        (["--device", "gpu"], "device=gpu cuda:N"),
        (["--compile", "fast"], "compile=fast"),
        (["--set", "widht=3", "--algo", "bc"], "widht algo=bc"),
        (["--set", "lr=fast", "--algo", "bc"], "lr=fast"),
        (["--set", "lr=0", "--algo", "bc"], "algo.lr=0.0"),
    ],
)
def test_bad_input_is_one_sentence(capfd, arguments, words):
    assert main(["bench", *arguments]) == 2
    error = capfd.readouterr().err
    says(error, words, lines=1)
