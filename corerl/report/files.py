"""Files that are either there in full or not at all."""

import os
from pathlib import Path


def write(path: Path, content: str | bytes) -> Path:
    """Write a file through a neighbour and a rename, so that a kill never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
