"""One file per algorithm. The files are the registry.

A file of one's own, anywhere, is one more: `python mine/foo.py`, `algo=mine/foo.py`, or, for commands that
are given a run alone, the environment variable CORERL_ALGOS with the files' paths.
"""

import importlib
import os
import pkgutil
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from corerl.config import Settings
from corerl.errors import CorerlError
from corerl.runs import code

VARIABLE = "CORERL_ALGOS"
_SHIPPED = tuple(module.name for module in pkgutil.iter_modules(__path__))


def names() -> list[str]:
    """Returns the names that `algo=` takes: the files of this folder, and the user's own."""
    return sorted({*_SHIPPED, *own()})


def own() -> dict[str, Path]:
    """Returns the user's own files, by the algorithms' names."""
    return {path.stem: path for path in _named()}


def _named() -> list[Path]:
    return [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def add_all(files: list[str]) -> list[str]:
    """Makes files algorithms and imports them, so that a mistake in the last shows before the first trains.

    Raises:
        CorerlError: as `add`; two files have one name; a file cannot be imported, or is no algorithm.
    """
    _refuse_two_of_a_name([Path(file) for file in files])
    names = [add(file) for file in files]
    for name in names:
        importlib.import_module(f"{__name__}.{name}")
    return names


def _refuse_two_of_a_name(paths: list[Path]) -> None:
    first: dict[str, Path] = {}
    for path in paths:
        if first.setdefault(path.stem, path).resolve() != path.resolve():
            raise CorerlError(
                f"{first[path.stem]} and {path} have the same name, but runs are named after the file. "
                "Rename a file, and Config.name in it."
            )


def add(file: str | Path) -> str:
    """Makes a file an algorithm, here and in the processes that are started from here, and returns its name.

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
    _forget(f"{__name__}.{path.stem}")
    importlib.invalidate_caches()
    return path.stem


def _check(path: Path) -> None:
    if not path.is_file():
        raise CorerlError(
            f"The algorithm's file {path} does not exist. Give one that exists to algo= or {VARIABLE}."
        )
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise CorerlError(
            f"{path.name} is not a valid name for an algorithm's file. Use a name like my_algo.py."
        )
    if path.stem in _SHIPPED:
        raise CorerlError(
            f"{path} has the name of an algorithm of corerl. Rename the file, and Config.name in "
            f"it, as in my_{path.name}."
        )


def _find_in(folder: Path) -> None:
    """Lets its files be imported: an algorithm as `corerl.algos.foo`, what stands beside it by its name."""
    for places in (__path__, sys.path):
        if str(folder) not in places:
            places.append(str(folder))


def _forget(name: str) -> None:
    module = sys.modules.pop(name, None)
    attribute = name.rpartition(".")[2]  # where `from corerl.algos import` looks first
    if module and globals().get(attribute) is module:
        del globals()[attribute]


class _Finder:
    """Finds the user's own files, whatever else of their names lies in the folders of `__path__`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, stem = name.rpartition(".")
        file = own().get(stem) if package == __name__ else None
        return file and spec_from_file_location(name, file, loader=_Loader(name, str(file)))


class _Loader(SourceFileLoader):
    """Runs a user's own file. A mistake in it is a `CorerlError`."""

    def exec_module(self, module: ModuleType) -> None:
        file = Path(self.path)
        __path__.insert(1, str(file.parent))  # after the shipped, before another file's neighbours
        sys.path.insert(0, str(file.parent))
        try:
            for name in code.trees(file.stem).keys() - {f"{__name__}.{name}" for name in names()}:
                _forget(name)  # it was edited, or is another file's neighbour
            super().exec_module(module)
        except CorerlError:
            raise
        except Exception as error:
            raise CorerlError(_reported(error, file)) from error
        finally:
            __path__.remove(str(file.parent))
            sys.path.remove(str(file.parent))
        _check_content(module, file)


def _reported(error: Exception, file: Path) -> str:
    """Says where, in the file or one beside it, an import ended, and why."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(f.filename, f.lineno) for f in frames if Path(f.filename).parent == file.parent]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    place = ", line ".join(map(str, places[-1] if places else [file]))
    kind = " ".join(traceback.format_exception_only(error)[-1].split()).rstrip(".")
    return f"The algorithm {file.stem} cannot be imported: {place}: {kind}."


def _check_content(module: ModuleType, file: Path) -> None:
    for name, what in {"Config": "the dataclass of its settings", "train": "a function"}.items():
        if not hasattr(module, name):
            raise CorerlError(
                f"{file} has no {name} ({what}). Start from a copy of a file in algos/."
            )
    config = module.Config
    if not isinstance(config, type) or not issubclass(config, Settings):
        raise CorerlError(
            f"The Config of {file} must derive from Settings: from corerl.config import Settings"
        )
    if config.__module__ != module.__name__ or "__dataclass_fields__" not in vars(config):
        raise CorerlError(f"{file} must define its own Config: a class with @dataclass above it.")


sys.meta_path.insert(0, _Finder)
_refuse_two_of_a_name(_named())
for _path in _named():
    add(_path)
