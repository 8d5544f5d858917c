"""What weighting adds: weighted less uniform scores of every algorithm on every set, with intervals.

    corerl report runs/weighting --out report
    python results/reproduced/weighting/differences.py report/scores.csv

Reads a report's `scores.csv`, whose algorithms end in `weighting=...`. Intervals are Welch's, at 95 %; a
difference whose interval excludes 0 is emphasised.
"""

import sys

import pandas as pd

from corerl.report.stats import welch_interval

UNIFORM = "uniform"


def table(scores: pd.DataFrame) -> str:
    """Returns a row per set and algorithm: mean ± std (ddof 1) of uniform draws, then the differences."""
    names = scores["algorithm"].str.extract(
        r"^(?P<method>.+) (?:\w+\.)*weighting=(?P<weighting>\w+)$"
    )
    rows = scores.join(names).dropna(subset="method")
    sides = rows.groupby(["task", "method", "weighting"])["score"].agg(["mean", "std", "size"])
    others = [w for w in rows["weighting"].unique() if w != UNIFORM]
    lines = [
        f"| set, algorithm | {UNIFORM} (n) | {' | '.join(f'{w} - {UNIFORM}' for w in others)} |",
        "| --- " + "| ---: " * (1 + len(others)) + "|",
    ]
    for task, method in sides.index.droplevel("weighting").unique():
        cell = sides.loc[(task, method)]
        base = cell.loc[UNIFORM]
        reported = [difference(cell.loc[w], base) if w in cell.index else "" for w in others]
        start = f"| {task.rpartition('/')[2]}, {method} | {base['mean']:.1f} ± {base['std']:.1f} "
        lines.append(f"{start}({base['size']:.0f}) | {' | '.join(reported)} |")
    return "\n".join(lines)


def difference(weighted: pd.Series, uniform: pd.Series) -> str:
    low, high = welch_interval(*map(float, (*weighted, *uniform)))
    reported = f"{weighted['mean'] - uniform['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{reported}**" if low > 0 or high < 0 else reported


if __name__ == "__main__":
    print(table(pd.read_csv(sys.argv[1])))
