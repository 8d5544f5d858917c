"""A wheel holds everything that a run needs, and works from any folder without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gpu
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "corerl": "corerl",
    "algos": "corerl/algos",
    "envs": "corerl/envs",
    "configs": "corerl/configs",
    "sweeps": "corerl/sweeps",
    "results/published": "corerl/published",
}
pytest.importorskip("build")


def python(*arguments, cwd: Path, **environment) -> str:
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of the sources, so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, folder / "source" / name)
    python("-m", "build", "--wheel", "--no-isolation", folder / "source", cwd=folder)
    (built,) = (folder / "source" / "dist").glob("corerl-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    python("-m", "pip", "install", *options, "--target", folder, wheel, cwd=folder)
    return folder


def test_every_module_and_table_of_the_checkout_is_inside(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for source, target in PACKAGES.items():
        paths = [p for p in (ROOT / source).rglob("*.*") if p.suffix not in (".pyc", ".md")]
        assert paths, source
        missing = {f"{target}/{p.relative_to(ROOT / source)}" for p in paths} - inside
        assert not missing
    assert not [name for name in inside if "tests/" in name]


def test_it_trains_from_any_folder(installed, tmp_path):
    # -P and PYTHONPATH: the installed copy comes before the checkout, which the environment may hold.
    path = {"PYTHONPATH": str(installed)}
    where = (
        "import corerl, corerl.algos, corerl.configs; print(corerl.__file__, corerl.algos.__file__)"
    )
    for file in python("-P", "-c", where, cwd=tmp_path, **path).split():
        assert Path(file).is_relative_to(installed)
    settings = ["task=corerl/pendulum", "seeds=1", "processes=1", "steps=4", "eval.episodes=1"]
    python("-P", "-m", "corerl.cli", "train", "algo=bc", *settings, cwd=tmp_path, **path)
    (scores,) = (tmp_path / "runs/corerl/pendulum").glob("bc-*/seeds-0/scores.csv")
    assert len(scores.read_text().splitlines()) == 2


def test_its_code_has_the_digest_of_the_checkout(installed, tmp_path):
    code = "import gpu; print(gpu._code())"
    path = os.pathsep.join((str(installed), str(ROOT / "tools" / "gpu")))
    there = python("-P", "-c", code, cwd=tmp_path, PYTHONPATH=path).strip()
    assert there == gpu._code()
