"""A file of lines that is resumed at the line of a step."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from corerl.errors import CorerlError
from corerl.runs.files import append_lines, write_atomically


class Log:
    """A file of lines that only grows, and whose length and content a checkpoint vouches for.

    Raises:
        CorerlError: the disk is full, a folder is in its place, or somebody else removed, cut or wrote to
            the file.
    """

    def __init__(self, path: Path):
        if path.is_dir():
            raise CorerlError(
                f"{path} is a folder, but the run writes a file of this name. Move the folder away."
            )
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._size, self._sha = 0, hashlib.sha256()

    @property
    def empty(self) -> bool:
        return self._size == 0

    def begin_anew(self) -> None:
        self.path.unlink(missing_ok=True)
        self._forget()

    def append(self, lines: Iterable[str]) -> None:
        lines = list(lines)
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._size:
            raise CorerlError(
                f"Another program removed, shortened or changed {self.path} during this run "
                f"({size} bytes, but the run wrote {self._size}). Run the same command to resume "
                "from the last checkpoint."
            )
        append_lines(self.path, lines)
        self._count("".join(line + "\n" for line in lines).encode())

    def _count(self, content: bytes) -> None:
        self._size += len(content)
        self._sha.update(content)

    def state_dict(self) -> dict[str, Any]:
        """Describes the content and flushes it to the disk, so that a checkpoint may count on it."""
        if self._size:
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        return {"bytes": self._size, "sha256": self._sha.hexdigest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cuts what was written after the checkpoint. It will be computed again.

        If the file is missing, prints a warning and starts an empty one.
        """
        self._forget()
        if state["bytes"] and not self.path.exists():
            print(
                f"corerl: {self.path} is missing, so its lines before the last checkpoint are lost. "
                "A new file starts at that checkpoint",
                file=sys.stderr,
            )
            return
        content = self.path.read_bytes() if self.path.exists() else b""
        kept = content[: state["bytes"]]
        self._count(kept)
        if self._sha.hexdigest() != state["sha256"]:
            raise CorerlError(
                f"{self.path} is damaged: its first {state['bytes']} bytes have changed since the last "
                "checkpoint. Restore a copy, or delete the file to resume without its history."
            )
        if len(content) > len(kept):
            write_atomically(self.path, kept)

    def cut_after(self, step: int, step_of: Callable[[str], int | None]) -> None:
        """Drops lines after `step`, for a checkpoint that does not vouch for logs: `step_of(line)` gives a
        line's step, and None for one to keep regardless (a header). A line that was cut short goes too.
        """
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        try:
            steps = [step_of(line) for line in whole]
            kept = [line for line, at in zip(whole, steps, strict=True) if at is None or at <= step]
        except (ValueError, LookupError, TypeError) as error:
            raise CorerlError(
                f"{self.path} is damaged ({error!r}). Restore a copy, or delete the file to resume "
                "without its history."
            ) from error
        self._forget()
        content = "".join(kept).encode()
        self._count(content)
        if content != text.encode():
            write_atomically(self.path, content)
