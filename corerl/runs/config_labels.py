"""Names for several configurations of one algorithm: its label and the settings that tell them apart."""

from collections.abc import Iterable, Sequence
from typing import Any

from corerl.older_settings import RENAMED

NAMELESS = ("task", "seeds", "label")


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """Flattens `{"algo": {"tau": 0.1}}` to `{"algo.tau": 0.1}`, by the names that settings have today."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[RENAMED.get(prefix + key, prefix + key)] = value
    return flat


def differing(configs: Sequence[dict[str, Any]]) -> set[str]:
    """Returns the keys of flat configurations of one task that do not have one value in all."""
    keys = {k for c in configs for k in c if k.split(".")[0] not in NAMELESS}
    return {k for k in keys if len({repr(c.get(k)) for c in configs}) > 1}


def telling(groups: Iterable[Sequence[dict[str, Any]]]) -> list[str]:
    """Returns the fewest keys (greedily) that tell the configurations of every group apart."""
    left = [list(group) for group in groups]
    possible = set().union(*map(differing, left))
    keys: list[str] = []
    while reported := {
        key: count for key in possible if (count := sum(_reported(g, key) for g in left))
    }:
        keys.append(
            min(reported, key=lambda k: (-reported[k], not k.startswith("algo."), len(k), k))
        )
        left = [alike for group in left for alike in _alike(group, keys[-1])]
    return sorted(keys)


def _reported(group: list[dict[str, Any]], key: str) -> int:
    """Counts the pairs of a group that a key tells apart, twice."""
    return len(group) ** 2 - sum(len(alike) ** 2 for alike in _alike(group, key))


def _alike(group: list[dict[str, Any]], key: str) -> Iterable[list[dict[str, Any]]]:
    """Returns the parts of a group in which a key has one value."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for flat in group:
        parts.setdefault(repr(flat.get(key)), []).append(flat)
    return parts.values()


def value(flat: dict[str, Any], key: str) -> str:
    """Shows a setting, or the start of a checksum, which is enough to compare."""
    text = str(flat.get(key))
    return text[:8] if key.endswith("sha256") else text


def name(label: str, flat: dict[str, Any], keys: dict[str, str]) -> str:
    """Names a configuration by its values of `keys`, under the names there: `O-RAAC tau=0.1`."""
    return " ".join([label, *(f"{shown}={value(flat, key)}" for key, shown in keys.items())])


def names(known: Sequence[tuple[str, str, dict[str, Any]]]) -> list[str]:
    """Names runs, each of them (label, task, flat settings), by the label.

    Where a task has it with several settings, the fewest that tell them apart follow.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for label, task, flat in known:
        groups.setdefault((label, task), []).append(flat)
    keys = {
        at: {key: key.removeprefix("algo.") for key in telling([group])}
        for at, group in groups.items()
    }
    return [name(label, flat, keys[label, task]) for label, task, flat in known]
