"""A file takes its place once it is whole, whoever else writes it."""

import pytest
from wording import refused

from corerl.data.files.io import replacing


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "folder" / "x.npz"
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
        assert not path.exists() and {one.suffix, other.suffix} == {".npz"}
    assert path.read_text() in ("one", "other")
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.npz"
    path.write_text("an earlier one")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("half")
        1 / 0  # noqa: B018
    assert path.read_text() == "an earlier one" and list(tmp_path.iterdir()) == [path]
    with refused("exists"), replacing(path / "y"):
        pass
