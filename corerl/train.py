"""`corerl train`: Hydra composes, this module applies the paper's table and starts the runs.

Precedence: the defaults in the algorithm's `Config`, then every row of `configs/<algo>.yaml` whose
pattern matches the task, then the command line. A row's keys are spelled as on the command line.
"""

import fnmatch
import importlib
import os
import re
import shlex
import sys
from importlib.resources import files
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.cli import algorithms
from corerl.config import Config
from corerl.errors import CorerlError, nearest
from corerl.loop import Interrupted


def main(arguments: list[str]) -> int:
    """Trains what the command line composes. Returns the exit status."""
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # errors reach us as exceptions, to be told in one sentence
    )
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name in algorithms():
        module = importlib.import_module(f"corerl.algos.{name}")
        store.store(group="algo", name=name, node=module.Config)
    problems: list[str] = []
    sys.argv = ["corerl train", *_with_sweep(arguments)]

    def job(cfg: DictConfig) -> None:
        _job(cfg, problems)

    try:
        hydra.main(version_base="1.3", config_path="pkg://corerl.configs", config_name="config")(
            job
        )()
    except (HydraException, OmegaConfBaseException) as error:
        raise CorerlError(_sentence(error)) from error
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


def _job(cfg: DictConfig, problems: list[str]) -> None:
    """One cell. Its failure is kept for the end, so that the cells after it still run."""
    from corerl.launch import launch

    try:
        launch(typed(cfg, HydraConfig.get().overrides.task))
    except CorerlError as error:
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
    chosen = {override.lstrip("+~").split("=")[0] for override in overrides}
    defaults = OmegaConf.structured(Config)
    try:
        for key, value in table(cfg.table or cfg.algo.name, cfg.task).items():
            in_file = not key.startswith("algo.") and (
                OmegaConf.select(cfg, key) != OmegaConf.select(defaults, key)
            )
            if key not in chosen and not in_file:
                OmegaConf.update(cfg, key, value, merge=True)
        return OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise CorerlError(_sentence(error)) from error


def table(name: str, task: str) -> dict[str, Any]:
    """What a paper changes for `task`: the rows of `configs/<name>.yaml` that match it, in order.

    An algorithm without a file has no such rows.

    Raises:
        CorerlError: there is neither a file nor an algorithm of that name.
    """
    file = files("corerl.configs") / f"{name}.yaml"
    if not file.is_file() and name not in algorithms():
        known = [f.name.removesuffix(".yaml") for f in files("corerl.configs").iterdir()]
        raise CorerlError(f"There is no table {name!r} in configs/.{nearest(name, known)}")
    rows = yaml.safe_load(file.read_text()) if file.is_file() else {}
    values: dict[str, Any] = {}
    for pattern, row in (rows or {}).items():
        if fnmatch.fnmatchcase(task, pattern):
            values |= row
    return values


def _sentence(error: Exception) -> str:
    """Hydra's and OmegaConf's many-line messages as one sentence."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None) or _key_of(str(error))
    text = " ".join(line.strip() for line in str(cause).splitlines() if "=" not in line[:14])
    if "is not in struct" in str(cause) or "not in 'Config'" in str(cause):
        known = _known_keys(error, key)
        return f"There is no setting {key!r}.{nearest(key, known)}"
    if "Missing mandatory value" in text or "Missing mandatory" in str(error):
        return f"{key} must be given, as in {key}=..."
    return text.rstrip(".") + (f" (setting {key})." if key and key not in text else ".")


def _key_of(text: str) -> str:
    found = re.search(r"full_key: (\S+)", text) or re.search(r"override '?\+?([\w.]+)", text)
    return found.group(1) if found else ""


def _known_keys(error: Exception, key: str) -> list[str]:
    from dataclasses import fields

    from corerl.config import Eval, Wandb

    groups = {"eval": Eval, "wandb": Wandb}
    choice = re.search(r"algo=(\w+)", " ".join(sys.argv))
    if choice and choice.group(1) in algorithms():
        groups["algo"] = importlib.import_module(f"corerl.algos.{choice.group(1)}").Config
    known = [f.name for f in fields(Config)]
    for name, group in groups.items():
        known += [f"{name}.{f.name}" for f in fields(group)]
    return known
