"""Durations of steps: read from every format, kept by what selects rows, and part of every target."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import flatten
from tiny import Short, settings
from wording import refused

from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.data import export, mixtures, packed
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.training import preprocessing

ROWS = 12
DURATIONS = np.arange(ROWS) % 5 + 1
ENDS = np.arange(1, ROWS + 1) % 4 == 0


def dataset(**more) -> Dataset:
    arrays = {"observations": np.arange(2.0 * ROWS).reshape(ROWS, 2), "rewards": np.arange(ROWS)}
    arrays |= {"actions": np.arange(ROWS) % 2, "terminated": ENDS, "durations": DURATIONS}
    return Dataset.from_arrays(**arrays | more)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "hdf5", "packed"])
def test_they_are_read_from_every_format(tmp_path, suffix):
    path, data = tmp_path / f"x.{suffix}", dataset()
    if suffix == "packed":
        packed.write(data, tmp_path / "x.npz")
        found = packed.read(tmp_path / "x.npz", "x")
    else:
        if suffix == "npz":
            own_files.write(path, data)
        elif suffix == "hdf5":
            export.to_hdf5(data, path, {})
        else:
            pandas = pytest.importorskip("pandas")
            if suffix == "parquet":
                pytest.importorskip("pyarrow")
            columns = {"obs_0": data.observations[:, 0], "obs_1": data.observations[:, 1]}
            columns |= {"action": data.actions, "reward": data.rewards, "done": data.terminated}
            table = pandas.DataFrame(columns | {"durations": data.durations})
            table.to_csv(path) if suffix == "csv" else table.to_parquet(path)
        found = own_files.load(str(path))
    assert found.durations.dtype == np.int64 and found.durations.tolist() == DURATIONS.tolist()


def test_they_stay_with_their_rows():
    data = dataset()
    assert data.select_episodes(np.array([2, 0])).durations.tolist() == [4, 5, 1, 2, 1, 2, 3, 4]
    plain = replace(data, durations=None)
    joined = mixtures.joined("x", [plain, data])
    assert joined.durations.tolist() == [1] * ROWS + DURATIONS.tolist()
    assert mixtures.joined("x", [plain, plain]).durations is None


def test_returns_to_go_discount_by_time():
    """Rewards 0, 1, 2, 3 with durations 1, 2, 3, 4 before the end."""
    expected = [
        0 + 0.5 * (1 + 0.25 * (2 + 0.125 * 3)),
        1 + 0.25 * (2 + 0.125 * 3),
        2 + 0.125 * 3,
        3,
    ]
    np.testing.assert_allclose(dataset().returns_to_go(0.5)[:4], expected, rtol=1e-6)


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1.5, np.nan])
def test_one_that_is_not_whole_and_positive_is_named(wrong):
    durations = DURATIONS.astype(float)
    durations[3] = wrong
    with refused(f"durations row 3 {wrong} whole number 1 or more"):
        dataset(durations=durations)


def test_one_for_every_row():
    with refused("durations 11 12"):
        dataset(durations=DURATIONS[:-1])


class Timed(Short):
    """A tiny run whose data has these durations, in turn."""

    def __init__(self, name: str, durations: list[int] | None, **own):
        self._durations = durations
        super().__init__(settings(name, **own), (0, 1), updates=6)

    def dataset(self) -> Dataset:
        found = super().dataset()
        if self._durations is None:
            return replace(found, durations=None)
        return replace(found, durations=np.resize(np.array(self._durations), len(found)))


@pytest.mark.parametrize("name", ["iql", "td3_bc", "rebrac", "cql", "cql_discrete", "bcq_discrete"])
def test_durations_of_1_change_no_bit_and_others_do(name):
    plain, ones, longer = (Timed(name, d) for d in (None, [1], [1, 3, 2]))
    states = [flatten(run.parts["agent"].state_dict()) for run in (plain, ones, longer)]
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize("name", ["iql", "bcq_discrete"])
def test_targets_discount_by_gamma_to_the_duration(name):
    run = Timed(name, [3], discount=0.9)
    transitions = preprocessing.timed_transitions(run, run.dataset())
    over = run.dataset().transitions().terminated
    np.testing.assert_allclose(0.9 * (1 - transitions.terminated), 0.9**3 * ~over, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("dt", {}, "dt dqn_offline iql"),
        ("cal_ql", {"phase": "offline"}, "cal_ql returns"),
        ("iql", {"phase": "both"}, "iql algo.phase=both algo.phase=offline"),
        ("ipl", {}, "ipl"),
        ("pref_iql", {"replay": False}, "pref_iql"),
    ],
)
def test_what_does_not_know_them_is_refused(name, own, message):
    with refused(message):
        Timed(name, [2], **own)


def test_minari_has_no_place_for_them(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with refused("durations hdf5"):
        export.to_minari(dataset(), "own/timed-v0", None, {})


def played(longest: int, durations, n_step: int):
    """The replay of 60 steps of one seed, and the steps."""
    rng = np.random.default_rng(0)
    replay = FrameReplay(
        (1,), torch.float32, 1, 100, [0], 50, discount=0.9, n_step=n_step, longest=longest
    )
    steps = []
    for time in range(60):
        over, cut = rng.random((2, 1)) < 0.1
        now = np.full((1, 1), time, np.float32)
        given = None if durations is None else np.array([durations[time]])
        step = DiscreteStep(
            now, np.zeros(1, int), rng.normal(size=1), now + 0.5, over, cut & ~over, now
        )
        steps.append(step._replace(durations=given))
        replay.add(steps[-1], step.rewards[:, None].astype(np.float32))
    return replay, steps


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_replays_returns_discount_by_elapsed_time(n_step):
    durations = np.random.default_rng(1).integers(1, 6, size=60)
    replay, steps = played(5, durations, n_step)
    batch = replay.sample()
    for b in range(50):
        first, total, discount = int(batch.observations[0, b, 0]), 0.0, 1.0
        for step in steps[first : first + n_step]:
            total += discount * step.rewards[0]
            discount *= 0.9 ** step.durations[0]
            if step.terminated[0] or step.truncated[0]:
                discount *= not step.terminated[0]
                break
        assert batch.rewards[0, b, 0].item() == pytest.approx(total, abs=1e-5)
        assert batch.discounts[0, b].item() == pytest.approx(discount, abs=1e-6)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_of_durations_1_is_bit_equal(n_step):
    plain, ones = (
        played(1, None, n_step)[0].sample(),
        played(9, np.ones(60, int), n_step)[0].sample(),
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, ones, strict=True))
