"""The data of the page's script: runs, curves and settings, as JSON."""

import json
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from corerl.report import stats
from corerl.report.figures import seeds_by_steps, thinned
from corerl.report.load import Results
from corerl.report.options import Options
from corerl.report.our_tables import UNEQUAL_RULE, seeds_text
from corerl.report.sections import Section
from corerl.report.tables import ENOUGH_SEEDS

CURVE_POINTS, PROFILE_POINTS = 40, 81
DASHES = {"-": "", "--": "6 3", ":": "2 2.5", "-.": "7 3 2 3"}  # of Matplotlib, in pixels


class Data:
    """The page's data: `text` is JSON that may stand in a script element.

    Args:
        out: the page's folder, from which links to runs start.
    """

    def __init__(
        self, results: Results, sections: list[Section], look: dict, out: Path, options: Options
    ):
        self._groups: dict[str, dict[str, Any]] = {}
        self._settings: list[dict[str, Any]] = []
        # Of a file with several rows the last one counts: seeds that are in no number come first.
        known = {r.file: r for r in results.runs.sort_values("counted", kind="stable").itertuples()}
        for file in dict.fromkeys([*results.scores["file"], *results.runs["file"]]):
            self._groups[file] = self._group(file, known.get(file), results, out)
        places = {file: i for i, file in enumerate(self._groups)}
        content = {
            "unequal": options.unequal,
            "unequalRule": UNEQUAL_RULE,
            "sections": [_section(s, look, places, options) for s in sections],
            "groups": _jsonable(list(self._groups.values())),
            "settings": _jsonable(self._settings),
        }
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        self.text = (
            text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        )

    def group(self, file: str) -> dict[str, Any]:
        """Returns the facts of the group of seeds whose scores are in this file."""
        return self._groups[file]

    def _group(self, file: str, run: Any, results: Results, out: Path) -> dict[str, Any]:
        path = Path(file)
        target = path.parent if run is not None else path
        name = f"{path.parent.parent.name}/{path.parent.name}" if run is not None else path.name
        found = {"href": quote(os.path.relpath(target, out)), "name": name, "settings": None}
        if file in results.settings:
            found["settings"] = self._place(results.settings[file])
        if run is None:
            return found
        cpu, gpu = (results.environments.get(file, {}).get(key) for key in ("cpu", "gpu"))
        found |= {"state": run.state, "machine": gpu or cpu}
        if isinstance(run.compile, str):
            found["compile"] = run.compile
        if not pd.isna(run.step):
            found["steps"] = f"{int(run.step):,}"
        if run.updates_per_s and not pd.isna(run.updates_per_s):
            found["rate"] = f"{run.updates_per_s:,.1f}"
        seconds = run.seconds
        if pd.isna(seconds) and run.updates_per_s and not pd.isna(run.step):
            seconds = run.step / run.updates_per_s
        if seconds is not None and not pd.isna(seconds):
            found["time"] = seconds_text(float(seconds))
        return found

    def _place(self, settings: dict[str, Any]) -> int:
        if settings not in self._settings:
            self._settings.append(settings)
        return self._settings.index(settings)


def seconds_text(seconds: float) -> str:
    """Writes seconds as `3 h 20 min`, `4 min 10 s`, `12 s`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _section(
    section: Section, look: dict, places: dict[str, int], options: Options
) -> dict[str, Any]:
    names = section.algorithms
    columns = section.runs[["algorithm", "task", "seed", "score", "step", "file"]]
    runs = [
        {"algorithm": a, "task": t, "seed": seed, "score": score, "step": step, "group": places[f]}
        for a, t, seed, score, step, f in columns.itertuples(index=False)
    ]
    found = {
        "folder": section.folder,
        "axis": section.axis,
        "algorithms": names,
        "tasks": section.tasks,
        "shared": section.shared,
        "looks": {n: [look[n]["color"], DASHES[look[n]["linestyle"]]] for n in names},
        "metrics": options.metrics,
        "runs": runs,
        "aggregates": None,
        "pairs": [],
    }
    if section.aggregates is not None:
        found["aggregates"] = {n: {} for n in names}
        for r in section.aggregates.itertuples():
            estimate = {"value": r.value, "low": r.low, "high": r.high}
            estimate["n"] = seeds_text(r.seeds_min, r.seeds_max)
            estimate["few"] = r.seeds_min < ENOUGH_SEEDS
            found["aggregates"][r.algorithm][r.metric] = estimate
    if section.improvement is not None:
        found["pairs"] = section.improvement.to_dict("records")
        for pair in found["pairs"]:
            pair["few"] = int(str(pair["n"]).partition("-")[0]) < ENOUGH_SEEDS
    drawn = {  # nothing rests on how exactly
        "curves": _curves(section),
        "profiles": _lines(section.profiles, "tau", PROFILE_POINTS),
        "efficiency": _lines(section.efficiency, "step", CURVE_POINTS),
    }
    return _jsonable(found) | _jsonable(drawn, digits=7)


def _lines(table: pd.DataFrame | None, x: str, most: int) -> dict[str, list[list[float]]]:
    """Returns {algorithm: [[x, value, low, high]]}, thinned to about `most` points. The last one stays."""
    if table is None:
        return {}
    found = {}
    for name, rows in table.groupby("algorithm", sort=False):
        points = rows[[x, "value", "low", "high"]].to_numpy().tolist()
        if len(points) > 1:
            found[name] = points[:: -math.ceil(len(points) / most)][::-1]
    return found


def _curves(section: Section) -> list[dict[str, Any]]:
    """Returns seeds' curves at the steps that all seeds of a cell evaluated, with mean and t interval.

    Thinned ones keep steps that all shared tasks have in common, on which the aggregate's curve rests.
    """
    found, history = [], section.history
    common = stats.common_steps(history[history["task"].isin(section.shared)])
    kept = {name: set(thinned(rows["step"])) for name, rows in common.groupby("algorithm")}
    for (algorithm, task), rows in history.groupby(["algorithm", "task"], sort=False):
        seeds, steps, scores = seeds_by_steps(rows)
        drawn = np.isin(steps, [*kept.get(algorithm, ()), *thinned(steps)])
        steps, scores = steps[drawn], scores[:, drawn]
        if len(steps) < 2:
            continue
        low, high = stats.mean_band(scores)
        curve = {"algorithm": algorithm, "task": task, "steps": steps.tolist()}
        curve |= {"mean": scores.mean(0).tolist(), "seeds": seeds.tolist()}
        curve["scores"] = scores.tolist()
        if np.isfinite(low).all():
            curve |= {"low": low.tolist(), "high": high.tolist()}
        found.append(curve)
    return found


def _jsonable(value: Any, digits: int = 12) -> Any:
    """Converts to plain types. Numbers that are not finite are null, others keep so many digits."""
    if isinstance(value, dict):
        return {str(key): _jsonable(part, digits) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(part, digits) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
