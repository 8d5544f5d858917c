"""A run logs, evaluates and saves when it should, and survives whatever cuts it short."""

import contextlib
import csv
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import tiny
import torch
from small import FIXED, config, group, train
from wording import refused, says

from corerl import seeding
from corerl.algos import bc, iql
from corerl.cli import main
from corerl.config import Eval
from corerl.data import tasks
from corerl.nn.learner import Stateful
from corerl.runs import files
from corerl.runs.checkpoint import load_checkpoint, save_checkpoint
from corerl.runs.directory import config_hash
from corerl.training.devices import pick_device
from corerl.training.run import Run
from corerl.training.stopping import Interrupted

ALGOS = Path(bc.__file__).parent

pytestmark = pytest.mark.usefixtures("load_once")


class Counter:
    """The smallest agent: counts its updates and acts with the count."""

    def __init__(self, seeds: int):
        self.count = torch.zeros(seeds)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count.copy_(state["count"])

    def act(self, observations):
        return (self.count % 3 - 1).view(-1, 1, 1).expand(*observations.shape[:2], 1)


def quiet(name, status):
    """Shows nothing."""


def count(run: Run, stride: int = 1, metric=lambda step: [float(step), 10.0 * step]) -> Counter:
    """A loop as algorithms have it, with metrics that are known beforehand."""
    agent = Counter(len(run.seeds))
    for step in run.steps(stride=stride, agent=agent):
        agent.count += 1
        run.log(step, {"loss": torch.tensor(metric(step))[: len(run.seeds)]})
        run.evaluate(step, agent.act)
        run.save(step)
    return agent


@pytest.mark.parametrize("algo", ["sac", "qr_dqn"])
def test_the_environments_that_it_trained_in_are_closed(algo, tmp_path, monkeypatch):
    made, closed = [], []
    make = tasks.Task.make_env

    class Counted(gymnasium.Wrapper):
        def close(self):
            closed.append(self)

    def make_counted(task):
        made.append(Counted(make(task)))
        return made[-1]

    monkeypatch.setattr(tasks.Task, "make_env", make_counted)
    cfg = replace(tiny.settings(algo), root=str(tmp_path), eval=Eval(episodes=0), compile="off")
    run = Run(replace(cfg, device="cpu"), [0, 4], quiet)
    importlib.import_module(f"corerl.algos.{algo}").train(cfg.algo, run)
    assert made and closed == made


def metrics(run: Run) -> list[dict]:
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").open()]


def scores(run: Run) -> list[dict]:
    return list(csv.DictReader((run.directory / "scores.csv").open()))


# Logging, evaluating, saving.


def test_metrics_are_averages_since_the_last_line(tmp_path):
    run = Run(config(tmp_path, steps=10, log_every=4), [0, 7], quiet)
    count(run)
    assert metrics(run) == [
        {"step": 4, "seed": 0, "loss": 2.5},
        {"step": 4, "seed": 7, "loss": 25.0},
        {"step": 8, "seed": 0, "loss": 6.5},
        {"step": 8, "seed": 7, "loss": 65.0},
        {"step": 10, "seed": 0, "loss": 9.5},
        {"step": 10, "seed": 7, "loss": 95.0},
    ]


def test_a_stride_logs_when_it_passes_the_mark(tmp_path):
    run = Run(config(tmp_path, steps=12, log_every=5), [0], quiet)
    count(run, stride=2)
    assert [(line["step"], line["loss"]) for line in metrics(run)] == [
        (6, 4.0),
        (10, 9.0),
        (12, 12),
    ]


def test_steps_that_are_no_multiple_of_the_stride_are_refused(tmp_path):
    run = Run(config(tmp_path, steps=11), [0], quiet)
    with refused("steps=11 2"):
        count(run, stride=2)


def test_it_evaluates_at_every_mark_and_at_the_end(tmp_path):
    cfg = config(tmp_path, steps=50, eval=Eval(every=20, episodes=2), label="a, b")
    run = Run(cfg, [3, 5], quiet)
    count(run)
    rows = scores(run)
    assert [(row["step"], row["seed"]) for row in rows] == [
        (step, seed) for step in ("20", "40", "50") for seed in "35"
    ]
    for row in rows:
        assert row["task"] == "corerl/pendulum" and row["algorithm"] == "a, b"
        assert row["config"] == config_hash(cfg)
        assert (row["episodes"], row["length"]) == ("2", "200.0")
        low, high = -1224.9, -150.1
        score = 100 * (float(row["return"]) - low) / (high - low)
        assert float(row["score"]) == pytest.approx(score)
        assert float(row["return_std"]) > 0
    lines = [json.loads(line) for line in (run.directory / "returns.jsonl").open()]
    assert [(str(line["step"]), str(line["seed"])) for line in lines] == [
        (row["step"], row["seed"]) for row in rows
    ]
    for row, line in zip(rows, lines, strict=True):
        assert np.mean(line["returns"]) == float(row["return"]) and len(line["returns"]) == 2
    status = json.loads((run.directory / "status.json").read_text())
    assert status["state"] == "done" and status["step"] == status["steps"] == 50
    last = [float(row["score"]) for row in rows[-2:]]
    assert status["score"] == pytest.approx(sum(last) / 2) and status["diverged"] == {}


def test_nothing_is_evaluated_where_nobody_asks(tmp_path):
    run = Run(config(tmp_path, steps=20, eval=Eval(every=10, episodes=0)), [0], quiet)
    count(run)
    assert not (run.directory / "scores.csv").exists() and metrics(run)


@pytest.mark.parametrize(("stride", "saved"), [(1, [10, 20, 25]), (5, [10, 20, 25])])
def test_it_saves_at_every_mark_and_at_the_end(tmp_path, monkeypatch, stride, saved):
    steps = []
    monkeypatch.setattr(
        "corerl.training.run.save_checkpoint", lambda _, s, __: steps.append(s["loop"]["step"])
    )
    count(Run(config(tmp_path, steps=25), [0], quiet), stride=stride)
    assert steps == saved


def test_between_checkpoints_some_minutes_pass_and_the_last_is_written(tmp_path, monkeypatch):
    saved, clock = [], [0.0]
    monkeypatch.setattr("corerl.training.run.save_checkpoint", lambda *_: saved.append(run._now))
    monkeypatch.setattr("corerl.training.run.time.monotonic", lambda: clock[0])
    cfg = config(tmp_path, steps=40, save_every=5, save_minutes=2.0, eval=Eval(episodes=0))
    run = Run(cfg, [0], quiet)
    agent = Counter(1)
    for step in run.steps(agent=agent):
        run._now, clock[0] = step, clock[0] + 10.0  # seconds an update: two minutes are 12 updates
        run.save(step)
    assert saved == [15, 30, 40]


def test_what_an_update_waits_for_is_shown_and_does_not_count(tmp_path):
    shown = []
    run = Run(
        config(tmp_path, steps=3, eval=Eval(episodes=0)), [0], lambda _, s: shown.append(s | {})
    )
    for step in run.steps(agent=Counter(1)):
        if step == 1:
            run.mode.tell("compiling")
            time.sleep(0.3)
            run.mode.fall_back("off", "no compiler")
            run.mode.tell("")
    reported = [(status.get("waiting_for"), status["compile"]) for status in shown]
    assert reported[:3] == [(None, "off"), ("compiling", "off"), ("", "off (no compiler)")]
    assert shown[-1]["updates_per_s"] > 3 / 0.3


def test_a_rate_is_of_the_steps_that_learn_and_anew_where_others_are_measured(
    tmp_path, monkeypatch
):
    """A thousand random steps a second, then one update in two seconds, then one in four."""
    clock, shown = [0.0], []
    monkeypatch.setattr("corerl.runs.record.time.monotonic", lambda: clock[0])
    cfg = config(tmp_path, steps=30, eval=Eval(episodes=0))
    run = Run(cfg, [0], lambda _, status: shown.append(status | {}))
    for step in run.steps(agent=Counter(1)):
        clock[0] += 0.001 if step <= 10 else 2.0 if step <= 20 else 4.0
        if step > 10:
            run.log(step, {"loss" if step <= 20 else "regret": torch.zeros(1)})
    rates = {status["step"]: (status["learning"], status["updates_per_s"]) for status in shown}
    assert rates[20] == (True, pytest.approx(0.5)) and rates[30] == (True, pytest.approx(0.25))
    assert not rates[0][0]


def test_a_metric_that_few_updates_give_begins_no_rate_anew(tmp_path, monkeypatch):
    clock, shown = [0.0], []
    monkeypatch.setattr("corerl.runs.record.time.monotonic", lambda: clock[0])
    cfg = config(tmp_path, steps=20, eval=Eval(episodes=0))
    run = Run(cfg, [0], lambda _, status: shown.append(status | {}))
    for step in run.steps(agent=Counter(1)):
        clock[0] += 2.0 if step <= 11 else 4.0
        rare = {"norm": torch.zeros(1)} if (step % 10 == 1 and step > 1) or step == 20 else {}
        run.log(step, {"loss": torch.zeros(1)} | rare)
    assert shown[-1]["updates_per_s"] == pytest.approx(19 / (10 * 2 + 9 * 4))


def test_wall_clock_is_of_all_attempts_with_their_evaluations(tmp_path, monkeypatch):
    """Three seconds an update: stopped after 4 of 10, an hour's pause, then the others."""
    clock = [100.0]
    monkeypatch.setattr("corerl.runs.record.time.monotonic", lambda: clock[0])
    cfg = config(tmp_path, steps=10, eval=Eval(episodes=0))
    for stop in (4, None):
        run = Run(cfg, [0], quiet)
        clock[0] += 3600
        with contextlib.suppress(Interrupted):
            for step in run.steps(agent=Counter(1)):
                clock[0] += 3
                run._stop = step == stop
                run.save(step)
        assert status_file(run)["seconds"] == (12 if stop else 30)
    Run(cfg, [0], quiet).fail("failed", "before it began")
    assert status_file(run)["seconds"] == 30
    run.record.begin_anew()
    run.record.start_clock(0)
    assert status_file(run)["seconds"] == 0


@pytest.mark.parametrize("status", ['{"state": "interrupted", "step": 4}', "torn", None])
def test_no_wall_clock_is_made_up_for_attempts_that_recorded_none(tmp_path, status):
    run = Run(config(tmp_path), [0], quiet)
    run.record.begin_anew()
    if status is not None:
        (run.directory / "status.json").write_text(status)
    resumed = Run(config(tmp_path), [0], quiet)
    resumed.record.start_clock(4)
    assert status_file(resumed)["seconds"] is None


def status_file(run: Run) -> dict:
    return json.loads((run.directory / "status.json").read_text())


def test_metrics_stay_where_they_are_made_when_a_run_is_resumed(tmp_path):
    """Some algorithms' are on the CPU, whatever the device; `meta` stands for a GPU."""
    run = Run(config(tmp_path), [0], quiet)
    run.record.begin_anew()
    for device in ("cpu", "meta"):
        state = run.record.state_dict() | {"sums": {"loss": torch.ones(1)}, "counts": {"loss": 1}}
        run.device = torch.device("meta")
        run.record.load_state_dict(state, 1)
        run.record.add(2, {"loss": torch.ones(1, device=device)})
        assert run.record.means.sums["loss"].device.type == device


def record_of(tmp_path: Path, *updates: dict) -> Run:
    """A run of seeds 0 and 7 whose only line of metrics is of these updates."""
    run = Run(config(tmp_path), [0, 7], quiet)
    run.record.begin_anew()
    for step, made in enumerate(updates, start=1):
        run.record.add(step, made)
    run.record.write_metrics(len(updates))
    return run


def test_metrics_are_told_by_their_names_in_any_order(tmp_path):
    low, high = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    run = record_of(tmp_path, {"loss": low, "return": high}, {"return": high, "loss": low})
    assert [(line["loss"], line["return"]) for line in metrics(run)] == [(1.0, 10.0), (2.0, 20.0)]


def test_a_metrics_mean_is_over_the_updates_that_gave_it(tmp_path):
    """Whatever cuts the run short, and whatever else is given at which update."""
    cfg = config(tmp_path / "whole", steps=20, log_every=10, save_every=1, save_minutes=0)
    run = Run(cfg, [0], quiet)

    def go(run, stop=None):
        for step in run.steps(agent=Counter(1)):
            rare = {"norm": torch.tensor([10.0 * step])} if step in (1, 6, 18) else {}
            late = {"late": torch.ones(1)} if step > 13 else {}
            run.log(step, rare | {"loss": torch.tensor([float(step)])} | late)
            run.save(step)
            run._stop = step == stop

    go(run)
    assert metrics(run) == [
        {"step": 10, "seed": 0, "norm": 35.0, "loss": 5.5},
        {"step": 20, "seed": 0, "loss": 15.5, "late": 1.0, "norm": 180.0},
    ]
    for stop in (7, 10, 16):
        part = replace(cfg, root=str(tmp_path / str(stop)))
        with pytest.raises(Interrupted):
            go(Run(part, [0], quiet), stop)
        resumed = Run(part, [0], quiet)
        go(resumed)
        assert metrics(resumed) == metrics(run)


def test_an_update_may_give_no_metric_at_all(tmp_path):
    run = record_of(tmp_path, {}, {"loss": torch.ones(2)}, {})
    assert [line["loss"] for line in metrics(run)] == [1.0, 1.0]


@pytest.mark.parametrize(("count", "mean"), [(3, 4.0), (0, 1.0)])
def test_a_checkpoint_with_one_count_of_all_metrics_goes_on(tmp_path, count, mean):
    run = Run(config(tmp_path), [0], quiet)
    run.record.begin_anew()
    old = run.record.state_dict() | {"sums": {"loss": 5 * torch.full((1,), 3.0 * (count > 0))}}
    del old["counts"]
    run.record.load_state_dict(old | {"count": count}, 3)
    run.record.add(4, {"loss": torch.ones(1)})
    run.record.write_metrics(4)
    assert metrics(run)[-1]["loss"] == mean


def test_means_of_flags_and_counts_are_fractions_and_those_of_float64_keep_their_digits(tmp_path):
    flags = [torch.tensor([True, False]), torch.tensor([True, True])]
    counts, digits = torch.tensor([3, 4]), torch.tensor([1 / 3, 1e300], dtype=torch.float64)
    run = record_of(
        tmp_path,
        {"flag": flags[0], "count": counts, "digits": digits},
        {"flag": flags[1], "count": counts + 1, "digits": digits},
    )
    one, two = metrics(run)
    assert (one["flag"], one["count"], one["digits"]) == (1.0, 3.5, 1 / 3)
    assert (two["flag"], two["count"], two["digits"]) == (0.5, 4.5, 1e300)
    run.record.add(3, {"flag": flags[0], "digits": digits})
    run.record.find_divergence(3)  # before a checkpoint or an evaluation: sums of two dtypes
    assert not run.record.diverged


def test_an_episodes_return_counts_where_one_has_ended_and_no_missing_loss_is_forgiven(tmp_path):
    nan = float("nan")
    returns = [[nan, nan], [nan, -6.0], [nan, -8.0]]
    losses = [[1.0, 1.0], [1.0, 1.0], [1.0, 4.0]]
    updates = [
        {"loss": torch.tensor(loss), "episode_return": torch.tensor(last)}
        for loss, last in zip(losses, returns, strict=True)
    ]
    run = record_of(tmp_path, *updates)
    assert [line["episode_return"] for line in metrics(run)] == [None, -7.0]
    assert [line["loss"] for line in metrics(run)] == [1.0, 2.0] and not run.record.diverged
    run.record.add(4, updates[0] | {"loss": torch.tensor([1.0, nan])})
    state = run.record.state_dict()
    assert [float(x) for x in state["sums"]["episode_return"]] == [0, 0]
    run.record.add(5, updates[1])
    run.record.find_divergence(5)
    assert run.record.diverged == {7: 5}
    run.record.add(6, updates[1] | {"episode_return": torch.tensor([-torch.inf, 1.0])})
    run.record.write_metrics(6)
    assert run.record.diverged == {7: 5, 0: 6}  # an environment that crashed


def test_metrics_that_an_update_did_not_detach_keep_no_graph(tmp_path):
    run = record_of(tmp_path, {"loss": torch.ones(2, requires_grad=True) * 2})
    run.record.add(2, {"loss": torch.ones(2, requires_grad=True) * 2})
    assert not run.record.means.sums["loss"].requires_grad


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"step": torch.zeros(2)}, "step"),
        ({"seed": torch.zeros(2)}, "seed"),
        ({"loss": torch.zeros(())}, "loss Tensor (2,)"),
        ({"loss": torch.zeros(2, 1)}, "loss 2 1"),
        ({"loss": np.zeros(2)}, "loss ndarray (2,)"),
        ({"loss": 0.5}, "loss float"),
    ],
)
def test_a_metric_that_no_line_can_hold_is_refused_in_a_sentence(tmp_path, bad, words):
    with refused(words):
        record_of(tmp_path, bad)


def test_a_policys_others_go_to_the_metrics(tmp_path):
    run = Run(config(tmp_path, steps=10, log_every=100), [0], quiet)
    agent = Counter(1)
    for step in run.steps(agent=agent):
        run.evaluate(step, agent.act, also={"still": lambda x: torch.zeros(*x.shape[:2], 1)})
    (line,) = metrics(run)
    assert line["step"] == 10 and line["seed"] == 0 and line["return still"] < 0


# Divergence.


@pytest.mark.parametrize(
    ("bad", "reported"),
    [(float("nan"), "NaN"), (float("inf"), "infinite"), (float("-inf"), "infinite")],
)
def test_a_seed_that_diverges_is_named_once_with_its_step(tmp_path, capsys, bad, reported):
    cfg = config(tmp_path, steps=40, eval=Eval(every=20, episodes=1))
    run = Run(cfg, [4, 9], quiet)
    count(run, metric=lambda step: [1.0, bad if step >= 15 else 1.0])
    (line,) = capsys.readouterr().err.splitlines()
    says(line, f"IQL corerl/pendulum 9 {reported} 20")
    assert [(row["step"], row["seed"]) for row in scores(run)] == [("20", "4"), ("40", "4")]
    status = json.loads((run.directory / "status.json").read_text())
    assert status["state"] == "done" and status["diverged"] == {"9": 20}
    assert status["score"] == pytest.approx(float(scores(run)[-1]["score"]))


def test_all_metrics_that_diverged_are_named_also_of_updates_long_before_the_line(tmp_path, capsys):
    bad = {name: torch.tensor([1.0, float("nan")]) for name in "abcd"}
    run = record_of(tmp_path, bad | {"q": torch.tensor([1.0, torch.inf])}, {"q": torch.ones(2)})
    reported = "seed 7 diverged (a is NaN, b is NaN, c is NaN, and 2 more) by step 2"
    assert reported in capsys.readouterr().err and run.record.diverged == {7: 2}


def test_divergence_between_two_lines_of_metrics_is_seen_before_scoring(tmp_path, capsys):
    cfg = config(tmp_path, steps=40, log_every=1000, eval=Eval(every=20, episodes=1))
    run = Run(cfg, [4, 9], quiet)
    count(run, metric=lambda step: [1.0, float("nan") if step == 17 else 1.0])
    says(capsys.readouterr().err, "9 NaN 20")
    assert {row["seed"] for row in scores(run)} == {"4"}


class Exploding(Run):
    """A run in which the critic of the second seed overflows at step 15."""

    def log(self, step, metrics):
        if step == 15:
            self._state["agent"].critic.layers[0].weight.data[1] *= 1e30
        super().log(step, metrics)


def test_other_seeds_go_on_as_if_nothing_had_happened(tmp_path, capsys):
    well, ill = (
        cls(config(tmp_path / name), [0, 1], quiet)
        for name, cls in (("well", Run), ("ill", Exploding))
    )
    for run in (well, ill):
        iql.train(run.cfg.algo, run)
    assert "seed 1 diverged" in capsys.readouterr().err
    assert scores(ill) == [row for row in scores(well) if row["seed"] == "0"]
    assert [m for m in metrics(ill) if m["seed"] == 0] == [
        m for m in metrics(well) if m["seed"] == 0
    ]


def test_a_resumed_run_remembers_who_diverged(tmp_path, capsys):
    cfg = config(tmp_path, steps=40, eval=Eval(every=20, episodes=1))
    run = Run(cfg, [4, 9], quiet)
    run._stop = False
    with pytest.raises(Interrupted):
        for step in run.steps(agent=Counter(2)):
            run.log(step, {"loss": torch.tensor([1.0, float("nan") if step < 5 else 1.0])})
            run._stop = step == 30
    capsys.readouterr()
    resumed = Run(cfg, [4, 9], quiet)
    count(resumed, metric=lambda step: [1.0, 1.0])
    assert not capsys.readouterr().err
    assert {row["seed"] for row in scores(resumed)} == {"4"}


class Cut(Counter):
    """Has met, when it is resumed, environments that could not be restored."""

    cut = None

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.cut = ("seeds", "reached")


class Remembers(Counter):
    def end_episodes(self, *reported):
        self.reported = (*reported, self.count.tolist())


def test_episodes_that_cannot_go_on_are_told_to_what_remembers_them(tmp_path):
    run, first = Run(config(tmp_path, steps=9), [4], quiet), Remembers(1)
    with pytest.raises(Interrupted):
        for step in run.steps(replay=first, envs=Cut(1)):
            first.count += 1
            run._stop = step == 5
    assert not hasattr(first, "reported")
    resumed = Remembers(1)
    next(Run(config(tmp_path, steps=9), [4], quiet).steps(replay=resumed, envs=Cut(1)))
    assert resumed.reported == ("seeds", "reached", [5.0])  # once all is restored


# What a checkpoint can hold.


class Holding(Counter):
    """A counter with something else in its state."""

    def __init__(self, value):
        super().__init__(1)
        self.value = value

    def state_dict(self):
        return super().state_dict() | {"inner": [self.value]}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        (self.value,) = state["inner"]


@pytest.mark.parametrize(
    ("part", "reported"),
    [
        (
            torch.zeros(3),
            "state_dict load_state_dict",
        ),
        (Holding({1, 2}), "mine/inner/0 set"),
        (Holding(np.array(["a"])), "mine/inner/0 ndarray <U1"),
        (Holding(torch.zeros(2, dtype=torch.complex64)), "torch.complex64"),
        (Holding({(0, 1): 2}), "mine/inner/0 dict"),
    ],
)
def test_what_no_checkpoint_can_hold_is_refused_before_the_first_update(tmp_path, part, reported):
    run = Run(config(tmp_path, steps=9), [4], quiet)
    with refused(reported):
        next(run.steps(agent=Counter(1), mine=part))


@pytest.mark.parametrize(
    "value",
    [np.arange(6.0).reshape(2, 3).T, np.array(3), np.int64(7), np.zeros(0, bool), np.float32(2)],
)
def test_arrays_come_back_as_arrays(tmp_path, value):
    save_checkpoint(tmp_path / "c", {"value": [value]})
    (back,) = load_checkpoint(tmp_path / "c")["value"]
    assert back.dtype == value.dtype and np.array_equal(back, value)
    assert isinstance(back, np.ndarray) == (np.ndim(value) > 0)


# Streams of random numbers.


def drawn(run: Run, keep: bool, stop_at: int = 0) -> list[float]:
    """The numbers of a stream that the training function made, and handed over or not."""
    stream, numbers = run.normal("mine", 1), []
    with contextlib.suppress(Interrupted):
        for step in run.steps(agent=Counter(1), **({"noise": stream} if keep else {})):
            numbers.append(float(stream.next()))
            run._stop = step == stop_at
    return numbers


@pytest.mark.parametrize("keep", [True, False])
def test_a_stream_goes_on_whether_it_was_handed_over_or_not(tmp_path, keep):
    whole = drawn(Run(config(tmp_path / "whole", steps=9), [4], quiet), keep)
    cfg = config(tmp_path / "broken", steps=9)
    parts = drawn(Run(cfg, [4], quiet), keep, stop_at=4) + drawn(Run(cfg, [4], quiet), keep)
    assert parts == whole
    (path,) = (tmp_path / "broken").glob("corerl/pendulum/*/*/checkpoint.safetensors")
    state = load_checkpoint(path)["state"]
    assert set(state) == {"agent", "noise" if keep else "stream mine"}


def test_a_second_stream_of_one_name_is_refused(tmp_path):
    run = Run(config(tmp_path), [4], quiet)
    run.normal("noise", 2)
    run.uniform("other", 2)
    with refused("noise"):
        run.uniform("noise", 3)


# Cut short at any write, and resumed.


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code catches it."""


def kill_at(monkeypatch, number: int) -> None:
    """The run dies in the middle of its write of this number, counted from 1."""
    writes = [0]
    append, replace = files.append_lines, files.os.replace

    def dies() -> bool:
        writes[0] += 1
        return writes[0] == number

    def append_half(path, lines):
        lines = list(lines)
        if not dies():
            return append(path, lines)
        with path.open("a") as file:
            text = "".join(line + "\n" for line in lines)
            file.write(text[: -len(lines[-1]) // 2])
        raise Killed

    def replace_never(part, path):
        if dies():
            raise Killed
        replace(part, path)

    monkeypatch.setattr(files, "append_lines", append_half)
    monkeypatch.setattr(files.os, "replace", replace_never)


def test_killed_at_any_write_it_resumes_to_the_same_numbers(tmp_path, monkeypatch):
    def job(name: str):
        changed = {"steps": 12, "save_every": 4, "log_every": 3, "eval": Eval(every=5, episodes=1)}
        return config(tmp_path / name, "bc", **changed)

    expected = group(train(job("whole")))
    number, killed = 0, True
    while killed:
        number, killed = number + 1, False
        with monkeypatch.context() as patched:
            kill_at(patched, number)
            try:
                train(job(str(number)))
            except Killed:
                killed = True
        assert group(train(job(str(number)))) == expected, f"killed at write {number}"
    assert number > 15, "the run has about twenty writes"


def test_a_checkpoint_of_other_code_is_refused_in_a_sentence(tmp_path):
    class Grown(Counter):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            state["target"]

    cfg = config(tmp_path, steps=20)
    count(Run(cfg, [0], quiet))
    with refused("target delete"):
        list(Run(cfg, [0], quiet).steps(agent=Grown(1)))


def test_a_checkpoint_of_another_kind_of_device_is_refused_in_a_sentence(tmp_path):
    cfg = config(tmp_path, steps=20)
    run = Run(cfg, [0], quiet)
    for step in run.steps(noise=seeding.normal([0], "noise", (2,))):
        run.save(step)
    saved = load_checkpoint(run.checkpoint)
    saved["state"]["noise"]["generators"] = torch.zeros(1, 16, dtype=torch.uint8)  # as CUDA's
    save_checkpoint(run.checkpoint, saved)
    with refused("device=cuda"):
        list(Run(cfg, [0], quiet).steps(noise=seeding.normal([0], "noise", (2,))))


def test_a_resumed_run_that_cannot_begin_is_no_run_that_lost_its_steps(tmp_path):
    """As where its data has moved, or the job is stopped while that is read."""
    cfg = config(tmp_path, steps=20, save_every=5)
    run = Run(cfg, [0], quiet)
    with pytest.raises(Interrupted):
        for step in run.steps(agent=Counter(1)):
            run.evaluate(step, lambda x: torch.zeros(*x.shape[:2], 1))
            run.record.diverged = {0: 3}
            run._stop = step == 12
    run.fail("interrupted", "stopped by a signal")
    before = status_file(run)
    Run(cfg, [0], quiet).fail("failed", "its data is gone")
    reported = {
        "state": "failed",
        "message": "its data is gone",
        "updated": status_file(run)["updated"],
    }
    assert before["step"] == 12 and status_file(run) == before | reported
    run.checkpoint.unlink()
    Run(cfg, [0], quiet).fail("failed", "its data is gone")
    assert status_file(run)["step"] == 0  # from which it begins anew


class Counting(Stateful):
    """Numbers that change and are lost, others that stay, and some that are kept."""

    def __init__(self, inner: Stateful | None = None):
        self.updates, self.rate, self.width, self.on = 0, 1.0, 8, False
        self.recent, self.sizes = deque(maxlen=2), np.zeros(2)
        self.table, self.count = np.full(2, np.nan), torch.zeros(())
        self.inner = inner

    def update(self):
        self.updates, self.rate, self.on = self.updates + 1, 0.9 * self.rate, True
        self.recent.append(object())
        self.sizes[0] += 1
        self.count += 1


class Keeping(Counting):
    def state_dict(self):
        return super().state_dict() | {"n": self.updates}


def test_numbers_that_no_checkpoint_keeps_are_named_once(tmp_path, capsys):
    run = Run(config(tmp_path, steps=20, save_every=5, save_minutes=0), [0], quiet)
    agent = Counting(inner=Counting())
    for step in run.steps(agent=agent, other=Keeping()):
        agent.update()
        run._state["other"].update()
        if step > 10:
            agent.inner.width = 9
        run.save(step)
    first, second = capsys.readouterr().err.splitlines()
    names = ("updates", "rate", "on", "recent", "sizes")
    says(first, f"{', '.join(f'agent.{n}' for n in names)}")
    says(second, "agent.inner.width")


def test_a_number_that_counts_is_named_after_the_first_update(tmp_path, capsys):
    run = Run(config(tmp_path, steps=3), [0], quiet)
    agent = Counting()
    for step in run.steps(agent=agent):
        reported = capsys.readouterr().err
        assert ("agent.updates" in reported) == (step == 2)
        agent.update()


class Network(torch.nn.Module):
    """Holds what its state has, and what it has not."""

    def __init__(self):
        super().__init__()
        self.layer, self.mean, self.calls = torch.nn.Linear(1, 1), torch.zeros(1), 0
        self.register_buffer("total", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1), persistent=False)


class Telling(Network):
    """Has all that changes in a state of its own."""

    def get_extra_state(self):
        return torch.tensor(self.calls)

    def set_extra_state(self, state):
        self.calls = int(state)


class Statistics:
    """An object of an algorithm's own, without a state."""

    __module__ = "corerl.algos.own"

    def __init__(self, network: Network):
        self.mean, self.fixed, self.network = torch.zeros(1), torch.ones(1), network


class Leaking(Stateful):
    """Everywhere a tensor or a number can be held; what is kept changes too."""

    def __init__(self):
        self.late, self.total, self._under = None, torch.zeros(1), torch.zeros(1)
        self._table, self._same = torch.zeros(1), torch.ones(1)
        self.network = Network()
        self.helper = Statistics(self.network)
        self._views, self.telling = [self.network.layer.weight], Telling()
        with torch.inference_mode():
            self._constant = torch.ones(1)  # of which torch counts no writes
        self.counts, self.list, self.parts, self.net = {"n": 0, "m": 1}, [], {}, None

    def update(self):
        self.late = self.total = self.total + 1
        self._under = self._under + 1
        self._table[0] += 1
        self.network.mean, self.network.calls = self.network.mean + 1, self.network.calls + 1
        self.network.total += 1
        self.network.seen += 1
        self.network.layer.weight.data.mul_(2)
        self.network.train(not self.network.training)
        self.helper.mean = self.helper.mean + 1
        self.counts["n"] += 1
        self.telling.calls += 1
        self.list.append(1.0)
        self.parts["late"] = self.net = self.net or Network()


LEAKS = (
    *(
        "_under",
        "_table",
        "network.mean",
        "network.calls",
        "network.seen",
        "helper.mean",
        "counts.n",
        "list",
        "parts",
    ),
    "net",
)


def test_whatever_changes_and_is_in_no_checkpoint_is_named(tmp_path, capsys):
    run = Run(config(tmp_path, steps=6, save_every=2, save_minutes=0), [0], quiet)
    agent = Leaking()
    for step in run.steps(agent=agent):
        agent.update()
        run.save(step)
    (reported,) = capsys.readouterr().err.splitlines()
    says(reported, f"{', '.join(f'agent.{n}' for n in LEAKS)}")


def test_a_stop_at_the_last_step_still_ends_in_done(tmp_path):
    cfg = config(tmp_path, steps=20)
    run = Run(cfg, [0], quiet)
    agent = Counter(1)
    with pytest.raises(Interrupted):
        for step in run.steps(agent=agent):
            run._stop = step == 20
    resumed = Run(cfg, [0], quiet)
    assert list(resumed.steps(agent=agent)) == []
    assert json.loads((resumed.directory / "status.json").read_text())["state"] == "done"


# The same with real processes and signals.

LONG = {"steps": 700, "save_every": 50, "log_every": 70, "eval": Eval(every=300, episodes=2)}
ARGUMENTS = [
    *FIXED,
    "task=corerl/pendulum",
    "seeds=1",
    "processes=1",
    "steps=700",
    "save_every=50",
    "log_every=70",
    "eval.every=300",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    """What a run writes when nothing cuts it short."""
    return group(train(config(tmp_path_factory.mktemp("whole"), "td3_bc", **LONG)))


def cut_short(root: Path, number: int) -> subprocess.CompletedProcess:
    """Starts a run as a user does and sends it a signal after its first checkpoint."""
    command = [sys.executable, ALGOS / "td3_bc.py", *ARGUMENTS, f"root={root}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 200
    while not list(root.glob("corerl/pendulum/*/*/checkpoint.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
    return subprocess.CompletedProcess(command, process.returncode, stderr=errors)


def status_of(root: Path) -> dict:
    (path,) = root.glob("corerl/pendulum/*/*/status.json")
    return json.loads(path.read_text())


def test_sigkill_loses_nothing(whole, tmp_path):
    assert cut_short(tmp_path, signal.SIGKILL).returncode == -signal.SIGKILL
    assert status_of(tmp_path)["state"] == "running" and status_of(tmp_path)["step"] < 700
    assert group(train(config(tmp_path, "td3_bc", **LONG))) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(whole, tmp_path, monkeypatch, number):
    ended = cut_short(tmp_path, number)
    assert ended.returncode == 130 and "Traceback" not in ended.stderr
    assert status_of(tmp_path)["state"] == "interrupted"
    last = ended.stderr.splitlines()[-1]
    command = shlex.split(last.partition(": corerl ")[2])
    monkeypatch.setattr(sys, "argv", ["corerl"])
    assert main(command) == 0
    (cell,) = tmp_path.glob("corerl/pendulum/*/")
    assert group(cell) == whole


# Devices.


@pytest.mark.parametrize("name", ["gpu", "tpu", "meta", "cpu:x", ""])
def test_a_device_that_is_none_is_refused(name):
    with refused(f"device={name} cuda:N"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_absent_is_refused(name):
    with refused(f"device={name} GPU"):
        pick_device(name)


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch):
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda a=available: a)
        assert pick_device("auto").type == expected


def test_a_gpu_is_selected_before_anything_is_made_on_it(tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in ("cuda:1", "cuda", "cpu"):
        Run(config(tmp_path, device=device), [0], quiet)
    assert chosen == [torch.device("cuda:1")]
