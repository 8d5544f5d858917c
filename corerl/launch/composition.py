"""The cells of a command line or a sweep: one `Config` per combination of settings."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl import algos
from corerl.config import Config, require
from corerl.data import tasks
from corerl.data.files import own_files
from corerl.errors import CorerlError, FileMissing
from corerl.launch import arguments as command_line
from corerl.launch.arguments import Command
from corerl.launch.hydra_errors import chosen_algorithm, sentence
from corerl.launch.settings_tables import budget, file_of, table
from corerl.older_settings import LEFT, RENAMED
from corerl.policies.load import settings
from corerl.preferences import sources
from corerl.preferences.sources import Preferences
from corerl.runs.directory import cell_directory

LISTS_CELLS = ".BasicSweeper"
"""The one sweeper that knows its cells beforehand."""


def cells(arguments: list[str]) -> list[Config]:
    """Returns the cells that `corerl train` runs with these arguments, in its order.

    Raises:
        CorerlError: the arguments do not compose, or a sweeper chooses its cells as it goes.
    """
    return cells_of(command_line.read(arguments))


def cells_of(command: Command) -> list[Config]:
    """Returns the cells of a command, as `cells` does."""
    try:
        with _hydra():
            found = [typed(cfg, chosen) for cfg, chosen in _composed(command)]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise CorerlError(sentence(error, command.overrides)) from error
    require(
        found,
        "glob() matches no algorithm's name. glob() works for algo= only: list tasks with commas",
    )
    return found


def search_folder(command: Command) -> Path | None:
    """Returns the folder of a search, whose sweeper chooses its cells as it goes. None of other commands."""
    if not command.multirun:
        return None
    with _hydra():
        hydra = _sweep_settings(command)
    return None if hydra.sweeper._target_.endswith(LISTS_CELLS) else Path(hydra.sweep.dir)


def _hydra() -> initialize_config_module:
    GlobalHydra.instance().clear()
    return initialize_config_module("corerl.configs", job_name="corerl", version_base="1.3")


def _sweep_settings(command: Command) -> DictConfig:
    """Returns Hydra's settings of a sweep: the same for every algorithm that has what its file sets."""
    overrides = [text for text in command.overrides if text.startswith("root=") or _is_hydras(text)]
    chosen = chosen_algorithm(command.overrides).split(",")[0]
    overrides += [f"algo={chosen if chosen.isidentifier() else algos.names()[0]}"]
    return compose(command.config_name, overrides, return_hydra_config=True).hydra


def _is_hydras(override: str) -> bool:
    return override.lstrip("+~").startswith("hydra")


def _composed(command: Command) -> Iterator[tuple[DictConfig, list[str]]]:
    """Yields every cell's config, and the overrides that its command line would have.

    Hydra composes once per combination of settings other than the task, which only the tables look at:
    a paper's table of hundreds of cells takes seconds.
    """
    overrides = [text for text in command.overrides if not _is_hydras(text)]
    if not command.multirun:
        yield compose(command.config_name, command.overrides), overrides
        return
    sweeper = _sweep_settings(command).sweeper or {}
    target = str(sweeper.get("_target_"))
    require(target != "None", "hydra.sweeper does not name a sweeper. Leave hydra/sweeper out")
    require(
        target.endswith(LISTS_CELLS),
        f"The sweeper {target} chooses settings while it runs, so corerl cannot list them beforehand. "
        "Run the sweep with corerl train, without --dry-run",
    )
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    grid = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    without_task: dict[tuple[str, ...], DictConfig] = {}
    for job in _jobs(parser.parse_overrides([*grid, *overrides])):
        others = tuple(text for text in job if not text.startswith("task="))
        if others not in without_task:
            own = filter(_is_hydras, command.overrides)
            without_task[others] = compose(command.config_name, [*others, *own])
        cfg = without_task[others].copy()
        for text in set(job) - set(others):
            cfg.task = parser.parse_override(text).value()  # the text is quoted or escaped
        yield cfg, job


def _jobs(overrides: list[Override]) -> Iterator[list[str]]:
    """Yields the combinations of values, in the order of Hydra's basic sweeper."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_sweep_override():
            require(
                override.is_discrete_sweep(),
                f"{override.input_line} is a range for a search. Add hydra/sweeper=optuna, or list values",
            )
            texts = override.sweep_string_iterator()
        else:
            texts = [override.get_value_element_as_str()]
        values[key] = [f"{key}={text}" for text in texts]
    return map(list, itertools.product(*values.values()))


def typed(cfg: DictConfig, overrides: list[str]) -> Config:
    """Returns the composed config as dataclasses, with the table's values where nobody chose one.

    Chosen is what the command line (or a sweep's grid) names, and what a sweep's file changes.

    Raises:
        CorerlError: a value of the wrong type or out of range, or a row of the table that names an
            unknown setting.
    """
    chosen = {override.split("=")[0] for override in overrides} - {"algo"}
    reading = ""
    try:
        name = cfg.algo.name
        require(
            OmegaConf.get_type(cfg.algo).__module__ == f"corerl.algos.{name}",
            f"algo.name={name} differs from the name of the algorithm's file. Set `name` in its "
            "Config to the file's name. To rename the algorithm in tables, use label=...",
        )
        require(
            name not in LEFT or cfg.table != LEFT[name].variant,
            f"table={cfg.table} has become an algorithm of its own. Choose algo={cfg.table}",
        )
        defaults = _defaults(OmegaConf.get_type(cfg.algo))
        if cfg.compile == "False":  # what YAML makes of `off` in a sweep's file
            cfg.compile = "off"
        rows = table(cfg.table or name, cfg.task)
        if "steps" not in chosen and cfg.steps == defaults.steps:
            rows = rows | budget(cfg.table or name, name, cfg.task)
        reading = f"{file_of(cfg.table or name)} does not fit the algorithm's settings: "
        for given, value in rows.items():
            key = RENAMED.get(given, given)
            in_file = OmegaConf.select(cfg, key) != OmegaConf.select(defaults, key)
            if not in_file and not any(f"{key}.".startswith(f"{c}.") for c in chosen):
                OmegaConf.update(cfg, key, value, merge=True)
        reading = ""
        return _with_checksums(OmegaConf.to_object(cfg))
    except OmegaConfBaseException as error:
        raise CorerlError(f"{reading}{sentence(error)}") from error


@cache
def _defaults(algo: type) -> DictConfig:
    defaults = OmegaConf.structured(Config)
    defaults.algo = OmegaConf.structured(algo)
    return defaults


def _with_checksums(cfg: Config) -> Config:
    """Adds what is found in a user's own files: checksums, and the order of the observations' parts.

    Other content is another run. What a run has recorded stands in for a file that is missing.

    Raises:
        CorerlError: `crop` does not fit a file's labels.
        FileMissing: a file is missing, and no run has recorded its checksum.
    """
    missing = None
    for add in (_add_data, _add_labels):
        try:
            add(cfg)
        except FileMissing as error:
            missing = error
    if missing is None:
        return cfg
    if (recorded := _as_recorded(cfg)) is None:
        raise missing
    return recorded


def _add_data(cfg: Config) -> None:
    if cfg.task.startswith("file/"):
        name = tasks.of(cfg).name
        cfg.data.sha256 = own_files.checksum(name)
        cfg.data.columns = own_files.with_parts(name, cfg.data.columns)


def _add_labels(cfg: Config) -> None:
    compared = cfg.algo.preferences
    if isinstance(compared, Preferences):
        compared.sha256 = sources.checksum(compared)
        sources.check_crop(cfg.algo.crop, compared)


def _as_recorded(cfg: Config) -> Config | None:
    """Returns the settings with what this run, or else the one to fine-tune, recorded of missing files."""
    task = cell_directory(cfg).parent
    cells = [path.parent for path in task.glob(f"{cfg.algo.name}-*/config.yaml")]
    start = cfg.algo.online.checkpoint if cfg.algo.phase == "online" else None
    for cell in [*cells, Path(start)] if start else cells:
        with suppress(CorerlError):
            theirs, made = settings(cell), deepcopy(cfg)
            made.data.sha256 = cfg.data.sha256 or theirs.data.sha256
            if cfg.data.columns.observations is None and own_files.parts(theirs.data):
                made.data.columns.observations = theirs.data.columns.observations
            if isinstance(theirs.algo.preferences, Preferences):
                labels = made.algo.preferences
                labels.sha256 = labels.sha256 or theirs.algo.preferences.sha256
            begins = cell == Path(start or "") and theirs.task == cfg.task
            if begins or cell == cell_directory(made):
                return made
    return None
