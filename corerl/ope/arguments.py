"""Arguments of corerl evaluate, and errors for those that do not fit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from corerl.config import require
from corerl.errors import CorerlError
from corerl.ope import fqe, intervals
from corerl.ope.estimators import NEEDS_MODEL, weighs
from corerl.ope.kernels import KERNELS

OPTIONS = (
    *("horizon", "leave_out_cut", "behaviour", "clip", "kernel", "bandwidth"),
    *("interval", "level", "bounds", "upper", "finite"),
)
"""Arguments that are fields of Options; None is the field's own default."""


OF_KERNELS = ("kernel", "bandwidth")
OF_STEERING = ("samples", "temperature")
OF_PLAY = ("episodes", "task", "tau", "risk", "acting", "steer", *OF_STEERING)
OF_DATA = ("policy", "epsilon", "discount", *OPTIONS, "fqe", "select")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds every option, and the runs, to a parser."""
    add = parser.add_argument
    run_help = (
        "folders of runs, <root>/<task>/<algorithm>-<hash>, and after them settings that only "
        "change how policies act"
    )
    add("runs", nargs="+", metavar="RUN", help=run_help)
    add("--seed", type=int, help="one of the run's seeds (default: all)")
    add("--device", default="cpu", help="cpu, cuda, cuda:N or auto (default: cpu)")
    add("--episodes", type=int, help="episodes to play with each seed (default: 100)")
    add("--task", help="another task to play, with the same observations and actions")
    add(
        "--tau",
        type=float,
        help="for cvar_offline: CVaR level that the policy optimises (default: the run's)",
    )
    add(
        "--steer",
        metavar="OTHER",
        help="another run, whose critic chooses among the policy's samples",
    )
    add(
        "--samples",
        help="with --steer: samples per state, or several such as 1,10,50 (default: 10)",
    )
    add(
        "--temperature",
        help=(
            "with --steer: temperature of the softmax over Q, or several such as 0,1 (0: the best sample, "
            "default: 1)"
        ),
    )
    add(
        "--risk",
        action="store_true",
        default=None,
        help="also show the CVaR of the played episodes (always shown for risk/... tasks)",
    )
    add(
        "--pending",
        action="store_true",
        help=(
            "play the evaluations that eval.later=true left pending, in a run or in all runs below a "
            "folder"
        ),
    )
    add(
        "--rewards",
        action="store_true",
        default=None,
        help="measure the distance of the learned reward from the true reward",
    )
    ope = parser.add_argument_group("off-policy evaluation")
    add = ope.add_argument
    add(
        "--method",
        default="",
        help="methods, separated by commas: fqe,is,pdis,snis,snpdis,dr,sndr,cdf,sncdf",
    )
    add("--data", metavar="TASK", help="dataset that the estimates use (default: the run's own)")
    add(
        "--policy",
        choices=("act", "sample"),
        help="act (actions as in evaluation, the default) or sample (actions drawn from the policy)",
    )
    add(
        "--epsilon",
        type=float,
        help="probability of a random discrete action (default: as in evaluation)",
    )
    add(
        "--discount",
        type=float,
        help="discount of the return (default: the algorithm's, or 0.99 if it has none)",
    )
    add(
        "--horizon",
        type=int,
        help="number of steps that count in each episode (default: the longest episode's length)",
    )
    cut = "leave out episodes that stop before the horizon without a terminal state"
    add("--leave-out-cut", action="store_true", default=None, help=cut)
    add(
        "--behaviour",
        choices=("recorded", "fitted", "auto"),
        help="propensities as recorded in the data (default), or fitted by a model",
    )
    add(
        "--clip",
        type=float,
        metavar="Q",
        help="clip importance weights at this quantile, such as 0.999",
    )
    add(
        "--kernel",
        choices=tuple(KERNELS),
        help="kernel around the policy's continuous action (default: gaussian)",
    )
    add(
        "--bandwidth",
        type=float,
        help="width of the kernel, in standard deviations of the data's actions (default: 1)",
    )
    add(
        "--interval",
        choices=intervals.METHODS,
        help="method of the confidence intervals (default: bootstrap)",
    )
    add("--level", type=float, help="confidence level of the interval (default: 0.95)")
    add(
        "--bounds",
        type=float,
        nargs=2,
        help="for hoeffding and bernstein: lowest and highest possible weighted return of an episode",
    )
    add(
        "--upper",
        type=float,
        help="for cdf: the largest possible return (default: the largest recorded)",
    )
    finite = "for fqe: count the return only up to the horizon"
    add("--finite", action="store_true", default=None, help=finite)
    add("--fqe", nargs="*", metavar="KEY=VALUE", help=_settings())
    add(
        "--select",
        type=Path,
        metavar="FOLDER",
        help="also test how well the estimates choose among the policies, and write figures to FOLDER",
    )


def _settings() -> str:
    skipped = ("discount", "horizon", "seed")
    named = [f"{f.name}={f.default}" for f in fields(fqe.Settings) if f.name not in skipped]
    return "settings of fqe: " + ", ".join(named)


def refuse(args: argparse.Namespace, names: Sequence[str], why: str, instead: str = "") -> None:
    """Raises CorerlError where one of these was given: it would be ignored."""
    given = [
        ", ".join(args.acting) if name == "acting" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(args, name) not in (None, "") and (name != "acting" or args.acting)
    ]
    require(not given, f"{why}. Leave {' and '.join(given)} out{instead}")


def refuse_unused(args: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raises CorerlError where no method uses an option that was given."""
    if not weighs(methods):
        refuse(args, ("behaviour", "clip", *OF_KERNELS), "Method fqe does not weight episodes")
    if set(methods).isdisjoint(NEEDS_MODEL):
        refuse(args, ("fqe",), f"{', '.join(methods)} fit no critic")
    if "cdf" not in methods:
        refuse(args, ("upper",), "Only the method cdf has an upper bound")
    if args.policy == "sample":
        refuse(args, OF_KERNELS, "--policy sample uses the density of the policy, not a kernel")


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
        raise CorerlError(
            f"{option} {text} must be {wanted}, or several separated by commas."
        ) from None


WANTED = {int: "a whole number, such as 1000", float: "a number", bool: "true or false"}


def fqe_settings(settings: list[str]) -> fqe.Settings:
    """Returns settings given as KEY=VALUE, each of its field's type."""
    kinds = {f.name: type(f.default) for f in fields(fqe.Settings)}
    known = kinds.keys() - {"discount", "horizon", "seed"}
    values = {}
    for text in settings:
        key, _, value = text.partition("=")
        require(
            key in known,
            f"--fqe has no setting {key!r}. Its settings are {', '.join(sorted(known))}",
        )
        try:
            values[key] = _parsed(value, kinds[key])
        except (KeyError, ValueError):
            several = ". Separate settings with spaces" if "," in value else ""
            raise CorerlError(
                f"--fqe {key}={value} must be {WANTED[kinds[key]]}{several}."
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
