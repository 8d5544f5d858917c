"""Translates Hydra's common errors to one sentence each. Rare ones keep Hydra's own words."""

import difflib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from corerl import algos
from corerl.config import Config
from corerl.errors import first_line, nearest
from corerl.launch.settings_tables import variants

WANTED = {int: "a whole number, such as 1000", float: "a number", bool: "true or false"}
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm"}
EXTRAS |= {name: name for name in ("optuna", "joblib", "ray")}
"""Hydra's sweepers and launchers that come with an extra of the package."""


def sentence(error: Exception, overrides: Sequence[str] = ()) -> str:
    """Says what is wrong with a setting and how to mend it. The algorithm is the overrides' last."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return no_such("algorithm" if group == "algo" else group, name, error.options)
    if "You must specify 'algo'" in str(error):
        return f"algo must be given, as in algo=iql. Known: {', '.join(algos.names())}."
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        words = ": ".join(dict.fromkeys(map(first_line, (error, cause))))
        return _problem(cause, overrides) or f"{words} ({cause.full_key})."
    if isinstance(error.__context__, OmegaConfBaseException):  # in a sweep's file, named first
        key = error.__context__.full_key or ""
        hint = f"Set {key} under hydra.sweeper.params of the sweep, as in {{{key}: 0.8}}."
        no_algorithm = key.startswith("algo.") and not chosen_algorithm(overrides)
        problem = hint if no_algorithm else _problem(error.__context__, overrides)
        if problem:
            return f"{str(error).partition(':')[0]}: {problem}"
    return " ".join(str(error).split()).rstrip(".") + "."


def no_such(what: str, name: str, known: Sequence[str]) -> str:
    """Says that there is none of that name, and which there are."""
    if name in EXTRAS:
        return (
            f'{what}={name} is not installed. Install it with: pip install "corerl[{EXTRAS[name]}]"'
        )
    return f"There is no {what} {name!r}.{nearest(name, known)} Known: {', '.join(known)}."


def chosen_algorithm(overrides: Sequence[str]) -> str:
    """Returns the last `algo=` of the overrides. Empty where there is none."""
    chosen = [text.removeprefix("algo=") for text in overrides if text.startswith("algo=")]
    return chosen[-1] if chosen else ""


def _problem(error: OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Says what is wrong with one setting. Empty where Hydra says it well enough."""
    key = error.full_key or ""
    module = getattr(error.object_type, "__module__", "")
    chosen = chosen_algorithm(overrides)
    name = variants().get(chosen, chosen)
    algorithm = module.partition("corerl.algos.")[2] or (name if name in algos.names() else "")
    if isinstance(error, MissingMandatoryValue):
        return f"{key} must be given, as in task=d4rl/hopper-medium-v2."
    known = dict(_settings(algorithm))
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return f"There is no setting {key!r}{_instead(key, algorithm, list(known))}"
    if type(error) is not ValidationError:  # but one of an interpolation
        return ""
    value = "null" if error.value is None else error.value
    if is_dataclass(known.get(key)):
        inside = next(name for name in known if name.startswith(f"{key}."))
        return (
            f"{key}={value} must be a group of settings. Set each by its name, as in {inside}=..."
        )
    wanted = [WANTED[kind] for kind in WANTED if known.get(key) in (kind, kind | None)]
    return f"{key}={value} must be {wanted[0]}." if wanted else ""


def _instead(key: str, algorithm: str, known: list[str]) -> str:
    """Suggests settings that are near, or who has this one. People forget or mistake the group in front."""
    group, _, last = key.rpartition(".")
    by_name = {name.rpartition(".")[2]: name for name in reversed(known)}
    near = [
        name for name in known if name.rpartition(".")[0] == group and name.endswith(f"_{last}")
    ]
    own, having, place = algos.own(), [], ""
    if key.startswith("algo.") and algorithm:
        place = f" with algo={algorithm}"
        others = [name for name in algos.names() if name not in own]  # which may not import
        having = [] if near else [name for name in others if key in dict(_settings(name))]
    near = near or [by_name[name] for name in difflib.get_close_matches(last, by_name)]
    if having:
        return f"{place}. {', '.join(having)} {'have' if len(having) > 1 else 'has'} it."
    if near:
        return f"{place}. Did you mean {', '.join(near)}?"
    hint = f" corerl train algo={own.get(algorithm, algorithm)} --help lists them."
    return f"{place}.{hint if algorithm else ''}"


def _settings(algorithm: str) -> Iterator[tuple[str, Any]]:
    """Yields the settings as they are spelled on the command line, groups included, and their types."""
    yield from _fields(Config)
    if algorithm:
        yield from _fields(importlib.import_module(f"corerl.algos.{algorithm}").Config, "algo.")


def _fields(group: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(group):
        yield prefix + field.name, field.type
        if is_dataclass(field.type):
            yield from _fields(field.type, f"{prefix}{field.name}.")
