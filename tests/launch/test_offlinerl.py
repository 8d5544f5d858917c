"""Another code's BC trainer on NeoRL-2's data: what the script gives it, and the row it keeps."""

import sys
from pathlib import Path

import grids
import numpy as np
import pandas as pd
import pytest
from small import random_dataset

from corerl.data import neorl2, simulators

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "neorl2_protocol"
TRAINER = """
import aim
from loguru import logger
from sklearn.preprocessing import MinMaxScaler
from offlinerl.utils.data import SampleBatch

class BaseAlgo:
    def __init__(self, args):
        raise OSError("writes logs")

def algo_init(args):
    logger.info("begun")
    return args

class AlgoTrainer(BaseAlgo):
    def __init__(self, init, args):
        super().__init__(args)
        self.args = args

    def train(self, train, validation, callback_fn):
        for epoch, error in enumerate((3.0, 1.0, 2.0)):
            assert len(train["obs"]) == 40 and len(validation["act"]) == 40
            callback_fn(self)
            self.log_res(epoch, {"loss": error * self.args["seed"]})

    def get_policy(self):
        return self

    def get_action(self, state):
        return state[:, :1] * 0 + 1
"""


@pytest.fixture
def offlinerl(tmp_path, monkeypatch):
    """A folder laid out like that package, whose own `__init__` would fail."""
    for name, text in (
        ("algo/__init__.py", "import missing"),
        ("algo/modelfree/__init__.py", "import missing"),
        ("algo/modelfree/bc.py", TRAINER),
        ("utils/data.py", "class SampleBatch(dict):\n    def __len__(self): return 300"),
    ):
        file = tmp_path / "offlinerl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name in ("aim", "loguru", "sklearn", "sklearn.preprocessing"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.syspath_prepend(FOLDER)
    yield tmp_path
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("offlinerl", "run_offlinerl")
    ]:
        del sys.modules[name]


class Env:
    """Three steps, each of which pays its action."""

    def reset(self):
        self.left = 3
        return np.zeros(3), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(3), float(action[0]), self.left == 0, False, {}


def test_the_chosen_policy_is_played_and_its_error_kept(offlinerl, monkeypatch, capsys):
    import run_offlinerl

    monkeypatch.setattr(neorl2, "load", lambda task, split: random_dataset(40))
    monkeypatch.setattr(simulators, "make_neorl2", lambda task: Env())
    out = offlinerl / "out.csv"
    words = ["--seeds", "4", "6", "--epochs", "3", "--episodes", "2"]
    run_offlinerl.main([str(offlinerl), "DMSD", str(out), *words])
    rows = pd.read_csv(out)
    assert rows["seed"].tolist() == [4, 6] and rows["return"].tolist() == [3.0, 3.0]
    assert rows["chosen"].tolist() == [2000, 2000] and rows["updates"].tolist() == [3000, 3000]
    assert rows["validation_error"].tolist() == [4 / 2, 6 / 2]  # of 300 rows there are two batches
    assert grids.compare(grids.read(out), grids.published())["their_size"].item() == 3
