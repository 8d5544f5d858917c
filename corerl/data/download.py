"""Files from the net into one folder: progress, resume, checksum, and clear words when it fails.

Environment: `CORERL_DATA` names the folder (default `~/.cache/corerl`), one subfolder per
collection; `CORERL_OFFLINE=1` forbids the network.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from corerl.data.files.io import is_file
from corerl.errors import CorerlError

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte before a transfer counts as broken


def data_dir(collection: str = "") -> Path:
    """Returns the folder that downloads and made datasets of a collection go to. It may not exist yet."""
    root = os.environ.get("CORERL_DATA")
    return (Path(root).expanduser() if root else _cache()) / collection


def find(collection: str, names: Iterable[str]) -> Path | None:
    """Finds the first file of these names in `$CORERL_DATA/<collection>`, then in `~/.cache/corerl`."""
    for folder in (data_dir(collection), _cache() / collection):
        for name in names:
            if is_file(folder / name):
                return folder / name
    return None


def offline() -> bool:
    return os.environ.get("CORERL_OFFLINE", "") not in ("", "0")


@contextmanager
def alone(lock: Path | None = None) -> Iterator[None]:
    """Waits until no other process brings data to this machine: two would mix their bytes in one file.

    With the file `lock`, until none brings the data that it stands for.
    """
    lock = lock or data_dir() / ".lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w", encoding="utf-8")  # noqa: SIM115
    except OSError:  # nothing can be kept there, so nothing can be mixed
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch(url: str, path: Path, checksum: str | None = None) -> Path:
    """Downloads `url` to `path`, which appears only when complete and, if known, verified.

    A broken transfer leaves `<path>.part` and is continued by the next call (HTTP Range).
    `checksum` is "md5:<hex>" or "sha256:<hex>". Raises CorerlError for no network, a refused
    request, a full disk, or a wrong checksum (the file is then deleted).
    """
    if offline():
        raise CorerlError(
            f"{path.name} is not on this machine and CORERL_OFFLINE is set. Unset CORERL_OFFLINE, "
            f"or download {url} elsewhere and put it in {path.parent}."
        )
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part)
    except urllib.error.HTTPError as e:
        raise CorerlError(
            f"{url} answered {e.code} {e.reason}. Get {path.name} from another source and put it in "
            f"{path.parent}."
        ) from e
    except (
        *(urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError),
        *(EOFError, ValueError),
    ) as e:
        raise CorerlError(
            f"The download of {url} failed ({getattr(e, 'reason', e)}). Run the command again to "
            f"resume, or put {path.name} in {path.parent} by hand."
        ) from e
    except OSError as e:
        raise CorerlError(
            f"Cannot write {part} ({e.strerror}): free some space, or set CORERL_DATA to a folder "
            "on a larger disk."
        ) from e
    if checksum and not matches(part, checksum):
        part.unlink()
        raise CorerlError(
            f"The file from {url} does not have the expected checksum {checksum}, so corerl deleted it. Try "
            f"again, or put a {path.name} that you trust in {path.parent}."
        )
    os.replace(part, path)
    return path


def matches(path: Path, checksum: str) -> bool:
    """Tells whether the file's digest is `checksum`, "md5:<hex>" or "sha256:<hex>"."""
    algorithm, _, wanted = checksum.partition(":")
    return digest(path, algorithm) == wanted


def digest(path: Path, algorithm: str = "sha256") -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, algorithm).hexdigest()


def _cache() -> Path:
    return Path.home() / ".cache" / "corerl"


def _transfer(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "corerl"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as e:
        if not have or e.code != 416:
            raise
        if e.headers.get("Content-Range") != f"bytes */{have}":
            part.unlink()  # of another file than is there today
            _transfer(url, part)
        return
    with answer:
        resumed = answer.status == 206
        if resumed and _first_byte(answer.headers.get("Content-Range")) != have:
            part.unlink(missing_ok=True)  # what is sent does not go on from it
            raise EOFError("the server sent another part of the file than corerl requested")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        if length is not None and not (length.isascii() and length.isdigit()):
            raise EOFError(f"the server gave the file a length of {length!r} bytes")
        total = have + int(length) if length else None
        _check_space(part, total, have)
        with open(part, "ab" if resumed else "wb") as f:
            _copy(answer, f, part.name.removesuffix(".part"), have, total)


def _first_byte(content_range: str | None) -> int | None:
    """Returns the first byte of the part that a server sends, 100 for `bytes 100-199/200`."""
    found = re.match(r"bytes (\d+)-", content_range or "", re.ASCII)
    return int(found[1]) if found else None


def _check_space(part: Path, total: int | None, have: int) -> None:
    if total and total - have > shutil.disk_usage(part.parent).free:
        raise OSError(
            28,
            f"the download needs {(total - have) / 1e6:.0f} MB, but the disk has less free space",
        )


def _copy(source, sink, name: str, have: int, total: int | None) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(name, total=total, completed=have)
        while chunk := source.read(CHUNK):
            sink.write(chunk)
            have += len(chunk)
            progress.update(bar, completed=have)
    if total is not None and have < total:
        raise EOFError(f"{have} of {total} bytes arrived")
