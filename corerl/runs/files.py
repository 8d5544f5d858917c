"""Files that are whole whenever a process is killed."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, TextIO

import yaml

from corerl.data.files.io import replacing, write_error
from corerl.errors import CorerlError


def make_directory(path: Path) -> None:
    """Makes a folder and those above it, where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes `content` as one piece with `write_pieces`."""
    write_pieces(path, [content])


def write_pieces(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    *,
    stamp: Callable[[], tuple[int, bytes]] | None = None,
    keep: Path | None = None,
) -> None:
    """Replaces `path` in one step, so that no reader and no kill ever sees half a file.

    Pieces are written as they come, so they need not be in memory together. `stamp` is asked after the
    last of them for bytes to write over others, and their offset. With `keep` the file that was there is
    kept under that name; a kill between the two leaves it alone.

    Its folder must be there: one that was removed while a run went on is noticed, not made anew. What is
    half written has a name of its own, so that two processes never share it and no link is followed.

    Raises:
        CorerlError: the disk is full, or the folder cannot be written.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with replacing(path, part):
        with open(part, "xb") as file:
            for piece in pieces:
                file.write(piece)
            if stamp is not None:
                offset, content = stamp()
                file.seek(offset)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)


class Busy(CorerlError):
    """Another process holds what this one asks for."""


@contextmanager
def held(lock: Path, busy: str) -> Iterator[None]:
    """Holds the file `lock` against other processes. Its folder is made where it is missing.

    Raises:
        Busy: another process holds it; `busy` says so.
        CorerlError: it cannot be written.
    """
    make_directory(lock.absolute().parent)
    try:
        file = open(lock, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise write_error(lock, error) from error
    with file:
        if not _locked(file):
            # Who only looks whether somebody holds it (`corerl status`) has let go by then.
            time.sleep(0.2)
            if not _locked(file):
                raise Busy(busy)
        yield


def _locked(file: TextIO) -> bool:
    """Locks an open file, unless another process has."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_held(lock: Path) -> bool:
    """Tells whether a living process holds the file `lock`: its lock ends with it, however it ends."""
    try:
        with open(lock, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def remove_half_written(directory: Path) -> None:
    """Deletes what processes that were killed left of `write_atomically`. The caller holds the folder."""
    for part in directory.glob("*.part"):
        with suppress(OSError):
            part.unlink()


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends all of the lines or none. They begin on a line of their own, where a kill cut the last one.

    Raises:
        CorerlError: the disk is full, or the file cannot be written.
    """
    try:
        # Unbuffered: what a buffer could not write it would try again when it closes.
        with open(path, "a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            text = "".join(line + "\n" for line in lines)
            if size:
                file.seek(size - 1)
                text = text if file.read(1) == b"\n" else "\n" + text
            try:
                _write_all(file, text.encode())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
    except OSError as error:
        raise write_error(path, error) from error


def _write_all(file: FileIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def below(root: Path, *names: str) -> list[Path]:
    """Finds files of these names below a folder, also where links to folders lead. No folder is read twice.

    Path.rglob follows no such link, and os.walk would follow one that leads up for ever.
    """
    found, seen, tops = [], set(), [os.fspath(root)]
    for top in tops:  # links come last, so that what lies below has its own path
        for folder, inner, files in os.walk(top):
            if (real := os.path.realpath(folder)) in seen:
                inner.clear()
                continue
            seen.add(real)
            tops += sorted(p for name in inner if os.path.islink(p := os.path.join(folder, name)))
            found += [Path(folder, name) for name in names if name in files]
    return sorted(found)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Reads the content of a JSON file, or None where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise CorerlError(
            f"{path} is not valid JSON ({error}). Delete the file to start over."
        ) from error


LARGEST_SETTINGS = 1 << 20
"""Bytes of a file of settings; ours have some hundred."""


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml, ten times as fast, where PyYAML was built with it."""


def plain_yaml(path: Path) -> Any:
    """Reads a YAML file of plain values. Raises OSError, ValueError, RecursionError or yaml.YAMLError.

    Aliases are refused: ten lines of ten references to the line before fill any memory. So is what is nested
    so deeply that libyaml would overflow the stack.
    """
    if path.stat().st_size > LARGEST_SETTINGS:
        raise ValueError("it is too large")
    text = path.read_text(encoding="utf-8")
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it uses a YAML alias (*), which corerl does not support")
        if depth > 100:
            raise yaml.YAMLError("it is nested more than 100 levels deep")
    return yaml.load(text, _LOADER)


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file.

    Raises:
        CorerlError: there is none, or it is damaged.
    """
    try:
        values = plain_yaml(path)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorerlError(
            f"{path} is not readable YAML ({reason}). Repair or remove it."
        ) from error
    if not isinstance(values, dict):
        raise CorerlError(f"{path} must hold lines of the form name: value. Repair or remove it.")
    return values


def read_lines(path: Path, **wanted: type) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON Lines file. None where there is no file, and not a last one cut by a kill.

    Args:
        wanted: keys that every object must have, and the types of their values.

    Raises:
        CorerlError: a line is damaged.
    """
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            wrong = [key for key, kind in wanted.items() if type(found[key]) is not kind]
            if wrong:
                raise ValueError(f"its {wrong[0]} is {found[wrong[0]]!r:.40}")
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                return
            raise CorerlError(
                f"{path}, line {number} is damaged ({error!r:.200}). Repair or remove the file."
            ) from error
        yield found
