"""The command line of `corerl train`: flags, sweeps and settings, as Hydra is to read them."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from corerl import algos
from corerl.config import require
from corerl.errors import CorerlError, nearest
from corerl.launch.settings_tables import register, rows_of, variants
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
        CorerlError: an unknown flag, a setting that cannot be read, or is added or removed, a sweep or a file
            that is missing, damaged, or takes a name of corerl's.
    """
    flags = _flags(arguments)
    sweep = [text.removeprefix("sweep=") for text in flags.overrides if text.startswith("sweep=")]
    overrides = [text for text in flags.overrides if not text.startswith("sweep=")]
    require(
        len(sweep) < 2,
        f"sweep={' sweep='.join(sweep)}: give only one sweep=, because each has its own settings",
    )
    name, multirun = flags.config_name or "config", flags.multirun or bool(sweep)
    if sweep:
        name, algorithms = _sweep(sweep[0])
        if ".py" in algorithms and not any(text.startswith("algo=") for text in overrides):
            overrides = [f"algo={algorithms}", *overrides]
    elif flags.config_dir:
        overrides = [*_folder(Path(flags.config_dir), name), *overrides]
    overrides = [_for_hydra(text, multirun) for text in overrides]
    register()
    prints = {key: getattr(flags, key) for key in ("cfg", "info", "package")}
    shown = [f"--{key}={value}" for key, value in prints.items() if value is not None]
    return Command(
        name,
        _with_search(overrides) if multirun else overrides,
        multirun,
        flags.dry_run,
        flags.cfg,
        flags.package,
        (*shown, *(["--resolve"] if flags.resolve else [])),
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
    return flags


def sweeps() -> list[str]:
    """Returns the names that `sweep=` takes."""
    names = (file.name for file in files("corerl.sweeps").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _sweep(given: str) -> tuple[str, str]:
    """Registers the sweep of a name, or of your own file. Returns the name for Hydra, and its algorithms.

    Their files lie beside it or are found from here.
    """
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
    grid = node
    for key in ("hydra", "sweeper", "params"):
        grid = grid.get(key) if OmegaConf.is_dict(grid) else None
    grid = grid if OmegaConf.is_dict(grid) else {}
    for key in ("algo", "task"):
        several = grid.get(key, node.get(key))
        if OmegaConf.is_list(several):
            raise CorerlError(
                f"sweep={given}: {key} is a list. Write its values as text with commas under "
                f"hydra.sweeper.params: {key}: {','.join(map(str, several))}."
            )
    named = ((own.parent / part, part) for part in _parts(str(grid.get("algo"))))
    return own.stem, ",".join(str(path) if path.is_file() else part for path, part in named)


def _stored(file: Path | Traversable, name: str) -> DictConfig:
    """Makes a file a config that Hydra finds by name, and returns its content."""
    try:
        node = OmegaConf.create(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise CorerlError(f"Cannot read {file}: {' '.join(str(error).split())[:200]}.") from error
    require(
        OmegaConf.is_dict(node),
        f"{file} is not a file of settings. Write one setting per line, as in steps: 1000",
    )
    ConfigStore.instance().store(name=name, node=node)
    return node


def _folder(folder: Path, name: str) -> list[str]:
    """Registers the config of a folder that is given with Hydra's flags, and has its groups found."""
    require(folder.is_dir(), f"--config-dir {folder} must be a folder that exists")
    if (folder / f"{name}.yaml").is_file():
        _stored(folder / f"{name}.yaml", name)
    place = QuotedString(f"file://{folder.absolute()}", Quote.double).with_quotes()
    return [f"hydra.searchpath=[{place}]"]


def _for_hydra(text: str, multirun: bool) -> str:
    """Returns a setting as Hydra is to read it: by today's name, and own files as algorithms.

    In a sweep, `algo.x=v` becomes a choice of one value, because Hydra would look for the setting before
    there is an algorithm.

    Raises:
        CorerlError: the setting cannot be read, is added or removed, or has several values without -m.
    """
    key, equals, value = text.partition("=")
    if key == "algo" and ".py" in value:
        value = _with_own_files(value)
    text = f"{RENAMED.get(key, key)}{equals}{value}"
    try:
        (parsed,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        raise CorerlError(
            f"Cannot read {text!r}. Give a setting as name=value. A value with commas or brackets "
            "needs quotes of its own, as in 'label=\"10% BC, filtered\"'."
        ) from error
    require(
        text[:1] not in ("+", "~") or parsed.key_or_group.startswith("hydra"),
        f"{text} would add or remove a setting, which is not possible. Change one with name=value",
    )
    require(
        multirun or not parsed.is_sweep_override(),
        f"{text} has several values. Add -m to run one after the other, or write "
        f"'{key}=[{value}]' for a list",
    )
    late = multirun and key.startswith("algo.") and not parsed.is_sweep_override()
    return f"{parsed.key_or_group}=choice({value})" if late else text


def _with_own_files(value: str) -> str:
    """Turns `mine/foo.py` into `foo`, and makes the file an algorithm.

    Raises:
        CorerlError: there is no such file, its name is taken, or it cannot be imported.
    """
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
    return ",".join(added.get(part, part) for part in parts)


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
