"""The help of `corerl train`: how to call it, and every setting with its default and comment."""

import importlib
import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass

from corerl import algos
from corerl.config import Columns, Config, Data, Eval, Wandb, require
from corerl.launch.arguments import Command
from corerl.launch.hydra_errors import no_such
from corerl.launch.settings_tables import variants


def text(command: Command) -> str:
    """Lists every setting with its default and comment, as the dataclasses state them.

    Raises:
        CorerlError: there is no algorithm of a name that is given.
    """
    given = [a.removeprefix("algo=") for a in command.overrides if a.startswith("algo=")]
    chosen = [variants().get(name, name) for names in given for name in names.split(",")]
    known = algos.names()
    for name in chosen:
        require(name in known, no_such("algorithm", name, sorted([*known, *variants()])))
    lines = [
        "usage: corerl train algo=NAME task=ID [setting=value ...]  (Hydra's grammar)",
        "       corerl train -m algo=NAME,NAME task=ID,ID ...       runs every combination",
        "       corerl train sweep=NAME                             runs a file of sweeps/",
        "       corerl train ... --dry-run           shows what would run, and for how long",
        "",
        *_wrapped("algo: ", [*known, "or your own file: algo=my_algo.py"]),
        *_wrapped("algo, with the settings of a file in configs/: ", list(variants())),
        "To list the settings of an algorithm: corerl train algo=NAME --help",
        "To list the tasks: corerl data list",
        "",
        *_fields(Config(), ""),
        *_fields(Eval(), "eval."),
        *_fields(Wandb(), "wandb."),
        *_fields(Data(), "data."),
        *_fields(Columns(), "data.columns."),
    ]
    for name in chosen:
        cfg = importlib.import_module(f"corerl.algos.{name}").Config()
        lines += ["", *_fields(cfg, "algo.")]
        for part, settings in vars(cfg).items():
            lines += _fields(settings, f"algo.{part}.") if is_dataclass(settings) else []
    return "\n".join(lines)


def _wrapped(head: str, names: list[str]) -> list[str]:
    return textwrap.wrap(
        head + ", ".join(names), 80, subsequent_indent="  ", break_on_hyphens=False
    )


def _fields(settings: object, prefix: str) -> list[str]:
    """Returns a line per field of a dataclass instance, its value and the comment beside it."""
    comments: dict[str, str] = {}  # its own fields first, then those of the classes it extends
    for kind in type(settings).__mro__[:-1]:
        source = inspect.getsource(kind).split("    def ")[0]
        found = re.findall(r"^    (\w+): [^#\n]*(#.*)?$", source, re.MULTILINE)
        comments = comments | {name: text for name, text in found if name not in comments}
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return [
        f"  {f'{prefix}{name}={values[name]}':<36} {comment}".rstrip()
        for name, comment in comments.items()
        if name in values and not is_dataclass(values[name])
    ]
