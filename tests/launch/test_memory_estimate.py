"""What the dry run says of memory and disk is what a run then takes."""

from dataclasses import replace

import pytest
import tiny
from small import config, train

from corerl.algos import sac
from corerl.launch import memory_estimate, rates
from corerl.launch.dry_run import row, show
from corerl.training.offline_to_online import Online


@pytest.mark.parametrize(("algo", "task"), [("iql", "corerl/pendulum"), ("sac", "gym/Pendulum-v1")])
def test_a_checkpoint_is_as_large_as_foretold(tmp_path, algo, task):
    own = {"random_steps": 30, "capacity": 40} if algo == "sac" else {}
    cfg = config(tmp_path, algo, own=own, task=task, steps=40)
    foretold = memory_estimate.of_seed(cfg)
    folder = train(cfg) / "seeds-0"
    written = (folder / "checkpoint.safetensors").stat().st_size
    assert foretold.state < written < foretold.state + 20_000  # names, logs and the header
    parts = [path.stat().st_size for path in folder.glob("replay/*")]
    assert foretold.replay <= sum(parts) <= foretold.replay + 500 * len(parts)
    assert (foretold.replay > 0) == (algo == "sac") == bool(parts)


def test_a_full_replay_counts_and_nothing_is_taken_for_it(tmp_path):
    cfg = config(tmp_path, "sac", own={"capacity": 10**6}, task="gym/Pendulum-v1", steps=10**6)
    small = replace(cfg, algo=replace(cfg.algo, capacity=10**5))
    rows = 4 * (2 * 3 + 1 + 3)  # two observations, an action, a reward and two ends, float32
    assert (
        memory_estimate.of_seed(cfg).replay - memory_estimate.of_seed(small).replay
        == 9 * 10**5 * rows
    )


def test_a_replay_that_a_word_or_a_group_of_settings_decides_is_each_cells_own(tmp_path):
    def replay(**own) -> int:
        return memory_estimate.of_seed(config(tmp_path, "iql", own=own, steps=1000)).replay

    online = [Online(capacity=size) for size in (1000, 100)]
    found = [replay(), *(replay(phase="online", online=each) for each in online)]
    assert found[0] == 0 and found[1] == 10 * found[2] > 0


def test_a_run_that_goes_on_from_another_is_as_large_as_one_that_does_not(tmp_path):
    before = str(train(config(tmp_path, "iql")))
    fresh, on = (
        config(tmp_path, "iql", own={"phase": "online", "online": Online(checkpoint=each)})
        for each in (None, before)
    )
    assert memory_estimate.of_seed(on) == memory_estimate.of_seed(fresh) is not None


def test_frames_of_a_million_steps_are_told_without_being_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("corerl.buffers.memory_check.available", lambda device: 10**6)
    cfg = config(tmp_path, "sac", own={"capacity": 10**8}, task="gym/Pendulum-v1", steps=10**8)
    assert 4e9 < memory_estimate.of_seed(cfg).memory < 4.1e9 and not capsys.readouterr().err


def test_what_cannot_be_built_is_a_question_mark(monkeypatch, tmp_path):
    monkeypatch.setattr(sac, "train", lambda *_: 1 / 0)
    assert (
        memory_estimate.of_seed(config(tmp_path, "sac", task="gym/Pendulum-v1", steps=41)) is None
    )


def test_the_dry_run_prints_both(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        memory_estimate, "of_seed", lambda cfg: memory_estimate.Size(10**8, 6 * 10**8)
    )
    cfg = config(tmp_path, "iql", seeds=10, processes=2)
    assert row(cfg, None).size_of_seed.memory == 700_000_000
    assert show([cfg]) == 0
    reported = capsys.readouterr().out
    assert "1.4 GB" in reported and "8.0 GB" in reported


@pytest.mark.parametrize("name", tiny.LEARNERS)
def test_every_algorithm_can_be_measured(name):
    assert memory_estimate.of_seed(tiny.settings(name)).memory > 1000


def test_operations_of_an_update_are_those_of_its_matrix_products(tmp_path):
    """BC by hand: three products forward, and backward two of each but one of the first's weights alone."""
    cfg = config(tmp_path, "bc", own={"hidden_width": 16, "batch_size": 8, "hidden_layers": 2})
    first, middle, last = 3 * 16, 16 * 16, 16 * 1
    expected = 2 * 8 * (2 * first + 3 * middle + 3 * last)
    assert memory_estimate.operations(cfg) == expected


@pytest.mark.parametrize("name", ["cql", "awac", "edac", "td3_bc"])
def test_what_nobody_has_measured_is_estimated_beside_iql(name, tmp_path):
    cfg = config(tmp_path, name, own={"batch_size": 24})
    rate = rates.known(cfg, None)
    assert rate.estimated and "operations" in rate.source
    larger = rates.known(config(tmp_path, name, own={"batch_size": 48}), None)
    one, two = (1 / r.updates_per_s - rates.LEAST_SECONDS for r in (rate, larger))
    assert 0 < two == pytest.approx(2 * one, rel=0.1)
