"""Splits scores of one label by configuration, and names each by what tells them apart."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from corerl.runs.config_labels import name, telling

Settings = dict[str, Any]
"""A configuration with its keys flattened: `{"algo.expectile": 0.9}`."""

TASK = ["algorithm", "task"]


def split(
    scores: pd.DataFrame, configs: dict[tuple[str, str], Settings]
) -> tuple[pd.DataFrame, list[str]]:
    """Gives seeds of one label, but of different configurations on one task, different names.

    What tells them apart are their settings; of score files, which have none, the file, also where the same
    seeds stand in several; and else the hash.

    Args:
        scores: columns algorithm, task, config (a hash) and file.
        configs: the settings of (task, hash), where they are known.

    Returns:
        The scores under their new names, and notes on labels that were split, or pooled over score files.
    """
    notes = _split_by_file(scores, configs)
    hashes = scores.groupby(TASK)["config"].unique()
    for label in dict.fromkeys(scores["algorithm"]):
        groups = {t: list(h) for t, h in hashes[label].items() if len(h) > 1}
        if not groups:
            continue
        known = [[configs.get((t, c)) for c in h] for t, h in groups.items()]
        keys = telling(group for group in known if all(group))
        flats = [configs.get((t, c)) for t, h in hashes[label].items() for c in h]
        short = _shortened(keys, [flat for flat in flats if flat])
        rows = scores["algorithm"] == label
        scores.loc[rows, "algorithm"] = [
            _name(label, c, configs.get((t, c)), short, alone=t not in groups)
            for t, c in zip(scores.loc[rows, "task"], scores.loc[rows, "config"], strict=True)
        ]
        reported = ", ".join(short.values()) or "the hash of the configuration"
        notes.append(
            f"{label} has runs with several configurations on one task, so the report splits its seeds by "
            f"{reported}."
        )
    return scores, notes


def _split_by_file(scores: pd.DataFrame, configs: dict[tuple[str, str], Settings]) -> list[str]:
    """Names in place the rows of score files after their file, where several hold a task of a label.

    They hold it with several configurations, or with the same seeds.
    """
    known = [key in configs for key in zip(scores["task"], scores["config"], strict=True)]
    origin = scores["file"].mask(pd.Series(known, scores.index), "")
    names = _file_names(set(origin) - {""})
    counts = scores.assign(origin=origin).groupby(TASK)[["config", "origin"]]
    files = scores[origin != ""]
    again = files.groupby([*TASK, "seed"])["file"].nunique().groupby(TASK).max() > 1
    labels = _labels((counts.nunique() > 1).all(axis=1)) | _labels(again)
    pooled = _pooled(files[~files["algorithm"].isin(labels)])
    for label in labels:
        rows = (scores["algorithm"] == label) & (origin != "")
        scores.loc[rows, "algorithm"] = [f"{label} ({names[file]})" for file in origin[rows]]
    if not labels:
        return pooled
    return [
        f"Some task of {', '.join(sorted(labels))} has several configurations, or the same seeds in several "
        "files. The report therefore splits the seeds by file.",
        *pooled,
    ]


def _pooled(files: pd.DataFrame) -> list[str]:
    """Tells whose seeds are pooled over files that do not say whether they are of one configuration."""
    labels = _labels(files[files["config"] == ""].groupby(TASK)["file"].nunique() > 1)
    if not labels:
        return []
    return [
        f"The seeds of {', '.join(sorted(labels))} on one task are in several score files, and the "
        "report pools them. To keep them apart, rename an algorithm or add a column `config`."
    ]


def _labels(tasks: pd.Series) -> set[str]:
    """Returns the labels that the condition holds of, on any of their tasks."""
    return set(tasks.index[tasks].get_level_values("algorithm"))


def _file_names(files: Iterable[str]) -> dict[str, str]:
    """Returns of each path the part, seen from the end, in which all differ: not `scores` of scores.csv."""
    parts = {file: [Path(file).stem, *Path(file).parts[-2::-1]] for file in files}
    for depth in range(min(map(len, parts.values()), default=0)):
        found = {file: names[depth] for file, names in parts.items()}
        if len(set(found.values())) == len(found) and "scores" not in found.values():
            return found
    return {file: file for file in parts}


def _shortened(keys: Iterable[str], flats: Sequence[Settings]) -> dict[str, str]:
    """Shortens keys to their last parts, as many as are unique: `pairs` of `algo.preferences.pairs`."""
    every = {key for flat in flats for key in flat}
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts) - 1, 0, -1))
        short[key] = next(
            (e for e in ends if [k for k in every if f".{k}".endswith(f".{e}")] in ([key], [])), key
        )
    return short


def _name(
    label: str, config: str, flat: Settings | None, short: dict[str, str], alone: bool
) -> str:
    if not flat or not short:
        return f"{label} [{config or 'no hash'}]"
    if alone and all(flat.get(key) is None for key in short):
        return label
    return name(label, flat, short)
