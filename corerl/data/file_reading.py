"""Shared parts of the file readers: error messages, and scaling of actions to [-1, 1]."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from corerl.errors import CorerlError

MOST_COMPRESSED = 1100  # to one: gzip's limit is 1,032


def is_file(path: Path) -> bool:
    """Tells whether there is a file to read, and raises CorerlError for a pipe, which would be waited for."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorerlError(f"{path} is not a regular file. Save the data to a file first.")
    return path.is_file()


@contextmanager
def reading(
    path: Path | str, kind: str, mend: str = "delete it, and get it again"
) -> Iterator[None]:
    """Turns any error inside into one CorerlError that names the file and how to mend it."""
    if not (is_file(Path(path)) or Path(path).is_dir()):
        raise CorerlError(f"There is no file {path}.")
    try:
        yield
    except CorerlError as e:
        raise CorerlError(f"{path}: {' '.join(str(e).split())}") from e
    except Exception as e:  # h5py, zipfile and numpy raise nearly every kind on damaged bytes
        raise CorerlError(f"{path} is cut off, or is not {kind} ({one_line(e)}): {mend}.") from e


@contextmanager
def npz(path: Path | str, kind: str = "an npz file") -> Iterator[Npz]:
    """A block with the arrays of a file by name, as `np.load` gives them, with errors as `reading`."""
    with reading(path, kind), zipfile.ZipFile(path) as archive:
        yield Npz(archive)


def check_sizes(file: h5py.File) -> None:
    """Raises CorerlError where an HDF5 file's array claims more than the file can hold, compressed or not."""
    size = Path(file.filename).stat().st_size
    for name, item in file.items():
        if isinstance(item, h5py.Dataset) and item.nbytes > MOST_COMPRESSED * size:
            raise CorerlError(
                f"{name} would unpack to {item.nbytes:,} bytes, but the whole file has only "
                f"{size:,}. The file is damaged: get it again."
            )


class Npz(Mapping[str, np.ndarray]):
    """An npz file whose arrays are checked against its checksums.

    `np.load` reads as much of an array as its header says, and a checksum is looked at only at the end: a
    header damaged to fewer rows would be taken for the whole. A name stands twice in the file, and is
    held against itself, since a reader that does not know it would leave the array out. So would one of a
    directory with an entry whose length swallows the next ones: their number stands at its end.
    """

    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive
        claimed, found = _entries(archive), len(archive.namelist())
        if claimed not in (found, MANY):
            raise ValueError(f"its table of contents lists {found} of {claimed} arrays")
        for name in archive.namelist():
            archive.open(name).close()
        self.files = [name.removesuffix(".npy") for name in archive.namelist()]

    def __getitem__(self, key: str) -> np.ndarray:
        content = io.BytesIO(self._archive.read(f"{key}.npy"))
        array = np.lib.format.read_array(content, allow_pickle=False)
        if content.read(1):
            raise ValueError(f"{key} has more bytes than an array of its shape {array.shape} needs")
        return array

    def __contains__(self, key: object) -> bool:
        return key in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


MANY = 0xFFFF
"""As a number of entries: it stands elsewhere."""


def _entries(archive: zipfile.ZipFile) -> int:
    """Reads how many entries the directory of a zip file claims to have."""
    archive.fp.seek(-22 - len(archive.comment), io.SEEK_END)  # the end record, but for its comment
    return int.from_bytes(archive.fp.read(12)[10:], "little")


def one_line(error: Exception) -> str:
    """Returns kind and message of some library's error, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def first_column(bad: np.ndarray) -> int | tuple[int, ...] | None:
    """Returns the column of the first bad entry of a row, or None where a row is one number."""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return at if len(at) > 1 else next(iter(at), None)


def such(rows: np.ndarray) -> str:
    """Says how many rows are bad, where several are."""
    count = int(rows.sum())
    return f" ({count:,} such rows)" if count > 1 else ""
