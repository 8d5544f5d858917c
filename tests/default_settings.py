"""Writes tests/default_settings.txt: the default of every setting of every algorithm, for one review.

    python tests/default_settings.py

A wrong default is another algorithm under the same name, and the transcriptions read the defaults. Of a
group of settings that several algorithms share, an algorithm shows what differs from the group's own
defaults. Eight hex digits after an algorithm's name are of its runs' directories. If they change, older
runs are not found: declare a new setting by `config.added`.
"""

import importlib
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from corerl import algos
from corerl.config import Config
from corerl.runs.directory import config_hash

SNAPSHOT = Path(__file__).with_suffix(".txt")
UNSHOWN = ("name", "label")


def snapshot() -> str:
    """Returns a paragraph for each algorithm and each group of settings, by name."""
    own = {
        name: importlib.import_module(f"corerl.algos.{name}").Config()
        for name in sorted(algos.names())
    }
    kinds = {type(group) for cfg in own.values() for group in groups(cfg)}
    shared = {kind.__name__: kind() for kind in sorted(kinds, key=lambda kind: kind.__name__)}
    assert len(shared) == len(kinds), "two groups of settings have one name"
    named = {f"{name} ({_digits(cfg)})": cfg for name, cfg in own.items()}
    return "".join(paragraph(name, settings) for name, settings in (named | shared).items())


def _digits(algo: Any) -> str:
    return config_hash(Config(algo=algo, task="corerl/pendulum"))


def paragraph(name: str, settings: Any) -> str:
    text = " ".join(f"{key}={value}" for key, value in differing(settings, ""))
    return textwrap.fill(f"{name}: {text}", 110, subsequent_indent="    ") + "\n"


def groups(settings: Any) -> Iterator[Any]:
    """Yields the groups of settings inside settings, at any depth."""
    for value in (getattr(settings, field.name) for field in fields(settings)):
        if is_dataclass(value):
            yield value
            yield from groups(value)


def differing(settings: Any, prefix: str, usual: Any = None) -> Iterator[tuple[str, str]]:
    """Yields settings by their names and values. Of a group those that are not `usual`."""
    for field in fields(settings):
        value, default = getattr(settings, field.name), getattr(usual, field.name, None)
        if is_dataclass(value):
            yield from differing(value, f"{prefix}{field.name}.", type(value)())
        elif field.name not in UNSHOWN and (usual is None or value != default):
            yield prefix + field.name, str(value).replace(" ", "")


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
