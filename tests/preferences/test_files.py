"""The published label files themselves, where they are beside the checkout."""

import csv

import numpy as np
import pytest
from wording import refused

from corerl.data import d4rl
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.preferences import readers, sources
from corerl.preferences.sources import Preferences

# First, second, neither preferred, as counted from the files by other code.
PEOPLE = {
    ("pt", "hopper-medium-replay-v2"): (121, 188, 191),
    ("pt", "walker2d-medium-expert-v2"): (30, 46, 24),
    ("pt", "antmaze-large-play-v2"): (200, 163, 637),
    ("pt", "pen-human-v1"): (38, 27, 35),
    ("dppo", "halfcheetah-medium-replay-v2"): (186, 237, 77),
    ("dppo", "halfcheetah-medium-expert-v2"): (35, 55, 10),
    ("dppo", "kitchen-mixed-v0"): (37, 39, 24),
}


@pytest.fixture(scope="module")
def files(shared):
    return shared / "data" / "preferences"


def counts(found):
    return tuple(int((found.labels == value).sum()) for value in (0, 1, 0.5))


@pytest.mark.parametrize(("source", "environment"), PEOPLE)
def test_people_s_labels(files, source, environment):
    folder = files / {"pt": "preference_transformer"}.get(source, source)
    found = readers.read_rows(source, folder, environment)
    assert counts(found) == PEOPLE[source, environment]
    assert found.starts.shape == (sum(counts(found)), 2) and found.length == 100


def test_every_crowd_s_labels(files):
    with open(files / "uni_rlhf_human_vs_scripted.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        found = readers.read_rows("uni_rlhf", files / "uni_rlhf", row["dataset"])
        expected = tuple(int(row[f"{k}"]) for k in ("prefer_first", "prefer_second", "equal"))
        assert counts(found) == expected
        assert found.length == int(row["segment_len"]) and len(found.starts) == int(row["n_pairs"])
    assert len(rows) >= 20


@pytest.mark.parametrize("environment", ["hopper-medium-expert-v2", "walker2d-medium-expert-v2"])
def test_ipl_cut_out_the_same_labels(files, environment):
    """IPL's files are 0, 0.5 and 1 by their own conversion of what is 0, -1 and 1 in PT's."""
    theirs = readers.read_rows("pt", files / "preference_transformer", environment)
    cfg = Preferences(source="ipl", path=str(files / "ipl"))
    compared = sources.find(resolve(f"d4rl/{environment}"), lambda: pytest.fail(), cfg)
    assert compared.labels.tolist() == theirs.labels.tolist()
    assert compared.length == theirs.length == 100
    # One pair of segments overlaps another where PT's indices say so, by as much.
    states = compared.segments(compared.observations).reshape(200, 100, -1)
    starts = theirs.starts.ravel()
    apart = starts[:, None] - starts[None]
    overlapping = np.argwhere((apart > 0) & (apart < 100))
    for later, earlier in overlapping:
        by = apart[later, earlier]
        np.testing.assert_array_equal(states[later, :-by], states[earlier, by:])


def door(shared):
    """The demonstrations that D4RL replayed for door-human-v1: its rows, with slightly other rewards."""
    return d4rl.read(shared / "data" / "d4rl" / "door-human-dapg-demos.hdf5", "d4rl/door-human-v1")


def test_the_index_map_finds_the_rows_that_a_script_judged(shared, files):
    """A script's labels, not people's: they follow from the rewards of the right rows."""
    data = door(shared)
    found = readers.read_rows("uni_rlhf_scripted", files / "uni_rlhf", "door-human-v1")

    def agreement(compared):
        first, second = compared.segments(compared.rewards).sum(-1).T
        return ((second > first) == compared.labels).mean()

    kept = readers.on_rows(data, found, "script", "keep")
    assert len(kept) == 2_000 and agreement(kept) > 0.98
    inside = readers.on_rows(data, found, "script", "drop")
    assert 1_200 < len(inside) < 1_500 and agreement(inside) > 0.98
    raw = found._replace(starts=np.searchsorted(data.transition_rows(), found.starts))
    assert agreement(readers.on_rows(data, raw, "script", "keep")) < 0.9  # taken for raw rows
    # The last start: the sampler counted 200 steps from the last episode's beginning.
    last_episode = np.searchsorted(data.transition_rows(), data.episode_starts[-1])
    assert found.starts.max() == last_episode + 200 - 50


def test_the_crowd_s_segments_across_ends_are_told(shared, files):
    cfg = Preferences(source="uni_rlhf", path=str(files / "uni_rlhf"))
    with refused("2000 comparisons"):
        sources.find(resolve("d4rl/door-human-v1"), lambda: door(shared), cfg)


@pytest.mark.parametrize("source", ["uni_rlhf", "dppo"])
def test_half_cheetah_s_segments_lie_in_episodes_of_1000_steps(files, source):
    """Every one of its episodes times out, so the rows between two time-outs are 999."""
    found = readers.read_rows(source, files / source, "halfcheetah-medium-replay-v2")
    steps = 202_000  # D4RL's size of this set
    timeouts = np.arange(steps) % 1000 == 999
    states = np.arange(steps, dtype=np.float32)[:, None]
    data = Dataset.from_steps(
        "d4rl/halfcheetah-medium-replay-v2",
        *(states, states / steps, states, states + 1, np.zeros(steps), timeouts, ~timeouts),
    )
    compared = readers.on_rows(data, found, source, "refuse")
    assert (compared.starts == found.starts + found.starts // 999).all()
