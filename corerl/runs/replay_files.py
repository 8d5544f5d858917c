"""A replay on the disk: its steps in files that are written once, which checkpoints name.

A replay of a million steps of ten seeds is 1.7 GB, of which little is new since the last checkpoint. So
every checkpoint adds a file with the new steps and names those of all that the replay still holds. A
file is deleted once no checkpoint beside it names it.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from torch import Tensor

from corerl.runs import tensorfile
from corerl.runs.files import make_directory

PART_BYTES = 64 * 2**20
"""Most bytes of a file, so that reading one takes little memory beside what is put together."""
METADATA = "history"
"""The entry of a checkpoint's metadata that names the files."""


class Ring(Tensor):
    """The filled places `(S, n, ...)` of a ring of `capacity` steps, after `added` steps in all.

    In a `state_dict` it stands for a tensor that only `ReplayFiles` knows to save by its new steps. Step t
    lies at place `t % capacity` and must never change while it is there.
    """

    added: int
    capacity: int
    __torch_function__ = (
        torch._C._disabled_torch_function_impl
    )  # what is computed of it is a Tensor

    @classmethod
    def of(cls, places: Tensor, added: int) -> "Ring":
        """Returns the filled part of `places` `(S, capacity, ...)`, as a view."""
        ring = places[:, : min(added, places.shape[1])].as_subclass(cls)
        ring.added, ring.capacity = added, places.shape[1]
        return ring


class Part(NamedTuple):
    """A file with the steps `first` to `last - 1` of every ring, which lie side by side there."""

    first: int
    last: int
    file: str
    checksum: str


class ReplayFiles:
    """The parts of one run's rings, all of one capacity and filled together.

    Args:
        folder: where the files lie; made when there is one to write.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.added, self.capacity = 0, 1
        self.parts: list[Part] = []

    def extend(self, rings: dict[str, Ring]) -> None:
        """Writes the steps that no part holds yet, and forgets parts that are overwritten altogether.

        Raises:
            CorerlError: the disk is full, or the folder cannot be written.
        """
        ((self.added, self.capacity),) = {(ring.added, ring.capacity) for ring in rings.values()}
        oldest = max(0, self.added - self.capacity)
        self.parts = [part for part in self.parts if part.last > oldest]
        first = max(oldest, self.parts[-1].last if self.parts else 0)
        if first < self.added:
            make_directory(self.folder)
        step_bytes = sum(ring[:, :1].nbytes for ring in rings.values())
        most = max(1, PART_BYTES // step_bytes)
        while first < self.added:
            place = first % self.capacity
            count = min(self.added - first, self.capacity - place, most)
            self._write(first, {k: ring[:, place : place + count] for k, ring in rings.items()})
            first += count

    def _write(self, first: int, steps: dict[str, Tensor]) -> None:
        last = first + next(iter(steps.values())).shape[1]
        name = f"{first:010}-{last:010}.safetensors"
        checksum = tensorfile.write(self.folder / name, steps, {})
        self.parts.append(Part(first, last, name, checksum))

    def metadata(self) -> dict[str, str]:
        """Returns what a checkpoint's metadata says of it."""
        reported = {"added": self.added, "capacity": self.capacity, "parts": self.parts}
        return {METADATA: json.dumps(reported)} if self.parts else {}

    def adopt(self, metadata: dict[str, str]) -> None:
        """Continues with the parts that a checkpoint names."""
        reported = _reported(metadata)
        self.added, self.capacity = reported["added"], reported["capacity"]
        self.parts = [Part(*part) for part in reported["parts"]]

    def read(self) -> dict[str, Tensor]:
        """Returns each ring's filled places `(S, n, ...)` on the CPU, read a part at a time.

        Raises:
            ValueError, OSError, SafetensorError: a part is missing or damaged.
        """
        rings: dict[str, Tensor] = {}
        for part in self.parts:
            for key, steps in self._steps_of(part):
                if key not in rings:
                    size = min(self.added, self.capacity)
                    rings[key] = steps.new_empty(steps.shape[0], size, *steps.shape[2:])
                place = part.first % self.capacity
                rings[key][:, place : place + steps.shape[1]] = steps
        return rings

    def _steps_of(self, part: Part) -> Iterator[tuple[str, Tensor]]:
        path = self.folder / part.file
        try:
            if tensorfile.check(path) != part.checksum:
                raise ValueError("it belongs to another checkpoint")
            with safetensors.safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    yield key, file.get_tensor(key)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise ValueError(f"{self.folder.name}/{part.file}: {error}") from error

    def prune(self) -> None:
        """Deletes files that no checkpoint in the folder above names. One that cannot be read keeps all."""
        named = {part.file for part in self.parts}
        try:
            for path in self.folder.parent.glob("*.safetensors"):
                with safetensors.safe_open(path, framework="pt") as file:
                    named |= {part[2] for part in _reported(file.metadata() or {})["parts"]}
        except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError):
            return
        for path in self.folder.glob("*"):
            if path.name not in named:
                with suppress(OSError):
                    path.unlink()


def _reported(metadata: dict[str, str]) -> dict:
    return json.loads(metadata.get(METADATA, '{"added": 0, "capacity": 1, "parts": []}'))
