"""Writing of a report: whole files below its folder, and nowhere else."""

import re
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
            f"Cannot write the report to {path}: {reason}; give another --out."
        ) from (error)
    return path


def file_name(text: str) -> str:
    """Makes a file's stem from any text, of letters, digits, `.`, `_` and `-`: never a path, never hidden."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:80] or "scores"
