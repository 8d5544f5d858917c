"""Names for several configurations of one algorithm: its label and the settings in which they differ."""

from collections.abc import Sequence
from typing import Any

from corerl.config import RENAMED

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


def value(flat: dict[str, Any], key: str) -> str:
    """Shows a setting; of a checksum the start, which is enough to compare."""
    text = str(flat.get(key))
    return text[:8] if key.endswith("sha256") else text


def name(label: str, flat: dict[str, Any], keys: Sequence[str]) -> str:
    """Names a configuration: `O-RAAC tau=0.1`."""
    return " ".join([label, *(f"{k.removeprefix('algo.')}={value(flat, k)}" for k in keys)])


def names(known: Sequence[tuple[str, str, dict[str, Any]]]) -> list[str]:
    """Names runs, each of them (label, task, flat settings): by the label and, where a task has it with
    several settings, those."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for label, task, flat in known:
        groups.setdefault((label, task), []).append(flat)
    keys = {at: sorted(differing(group)) for at, group in groups.items()}
    return [name(label, flat, keys[label, task]) for label, task, flat in known]
