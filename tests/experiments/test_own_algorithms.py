"""An algorithm's file that lies outside the package: found, trained in processes, loaded, never mistaken."""

import subprocess
import sys
from pathlib import Path

import pytest

from corerl import algos, cli
from corerl.algos import td3_bc
from corerl.errors import CorerlError
from corerl.experiments.composition import cells, register
from corerl.training.load import load

TINY = (
    "task=corerl/pendulum",
    "seeds=2",
    "steps=2",
    "processes=2",
    "eval.episodes=0",
    "compile=off",
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setenv(algos.VARIABLE, "")
    monkeypatch.setattr(algos, "__path__", [*algos.__path__])
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    monkeypatch.undo()
    register.cache_clear()


@pytest.fixture
def mine(tmp_path):
    """A copy of TD3+BC that imports what lies beside it."""
    text = Path(td3_bc.__file__).read_text().replace('"td3_bc"', '"my_td3"')
    text = text.replace("import torch\n", "import beside_my_td3\nimport torch\n", 1)
    (tmp_path / "beside_my_td3.py").touch()
    path = tmp_path / "my_td3.py"
    path.write_text(text)
    return path


def test_a_copied_file_trains_as_a_script_and_its_policy_loads(mine, tmp_path):
    command = [sys.executable, str(mine), *TINY, "algo.hidden_width=4"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (cell,) = (tmp_path / "runs/corerl/pendulum").glob("my_td3-*")
    assert sorted(path.name for path in cell.glob("seeds-*")) == ["seeds-0", "seeds-1"]
    with pytest.raises(
        CorerlError, match=r"my_td3 is no algorithm.*CORERL_ALGOS=path/to/my_td3\.py"
    ):
        load(cell)
    algos.add(mine)
    assert load(cell).act([0.0, 1.0, 0.0]).shape == (2, 1)


def test_it_stands_beside_others_and_takes_a_table_of_its_own(mine):
    mine.with_suffix(".yaml").write_text("corerl/*: {algo.alpha: 7}\n")
    own, other = cells(["-m", f"algo={mine},td3_bc", "task=corerl/pendulum"])
    assert (own.algo.name, own.algo.alpha) == ("my_td3", 7)
    assert type(other.algo) is td3_bc.Config and other.algo.alpha == 2.5


def test_a_copy_that_kept_its_name_is_never_taken_for_the_original(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "td3_bc.py"
    kept.write_text(Path(td3_bc.__file__).read_text())
    monkeypatch.setattr(sys, "argv", [str(kept), *TINY])
    with pytest.raises(SystemExit) as ended:
        cli.run_file(str(kept))
    assert ended.value.code == 2
    assert f"corerl: {kept} has the name of an algorithm of corerl" in capsys.readouterr().err
    renamed = kept.rename(tmp_path / "my_td3.py")  # but not the name in its Config
    with pytest.raises(CorerlError, match="`name` in its Config must be its file's"):
        cells([f"algo={renamed}", "task=corerl/pendulum"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.py", "no file"), ("my-algo.py", "no name"), ("sac_n.py", "name of a table")],
)
def test_what_cannot_be_an_algorithms_file_is_refused(tmp_path, name, problem):
    if name != "none.py":
        (tmp_path / name).touch()
    with pytest.raises(CorerlError, match=problem):
        cells([f"algo={tmp_path / name}", "task=corerl/pendulum"])
