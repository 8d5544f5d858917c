"""The last evaluation of every seed, as its folder has it."""

import pytest

from corerl.launch import last_scores
from corerl.runs.score_rows import SCORE_COLUMNS


def write(folder, seed: int, value: float, hash: str = "0a1b2c3d") -> None:
    folder.mkdir(parents=True)
    row = f"corerl/pendulum,BC,{hash},{seed},40,{value},{value},2,200.0,0.0,"
    (folder / "scores.csv").write_text(f"{SCORE_COLUMNS}\n{row}\n")


def test_somebodys_copy_of_a_group_is_no_score(tmp_path):
    write(tmp_path / "seeds-0", 0, 7.5)
    write(tmp_path / "seeds-0.bak", 0, 1.0)
    (tmp_path / "seeds-1").mkdir()  # not evaluated yet
    assert [row["score"] for row in last_scores.last(tmp_path, [0, 1])] == [7.5]


def test_a_group_that_ended_before_it_saved_does_not_stand_for_those_that_are_done(tmp_path):
    write(tmp_path / "seeds-0-1", 1, 1.0)
    assert [row["score"] for row in last_scores.last(tmp_path, [1])] == [1.0]
    for seed in (0, 1):
        write(tmp_path / f"seeds-{seed}", seed, 7.5)
        (tmp_path / f"seeds-{seed}" / "status.json").write_text('{"state": "done"}')
    (tmp_path / "seeds-1" / "scores.csv").unlink()  # nothing was evaluated
    assert [row["score"] for row in last_scores.last(tmp_path, [0, 1])] == [7.5]


@pytest.mark.parametrize("hash", ["00123456", "1234e567"])
def test_a_hash_that_looks_like_a_number_is_none(tmp_path, hash):
    write(tmp_path / "seeds-0", 0, 7.5, hash)
    (row,) = last_scores.last(tmp_path, [0])
    assert (row["config"], row["seed"], row["score"]) == (hash, 0, 7.5)
    assert row["success"] is None
