"""Translates Hydra's and OmegaConf's errors to one sentence each."""

import difflib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass

import yaml
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from corerl import algos
from corerl.config import Config
from corerl.errors import CorerlError, nearest
from corerl.launch.settings_tables import variants

UNREADABLE = (yaml.YAMLError, ValueError)
"""What Hydra raises on a damaged file of settings."""
WANTED = {
    "Integer": "a whole number, such as 1000",
    "Float": "a number",
    "bool": "true or false",
}
EXTRAS = {
    "hydra/sweeper/optuna": "optuna",
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_slurm": "slurm",
    "hydra/launcher/submitit_local": "slurm",
}
"""Groups' choices that come with an extra of the package."""


def sentence(error: Exception, arguments: Sequence[str] | None = None) -> str:
    """Says what is wrong with a setting and how to mend it. None: of the command line's arguments."""
    chosen = _chosen(sys.argv[1:] if arguments is None else arguments)
    if isinstance(error, UNREADABLE) and not isinstance(error, OmegaConfBaseException):
        return unreadable(error)
    composed = re.match(r"In '([^']+)': \w+ raised while composing", str(error))
    if composed and isinstance(error.__context__, OmegaConfBaseException):
        return f"{composed[1]}.yaml: {_of_a_file(error.__context__)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OverrideParseException):
        return (
            f"Cannot read {cause.override!r}. Give a setting as name=value. A value with commas or brackets "
            "needs quotes of its own, as in 'label=\"10% BC, filtered\"'."
        )
    if isinstance(cause, MissingConfigException):
        return _unknown_choice(str(cause))
    if isinstance(cause, MissingMandatoryValue):
        return f"{cause.full_key} must be given, as in task=d4rl/hopper-medium-v2."
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _unknown_setting(str(error), cause, chosen)
    if "You must specify 'algo'" in str(cause):
        return f"algo must be given, as in algo=iql. Known: {', '.join(algos.names())}."
    ambiguous = re.match(r"Ambiguous value for argument '(([^=]+)=(.*))'", str(cause))
    if ambiguous:
        given, key, values = ambiguous.groups()
        return (
            f"{given} has several values. Add -m to run one after the other, or write "
            f"'{key}=[{values}]' for a list."
        )
    return _bad_value(str(error), cause, chosen)


def unreadable(error: Exception) -> str:
    """Says that a file of settings is damaged."""
    return (
        f"Cannot read a file of settings ({' '.join(str(error).split())[:200]}). Repair the file."
    )


def _of_a_file(cause: OmegaConfBaseException) -> str:
    """Explains what a sweep's file says. Its algorithms and their settings stand elsewhere in it."""
    key = getattr(cause, "full_key", None) or "algo"
    if key.partition(".")[0] == "algo":
        return f"Set {key} under hydra.sweeper.params of the sweep, as in {{algo: iql, algo.expectile: 0.8}}."
    return sentence(cause)


def _unknown_choice(text: str) -> str:
    """Explains a name that a group (algo, hydra/launcher) or the primary configs do not have."""
    found = re.search(r"Could not find '(.+)/(.*)'", text)
    if found is None:
        return text.splitlines()[0].rstrip(".") + "."
    group, name = found.groups()
    if extra := EXTRAS.get(f"{group}/{name}"):
        return f'{group}={name} is not installed. Install it with: pip install "corerl[{extra}]"'
    options = re.search(r"Available options in .*:\n((?:\t.*\n?)*)", text)
    known = options.group(1).split() if options else []
    what = "algorithm" if group == "algo" else group
    return no_such(what, name, known)


def no_such(what: str, name: str, known: list[str]) -> str:
    """Says that there is none of that name, and which there are."""
    return f"There is no {what} {name!r}.{nearest(name, known)} Known: {', '.join(known)}."


def _unknown_setting(text: str, cause: OmegaConfBaseException, chosen: str) -> str:
    named = re.match(r"Could not override '([^']+)'", text)
    key = named.group(1) if named else cause.full_key
    whole = (cause.full_key or "").rpartition(".")[0]
    if cause.object_type is dict and whole.startswith("algo."):
        return (
            f"{whole} is a dictionary, whose entries cannot be set one by one. Make them fields of "
            "Config, or of a dataclass that is a field of Config (corerl.config.group)."
        )
    module = getattr(cause.object_type, "__module__", "")
    algorithm = module.removeprefix("corerl.algos.") if ".algos." in module else chosen
    if not (key.startswith("algo.") and algorithm):
        return f"There is no setting {key!r}.{_similar(key, list(_known(algorithm))) or _listed(algorithm)}"
    group, _, last = key.rpartition(".")
    alike = re.compile(rf"{re.escape(group)}\.\w+_{re.escape(last)}")
    if kinds := [name for name in _known(algorithm) if alike.fullmatch(name)]:
        return f"There is no setting {key!r} with algo={algorithm}. It has {', '.join(kinds)}."
    having = [name for name in algos.names() if _has(name, key)]
    hint = f" {', '.join(having)} {'have' if len(having) > 1 else 'has'} it." if having else ""
    hint = hint or _similar(key, list(_known(algorithm))) or _listed(algorithm)
    return f"There is no setting {key!r} with algo={algorithm}.{hint}"


def _has(algorithm: str, key: str) -> bool:
    with suppress(CorerlError):  # of another file of the user's own, which cannot be imported
        return key in _known(algorithm)
    return False


def _listed(algorithm: str) -> str:
    """Says where to find the settings, for a name that is near to none, such as another library's."""
    name = algos.own().get(algorithm, algorithm)
    return f" corerl train algo={name} --help lists them." if algorithm else ""


def _bad_value(text: str, cause: Exception, chosen: str) -> str:
    first = str(cause).splitlines()[0].rstrip(".")
    key = getattr(cause, "full_key", None) or ""
    given = re.search(r"override ([^=]+=.*)", text)
    shown = given.group(1) if given else f"{key}={getattr(cause, 'value', '')}"
    wanted = re.search(r"converted to (\w+)|is not a valid (\w+)", first)
    kind = wanted and (wanted.group(1) or wanted.group(2))
    if kind in WANTED:
        return f"{shown} must be {WANTED[kind]}."
    if "is not Optional" in first:
        return f"{shown}: {key} needs a value, not null."
    if "is not a subclass of" in first:
        inside = next((k for k in _known(chosen) if k.startswith(f"{key}.")), key)
        return f"{shown}: {key} is a group of settings. Set each by its name, as in {inside}=..."
    return first + (f" (setting {key})." if key and key not in first else ".")


def _chosen(arguments: Sequence[str]) -> str:
    """Returns the algorithm that the arguments name, where they name one."""
    choice = re.findall(r"(?:^| )algo=(\w+)(?= |$)", " ".join(arguments))
    name = variants().get(choice[-1], choice[-1]) if choice else ""
    return name if name in algos.names() else ""


def _known(algorithm: str) -> Iterator[str]:
    """Yields the settings as they are spelled on the command line, groups included."""
    yield from _names(Config)
    if algorithm:
        yield from _names(importlib.import_module(f"corerl.algos.{algorithm}").Config, "algo.")


def _names(group: type, prefix: str = "") -> Iterator[str]:
    for field in fields(group):
        yield prefix + field.name
        if is_dataclass(field.type):
            yield from _names(field.type, f"{prefix}{field.name}.")


def _similar(key: str, known: list[str]) -> str:
    """Suggests settings whose own name is near. People forget or mistake the group in front."""
    by_name = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], by_name, n=3, cutoff=0.6)
    return f" Did you mean {', '.join(by_name[name] for name in close)}?" if close else ""
