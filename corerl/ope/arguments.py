"""Arguments of corerl evaluate, and errors for those that do not fit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import yaml

from corerl.config import require
from corerl.errors import CorerlError
from corerl.ope import fqe
from corerl.ope.estimators import NEEDS_MODEL, weighs

OPTIONS = (
    *("horizon", "leave_out_cut", "behaviour", "clip", "kernel", "bandwidth"),
    *("interval", "level", "bounds", "upper", "finite"),
)
"""Arguments that are fields of Options; None is the field's own default."""


OF_KERNELS = ("kernel", "bandwidth")


OF_STEERING = ("samples", "temperature")


OF_PLAY = ("episodes", "task", "tau", "risk", "acting", "steer", *OF_STEERING)


OF_DATA = ("policy", "epsilon", "discount", *OPTIONS, "fqe", "select")


def refuse(args: argparse.Namespace, names: Sequence[str], why: str, instead: str = "") -> None:
    """Raises CorerlError where one of these was given: it would be ignored."""
    given = [
        ", ".join(args.acting) if name == "acting" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(args, name) not in (None, "") and (name != "acting" or args.acting)
    ]
    require(not given, f"{why}: leave {' and '.join(given)} out{instead}")


def refuse_unused(args: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raises CorerlError where no method uses an option that was given."""
    if not weighs(methods):
        refuse(args, ("behaviour", "clip", *OF_KERNELS), "fqe does not weight episodes")
    if set(methods).isdisjoint(NEEDS_MODEL):
        refuse(args, ("fqe",), f"{', '.join(methods)} fit no critic")
    if "cdf" not in methods:
        refuse(args, ("upper",), "Only the method cdf has an upper bound")
    if args.policy == "sample":
        refuse(args, OF_KERNELS, "With --policy sample the policy's own density is used")


def acting_settings(settings: list[str]) -> list[dict[str, Any]]:
    """Returns every combination of settings to act with, given as algo.KEY=VALUE,VALUE."""
    values = {}
    for text in settings:
        key, _, given = text.partition("=")
        values[key.removeprefix("algo.")] = [yaml.safe_load(value) for value in given.split(",")]
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


def steering_settings(args: argparse.Namespace) -> list[tuple[int, float] | None]:
    """Returns every pair of samples and temperature to steer with, or [None] without --steer."""
    if not args.steer:
        return [None]
    counts = numbers(args.samples or "10", int, "--samples", "a whole number")
    return list(
        product(counts, numbers(args.temperature or "1", float, "--temperature", "a number"))
    )


def numbers(text: str, kind: type, option: str, wanted: str) -> list:
    """Reads numbers that commas separate."""
    try:
        return [kind(value) for value in text.split(",")]
    except ValueError:
        raise CorerlError(f"{option} {text} is not {wanted}, or several with commas.") from None


WANTED = {int: "a whole number, such as 1000", float: "a number", bool: "true or false"}


def fqe_settings(settings: list[str]) -> fqe.Settings:
    """Returns settings given as KEY=VALUE, each of its field's type."""
    kinds = {f.name: type(f.default) for f in fields(fqe.Settings)}
    known = kinds.keys() - {"discount", "horizon", "seed"}
    values = {}
    for text in settings:
        key, _, value = text.partition("=")
        require(key in known, f"--fqe has no setting {key!r}: {', '.join(sorted(known))}")
        try:
            values[key] = _parsed(value, kinds[key])
        except (KeyError, ValueError):
            several = "; spaces separate settings" if "," in value else ""
            raise CorerlError(
                f"--fqe {key}={value} is not {WANTED[kinds[key]]}{several}."
            ) from None
    return fqe.Settings(**values)


def _parsed(text: str, kind: type) -> int | float | bool:
    """Reads a value, `1e5` as a whole number too. ValueError or KeyError where it is of another type."""
    if kind is bool:
        return {"true": True, "false": False}[text.lower()]
    number = float(text)
    if kind is int and not number.is_integer():
        raise ValueError(text)
    return kind(number)
