"""The page of learning from comparisons: its table at full width is that of its rows."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "preferences"


def test_evaluations_at_full_width_are_the_runs():
    runs, page = pd.read_csv(FOLDER / "full_width.csv"), (FOLDER / "README.md").read_text()
    for (algorithm, seed), run in runs.groupby(["algorithm", "seed"]):
        scores = run.sort_values("step")["score"].tolist()
        cells = " | ".join(f"{score:.0f}" for score in [*scores, sum(scores) / len(scores)])
        assert f"| {algorithm}, seed {seed} | {cells} |" in page
