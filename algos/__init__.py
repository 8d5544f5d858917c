"""One file per algorithm; the files are the registry.

A file of one's own, anywhere, is one more: `python mine/foo.py`, `algo=mine/foo.py`, or, for commands that
are given a run alone, the environment variable CORERL_ALGOS with the files' paths.
"""

import importlib
import os
import pkgutil
import sys
from pathlib import Path

from corerl.errors import CorerlError

VARIABLE = "CORERL_ALGOS"
_SHIPPED = tuple(module.name for module in pkgutil.iter_modules(__path__))


def names() -> list[str]:
    """Returns the names that `algo=` takes: the files of this folder, and the user's own."""
    return sorted({*_SHIPPED, *own()})


def own() -> dict[str, Path]:
    """Returns the user's own files, by the algorithms' names."""
    paths = [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    return {path.stem: path for path in paths}


def add(file: str | Path) -> str:
    """Makes a file an algorithm, here and in the processes that are started from here; returns its name.

    What was imported of that name is forgotten: in a notebook the file has been edited since.

    Raises:
        CorerlError: there is no such file, or its name is taken or no name of a module.
    """
    path = Path(file).absolute()
    _check(path)
    if own().get(path.stem) != path:
        others = [str(other) for name, other in own().items() if name != path.stem]
        os.environ[VARIABLE] = os.pathsep.join([*others, str(path)])
    _find_in(path.parent)
    sys.modules.pop(f"{__name__}.{path.stem}", None)
    importlib.invalidate_caches()
    return path.stem


def _check(path: Path) -> None:
    if not path.is_file():
        raise CorerlError(f"There is no file {path} to take an algorithm from (algo=, {VARIABLE}).")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise CorerlError(
            f"{path.name} is no name of an algorithm's file: it must be like my_algo.py."
        )
    if path.stem in _SHIPPED:
        raise CorerlError(
            f"{path} has the name of an algorithm of corerl: name the file, and Config.name in it, "
            f"otherwise, as my_{path.name}."
        )


def _find_in(folder: Path) -> None:
    """Lets its files be imported: an algorithm as `corerl.algos.foo`, what stands beside it by its name."""
    for places in (__path__, sys.path):
        if str(folder) not in places:
            places.append(str(folder))


for _path in own().values():
    add(_path)
