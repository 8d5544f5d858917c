"""Arrays by name from npz, HDF5, CSV and Parquet, with one sentence for every fault, and atomic writing."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import os
import re
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from corerl.errors import CorerlError

MOST_COMPRESSED = 1100  # to one: gzip's limit is 1,032


def is_file(path: Path) -> bool:
    """Tells whether there is a file to read, and raises CorerlError for a pipe, which would be waited for."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorerlError(f"{path} is not a regular file. Save the data to a file first.")
    return path.is_file()


AGAIN = "delete it, and get it again"


@contextmanager
def reading(path: Path | str, kind: str, mend: str = AGAIN) -> Iterator[None]:
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
def npz(path: Path | str, kind: str = "an npz file", mend: str = AGAIN) -> Iterator[Npz]:
    """A block with the arrays of a file by name, as `np.load` gives them, with errors as `reading`."""
    with reading(path, kind, mend), zipfile.ZipFile(path) as archive:
        yield Npz(archive)


@contextmanager
def hdf5(path: Path | str, kind: str = "an HDF5 file", mend: str = AGAIN) -> Iterator[h5py.File]:
    """A block with a file that is open to read, with errors as `reading`.

    Raises:
        CorerlError: an array claims more than the file can hold, compressed or not.
    """
    with reading(path, kind, mend), h5py.File(path, "r") as file:
        size = Path(path).stat().st_size
        for name, item in file.items():
            if isinstance(item, h5py.Dataset) and item.nbytes > MOST_COMPRESSED * size:
                raise CorerlError(
                    f"{name} would unpack to {item.nbytes:,} bytes, but the whole file has only "
                    f"{size:,}. The file is damaged: get it again."
                )
        yield file


def check_keys(file: Mapping[str, Any], keys: Iterable[str], whose: str) -> None:
    """Raises CorerlError where a file lacks an array that all files of its kind have."""
    if missing := [key for key in keys if key not in file]:
        raise CorerlError(
            f"it has no {', '.join(missing)}, which {whose} files have. It has {', '.join(file)}."
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


def read_table(path: Path, kind: str) -> Mapping[str, np.ndarray]:
    """Reads the columns by name. An empty cell is NaN. "NA" is text, since an episode may be called so.

    Raises:
        CorerlError: there are no rows, they have more values than names, or Parquet cannot be read here.
    """
    import pandas

    if kind == "csv":
        # pandas' own parser of numbers crashes on exponents such as 1e99900000000.
        table = pandas.read_csv(
            path,
            skipinitialspace=True,
            float_precision="round_trip",
            keep_default_na=False,
            na_values=["", "nan", "NaN"],
            low_memory=False,  # in parts, the same episode may be a number here and a text there
        )
        if len(table.columns) == 1 and (other := re.search(r"[;\t|]", table.columns[0])):
            raise CorerlError(
                f"its columns are separated by {other[0]!r}, but must be separated by commas. Convert it: "
                f"pandas.read_csv(PATH, sep={other[0]!r}).to_csv(PATH, index=False)"
            )
        if not isinstance(table.index, pandas.RangeIndex):
            # It has taken the first values, and all names have moved on.
            named = len(table.columns)
            raise CorerlError(
                f"its first line has {named} names, but a row has "
                f"{named + table.index.nlevels} values. Name every column, write decimals with a "
                "point, and end no line with a comma."
            )
    else:
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise CorerlError(
                'Reading Parquet needs pyarrow: pip install "corerl[parquet]"'
            ) from error
        table = pandas.read_parquet(path, engine="pyarrow")
    if table.empty:
        raise CorerlError(f"it has no rows. Its columns are {', '.join(map(str, table))}.")
    # Beside numbers numpy has no type for times: as objects an error names their place, as that of words.
    times = table.select_dtypes(["datetime", "datetimetz", "timedelta"])
    table = table.astype(dict.fromkeys(times, object))
    return {str(name): table[name].to_numpy() for name in table.columns}


def lines(path: Path) -> list[int]:
    """Returns the line at which each row of a CSV file begins, past blank ones and cells of several lines.

    Fewer than all where Python's reader, which counts lines, cannot read what pandas' can.
    """
    found, begins = [], 1
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with suppress(csv.Error), opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, skipinitialspace=True)
        for row in rows:
            if len(row) > 1 or "".join(row).strip():
                found.append(begins)
            begins = rows.line_num + 1
    return found[1:]


def numbered(table: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """Finds the columns `obs_0, obs_1, ...` (`obs0`, `obs.0`, `obs[0]`) of the first known name, in order."""
    for name in known:
        pattern = re.compile(rf"{name}[_.\[ ]?(\d+)\]?", re.IGNORECASE)
        numbers = {int(m[1]): column for column in table if (m := pattern.fullmatch(column))}
        if numbers:
            return [numbers[i] for i in sorted(numbers)]
    return []


def unpacked(column: np.ndarray) -> np.ndarray:
    """Returns a column of lists as (N, K), any other as it is, (N,)."""
    lists = np.ndarray | list
    if column.dtype != object or not isinstance(column[0], lists):
        return column
    lengths = {len(row) if isinstance(row, lists) else 0 for row in column}
    if len(lengths) > 1:
        raise CorerlError(
            f"the lists in a column must have one length, but have {min(lengths)} to {max(lengths)} "
            "numbers."
        )
    return np.stack([np.asarray(row) for row in column])


# HDF5.


def flattened(file: h5py.File) -> Mapping[str, Any]:
    """Returns an HDF5 file's arrays over all its episodes, with `episode` where they lie apart."""
    if groups := sorted(episodes(file), key=lambda group: _number(group.name)):
        return _joined(map(arrays, groups))
    if "columns" in file and "num_episodes" in file:  # d3rlpy 2
        keys = [key.decode() for key in file["columns"][()]]
        count = int(file["num_episodes"][()])
        return _joined({key: file[f"{key}_{i}"] for key in keys} for i in range(count))
    if "episode_terminals" in file:  # d3rlpy 1
        ends = np.asarray(file["episode_terminals"][()]).reshape(-1).astype(bool)
        cut = ends & ~np.asarray(file["terminals"][()]).reshape(-1).astype(bool)
        return {**{key: file[key] for key in file}, "truncated": cut}
    return arrays(file)


def episodes(file: h5py.File) -> Iterator[h5py.Group]:
    """Finds the groups of episodes. Whatever stands beside them, or beside rewards of all, is no episode."""
    groups = (x for x in file.values() if isinstance(x, h5py.Group) and "rewards" in x)
    return iter(()) if "rewards" in file else groups


def arrays(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Returns the arrays of a group and, as `observations/position`, of the groups in it at any depth."""
    found = {}
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            found |= {f"{name}/{key}": array for key, array in arrays(item).items()}
        else:
            found[name] = item
    return found


def _number(name: str) -> int:
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else 0


def _joined(episodes: Iterator[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Joins episodes one after the other. Where they have a last observation, it is what followed."""
    parts: dict[str, list[np.ndarray]] = {}
    for number, episode in enumerate(episodes):
        steps = len(episode["rewards"])
        rows = {
            key: np.asarray(value[()])
            for key, value in episode.items()
            if isinstance(value, h5py.Dataset)
        }
        for key in [key for key in rows if key.partition("/")[0] == "observations"]:
            if rows[key].ndim and len(states := rows[key]) == steps + 1:
                rows |= {key: states[:-1], f"next_{key}": states[1:]}
        if np.ndim(rows.get("terminated", ())) == 0:  # d3rlpy 2: of the whole episode
            rows["terminated"] = (np.arange(steps) == steps - 1) & bool(rows["terminated"])
        rows["episode"] = np.full(steps, number)
        for key, value in rows.items():
            if value.ndim and len(value) == steps:
                parts.setdefault(key, []).append(value)
    return {key: np.concatenate(value) for key, value in parts.items()}


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
