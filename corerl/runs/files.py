"""Files that are whole whenever a process is killed."""

import errno
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from corerl.errors import CorerlError


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` in one step, so that no reader and no kill ever sees half a file.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise _write_error(path, error) from error


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends whole lines in one write."""
    try:
        with open(path, "a") as file:
            file.write("".join(line + "\n" for line in lines))
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> CorerlError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CorerlError(
            f"The disk is full: {path} was not written; what was saved before is whole. Free some "
            "space and run the same command to resume."
        )
    return CorerlError(f"Cannot write {path}: {error.strerror}.")


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorerlError(
            f"{path} is not valid JSON ({error}); delete it to start over."
        ) from error


def truncate_after(path: Path, step: int, step_of: Any) -> None:
    """Drops the lines written after the checkpoint at `step`; they will be computed again.

    A last line that was cut short goes too, whatever number its rest may hold. `step_of(line)` gives a
    line's step, and None for one to keep regardless (a header).
    """
    if not path.exists():
        return
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    steps = [step_of(line) for line in whole]
    kept = [line for line, at in zip(whole, steps, strict=True) if at is None or at <= step]
    write_atomically(path, "".join(kept).encode())
