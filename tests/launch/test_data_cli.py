"""`corerl data`, through its parser."""

import pytest
from wording import refused, says


def test_make_info_and_list(data, tmp_path):
    assert "100,000 steps, 500 episodes" in data("make", "corerl/pendulum")
    info = data("info", "corerl/pendulum")
    says(info, "500 0")
    assert "min 200, quartiles 200 200 200, max 200" in info
    assert str(tmp_path / "corerl/corerl/pendulum-v1-seed0.npz") in info
    listing = data("list", "pendulum")
    assert "corerl/pendulum" in listing
    assert "yes" in listing
    assert "hopper" not in listing
    assert "risk/D1 made" in data("list", "risk/D1")
    assert "risk/halfcheetah-replay-stochastic-regenerated" in data("list", "risk")  # unfolded


@pytest.mark.parametrize("task", ["maze/v0", "gym/Pendulum-v1"])
def test_what_has_no_data_is_not_fetched(data, task):
    with refused(task):
        data("download", task)


def test_unknown_suite_and_offline_download(data, monkeypatch):
    with refused("corerl/lander pendulum"):
        data("make", "lander")
    monkeypatch.setenv("CORERL_OFFLINE", "1")
    with refused("Fusion-train.npz"):
        data("download", "neorl2/Fusion")
