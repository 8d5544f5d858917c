"""Names for several configurations of one algorithm: its label and what tells their rows apart."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from corerl.runs.config_labels import differing

Settings = dict[str, Any]
"""A configuration with its keys flattened: `{"algo.expectile": 0.9}`."""


def split(
    scores: pd.DataFrame, configs: dict[tuple[str, str], Settings]
) -> tuple[pd.DataFrame, list[str]]:
    """Gives seeds of one label, but of different configurations on one task, different names.

    Args:
        scores: columns algorithm, task and config (a hash).
        configs: the settings of (task, hash), where they are known.

    Returns:
        The scores under their new names, and a note for each label that was split.
    """
    notes = []
    hashes = scores.groupby(["algorithm", "task"])["config"].unique()
    for label in dict.fromkeys(scores["algorithm"]):
        groups = {t: list(h) for t, h in hashes[label].items() if len(h) > 1}
        if not groups:
            continue
        keys = _telling([[configs.get((t, c)) for c in h] for t, h in groups.items()])
        flats = [configs.get((t, c)) for t, h in hashes[label].items() for c in h]
        short = _shortened(keys, [flat for flat in flats if flat])
        rows = scores["algorithm"] == label
        scores.loc[rows, "algorithm"] = [
            _name(label, c, configs.get((t, c)), short, alone=t not in groups)
            for t, c in zip(scores.loc[rows, "task"], scores.loc[rows, "config"], strict=True)
        ]
        told = ", ".join(short.values()) or "the hash of the configuration"
        notes.append(
            f"{label} was run with several configurations on the same task, so its seeds are not "
            f"pooled but split by {told}."
        )
    return scores, notes


def _telling(groups: Iterable[Sequence[Settings | None]]) -> list[str]:
    """Returns the fewest keys (greedily) that tell the configurations of every group apart."""
    pairs = [pair for group in groups if all(group) for pair in combinations(group, 2)]
    keys: list[str] = []
    while pairs:
        told = {}
        for pair in pairs:
            for key in differing(pair):
                told[key] = told.get(key, 0) + 1
        if not told:
            break
        best = min(told, key=lambda k: (-told[k], not k.startswith("algo."), len(k), k))
        keys.append(best)
        pairs = [(a, b) for a, b in pairs if repr(a.get(best)) == repr(b.get(best))]
    return sorted(keys)


def _shortened(keys: Iterable[str], flats: Sequence[Settings]) -> dict[str, str]:
    """Shortens keys to their last parts, as many as are unique: `pairs` of `algo.preferences.pairs`."""
    every = {key for flat in flats for key in flat}
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1))
        short[key] = next(
            end for end in ends if [k for k in every if f".{k}".endswith(f".{end}")] in ([key], [])
        )
    return short


def _name(
    label: str, config: str, flat: Settings | None, short: dict[str, str], alone: bool
) -> str:
    if not flat or not short:
        return f"{label} [{config or 'no hash'}]"
    if alone and all(flat.get(key) is None for key in short):
        return label
    return " ".join([label, *(f"{name}={flat.get(key)}" for key, name in short.items())])
