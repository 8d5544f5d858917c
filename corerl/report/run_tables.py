"""The page's tables about runs: where they are, how long they took, their settings and machines."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from corerl.report.html_tables import Link, plain
from corerl.report.load import Results
from corerl.report.page_data import Data
from corerl.runs.config_labels import NAMELESS


def runs(results: Results, data: Data) -> str:
    """Returns the section of runs, and of the settings in which compared algorithms differ."""
    if not len(results.runs):
        return ""
    rows = []
    for r in results.runs[results.runs["counted"].astype(bool)].itertuples():
        group = data.group(r.file)
        link = Link(group["href"], group["name"])
        reported = (group.get(name, "–") for name in ("time", "rate", "compile"))
        rows.append((r.algorithm, r.task, r.seeds, reached(r), *reported, link))
    head = ("algorithm", "task", "seeds", "steps", "time", "updates/s", "updates ran", "run")
    differing = _differing(results)
    settings = (
        "<h3>Settings that differ between algorithms</h3><p>The table shows settings that two "
        "algorithms on one task both have, with different values. Commas separate the values of different "
        f"tasks.</p>{plain(*differing)}"
        if differing
        else ""
    )
    return (
        '<section><h2 id="runs">Runs and settings</h2><p>Time is wall-clock time if a run '
        "recorded it, else steps / updates per second. Updates ran eagerly (off), compiled (compile), or "
        f"as one CUDA graph (graph).</p><details><summary>{len(rows)} groups of "
        f"seeds</summary>{plain(head, rows)}</details>{settings}</section>"
    )


def _differing(results: Results) -> tuple[list[str], list[tuple]] | None:
    """Returns (head, rows) of the settings that two algorithms have on one task with unequal values."""
    by_task: dict[str, dict[str, dict[str, Any]]] = {}
    pairs = results.scores.drop_duplicates(["algorithm", "task", "file"])
    for r in pairs.itertuples():
        if r.file in results.settings:
            by_task.setdefault(r.task, {})[r.algorithm] = results.settings[r.file]
    keys, values = set(), {}
    for task in by_task.values():
        for algorithm, flat in task.items():
            for key, value in flat.items():
                values.setdefault(key, {}).setdefault(algorithm, {})[str(value)] = None
        for key in {k for flat in task.values() for k in flat}:
            found = [str(flat[key]) for flat in task.values() if key in flat]
            if len(set(found)) > 1:
                keys.add(key)
    keys -= {*NAMELESS, "algo.name", "algo.label"}
    if not keys:
        return None
    algorithms = list(dict.fromkeys(a for task in by_task.values() for a in task))
    rows = [
        (
            key.removeprefix("algo."),
            *(", ".join(values[key].get(a, {"–": None})) for a in algorithms),
        )
        for key in sorted(keys)
    ]
    return ["setting", *algorithms], rows


def uncounted(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the list of runs that are in no number."""
    return table[~table["counted"].astype(bool)] if len(table) else table


def left_out(table: pd.DataFrame) -> str:
    """Returns the section of runs that do not count, and why."""
    rows = [
        (r.algorithm, r.task, r.seeds, r.state, reached(r), r.message, r.file)
        for r in uncounted(table).itertuples()
    ]
    if not rows:
        return ""
    head = ("algorithm", "task", "seeds", "state", "step", "message", "file")
    return (
        '<section><h2 id="left-out">Runs not counted</h2><p>These runs are left out of every '
        f"number above unless a note says otherwise.</p>{plain(head, rows)}</section>"
    )


def reached(run: Any) -> str:
    """Tells how far a row of the list of runs came: `"300,000 of 1,000,000"`."""
    step = "–" if pd.isna(run.step) else f"{int(run.step):,}"
    if pd.isna(run.steps) or run.step == run.steps:
        return step
    return f"{step} of {int(run.steps):,}"


def environments(found: dict[str, dict[str, Any]]) -> str:
    """Tabulates software and hardware of all runs."""
    if not found:
        return ""
    table = plain(("setting", "value (runs)"), environment_rows(found.values()))
    return f"<h3>Software and hardware</h3>{table}"


def environment_rows(found: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns (key, values with how many runs had each) over all env.json, nested keys joined by dots."""
    counts: dict[str, dict[str, int]] = {}
    for environment in found:
        for key, value in _flat(environment):
            if key == "code":  # a number per algorithm, which tells a reader nothing
                continue
            values = counts.setdefault(key, {})
            values[value] = values.get(value, 0) + 1
    rows = []
    for key, values in counts.items():
        shown = [f"{v} ({n})" for v, n in values.items()]
        more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
        rows.append((key, next(iter(values)) if len(shown) == 1 else ", ".join(shown[:3]) + more))
    return rows


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            rows.append((f"{prefix}{key}", str(value)))
    return rows
