import pandas as pd

from corerl.report import stats


def test_categories_that_no_run_has_count_for_nothing():
    """A table from which an algorithm or a task was chosen still names the others as its categories."""
    cells = [(a, t, s, step) for a in "AB" for t in "xyz" for s in (0, 1, 2) for step in (1, 2)]
    text = pd.DataFrame(cells, columns=["algorithm", "task", "seed", "step"])
    text["score"] = [10.0 * (a == "B") + 3 * s + k for a, _, s, k in cells]
    typed = text.astype({"algorithm": "category", "task": "category"})
    answers = []
    for table in (text, typed):
        some = table[table["task"] != "z"]
        last = stats.final(some)
        one = stats.aggregate(last[last["algorithm"] == "A"], replicates=50)
        possible = stats.probability_of_improvement(last, "A", "B", replicates=50)
        steps = len(stats.common_steps(some[some["algorithm"] == "A"]))
        answers.append((len(last), len(stats.best(some)), one.round(9).to_dict(), possible, steps))
    assert answers[0] == answers[1]
