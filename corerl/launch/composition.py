"""The cells of a command line or a sweep's file: one `Config` per combination of settings."""

import io
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from corerl import algos
from corerl.config import RENAMED, Config, require
from corerl.data import own_files, tasks
from corerl.errors import CorerlError, nearest
from corerl.launch.config_store import register
from corerl.launch.hydra_errors import UNREADABLE, sentence
from corerl.launch.settings_tables import budget, file_of, rows_of, table, variants
from corerl.preferences import sources
from corerl.preferences.sources import Preferences

LISTS_CELLS = ".BasicSweeper"
"""The one sweeper that knows its cells beforehand."""


def cells(arguments: list[str]) -> list[Config]:
    """Returns the cells that `corerl train` runs with these arguments, in its order.

    Hydra composes once per combination of settings other than the task, which only the tables look at:
    a paper's table of hundreds of cells takes seconds.

    Raises:
        CorerlError: the arguments do not compose, or a sweeper chooses its cells as it goes.
    """
    arguments = with_own_files(with_todays_names(arguments))
    register()
    try:
        found = _cells(hydra_flags(for_each_cell(with_sweep(arguments)))[0])
        require(
            found,
            "nothing has a name like what glob() asks for: it finds algorithms, tasks are listed with commas",
        )
        return found
    except (HydraException, OmegaConfBaseException, *UNREADABLE) as error:
        raise CorerlError(sentence(error, arguments)) from error
    finally:
        GlobalHydra.instance().clear()


def search_folder(arguments: list[str]) -> Path | None:
    """Returns the folder of a sweep whose sweeper chooses its cells as it goes; None of any other command."""
    register()
    flags = hydra_flags(for_each_cell(with_sweep(arguments)))[0]
    if not flags.multirun:
        return None
    try:
        compose, name = _hydra(flags).compose_config, flags.config_name or "config"
        cfg = compose(name, flags.overrides, RunMode.MULTIRUN, with_log_configuration=False).hydra
        return None if cfg.sweeper._target_.endswith(LISTS_CELLS) else Path(cfg.sweep.dir)
    finally:
        GlobalHydra.instance().clear()


def hydra_flags(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Parses what Hydra takes, and returns the unknown flags too.

    Raises:
        CorerlError: a flag lacks its value, or has one that it does not take, or the folder of settings
            is none.
    """
    reported = io.StringIO()
    try:
        with redirect_stderr(reported):
            flags, unknown = get_args_parser().parse_known_args(arguments)
    except SystemExit as error:  # argparse has printed a page
        reason = reported.getvalue().strip().rpartition("error: ")[2]
        raise CorerlError(f"Cannot read the flags: {reason}.") from error
    folder = flags.config_dir
    require(not folder or Path(folder).is_dir(), f"--config-dir {folder} is not a folder")
    return flags, unknown


def settings_first(arguments: list[str]) -> list[str]:
    """Moves settings before the flags where one stands behind (`algo=bc -m task=...`): Hydra refuses it."""
    flags, unknown = hydra_flags(arguments)
    late = [text for text in unknown if not text.startswith("-")]
    settings = flags.overrides + late
    return settings + [text for text in arguments if text not in settings] if late else arguments


def _hydra(flags: Namespace) -> Hydra:
    search = create_automatic_config_search_path(None, None, "pkg://corerl.configs")
    if flags.config_dir:
        folder = Path(flags.config_dir).absolute()
        search.prepend("command-line", f"file://{folder}", anchor="schema")
    GlobalHydra.instance().clear()
    return Hydra.create_main_hydra2("corerl", search)


def _cells(flags: Namespace) -> list[Config]:
    hydra = _hydra(flags)

    def compose(overrides: list[str]) -> DictConfig:
        name = flags.config_name or "config"
        return hydra.compose_config(name, overrides, RunMode.RUN, with_log_configuration=False)

    parser = OverridesParser.create(hydra.config_loader)
    return [typed(cfg, chosen) for cfg, chosen in _composed(compose, parser, flags)]


def _composed(
    compose: Callable[[list[str]], DictConfig], parser: OverridesParser, flags: Namespace
) -> Iterator[tuple[DictConfig, list[str]]]:
    """Yields every cell's config, and the overrides that its command line would have."""
    hydra_overrides = [text for text in flags.overrides if text.lstrip("+~").startswith("hydra")]
    overrides = [text for text in flags.overrides if text not in hydra_overrides]
    if not flags.multirun:
        yield _without_hydra(compose(flags.overrides)), overrides
        return
    sweeper = compose([*hydra_overrides, f"algo={algos.names()[0]}"]).hydra.sweeper or {}
    target = str(sweeper.get("_target_"))
    require(target != "None", "hydra.sweeper names no sweeper: leave hydra/sweeper as it is")
    require(
        target.endswith(LISTS_CELLS),
        f"{target} chooses its cells as it goes, so they cannot be listed beforehand",
    )
    grid = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    parsed = parser.parse_overrides([*grid, *overrides])
    without_task: dict[tuple[str, ...], DictConfig] = {}
    for job in BasicSweeper.split_arguments(parsed, None)[0]:
        others = tuple(text for text in job if not text.startswith("task="))
        if others not in without_task:
            without_task[others] = _without_hydra(compose([*others, *hydra_overrides]))
        cfg = without_task[others].copy()
        for text in (text for text in job if text.startswith("task=")):
            cfg.task = parser.parse_override(text).value()  # the text is quoted or escaped
        yield cfg, job


def _without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def sweeps() -> list[str]:
    """Returns the names that `sweep=` takes."""
    names = (file.name for file in files("corerl.sweeps").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def with_todays_names(arguments: list[str]) -> list[str]:
    """Turns `algo.old=v` into `algo.new=v` where a setting has been renamed."""
    pairs = [argument.partition("=") for argument in arguments]
    return [f"{RENAMED.get(key, key)}{equals}{value}" for key, equals, value in pairs]


def with_own_files(arguments: list[str]) -> list[str]:
    """Turns `algo=mine/foo.py`, also of a sweep's file, into `algo=foo`, and makes the file an algorithm.

    Raises:
        CorerlError: there is no such file, its name is taken, or it cannot be imported.
    """

    def named(argument: str) -> str:
        key, _, value = argument.partition("=")
        if key != "algo" or ".py" not in value:
            return argument
        register.cache_clear()
        rows_of.cache_clear()  # the table beside a file may have been edited too
        parts = [part.strip(" '\"") for part in value.split(",")]  # Hydra's quotes
        files = [part for part in parts if part.endswith(".py")]
        for name in (Path(file).stem for file in files):
            require(
                name not in variants(),
                f"{name}.py has the name of a table of corerl: rename it my_{name}.py",
            )
        added = dict(zip(files, algos.add_all(files), strict=True))
        return f"algo={','.join(added.get(part, part) for part in parts)}"

    return [named(argument) for argument in [*arguments, *_own_files_of_sweep(arguments)]]


def _own_files_of_sweep(arguments: list[str]) -> list[str]:
    """Returns `algo=...` of a sweep's file that names files, which lie beside it or are found from here."""
    swept = [Path(a.removeprefix("sweep=")) for a in arguments if a.startswith("sweep=")]
    if len(swept) != 1 or not swept[0].is_file() or any(a.startswith("algo=") for a in arguments):
        return []
    value = _grid(swept[0]).get("algo")
    if not isinstance(value, str) or ".py" not in value:
        return []
    parts = [part.strip(" '\"") for part in value.split(",")]
    beside = [swept[0].parent / part for part in parts]
    found = [str(f) if f.is_file() else p for f, p in zip(beside, parts, strict=True)]
    return [f"algo={','.join(found)}"]


def _grid(file: Path) -> dict[str, Any]:
    """Returns `hydra.sweeper.params` of a sweep's file; empty where it is damaged, which Hydra tells."""
    value: Any = None
    with suppress(yaml.YAMLError, UnicodeDecodeError):
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    for key in ("hydra", "sweeper", "params"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def with_sweep(arguments: list[str]) -> list[str]:
    """Turns `sweep=NAME` into Hydra's flags for a primary config in `sweeps/`, or `sweep=mine.yaml` anywhere.

    Raises:
        CorerlError: there is no sweep of that name, or it does not build on corerl's settings.
    """
    names = [a.removeprefix("sweep=") for a in arguments if a.startswith("sweep=")]
    if not names:
        return arguments
    require(
        len(names) == 1,
        f"sweep={' sweep='.join(names)}: one sweep at a time, since each has settings of its own",
    )
    own = Path(names[0]).absolute()
    is_own = own.suffix == ".yaml" and own.is_file()
    if names[0] not in sweeps() and not is_own:
        raise CorerlError(
            f"There is no sweep {names[0]!r}.{nearest(names[0], sweeps())} "
            f"Known: {', '.join(sweeps())}; and sweep=PATH.yaml is a file of your own."
        )
    theirs = files("corerl.configs") / f"{own.stem}.yaml"  # Hydra looks there first
    require(
        own.stem != "schema" and not theirs.is_file(),
        f"sweep={names[0]}: corerl's own settings have this name and would be taken instead; rename the file",
    )
    require(
        not is_own or _builds_on_others(own),
        f"sweep={names[0]} lacks the line `defaults: [config, _self_]`, which brings the settings that it "
        "does not name",
    )
    grid = _grid(own) if is_own else {}
    for key in ("algo", "task"):
        several = grid.get(key)
        require(
            not isinstance(several, list),
            f"sweep={names[0]}: {key} is a list; several values are one text with commas, as in "
            f"{key}: {','.join(map(str, several or []))}",
        )
    rest = [a for a in arguments if not a.startswith("sweep=")]
    folder, name = (own.parent, own.stem) if is_own else (files("corerl.sweeps"), names[0])
    return ["--config-dir", str(folder), "--config-name", name, "--multirun", *rest]


def _builds_on_others(file: Path) -> bool:
    """Tells whether a file of settings has defaults; True also where it is damaged, which Hydra tells."""
    try:
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return True
    return isinstance(value, dict) and "defaults" in value


def for_each_cell(arguments: list[str]) -> list[str]:
    """Lets `algo.x=v` of a sweep wait for each cell's algorithm, as a choice of one value.

    Hydra would look for the setting before any algorithm is chosen.
    """
    if not {"-m", "--multirun"} & set(arguments):
        return arguments
    parse = OverridesParser.create().parse_override

    def late(argument: str) -> str:
        key, equals, value = argument.partition("=")
        if not equals or not key.startswith("algo."):
            return argument
        try:
            swept = parse(argument).is_sweep_override()
        except HydraException as error:
            raise OverrideParseException(argument, str(error)) from error
        if swept:
            return argument
        return f"{key}=choice({value})"

    return [late(argument) for argument in arguments]


def typed(cfg: DictConfig, overrides: list[str]) -> Config:
    """Returns the composed config as dataclasses, with the table's values where nobody chose one.

    Chosen is what the command line (or a sweep's grid) names, and what a sweep's file changes.

    Raises:
        CorerlError: a value of the wrong type or out of range, or a row of the table that names an
            unknown setting.
    """
    chosen = {override.split("=")[0] for override in overrides} - {"algo"}
    try:
        name = cfg.algo.name
        require(
            OmegaConf.get_type(cfg.algo).__module__ == f"corerl.algos.{name}",
            f"algo.name={name} is not the algorithm's name: `name` in its Config must be its file's, and "
            "label=... names a variant in tables",
        )
        defaults = _defaults(OmegaConf.get_type(cfg.algo))
        if cfg.compile == "False":  # what YAML makes of `off` in a sweep's file
            cfg.compile = "off"
        rows = table(cfg.table or name, cfg.task)
        if "steps" not in chosen and cfg.steps == defaults.steps:
            rows = rows | budget(cfg.table or name, name, cfg.task)
        for given, value in rows.items():
            key = RENAMED.get(given, given)
            in_file = OmegaConf.select(cfg, key) != OmegaConf.select(defaults, key)
            if not in_file and not any(f"{key}.".startswith(f"{c}.") for c in chosen):
                _apply(cfg, key, value)
        return _with_checksum(OmegaConf.to_object(cfg))
    except OmegaConfBaseException as error:
        raise CorerlError(sentence(error)) from error


@cache
def _defaults(algo: type) -> DictConfig:
    defaults = OmegaConf.structured(Config)
    defaults.algo = OmegaConf.structured(algo)
    return defaults


def _with_checksum(cfg: Config) -> Config:
    """Adds what is found in a user's own files: a checksum, for other content is another run, and the order
    in which the parts of a dataset's observations are laid side by side. CorerlError where `crop` does not
    fit a file's labels."""
    if cfg.task.startswith("file/"):
        name = tasks.of(cfg).name
        cfg.data.sha256 = own_files.checksum(name)
        cfg.data.columns = own_files.with_parts(name, cfg.data.columns)
    compared = getattr(cfg.algo, "preferences", None)
    if isinstance(compared, Preferences):
        compared.sha256 = sources.checksum(compared)
        sources.check_crop(getattr(cfg.algo, "crop", None), compared)
    return cfg


def _apply(cfg: DictConfig, key: str, value: Any) -> None:
    try:
        OmegaConf.update(cfg, key, value, merge=True)
    except OmegaConfBaseException as error:
        file = file_of(cfg.table or cfg.algo.name)
        raise CorerlError(f"{file} does not fit: {sentence(error)}") from error
