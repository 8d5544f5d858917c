"""The choices of `algo=` for Hydra: algorithms, and tables of their settings."""

import importlib
import inspect
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl import algos
from corerl.config import Config, require
from corerl.errors import CorerlError
from corerl.launch.hydra_errors import sentence
from corerl.launch.settings_tables import variants


class Algorithms(dict[str, ConfigNode | None]):
    """Hydra's group `algo`, where a node is made when it is first asked for: all seventy take a second.

    Copies share it, since Hydra copies its whole store for every cell, and then what it takes from the copy.
    """

    def __getitem__(self, file: str) -> ConfigNode:
        found = super().__getitem__(file)
        if found is None:
            found = self[file] = _node(file)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Algorithms":
        return self


def _node(file: str) -> ConfigNode:
    name = file.removesuffix(".yaml")
    algorithm = variants().get(name, name)
    settings = _settings(algorithm)
    if name == algorithm:
        return ConfigNode(file, settings, group="algo", package=None, provider=None)
    node = OmegaConf.create({"table": name, "algo": settings})
    return ConfigNode(file, node, group="algo", package="_global_", provider=None)


def _settings(algorithm: str) -> DictConfig:
    config = importlib.import_module(f"corerl.algos.{algorithm}").Config
    for name, what in {"name": "its file's", "label": "its name in tables"}.items():
        require(
            name in config.__dataclass_fields__,
            f"The Config in {inspect.getfile(config)} has no field `{name}` ({what}). Add this field",
        )
    try:
        return OmegaConf.structured(config)
    except (OmegaConfBaseException, AssertionError, ValueError) as error:
        known = isinstance(error, OmegaConfBaseException)
        reason = (
            sentence(error)
            if known
            else "a field has an unsupported type. Use int, float, bool, str, list or a dataclass."
        )
        file = inspect.getfile(config)
        raise CorerlError(f"The Config in {file} cannot be used: {reason}") from error


@cache
def register() -> None:
    """Tells Hydra the schema and what `algo=` takes: every algorithm, and every variant's table."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    names = [*algos.names(), *variants()]
    store.repo["algo"] = Algorithms.fromkeys(f"{name}.yaml" for name in names)
