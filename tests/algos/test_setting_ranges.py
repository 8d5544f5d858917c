"""Every numeric setting of every algorithm by itself, at values that people mistype or scripts compute."""

import dataclasses
import importlib
import math
from collections.abc import Iterator

import pytest

from corerl import algos
from corerl.config import Settings
from corerl.errors import CorerlError

POSITIVE = ("lr", "batch_size", "width", "hidden_width", "head_width", "critics")
SHARES = ("discount", "polyak")
FALSE = (math.nan, math.inf, -math.inf)


def numbers(settings, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Where every number of the settings stands, and which kind it is."""
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), str(field.type)
        if dataclasses.is_dataclass(value):
            yield from numbers(value, (*path, field.name))
        elif isinstance(value, bool | str | list | tuple):
            continue
        elif isinstance(value, float) or "float" in kind:
            yield (*path, field.name), float
        elif isinstance(value, int) or "int" in kind:
            yield (*path, field.name), int


def changed(settings, path: tuple[str, ...], value):
    first, *rest = path
    inner = changed(getattr(settings, first), tuple(rest), value) if rest else value
    return dataclasses.replace(settings, **{first: inner})


def refused(settings, path: tuple[str, ...], value) -> bool:
    try:
        changed(settings, path, value)
    except CorerlError as error:
        assert "\n" not in str(error) and path[-1] in str(error)
        return True
    return False


@pytest.mark.parametrize("name", algos.names())
def test_a_number_that_is_none_is_refused_by_name(name):
    settings = importlib.import_module(f"corerl.algos.{name}").Config()
    assert isinstance(settings, Settings), "its settings declare no ranges"
    found = list(numbers(settings))
    assert found
    wrong = []
    for path, kind in found:
        values = FALSE if kind is float else ()
        own = path[-1]
        if own in POSITIVE or own.endswith("_lr"):
            values = (*values, -1, 0) if kind is int else (*values, -1.0, 0.0)
        elif own in SHARES:
            values = (*values, -1.0, 1.5, 1e300)
        elif own.endswith(("_layers", "_steps")):
            values = (*values, -1)
        wrong += [(".".join(path), value) for value in values if not refused(settings, path, value)]
    assert not wrong
