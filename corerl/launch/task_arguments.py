"""How the command line names a task and a file's settings, and how a command that is printed names them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.config import Config, require
from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch.hydra_errors import sentence

SETTINGS = "as for corerl train: env=gym/module:Id data.columns.rewards=r data.action_low=-2"


def in_shell(task: tasks.Task, settings: list[str]) -> str:
    """Returns what names the task for training, quoted where a shell or Hydra would read more in it."""
    return " ".join([override("task", task.id), *map(shlex.quote, settings)])


def override(key: str, value: str) -> str:
    """Returns `key=value`, quoted where a shell or Hydra would read more in it."""
    plain = re.fullmatch(r"[\w/.+-]*", value, re.ASCII)
    return shlex.quote(f"{key}={value if plain else quoted(value)}")


def quoted(text: str) -> str:
    """Returns a text in quotes, as Hydra reads it: a backslash is one unless a quote comes after it."""
    return QuotedString(text, Quote.double).with_quotes()


def task_of(id: str, settings: list[str]) -> tasks.Task:
    """Returns a task by its id, or of your own file, with settings as on training's command line.

    Raises:
        CorerlError: as `tasks.resolve`; a setting is none, or is given for a task that has its own.
    """
    task = tasks.resolve(id)
    if task.collection != "file":
        require(
            not settings,
            f"The settings {' '.join(settings)} are for your own file, file/PATH. Leave them out with {id}.",
        )
        return task
    try:
        given = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.from_dotlist(settings))
        data, env = OmegaConf.to_object(given.data), given.env
    except OmegaConfBaseException as error:
        raise CorerlError(sentence(error)) from error
    return replace(task, env=env, data=data)
