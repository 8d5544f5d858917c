"""`corerl train`: Hydra composes, this module applies the paper's table and starts the runs.

Precedence: the defaults in the algorithm's `Config`, then every row of `configs/<algo>.yaml` whose
pattern matches the task, then the command line. A row's keys are spelled as on the command line.
"""

import fnmatch
import importlib
import inspect
import os
import re
import shlex
import sys
from dataclasses import is_dataclass
from importlib.resources import files
from typing import Any

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.cli import algorithms
from corerl.config import Config, Eval, Wandb, require
from corerl.errors import CorerlError, nearest
from corerl.loop import Interrupted
from corerl.sentences import sentence


def main(arguments: list[str]) -> int:
    """Trains what the command line composes. Returns the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_help(arguments))
        return 0
    _refuse(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us as exceptions, to be told in a sentence
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name in algorithms():
        module = importlib.import_module(f"corerl.algos.{name}")
        store.store(group="algo", name=name, node=module.Config)
    problems: list[str] = []
    process = os.getpid()

    def job(cfg: DictConfig) -> None:
        _job(cfg, problems, process)

    try:
        sys.argv = ["corerl train", *_for_each_cell(_with_sweep(arguments))]
        hydra.main(version_base="1.3", config_path="pkg://corerl.configs", config_name="config")(
            job
        )()
    except (HydraException, OmegaConfBaseException) as error:
        raise CorerlError(sentence(error)) from error
    except Interrupted:
        command = shlex.join(["corerl", "train", *arguments])
        print(
            f"corerl: stopped and saved. Resume with the same command: {command}", file=sys.stderr
        )
        return 130
    if len(problems) == 1:
        raise CorerlError(problems[0])
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise CorerlError(f"{len(problems)} cells of the sweep did not finish:\n{listed}")
    return 0


def _refuse(arguments: list[str]) -> None:
    """What Hydra would take, or answer with a page: unknown flags, keys added or removed."""
    _, unknown = get_args_parser().parse_known_args(arguments)
    for flag in (a for a in unknown if a.startswith("-")):
        raise CorerlError(
            f"corerl train has no flag {flag}; a setting is given as name=value, as in seeds=10."
        )
    for argument in arguments:
        if argument[:1] in "+~" and not argument.lstrip("+~").startswith("hydra"):
            raise CorerlError(
                f"{argument}: settings are neither added nor removed; change one with name=value."
            )


def _help(arguments: list[str]) -> str:
    """Every setting with its default and comment, as the dataclasses state them."""
    chosen = [a.removeprefix("algo=") for a in arguments if a.startswith("algo=")]
    lines = [
        "usage: corerl train algo=NAME task=ID [setting=value ...]   (Hydra's grammar)",
        "       corerl train -m algo=NAME,NAME task=ID,ID ...        every combination",
        "       corerl train sweep=NAME                              a file of sweeps/",
        "",
        f"algo: {', '.join(algorithms())}; its settings: corerl train algo=NAME --help",
        "task: corerl data list",
        "",
        *_fields(Config(), ""),
        *_fields(Eval(), "eval."),
        *_fields(Wandb(), "wandb."),
    ]
    for name in chosen:
        if name in algorithms():
            cfg = importlib.import_module(f"corerl.algos.{name}").Config()
            lines += ["", *_fields(cfg, "algo.")]
            lines += _fields(cfg.data, "algo.data.") if hasattr(cfg, "data") else []
    return "\n".join(lines)


def _fields(settings: object, prefix: str) -> list[str]:
    """A line per field of a dataclass instance, its value and the comment beside it."""
    source = inspect.getsource(type(settings)).split("def __post_init__")[0]
    comments = re.findall(r"^    (\w+): [^#\n]*(#.*)?$", source, re.MULTILINE)
    values = {name: getattr(settings, name) for name, _ in comments}
    return [
        f"  {f'{prefix}{name}={values[name]}':<36} {comment}".rstrip()
        for name, comment in comments
        if not is_dataclass(values[name])
    ]


def _with_sweep(arguments: list[str]) -> list[str]:
    """Turns `sweep=NAME` into Hydra's flags for a primary config in `sweeps/`."""
    names = [a.removeprefix("sweep=") for a in arguments if a.startswith("sweep=")]
    if not names:
        return arguments
    folder = files("corerl.sweeps")
    known = sorted(
        f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")
    )
    if names[0] not in known:
        raise CorerlError(
            f"There is no sweep {names[0]!r}.{nearest(names[0], known)} Known: {', '.join(known)}."
        )
    rest = [a for a in arguments if not a.startswith("sweep=")]
    return ["--config-dir", str(folder), "--config-name", names[0], "--multirun", *rest]


def _for_each_cell(arguments: list[str]) -> list[str]:
    """In a sweep, lets `algo.x=v` wait for each cell's algorithm: as a choice of one value.

    Hydra would look for the setting before any algorithm is chosen.
    """
    if not {"-m", "--multirun"} & set(arguments):
        return arguments
    parse = OverridesParser.create().parse_override

    def late(argument: str) -> str:
        key, _, value = argument.partition("=")
        if not key.startswith("algo.") or parse(argument).is_sweep_override():
            return argument
        return f"{key}=choice({value})"

    return [late(argument) for argument in arguments]


def _job(cfg: DictConfig, problems: list[str], process: int) -> None:
    """One cell. Its failure is kept for the end, so that the cells after it still run."""
    from corerl.launch import launch

    try:
        launch(typed(cfg, HydraConfig.get().overrides.task))
    except CorerlError as error:
        if os.getpid() != process:  # a launcher's worker: Hydra carries the error home
            raise
        problems.append(str(error))
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            print(f"corerl: {error}", file=sys.stderr)


def typed(cfg: DictConfig, overrides: list[str]) -> Config:
    """The composed config as dataclasses, with the table's values where nobody chose one.

    Chosen is what the command line (or a sweep's grid) names, and what a sweep's file changes.

    Raises:
        CorerlError: a value of the wrong type or out of range, or a row of the table that names an
            unknown setting.
    """
    chosen = {override.split("=")[0] for override in overrides} - {"algo"}
    defaults = OmegaConf.structured(Config)
    try:
        name = cfg.algo.name
        require(
            OmegaConf.get_type(cfg.algo).__module__ == f"corerl.algos.{name}",
            f"algo.name={name} is not the algorithm's name; label=... names a variant in tables",
        )
        for key, value in table(cfg.table or name, cfg.task).items():
            in_file = not key.startswith("algo.") and (
                OmegaConf.select(cfg, key) != OmegaConf.select(defaults, key)
            )
            if not in_file and not any(f"{key}.".startswith(f"{c}.") for c in chosen):
                _apply(cfg, key, value)
        return OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise CorerlError(sentence(error)) from error


def _apply(cfg: DictConfig, key: str, value: Any) -> None:
    try:
        OmegaConf.update(cfg, key, value, merge=True)
    except OmegaConfBaseException as error:
        name = cfg.table or cfg.algo.name
        raise CorerlError(f"configs/{name}.yaml does not fit: {sentence(error)}") from error


def table(name: str, task: str) -> dict[str, Any]:
    """What a paper changes for `task`: the rows of `configs/<name>.yaml` that match it, in order.

    An algorithm without a file has no such rows.

    Raises:
        CorerlError: there is neither a file nor an algorithm of that name.
    """
    tables = {
        file.name.removesuffix(".yaml"): file
        for file in files("corerl.configs").iterdir()
        if file.name.endswith(".yaml") and file.name != "config.yaml"
    }
    if name not in tables and name not in algorithms():
        raise CorerlError(f"There is no table {name!r} in configs/.{nearest(name, tables)}")
    rows = yaml.safe_load(tables[name].read_text()) if name in tables else {}
    values: dict[str, Any] = {}
    for pattern, row in (rows or {}).items():
        if fnmatch.fnmatchcase(task, pattern):
            values |= row
    return values
