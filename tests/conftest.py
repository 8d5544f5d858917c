"""Fixtures that more than one test file needs."""

import argparse
import gc
import os
from functools import cache
from pathlib import Path

import gymnasium
import pytest

from corerl.data.tasks import Task

os.fsync = lambda descriptor: None  # no test cuts the power
os.environ.pop("CORERL_OFFLINE", None)  # downloads here come from this machine
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real datasets and score files beside the checkout; skips where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return SHARED


@pytest.fixture
def load_once(monkeypatch) -> None:
    """Runs of a test share a dataset, which none of them changes."""
    monkeypatch.setattr(Task, "load", cache(Task.load))


@pytest.fixture
def short_episodes(monkeypatch) -> None:
    """Pendulum's episodes end after 20 steps, in this process."""
    monkeypatch.setattr(gymnasium.spec("Pendulum-v1"), "max_episode_steps", 20)


@pytest.fixture
def data(tmp_path, monkeypatch, capsys):
    """`data(*words)` is `corerl data`, in folders of this test alone; what it prints."""
    from corerl.commands import data

    monkeypatch.setenv("CORERL_DATA", str(tmp_path / "corerl"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)

    def run(*words, status=0):
        assert data.run(parser.parse_args(words)) == status
        return capsys.readouterr().out

    return run


def pytest_addoption(parser):
    parser.addoption(
        "--part", default="0/1", help="K/N: every N-th test from the K-th on, counted from 0"
    )


def pytest_collection_modifyitems(config, items):
    part, parts = map(int, config.getoption("--part").split("/"))
    config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i % parts != part])
    items[:] = items[part::parts]


def pytest_collection_finish():
    """What thousands of collected tests are made of is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
