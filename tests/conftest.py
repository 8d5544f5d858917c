"""Fixtures that more than one test file needs."""

import gc
import os
from pathlib import Path

import pytest

os.fsync = lambda descriptor: None  # no test cuts the power
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real datasets and score files beside the checkout; skips where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return SHARED


def pytest_collection_finish():
    """What thousands of collected tests are made of is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
