"""Writes a file atomically: it appears once it is complete."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corerl.data.file_reading import one_line
from corerl.errors import CorerlError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A block that writes a file beside `path`, which takes its place once the block ends without an error.

    What is half written has a name of its own, so that two processes never share it.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise CorerlError(f"Cannot write {path}: {error.strerror or one_line(error)}.") from error
    finally:
        with suppress(OSError):
            part.unlink()
