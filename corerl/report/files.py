"""Writing of a report: whole files below its folder, and nowhere else."""

import itertools
import re
from collections.abc import Collection, Container, Iterable
from contextlib import suppress
from pathlib import Path

from corerl.errors import CorerlError
from corerl.runs.files import write_atomically


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file that is there in full or not at all, and the folders above it.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    make_folder(path.parent)
    write_atomically(path, content.encode() if isinstance(content, str) else content)
    return path


LIST = "files.txt"


def announce(folder: Path, names: Iterable[str]) -> None:
    """Adds what a report is about to write to the folder's list, which the next one reads after a kill.

    Raises:
        CorerlError: one of the files is there, and no report wrote it.
    """
    names, known = set(names), set(_listed(folder))
    for name in sorted(names - known):
        if (folder / name).exists():
            raise CorerlError(
                f"{folder / name} exists, but no report wrote it. Move it, or give another --out."
            )
    _write_list(folder, known | names)


def replace_earlier(folder: Path, names: Collection[str]) -> None:
    """Removes what an earlier report wrote to the folder and this one did not, and lists what this one did.

    Nothing else is touched: only names in the earlier list, and only below the folder.
    """
    for stale in {folder / name for name in _listed(folder)} - {folder / name for name in names}:
        if stale.resolve().is_relative_to(folder.resolve()):
            with suppress(OSError):
                stale.unlink()
                stale.parent.rmdir()  # fails where something is left
    _write_list(folder, names)


def _listed(folder: Path) -> list[str]:
    path = folder / LIST
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def _write_list(folder: Path, names: Iterable[str]) -> None:
    write(folder / LIST, "".join(f"{name}\n" for name in sorted(names)))


def make_folder(path: Path) -> Path:
    """Makes a folder and those above it.

    Raises:
        CorerlError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorerlError(
            f"Cannot write the report to {path}: {reason}. Give another --out."
        ) from (error)
    return path


def file_name(text: str) -> str:
    """Makes a file's stem from any text, of letters, digits, `.`, `_` and `-`: never a path, never hidden."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:80] or "scores"


def free_name(text: str, taken: Container[str]) -> str:
    """Returns `file_name`, with a number where it is taken: two texts may read alike once they are names."""
    first = file_name(text)
    names = itertools.chain([first], (f"{first}-{i}" for i in itertools.count(2)))
    return next(name for name in names if name not in taken)
