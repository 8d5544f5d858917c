"""One file per algorithm; the files are the registry."""

import pkgutil


def names() -> list[str]:
    """Returns the names that `algo=` takes: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
