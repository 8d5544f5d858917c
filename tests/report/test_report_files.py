import os

import pytest

from corerl.report.files import write


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path / "new" / "table.txt", "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["table.txt"]
