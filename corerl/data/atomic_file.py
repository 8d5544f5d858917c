"""Writes a file atomically: it appears once it is complete."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corerl.data.file_reading import one_line
from corerl.errors import CorerlError


@contextmanager
def replacing(path: Path, part: Path | None = None) -> Iterator[Path]:
    """A block that writes a file beside `path`, which takes its place once the block ends without an error.

    Args:
        part: the file to write, in a folder that is there. Without it the folder is made, and the file has
            a name of its own that ends like `path`, so that two processes never share it.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    try:
        if part is None:
            part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part{path.suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):
            part.unlink()


def write_error(path: Path, error: OSError) -> CorerlError:
    """Returns what to raise where a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CorerlError(
            f"The disk is full: {path} was not written. What was saved before is complete. Free some "
            "space, and run the same command again."
        )
    return CorerlError(f"Cannot write {path}: {error.strerror or one_line(error)}.")
