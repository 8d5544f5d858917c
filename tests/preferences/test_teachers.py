"""Scripted teachers: which segments they are asked about, and B-Pref's rules one by one, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from wording import refused

from corerl.data.dataset import Dataset
from corerl.preferences import sources, teachers, values
from corerl.preferences.sources import Preferences


def dataset(*episodes, terminated=(), lost=()):
    """Episodes of these rewards; row i observes i. `lost` rows have no next observation."""
    rewards = np.concatenate(episodes).astype(np.float32)
    n, ends = len(rewards), np.cumsum([len(e) for e in episodes]) - 1
    states, over, cut = (
        np.arange(n, dtype=np.float32)[:, None],
        np.zeros(n, bool),
        np.zeros(n, bool),
    )
    cut[ends] = True
    over[list(terminated)] = True
    following = ~np.isin(np.arange(n), lost)
    return Dataset.from_steps(
        "small", states, states / n, rewards, states + 1, over, cut & ~over, following
    )


def taught(data, **settings):
    return teachers.teach(data, Preferences(**{"length": 3, "pairs": 400} | settings))


def returns(compared):
    """Of both segments, by loops over the rows."""
    sums = np.zeros((len(compared), 2))
    for p, pair in enumerate(compared.starts):
        for which, start in enumerate(pair):
            for row in range(start, start + compared.length):
                sums[p, which] += float(compared.rewards[row])
    return sums


MIXED = dataset([5, 1, 0, 2, 9], [1, 1, 4, 0], [3, 3, 3], terminated=[8], lost=[4])


def test_segments_lie_in_one_episode_and_every_start_is_as_likely():
    # Row 4 timed out and its next state is another episode's, so no segment holds it.
    assert teachers.segment_starts(MIXED, 3).tolist() == [0, 1, 5, 6, 9]
    assert teachers.segment_starts(MIXED, 4).tolist() == [0, 5]
    assert teachers.segment_starts(MIXED, 1).tolist() == [0, 1, 2, 3, *range(5, 12)]
    starts, counts = np.unique(taught(MIXED, pairs=10_000).starts, return_counts=True)
    assert starts.tolist() == [0, 1, 5, 6, 9]
    assert (np.abs(counts - 4_000) < 4 * np.sqrt(20_000 * 0.2 * 0.8)).all()


def test_the_oracle_prefers_the_larger_return():
    compared = taught(MIXED)
    first, second = returns(compared).T
    assert set(first) == {6.0, 3.0, 5.0, 9.0}  # 1 + 1 + 4 is 6 as well: ties of different segments
    expected = [1.0 if b > a else 0.0 if a > b else 0.5 for a, b in zip(first, second, strict=True)]
    assert compared.labels.tolist() == expected and compared.source == "teacher"
    distinct = (compared.starts == [0, 5]).all(1)
    assert distinct.any() and (compared.labels[distinct] == 0.5).all()


@pytest.mark.parametrize(
    ("settings", "late_wins"),
    [
        ({}, False),  # 5 against 4
        ({"gamma": 0.9}, False),  # 4 x 0.81 + 1 = 4.24 against 0.81 + 3 = 3.81
        ({"gamma": 0.8}, True),  # 4 x 0.64 + 1 = 3.56 against 0.64 + 3 = 3.64
        ({"gamma": 0.8, "discount": 0.8}, False),  # 0.64 times 5 against 4
    ],
)
def test_myopia_counts_the_end(settings, late_wins):
    compared = taught(dataset([4, 0, 1], [1, 0, 3]), **settings)
    for pair, label in (([0, 3], late_wins), ([3, 0], not late_wins)):
        assert (compared.labels[(compared.starts == pair).all(1)] == label).all()


def test_a_discount_counts_the_beginning():
    compared = taught(dataset([4, 0, 1], [1, 0, 6]), discount=0.5)  # 4.25 against 2.5
    assert (compared.labels[(compared.starts == [0, 3]).all(1)] == 0).all()


def test_beta_prefers_by_chance():
    data = dataset([0, 0, 0], [0, 1, 0])
    compared = taught(data, beta=2.0, pairs=20_000)
    for pair, chance in (([0, 3], 1 / (1 + np.exp(-2.0))), ([3, 0], 1 / (1 + np.exp(2.0)))):
        labels = compared.labels[(compared.starts == pair).all(1)]
        assert abs(labels.mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / len(labels))
        assert set(labels) == {0, 1}
    far = taught(dataset([0, 0, 0], [0, 1e6, 0]), beta=1e6)  # overflows nowhere
    assert (far.labels[(far.starts == [0, 3]).all(1)] == 1).all()
    indifferent = taught(data, beta=0.0, pairs=4_000).labels
    assert abs(indifferent[indifferent != 0.5].mean() - 0.5) < 4 * 0.5 / np.sqrt(2_000)


def test_mistakes_turn_preferences_round_but_no_tie():
    right, wrong = (taught(MIXED, pairs=10_000, epsilon=e) for e in (0.0, 0.1))
    assert (right.starts == wrong.starts).all()
    decided = right.labels != 0.5
    assert (wrong.labels[~decided] == 0.5).all() and (~decided).sum() > 1_000
    turned = (wrong.labels == 1 - right.labels)[decided]
    assert abs(turned.mean() - 0.1) < 4 * np.sqrt(0.09 / decided.sum())
    assert (taught(MIXED, epsilon=1.0).labels == 1 - taught(MIXED).labels).all()


def test_mistakes_do_not_depend_on_choices():
    data = dataset([0, 0, 0], [0, 1, 0])
    labels = taught(data, beta=0.0, epsilon=0.3, pairs=4_000).labels
    assert abs(labels[labels != 0.5].mean() - 0.5) < 4 * 0.5 / np.sqrt(2_000)


# Episodes return 17, 6 and 9, 32/3 on average; the longest has 5 steps, so that 3 are worth 6.4.


def test_a_teacher_skips_pairs_that_are_worth_little():
    kept = returns(taught(MIXED, skip=0.8))  # 5.12; twice it would be 4.1
    assert kept.max(1).min() == 6 and kept.min() == 3
    assert returns(taught(MIXED, skip=0.75)).max(1).min() == 5  # 4.8


def test_small_differences_are_ties():
    compared = taught(MIXED, equal=0.5)  # below 3.2; twice 1.6
    sums = returns(compared)
    apart = np.abs(sums[:, 0] - sums[:, 1])
    assert set(apart) == {0.0, 1.0, 2.0, 3.0, 4.0, 6.0}
    assert ((compared.labels == 0.5) == (apart < 3.2)).all()
    # Ties are by the sums themselves, whatever is judged by, and after the mistakes.
    fallible = taught(MIXED, equal=0.5, gamma=0.5, beta=1.0, epsilon=0.5)
    assert ((fallible.labels == 0.5) >= (apart < 3.2)).all()


def test_the_same_pairs_whatever_the_run_and_the_teacher():
    some, more = taught(MIXED, pairs=30, beta=1.0), taught(MIXED, pairs=300, beta=1.0)
    assert (more.starts[:30] == some.starts).all() and (more.labels[:30] == some.labels).all()
    few, many = (taught(MIXED, pairs=n, beta=1.0, epsilon=0.2, skip=1.0) for n in (30, 60))
    assert (many.starts[:30] == few.starts).all() and (many.labels[:30] == few.labels).all()
    assert (taught(MIXED, seed=1).starts != taught(MIXED).starts).any()
    cfg = Preferences(length=3, pairs=30, beta=1.0)
    for seeds in ([0], [5, 7]):
        run = SimpleNamespace(task=None, dataset=lambda: MIXED, seeds=seeds)
        loaded = sources.load(run, cfg)
        assert (loaded.starts == some.starts).all() and (loaded.labels == some.labels).all()
    assert len(sources.load(run, Preferences(length=3))) == 2_000


def test_a_teacher_s_name_tells_its_faults():
    assert taught(MIXED, beta=1.0, epsilon=0.1).source == "teacher(beta=1, epsilon=0.1)"
    assert taught(MIXED, discount=0.99).source == "teacher(discount=0.99)"


def valued(monkeypatch, states, next_states):
    """Puts these values in the place of fitted ones."""
    found = np.asarray(states, float), np.asarray(next_states, float)
    monkeypatch.setattr(values, "fit", lambda dataset, cfg, seed: found)


def judged(compared, pair):
    (label,) = set(compared.labels[(compared.starts == pair).all(1)].tolist())
    return label


@pytest.mark.parametrize(
    ("settings", "slow", "fall"),
    [
        ({"judge": "return"}, 3.0, 9.0),  # 0 + 1 + 2 and 5 + 4 + 0
        ({"judge": "regret"}, 3 + 20 - 8, 9 + 0 - 12),  # V(s_3) is 20 after row 2, 0 after the end
        # Of a half: -8 + 5, 1 - 10 + 6, 2 - 12 + 10 and 5 - 12 + 5, 4 - 10 + 3, 0 - 6
        ({"judge": "advantage", "values": values.Values(discount=0.5)}, -3 - 3 + 0, -2 - 3 - 6),
        # The last step's term counts whole, those before it half and a quarter.
        ({"judge": "regret", "gamma": 0.5}, 2 / 4 + 3 / 2 + 10, 3 / 4 + 0 - 6),
    ],
)
def test_regret_is_what_was_got_and_what_is_to_come_less_what_was_to_be_had(
    monkeypatch, settings, slow, fall
):
    """A slow start, of which much will come, against the last steps of a fall."""
    data = dataset([0, 1, 2], [5, 4, 0], terminated=[5])
    valued(monkeypatch, [8, 10, 12, 12, 10, 6], [10, 12, 20, 10, 6, 0])
    cfg = Preferences(length=3, pairs=400, **settings)
    sums = teachers.Sums(data, cfg).judged(np.array([0, 3]))
    np.testing.assert_allclose(sums, [slow, fall])
    compared = teachers.teach(data, cfg)
    assert judged(compared, [0, 3]) == (fall > slow) and judged(compared, [3, 0]) == (slow > fall)


def test_a_teacher_s_name_tells_by_what_it_judges(monkeypatch):
    valued(monkeypatch, np.zeros(12), np.zeros(12))
    assert taught(MIXED, judge="regret", epsilon=0.1).source == "teacher(judge=regret, epsilon=0.1)"
    other = taught(MIXED, judge="advantage", values=values.Values(expectile=0.5))
    assert other.source == "teacher(judge=advantage, values.expectile=0.5)"


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (MIXED, {"length": 6}, "episode 6 steps 5"),
        (
            MIXED,
            {"length": 5},
            "episode 5",
        ),  # its last row has no next
        (dataset([-1, -1, -1]), {"equal": 0.1}, "episodes -3"),
        (MIXED, {"skip": 5.0}, "skip=5 0 40000"),
    ],
)
def test_what_no_teacher_can_do(data, settings, message):
    with refused(message):
        taught(data, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "psychic"},
        {"source": "file"},
        {"path": "labels.npz"},  # and source=file forgotten
        {"seed": 1, "source": "pt"},
        {"judge": "advantage", "source": "pt"},
        {"epsilon": 0.1, "source": "file", "path": "labels.npz"},
        {"judge": "taste"},
        {"skip": 0.1, "judge": "regret"},
        {"crossing": "ignore"},
        {"pairs": 0},
        {"length": 0},
        {"seed": -1},
        {"beta": -1.0},
        {"gamma": 0.0},
        {"discount": 1.1},
        {"epsilon": 1.1},
        {"skip": -0.1},
        {"equal": -0.1},
    ],
)
def test_settings_out_of_range(settings):
    with refused(f"algo.preferences.{next(iter(settings))}"):
        Preferences(**settings)
