"""The command line of `corerl train`: flags, sweeps and settings, as Hydra is to read them."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from corerl import algos
from corerl.config import require
from corerl.errors import CorerlError, nearest
from corerl.launch.config_store import register
from corerl.launch.hydra_errors import UNREADABLE, unreadable
from corerl.launch.settings_tables import rows_of, variants
from corerl.older_settings import RENAMED

SEARCH = {"hydra.sweeper.direction": "maximize", "hydra.sweeper.sampler.seed": "0"}
"""What Hydra leaves open in a search with Optuna: maximise the score, with the same trials each time."""


@dataclass(frozen=True)
class Command:
    """What a command line asks for: the primary config, settings over it, and what to print instead."""

    config_name: str
    overrides: list[str]
    multirun: bool
    dry_run: bool = False
    cfg: str | None = None
    package: str | None = None
    prints: tuple[str, ...] = ()

    def for_hydra(self) -> list[str]:
        """Returns the arguments of `hydra.main`."""
        flags = ["--config-name", self.config_name, *(["--multirun"] if self.multirun else [])]
        return [*flags, *self.prints, *self.overrides]


def read(arguments: list[str]) -> Command:
    """Reads a command line, and registers its own algorithms and its sweep with Hydra.

    Raises:
        CorerlError: an unknown flag, a setting that is added or removed, a sweep or a file that is missing,
            damaged, or takes a name of corerl's.
    """
    flags = _flags(arguments)
    chosen = [text.removeprefix("sweep=") for text in flags.overrides if text.startswith("sweep=")]
    overrides = [_renamed(text) for text in flags.overrides if not text.startswith("sweep=")]
    require(
        len(chosen) < 2,
        f"sweep={' sweep='.join(chosen)}: give only one sweep=, because each has its own settings",
    )
    name, multirun = flags.config_name or "config", flags.multirun or bool(chosen)
    if chosen:
        name = _sweep(chosen[0])
        overrides = [*_own_files_of_sweep(name, chosen[0], overrides), *overrides]
    elif flags.config_dir:
        overrides = [*_folder(Path(flags.config_dir), name), *overrides]
    overrides = [_with_own_files(text) for text in overrides]
    register()
    if multirun:
        overrides = [_late(text) for text in _with_search(overrides)]
    prints = [text for flag in ("cfg", "info") for text in _given(flag, getattr(flags, flag))]
    prints += _given("package", flags.package) + (["--resolve"] if flags.resolve else [])
    return Command(
        name, overrides, multirun, flags.dry_run, flags.cfg, flags.package, tuple(prints)
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise CorerlError(f"Cannot read the flags: {message}.")


def _flags(arguments: list[str]) -> argparse.Namespace:
    """Parses the flags, which are Hydra's, wherever they stand between the settings."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("--multirun", "-m"), ("--dry-run",), ("--resolve",)):
        parser.add_argument(*names, action="store_true")
    for names in (("--config-dir", "-cd"), ("--config-name", "-cn"), ("--package", "-p")):
        parser.add_argument(*names)
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--info", "-i", nargs="?", const="all")
    flags, unknown = parser.parse_known_intermixed_args(arguments)
    for flag in unknown:
        raise CorerlError(
            f"corerl train has no flag {flag}. Give a setting as name=value, as in seeds=10."
        )
    for text in flags.overrides:
        if text[:1] in ("+", "~") and not text.lstrip("+~").startswith("hydra"):
            raise CorerlError(
                f"{text} would add or remove a setting, which is not possible. Change one with name=value."
            )
    return flags


def _given(flag: str, value: str | None) -> list[str]:
    return [] if value is None else [f"--{flag}", value]


def sweeps() -> list[str]:
    """Returns the names that `sweep=` takes."""
    names = (file.name for file in files("corerl.sweeps").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _sweep(given: str) -> str:
    """Registers the sweep of a name, or of your own file, and returns the name for Hydra."""
    own = Path(given).absolute()
    is_own = own.suffix == ".yaml" and own.is_file()
    if given not in sweeps() and not is_own:
        raise CorerlError(
            f"There is no sweep {given!r}.{nearest(given, sweeps())} "
            f"Known: {', '.join(sweeps())}. For a file of your own, give sweep=PATH.yaml."
        )
    theirs = files("corerl.configs") / f"{own.stem}.yaml"  # Hydra looks there first
    require(
        own.stem != "schema" and not theirs.is_file(),
        f"sweep={given} has the name of one of corerl's own files in configs/. Rename your file.",
    )
    node = _stored(own if is_own else files("corerl.sweeps") / f"{given}.yaml", own.stem)
    require(
        "defaults" in node,
        f"sweep={given} has no `defaults`. Add as its first line: defaults: [config, _self_]",
    )
    for key in ("algo", "task"):
        several = _grid(node).get(key)
        require(
            not OmegaConf.is_list(several),
            f"sweep={given}: {key} is a list. Write its values as text with commas: "
            f"{key}: {','.join(map(str, several or []))}",
        )
    return own.stem


def _stored(file: Path | Traversable, name: str) -> DictConfig:
    """Makes a file a config that Hydra finds by name, and returns its content."""
    try:
        node = OmegaConf.create(file.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise CorerlError(unreadable(error)) from error
    require(
        OmegaConf.is_dict(node),
        f"{file} is not a file of settings. Write one setting per line, as in steps: 1000",
    )
    ConfigStore.instance().store(name=name, node=node)
    return node


def _grid(node: DictConfig) -> DictConfig:
    """Returns `hydra.sweeper.params` of a sweep, or empty where it has none."""
    for key in ("hydra", "sweeper", "params"):
        node = node.get(key) if OmegaConf.is_dict(node) else None
    return node if OmegaConf.is_dict(node) else OmegaConf.create({})


def _folder(folder: Path, name: str) -> list[str]:
    """Registers the config of a folder that is given with Hydra's flags, and has its groups found."""
    require(folder.is_dir(), f"--config-dir {folder} must be a folder that exists")
    if (folder / f"{name}.yaml").is_file():
        _stored(folder / f"{name}.yaml", name)
    place = QuotedString(f"file://{folder.absolute()}", Quote.double).with_quotes()
    return [f"hydra.searchpath=[{place}]"]


def _renamed(text: str) -> str:
    """Turns `algo.old=v` into `algo.new=v` where a setting has been renamed."""
    key, equals, value = text.partition("=")
    return f"{RENAMED.get(key, key)}{equals}{value}"


def _with_own_files(text: str) -> str:
    """Turns `algo=mine/foo.py` into `algo=foo`, and makes the file an algorithm.

    Raises:
        CorerlError: there is no such file, its name is taken, or it cannot be imported.
    """
    key, _, value = text.partition("=")
    if key != "algo" or ".py" not in value:
        return text
    register.cache_clear()
    rows_of.cache_clear()  # the table beside a file may have been edited too
    parts = list(_parts(value))
    files = [part for part in parts if part.endswith(".py")]
    for name in (Path(file).stem for file in files):
        require(
            name not in variants(),
            f"{name}.py has the name of one of corerl's tables of settings. Rename it, as in my_{name}.py",
        )
    added = dict(zip(files, algos.add_all(files), strict=True))
    return f"algo={','.join(added.get(part, part) for part in parts)}"


def _own_files_of_sweep(name: str, file: str, overrides: list[str]) -> list[str]:
    """Returns `algo=...` of a sweep that names files, which lie beside it or are found from here."""
    value = _grid(ConfigStore.instance().load(f"{name}.yaml").node).get("algo")
    if not isinstance(value, str) or ".py" not in value:
        return []
    if any(text.startswith("algo=") for text in overrides):
        return []
    beside = ((Path(file).absolute().parent / part, part) for part in _parts(value))
    return [f"algo={','.join(str(path) if path.is_file() else part for path, part in beside)}"]


def _parts(value: str) -> Iterator[str]:
    return (part.strip(" '\"") for part in value.split(","))  # Hydra's quotes


def _with_search(overrides: list[str]) -> list[str]:
    """Adds `SEARCH` to the settings of a search, less what they give themselves."""
    if "hydra/sweeper=optuna" not in overrides:
        return overrides
    given = {text.lstrip("+").split("=")[0] for text in overrides}
    if "hydra/sweeper/sampler=grid" in overrides:  # it has no seed
        given |= {"hydra.sweeper.sampler.seed"}
    return [*overrides, *(f"{key}={value}" for key, value in SEARCH.items() if key not in given)]


def _late(text: str) -> str:
    """Lets `algo.x=v` of a sweep wait for each cell's algorithm, as a choice of one value.

    Hydra would look for the setting before any algorithm is chosen.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("algo."):
        return text
    try:
        (parsed,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        return text  # which Hydra refuses when it composes
    return text if parsed.is_sweep_override() else f"{key}=choice({value})"
