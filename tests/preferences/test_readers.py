"""Label files of others: the index map by hand, the label codes, and everything that is refused."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from wording import refused

from corerl.data.dataset import Dataset
from corerl.data.observations import with_history
from corerl.data.tasks import resolve
from corerl.preferences import pickles, readers, sources
from corerl.preferences.sources import Preferences

HOPPER = resolve("d4rl/hopper-medium-v2")


def d4rl_like(n=12, timeouts=(3, 8), terminals=(5,)):
    """As D4RL's files are read: time-outs and the last row lead nowhere. Row i observes i."""
    rows = np.arange(n)
    timed_out = np.isin(rows, timeouts)
    states = rows[:, None].astype(np.float32)
    has_next = ~timed_out
    has_next[-1] = False
    return Dataset.from_steps(
        "d4rl/hopper-medium-v2",
        states,
        states / n,
        rows,
        states + 1,
        np.isin(rows, terminals),
        timed_out,
        has_next,
    )


# Rows 3, 8 and 11 are no transitions: D4RL's qlearning_dataset has these raw rows, in this order.
FILTERED = [0, 1, 2, 4, 5, 6, 7, 9, 10]


def dump(path, value, protocol=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))


def write_pt(root, first, second, labels):
    folder = root / "hopper-medium-v2"
    dump(folder / "indices_num4", np.array(first, np.int32))
    dump(folder / "indices_2_num4", np.array(second), 5)  # as DPPO's are
    dump(folder / "label_human", labels)
    return folder


def write_uni(root, first, second, labels, kind="human", length=2, env="hopper-medium-v2"):
    folder = root / f"{env}_{kind}_labels"
    end = f"domain_mujoco_env_{env}_num_2000_len_{length}_abc.pkl"
    dump(folder / f"indices_1_{end}", np.array(first))
    dump(folder / f"indices_2_{end}", np.array(second))
    dump(folder / f"{'human' if kind == 'human' else 'fake'}_label_{end}", np.array(labels))
    return folder


def load(root, source="uni_rlhf", data=None, task=HOPPER, **settings):
    cfg = Preferences(source=source, path=str(root), **settings)
    return sources.find(task, d4rl_like if data is None else lambda: data, cfg)


def test_indices_count_the_rows_that_make_transitions(tmp_path):
    write_uni(tmp_path, [0, 3, 7, 5], [5, 1, 0, 3], [0, 1, -1, 1])
    compared = load(tmp_path)
    assert compared.starts.tolist() == [
        [FILTERED[a], FILTERED[b]] for a, b in ((0, 5), (3, 1), (7, 0), (5, 3))
    ]
    assert compared.starts.tolist() == [[0, 6], [4, 1], [9, 0], [6, 4]]
    observed = compared.segments(compared.observations)[..., 0].tolist()
    assert observed[0] == [[0, 1], [6, 7]] and observed[1] == [[4, 5], [1, 2]]
    assert compared.labels.tolist() == [0, 1, 0.5, 1]
    assert compared.length == 2 and compared.source == "uni_rlhf"
    assert load(tmp_path / "hopper-medium-v2_human_labels").starts.tolist()[3] == [6, 4]
    assert load(tmp_path, pairs=2).labels.tolist() == [0, 1]


def test_the_first_pairs_are_the_labelled_ones(tmp_path):
    data = d4rl_like(400, timeouts=(199,), terminals=())
    write_pt(tmp_path, [0, 5, 199], [60, 210, 3], [1, -1])
    for source in ("pt", "dppo"):
        compared = load(tmp_path, source, data)
        assert compared.starts.tolist() == [[0, 60], [5, 211]]  # after the time-out, one further
        assert compared.labels.tolist() == [1, 0.5] and compared.length == 100
        assert compared.source == source


def test_scripted_labels_are_probabilities(tmp_path):
    labels = [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    write_uni(tmp_path, [0, 3, 7], [5, 1, 0], labels, kind="fake")
    compared = load(tmp_path, "uni_rlhf_scripted")
    assert compared.labels.tolist() == [0, 0.5, 1] and compared.source == "uni_rlhf_scripted"


def test_segments_across_an_end(tmp_path):
    # 2, 3: over the time-out of raw row 3. 4, 5: over the terminal state of raw row 5.
    folder = write_uni(tmp_path, [0, 2, 3], [5, 0, 4], [0, 1, 0])
    with refused("2 3 segment 1 rows 4") as e:
        load(tmp_path)
    assert str(folder) in str(e.value) and "crossing=drop" in str(e.value)
    assert load(tmp_path, crossing="drop").starts.tolist() == [[0, 6]]
    kept = load(tmp_path, crossing="keep")
    seen = kept.segments(kept.observations)[..., 0].tolist()
    assert seen == [[[0, 1], [6, 7]], [[2, 4], [0, 1]], [[4, 5], [5, 6]]]
    following = kept.segments(kept.next_observations)[..., 0].tolist()
    assert following[1][0] == [3, 5]  # each row's own, also at the seam
    assert kept.labels.tolist() == [0, 1, 0]
    gap = replace(d4rl_like(), has_next=d4rl_like().has_next & (np.arange(12) != 1))
    with refused("1 0 2"):
        load(tmp_path, data=gap)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"first": [0, 8, 1]}, "1 8 2 steps 9"),
        ({"second": [0, 0, -1]}, "2 -1"),
        ({"labels": [0, 1, 2]}, "human_label_ 2 0"),
        ({"labels": [0, 1, 0, 1]}, "3 4"),
        ({"second": [0, 1]}, "3 2"),
        ({"labels": []}, "human_label_ float64 shape (0,)"),
        ({"first": [0.0, 1.0, 2.0]}, "indices_1_ float64"),
        ({"first": [[0, 1, 2]]}, "indices_1_ int64 shape 1 3"),
    ],
)
def test_bad_labels_are_refused_with_file_and_row(tmp_path, changed, message):
    good = {"first": [0, 1, 0], "second": [5, 0, 1], "labels": [0, 1, -1]}
    folder = write_uni(tmp_path, **(good | changed))
    with refused(message) as e:
        load(tmp_path)
    assert str(folder) in str(e.value)


def test_labels_of_other_data_are_refused(tmp_path):
    folder = write_uni(tmp_path, [0], [1], [0])
    with refused("hopper-medium-expert-v2_human_labels"):
        load(tmp_path, task=resolve("d4rl/hopper-medium-expert-v2"))
    with refused("D4RL corerl/pendulum"):
        load(tmp_path, task=resolve("corerl/pendulum"))
    with refused("hopper-medium-v2 PreferenceTransformer"):
        load(tmp_path, "pt")
    (folder / "indices_1_domain_mujoco_env_hopper-medium-v2_num_9_len_2_x.pkl").touch()
    with refused("2 indices_1_*_env_hopper"):
        load(tmp_path)
    mixed = write_uni(tmp_path / "other", [0], [1], [0])
    path = next(mixed.glob("human_label_*"))
    path.rename(path.with_name(path.name.replace("_len_2_", "_len_3_")))
    with refused("length"):
        load(mixed)


# Pickles.


class Command:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-label-file",)


class Evaluated:
    def __reduce__(self):
        return eval, ("1",)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Command(), "posix.mkdir"),
        (Evaluated(), "builtins.eval"),
        ([1, Command()], "posix.mkdir"),
        (np.array([Command()], object), "O8"),
        (np.load, "numpy"),
        (np.ma.masked_array([1]), "numpy.ma"),
        ({1, 2}, "EMPTY_SET"),
        ({"label": [1]}, "EMPTY_DICT"),
        ([1, "x"], "numbers"),
        ([True, 1], "numbers"),
        ([1 << 70], "numbers"),
        ([[1], [1, 2]], "lengths"),
        ("text", "str array"),
        (np.dtype("i8"), "Dtype array"),
        (np.array([None]), "O8"),
        (np.array(["2020"], "M8[D]"), "M8"),
        (np.array([1 + 2j]), "c16"),
        (np.array([(1, 2)], "i4,i4"), "V8"),
        (np.array([1], np.dtype("i8", metadata={"a": 1})), "EMPTY_DICT"),
    ],
)
def test_a_pickle_holds_an_array_or_is_refused(tmp_path, monkeypatch, value, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "label_human"
    dump(path, value)
    with refused(name) as e:
        pickles.read_integers(path)
    assert str(path) in str(e.value)
    assert os.listdir(tmp_path) == ["label_human"]


ORDERED = b"(I3\nS'<'\nNNNI-1\nI-1\nI0\nt"
DTYPE = b"cnumpy\ndtype\n(S'%s'\nI0\nI1\ntR"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"


def state(dtype: bytes, contents: bytes) -> bytes:
    """What an array's BUILD reads: one entry of `dtype`."""
    return b"(I1\n(I1\nt" + dtype + b"I00\n" + contents + b"t"


BYTES = b"S'" + rb"\x41" * 8 + b"'\n"
OF_INTEGERS = state(DTYPE % b"i8" + ORDERED + b"b", BYTES)
ITSELF = b"(lp0\n" + b"".join(b"(lp%d\n" % n + b"g%d\na" % (n - 1) * 20 for n in range(1, 9)) + b"."
CRAFTED = {
    # Flags of 0 on an object dtype turn the bytes into pointers, which crashes.
    "pointers": ARRAY + state(DTYPE % b"O8" + ORDERED + b"b", BYTES) + b"b.",
    "flags": ARRAY
    + state(DTYPE % b"i8" + ORDERED.replace(b"I0\n", b"I63\n") + b"b", BYTES)
    + b"b.",
    "no contents": ARRAY + b".",
    "short": ARRAY + OF_INTEGERS.replace(b"(I1\nt", b"(I2\nt") + b"b.",
    "negative": ARRAY + OF_INTEGERS.replace(b"(I1\nt", b"(I-1\nt") + b"b.",
    "huge": ARRAY + OF_INTEGERS.replace(b"(I1\nt", b"(I9999999999\nt") + b"b.",
    "a list of contents": ARRAY + state(DTYPE % b"i8", b"(lI1\na") + b"b.",
    "attributes": b"cnumpy.core.numeric\n_frombuffer\n(dS'x'\nI1\nsb.",
    "attributes of a function": b"cnumpy.core.numeric\n_frombuffer\n(I1\ntb.",
    "nested": ITSELF,
    "too few": b"R.",
    "no mark": b"t.",
    "memo": b"g7\n.",
    "empty": b"",
    "no end": b"I1\n",
    "codecs": b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    "other codecs": b"c_codecs\nopen\n(S'x'\ntR.",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_pickle_is_a_sentence(tmp_path, name):
    before = dict(vars(np.frombuffer)) if hasattr(np.frombuffer, "__dict__") else None
    path = tmp_path / "label_human"
    path.write_bytes(CRAFTED[name])
    with refused("label_human"):
        pickles.read_array(path)
    assert before is None or vars(np.frombuffer) == before


def test_what_is_crafted_is_read_where_it_is_right(tmp_path):
    path = tmp_path / "label_human"
    path.write_bytes(ARRAY + OF_INTEGERS + b"b.")
    assert pickles.read_integers(path).tolist() == [0x4141414141414141]


def test_the_rows_of_a_list_may_be_lists_or_arrays(tmp_path):
    rows = [[1.0, 0.0], [0.5, 0.5]]
    for value in (rows, list(np.array(rows)), [tuple(row) for row in rows], np.array(rows)):
        dump(tmp_path / "x", value)
        assert pickles.read_array(tmp_path / "x").tolist() == rows
    dump(tmp_path / "x", np.asfortranarray(np.arange(6).reshape(2, 3)))
    assert pickles.read_array(tmp_path / "x").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["i4", "i8", "u1", ">i4"])
def test_arrays_come_out_of_pickles_as_they_went_in(tmp_path, protocol, dtype):
    dump(tmp_path / "x", np.array([3, 1, 2], dtype), protocol)
    found = pickles.read_integers(tmp_path / "x")
    assert found.tolist() == [3, 1, 2] and found.dtype == np.int64
    dump(tmp_path / "x", [3, -1, 2], protocol)
    assert pickles.read_integers(tmp_path / "x").tolist() == [3, -1, 2]
    dump(tmp_path / "x", [np.int64(3), np.int64(2)], protocol)
    assert pickles.read_integers(tmp_path / "x").tolist() == [3, 2]


def test_a_pickle_that_is_cut_off_is_named(tmp_path):
    dump(tmp_path / "x", np.arange(100))
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-20])
    with refused("x pickle"):
        pickles.read_integers(tmp_path / "x")
    with refused("file"):
        pickles.read_integers(tmp_path / "y")


# IPL's segments by value, and our own files.


def segments(p=3, length=4, wide=11, acts=3):
    rng = np.random.default_rng(0)
    parts = {f"obs_{i}": rng.normal(size=(p, length, wide)) for i in (1, 2)}
    parts |= {f"action_{i}": rng.uniform(-1, 1, (p, length, acts)) for i in (1, 2)}
    return parts | {"label": np.array([1, 0.5, 0])[:p]}


def never():
    pytest.fail("the dataset is not needed")


def test_ipl_brings_its_own_segments(tmp_path):
    parts = segments()
    folder = tmp_path / "hopper-medium-v2"
    folder.mkdir()
    np.savez(folder / "num500_human_eval.npz", **segments(1))  # not others than the training pairs
    np.savez(folder / "num500_human_train.npz", **parts)
    for path in (tmp_path, folder, folder / "num500_human_train.npz"):
        cfg = Preferences(source="ipl", path=str(path))
        compared = sources.find(HOPPER, never, cfg)
        found = compared.segments(compared.observations)
        np.testing.assert_array_equal(found[:, 0], parts["obs_1"].astype("f4"))
        np.testing.assert_array_equal(found[:, 1], parts["obs_2"].astype("f4"))
        actions = compared.segments(compared.actions)
        np.testing.assert_array_equal(actions[:, 1], parts["action_2"].astype("f4"))
        assert compared.labels.tolist() == [1, 0.5, 0] and compared.rewards is None
    (folder / "num500_human_train.npz").unlink()
    with refused("0 *_train.npz"):
        load(tmp_path, "ipl")


def test_ipls_actions_are_in_no_range_of_the_datasets(tmp_path):
    np.savez(tmp_path / "x.npz", **segments())
    narrow = replace(HOPPER, action_range=((-0.5,), (0.5,)))
    with refused("action_range actions"):
        load(tmp_path / "x.npz", "ipl", task=narrow)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"obs_2": np.zeros((3, 5, 11))}, "obs_2 3 5 11 4"),
        ({"label": np.zeros(2)}, "(2,)"),
        ({"label": np.array([0, 1, -1.0])}, "2 -1"),
        ({"obs_1": np.full((3, 4, 11), np.nan)}, "observations 0 NaN"),
        ({"action_2": np.full((3, 4, 3), 2.0)}, "action_2 0 2 -1"),
        ({"label": np.array([None] * 3)}, "npz"),
        ({f"obs_{i}": np.zeros((3, 4, 7)) for i in (1, 2)}, "(11,) (3,)"),
    ],
)
def test_bad_segments_are_refused(tmp_path, changed, message):
    path = tmp_path / "x.npz"
    np.savez(path, **(segments() | changed))
    with refused(message):
        load(path, "ipl")
    np.savez(path, obs_1=np.zeros(3))
    with refused("obs_2 action_1"):
        load(path, "ipl")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"starts": np.zeros((0, 2), int), "labels": np.zeros(0)}, "answers"),
        ({"labels": np.zeros((3, 1))}, "3 1 (P,)"),
        ({"labels": np.eye(3)[:, :2]}, "3 2 (P,)"),
        ({"labels": np.array(1.0)}, "(P,)"),
        ({"labels": np.zeros(3, complex)}, "complex128"),
        ({"labels": np.array(["0"] * 3)}, "<U1"),
        ({"starts": np.full((3, 2), 0.7)}, "float64"),
        ({"length": 2.9}, "float64"),
        ({"length": np.array([2])}, "shape (1,)"),
    ],
)
def test_what_is_no_label_file_is_told_in_a_sentence(tmp_path, changed, message):
    data, path = d4rl_like(), tmp_path / "x.npz"
    right = {"starts": np.zeros((3, 2), int), "labels": np.array([0, 1, 0.5]), "length": 2}
    named = {"source": "anna", "dataset": data.id, "sha256": readers.fingerprint(data)}
    np.savez(path, **(right | named))
    assert len(load(path, "file", data)) == 3
    np.savez(path, **(right | named | changed))
    with refused(f"x.npz {message}"):
        load(path, "file", data)


def test_our_own_file_is_read_back_and_knows_its_data(tmp_path):
    data, path = d4rl_like(), tmp_path / "x.npz"
    made = sources.find(
        HOPPER, lambda: data, Preferences(length=2, pairs=20, beta=1.0, epsilon=0.3)
    )
    readers.write(path, made, data)
    again = load(path, "file", data)
    assert (again.starts == made.starts).all() and (again.labels == made.labels).all()
    assert (again.length, again.source, again.id) == (2, made.source, made.id)
    assert len(load(path, "file", data, pairs=5)) == 5
    older = dict(np.load(path))
    older["sha256"] = readers._digest(data.actions, data.rewards, data.episode_ends)
    np.savez(tmp_path / "older.npz", **older)
    assert len(load(tmp_path / "older.npz", "file", data)) == 20
    with refused("d4rl/hopper-medium-v2"):
        load(path, "file", data.with_rewards(data.rewards + 1))


@pytest.mark.parametrize("history", [1, 3])
def test_labels_stay_those_of_their_data_however_it_is_shown(tmp_path, history):
    data, path = d4rl_like(), tmp_path / "x.npz"
    made = sources.find(HOPPER, lambda: data, Preferences(length=2, pairs=5))
    readers.write(path, made, data)
    shown = replace(data, actions=data.actions / 3)
    shown = with_history(shown, history) if history > 1 else shown
    again = load(path, "file", shown, task=replace(HOPPER, history=history))
    assert (again.starts == made.starts).all()
    with refused("rows"):
        load(path, "file", replace(data, observations=data.observations + 1))
