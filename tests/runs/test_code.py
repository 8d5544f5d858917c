"""What tells that an algorithm's code has changed, and what does not."""

import pytest

from corerl import algos
from corerl.runs import code

FOO = '''"""Foo."""

from corerl.algos import bar_of_the_tests


def loss(q):
    """Computes eq. 1."""
    return 2 * q  # twice
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(algos, "__path__", [*algos.__path__, str(tmp_path)])

    def written(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return code.digest("foo_of_the_tests")

    written("bar_of_the_tests", "SCALE = 1\n")
    return written


def test_a_changed_loss_is_other_code_and_a_comment_is_not(write):
    first = write("foo_of_the_tests", FOO)
    reported = (
        FOO.replace("# twice", "# two times").replace("eq. 1", "equation 1").replace("Foo", "F")
    )
    assert reported != FOO and write("foo_of_the_tests", reported) == first
    assert write("foo_of_the_tests", FOO.replace("2 * q", "3 * q")) != first


@pytest.mark.parametrize(
    "line",
    [
        "from corerl.algos import bar_of_the_tests",
        "from corerl.algos.bar_of_the_tests import x",
        "import corerl.algos.bar_of_the_tests as bar",
        "from . import bar_of_the_tests",
        "from .bar_of_the_tests import x",
        "import bar_of_the_tests as bar, math",
        "from bar_of_the_tests import x",
    ],
)
def test_what_an_algorithm_imports_from_another_belongs_to_it(write, line):
    first = write(
        "foo_of_the_tests", FOO.replace("from corerl.algos import bar_of_the_tests", line)
    )
    assert write("bar_of_the_tests", "SCALE = 2\n") != first


def test_modules_beside_are_followed_through_others_and_folders(write, tmp_path):
    write("foo_of_the_tests", "from bar_of_the_tests import x\nimport math, torch, corerl\n")
    write("bar_of_the_tests", "import package.inner\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/inner.py").write_text("from .other import x\nimport torch\n")
    (tmp_path / "package/other.py").write_text("import package.inner\n")
    (tmp_path / "math.py").touch()  # Python takes its own
    assert set(code.trees("foo_of_the_tests")) == {
        *("corerl.algos.foo_of_the_tests", "bar_of_the_tests"),
        *("package", "package.inner", "package.other"),
    }


def test_of_shipped_algorithms_only_algorithms_are_followed():
    shipped = {name: set(code.trees(name)) for name in algos.names()}
    assert shipped["rlpd"] == {"corerl.algos.rlpd", "corerl.algos.sac"}
    assert set().union(*shipped.values()) == {f"corerl.algos.{name}" for name in shipped}


def test_every_algorithm_has_a_code_of_its_own():
    assert len({code.digest(name) for name in algos.names()}) == len(algos.names())
