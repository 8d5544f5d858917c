"""Published numbers: reading them, and recomputing NeoRL-2's from its per-run scores.

    python -m corerl.report.published FINAL_SCORES_CSV [OUT_CSV]

A row is one cell of somebody's table: algorithm, task, mean, std, seeds, protocol, source, notes.
`protocol` starts with "last" (final evaluation), "at step" (the evaluation at that step) or "best"
(maximum over training), says in other words what else was measured, or is empty where the source does
not say. `source` is a short name and, in parentheses, where to find it.
`ddof` is 0 or 1 where the source says which standard deviation it prints, `steps` how many updates or
environment steps its runs had. `metric` is score (normalised, also where nothing is said), return or
success; a file of one's own may say normalised or raw, as score files do.
"""

import sys
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from corerl.errors import CorerlError, nearest
from corerl.report.files import write
from corerl.report.scorefiles import read_neorl2

COLUMNS = ["algorithm", "task", "mean", "std", "seeds", "ddof", "protocol", "source", "notes"]
COLUMNS += ["steps", "metric"]
METRICS = {"score": "normalised", "return": "raw", "success": "success"}
"""The unit of what a row gives; other metrics have no place in a report."""
_METRIC = {name: name for name in METRICS} | {unit: name for name, unit in METRICS.items()}
_METRIC |= {"": "score"}  # as files have it, which may use the words of score files


def shipped() -> list[str]:
    """Returns the parts of the shipped table that can stand beside runs: those with scores or returns."""
    return sorted(set(_shipped()["table"]))


@cache
def _shipped() -> pd.DataFrame:
    with (resources.files("corerl.published") / "published.csv").open(
        "r", encoding="utf-8"
    ) as file:
        rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    return rows[rows["metric"].isin(METRICS)]


def read_published(name: str) -> pd.DataFrame:
    """Reads a part of the shipped table, or a CSV of the same columns by path (std, ... may be empty).

    Raises CorerlError for an unknown name, a missing column, or a field that cannot be (seeds of 2.5).
    """
    if name in shipped():
        rows = _shipped()
        return _typed(rows[rows["table"] == name].reset_index(drop=True), name)
    if Path(name).is_file():
        source = Path(name)
    else:
        known = shipped()
        raise CorerlError(
            f"There are no published numbers {name!r}.{nearest(name, known)} Give one of "
            f"{', '.join(known)}, or the path of a CSV."
        )
    try:
        rows = pd.read_csv(source, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise CorerlError(
            f"{name} is not a readable CSV ({' '.join(str(error).split())}). Repair it."
        ) from error
    return _typed(rows, name)


def _typed(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = rows.rename(columns=str.strip)
    for column in ("algorithm", "task", "mean", "source"):
        if column not in rows.columns:
            raise CorerlError(
                f"The published numbers {name} have no column {column!r}. "
                f"The columns are {', '.join(COLUMNS)}."
            )
    rows = rows.reindex(columns=COLUMNS, fill_value="").apply(lambda texts: texts.str.strip())
    said = rows["metric"].str.lower()
    _refuse(rows, name, "metric", ~said.isin(_METRIC), f"not one of {', '.join(METRICS)}")
    rows["metric"] = said.map(_METRIC)
    for column in ("mean", "std", "seeds", "ddof", "steps"):
        values = pd.to_numeric(rows[column], errors="coerce").astype(np.float64)
        given = rows[column].ne("") if column in _RULES else True
        _refuse(rows, name, column, given & ~np.isfinite(values), "not a finite number")
        if column in _RULES:
            holds, wanted = _RULES[column]
            _refuse(rows, name, column, given & ~holds(values), wanted)
        rows[column] = values
    return rows


_WHOLE = (lambda x: (x > 0) & (x % 1 == 0), "not a positive whole number")
_RULES = {
    "std": (lambda x: x >= 0, "below 0"),
    "seeds": _WHOLE,
    "ddof": (lambda x: x.isin([0, 1]), "neither 0 nor 1"),
    "steps": _WHOLE,
}
"""What holds of a column where it is given, and what to call a value that it does not hold of."""


def _refuse(rows: pd.DataFrame, name: str, column: str, bad: pd.Series, problem: str) -> None:
    if bad.any():
        row = int(bad.to_numpy().argmax())
        found = rows[column].iloc[row]
        reported = f"{found!r}, {problem}" if found else "empty"
        raise CorerlError(f"{name}, row {row + 2}: {column} is {reported}.")


def short_source(source: str) -> str:
    """Shortens to `"CORL"` a source as `"CORL (corl-team/CORL@eeeeef2:docs/benchmarks/offline.md)"`."""
    return source.split(" (", 1)[0]


def sample_std(std: float, seeds: float, ddof: float) -> float:
    """Computes the standard deviation with n - 1 in the denominator from one printed with n (ddof 0)."""
    return std * np.sqrt(seeds / (seeds - 1)) if ddof == 0 and seeds > 1 else std


# ---------------------------------------------------------------------------------------- NeoRL-2

_NAMES = {
    "td3bc": "TD3+BC",
    **{
        name: name.upper()
        for name in ("bc", "cql", "edac", "mcq", "mopo", "combo", "rambo", "mobile")
    },
}
_REPOSITORY = "polixir/NeoRL2@b50d91d"


def neorl2(final_scores: Path) -> pd.DataFrame:
    """Reads NeoRL-2's benchmark (arXiv 2503.19267): its 2,058 runs with a return, by two groupings of them.

    For each algorithm and task the configuration with the best mean over its seeds counts; std has
    ddof 1. "NeoRL-2" groups as the repository's report_result.py: by the configuration's text up to
    ",seed=", which pools configurations that differ only in a parameter after it (MOPO's
    uncertainty_mode, RAMBO's). "NeoRL-2 regrouped" keeps every configuration apart. Runs without
    a reward are left out. Besides COLUMNS: raw_mean and raw_std (not normalised).
    """
    runs = read_neorl2(final_scores)
    runs = runs[runs["algorithm"].isin(_NAMES)]
    bounds = _bounds()
    low, high = (runs["task"].map(lambda t, i=i: bounds[t][i]) for i in (0, 1))
    runs = runs.assign(normalised=100 * (runs["score"] - low) / (high - low))
    as_printed = _best_config(
        runs.assign(config=runs["printed_config"]),
        f"NeoRL-2 ({_REPOSITORY}:benchmark/task_score.csv)",
        "hyperparameters chosen per task by the evaluation itself",
    )
    regrouped = _best_config(
        runs,
        f"NeoRL-2 regrouped ({_REPOSITORY}:benchmark/results)",
        "recomputed from the per-run logs with every configuration kept apart; "
        "hyperparameters chosen per task by the evaluation itself",
    )
    return pd.concat([as_printed, regrouped], ignore_index=True)


def _bounds() -> dict[str, tuple[float, float]]:
    source = resources.files("corerl.data.tables") / "neorl2.csv"
    with source.open("r", encoding="utf-8") as file:
        table = pd.read_csv(file, comment="#")
    return {
        f"neorl2/{t}": (low, high)
        for t, low, high in zip(table["task"], table["min"], table["max"], strict=True)
    }


_POLICY = {"BC": "lowest validation error"}
_STEPS = {"EDAC": 3_000_000, "MOBILE": 3_000_000, "MOPO": 3_000_000, "RAMBO": 2_000_000}
"""Of NeoRL-2's logs: whose policy is not the last one, and whose updates are not a million."""


def _best_config(runs: pd.DataFrame, source: str, notes: str) -> pd.DataFrame:
    cells = runs.dropna(subset=["score"]).groupby(["algorithm", "task", "config"])
    means = cells.agg(
        mean=("normalised", "mean"),
        std=("normalised", "std"),
        raw_mean=("score", "mean"),
        raw_std=("score", "std"),
        seeds=("seed", "size"),
    )
    cell = means.groupby(level=["algorithm", "task"])["mean"]
    best = means.loc[cell.idxmax()].assign(tried=cell.size().to_numpy()).reset_index()
    best["notes"] = [f"{notes}; chosen: {c}" for c in best["config"]]
    best = best.assign(
        source=source, ddof=1, algorithm=best["algorithm"].map(_NAMES), metric="score"
    )
    policy = best["algorithm"].map(lambda name: _POLICY.get(name, "last"))
    best["protocol"] = policy + [f", best of {k} configurations" for k in best["tried"]]
    best["steps"] = best["algorithm"].map(lambda name: _STEPS.get(name, 1_000_000))
    return best[[*COLUMNS, "raw_mean", "raw_std"]].round(4)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        text = neorl2(Path(sys.argv[1])).to_csv(index=False)
    except CorerlError as error:
        sys.exit(f"corerl: {error}")
    if len(sys.argv) == 3:
        write(Path(sys.argv[2]), text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
