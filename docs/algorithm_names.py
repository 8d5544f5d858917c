"""The names of an algorithm: variants in `configs/`, labels in tables of results, and sweeps."""

import importlib
import re
from functools import cache
from importlib.resources import files

import yaml

from corerl import algos
from corerl.launch.arguments import sweeps
from corerl.launch.settings_tables import rows_of, variants


@cache
def own_label(name: str) -> str:
    """The label of an algorithm's file."""
    return importlib.import_module(f"corerl.algos.{name}").Config().label


def sharing(label: str) -> list[str]:
    """The algorithms whose files have this label, the shortest name first: its page has their numbers."""
    return sorted((name for name in algos.names() if own_label(name) == label), key=len)


def variants_of(name: str) -> list[str]:
    """The names that `algo=` takes for this algorithm with other settings."""
    return [variant for variant, algorithm in variants().items() if algorithm == name]


@cache
def labels_of(name: str) -> set[str]:
    """The labels of an algorithm's runs, with those that tables of settings give to its variants."""
    rows = [row for variant in variants_of(name) for row in rows_of(variant).values()]
    return {own_label(name), *(row["label"] for row in rows if "label" in row)}


@cache
def label_in(shown: str) -> str:
    """The longest label that a row of results begins with, as `CQL` in `CQL weighting=uniform`."""
    known = {label for name in algos.names() for label in labels_of(name)}
    begins = (label for label in known if re.match(rf"{re.escape(label)}(?=[ ,]|$)", shown))
    return max(begins, key=len, default="")


def sweeps_of(name: str) -> list[str]:
    """The sweeps that train this algorithm."""
    return [sweep for sweep in sweeps() if name in _swept(sweep)]


@cache
def _swept(sweep: str) -> set[str]:
    """The algorithms of a sweep's file."""
    content = yaml.safe_load((files("corerl.sweeps") / f"{sweep}.yaml").read_text(encoding="utf-8"))
    chosen = content.get("hydra", {}).get("sweeper", {}).get("params", {}).get("algo", "")
    chosen = ",".join([chosen, *(d["algo"] for d in content["defaults"] if "algo" in d)])
    names = {re.sub(r"\s", "", name) for name in re.sub(r"choice\(|\)", "", chosen).split(",")}
    return {variants().get(name, name) for name in names}
