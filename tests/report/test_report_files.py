import os

import pytest
from wording import refused

from corerl.report.files import file_name, make_folder, write


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path / "new" / "table.txt", "old")

    def fail(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, "replace", fail)
    with refused("table.txt"):
        write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["table.txt"]


@pytest.mark.parametrize("name", ["file/out", "x" * 5000])
def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path, name):
    (tmp_path / "file").write_text("")
    with refused("--out"):
        make_folder(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("d4rl", "d4rl"),
        ("..", "scores"),
        ("/etc", "etc"),
        ("..\\x", "x"),
        ("a b/\u2028é", "a-b"),
        (".hidden", "hidden"),
        ("", "scores"),
    ],
)
def test_no_text_leads_out_of_the_folder(text, name):
    assert file_name(text) == name
