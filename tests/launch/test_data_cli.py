"""`corerl data`, through its parser."""

import pytest

from corerl.errors import CorerlError


def test_make_info_and_list(data, tmp_path):
    assert "100,000 steps, 500 episodes" in data("make", "corerl/pendulum")
    info = data("info", "corerl/pendulum")
    assert "500, of which 0 terminate" in info
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
    with pytest.raises(CorerlError, match=f"{task} is an online task"):
        data("download", task)


def test_unknown_suite_and_offline_download(data, monkeypatch):
    with pytest.raises(CorerlError, match="No recipe makes corerl/lander; there are: pendulum"):
        data("make", "lander")
    monkeypatch.setenv("CORERL_OFFLINE", "1")
    with pytest.raises(CorerlError, match=r"Fusion-train\.npz is not on this machine"):
        data("download", "neorl2/Fusion")
