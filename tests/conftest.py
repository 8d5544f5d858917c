"""Fixtures that more than one test file needs."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real datasets and score files beside the checkout; skips where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return SHARED
