"""Files of evaluations that are still to be played: `pending/<step>.safetensors` in a group of seeds."""

from contextlib import suppress
from pathlib import Path

from corerl.runs.files import remove_half_written


def path_of(directory: Path, step: int) -> Path:
    """Returns the path of the policies that a group of seeds had after `step`."""
    return directory / "pending" / f"{step}.safetensors"


def steps(directory: Path) -> list[int]:
    """Returns the steps of a group's pending evaluations, sorted."""
    files = (directory / "pending").glob("*.safetensors")
    return sorted(int(file.stem) for file in files if file.stem.isdecimal())


def discard(directory: Path, after: int = 0) -> None:
    """Deletes a group's pending evaluations after a step, and the folder where it is empty."""
    remove_half_written(directory / "pending")
    for step in steps(directory):
        if step > after:
            path_of(directory, step).unlink(missing_ok=True)
    with suppress(OSError):  # others are left
        (directory / "pending").rmdir()


def described(run: Path) -> str:
    """Returns two short sentences: evaluations of a run are pending, and the command that plays them."""
    return f"Some evaluations are pending. Play them with: corerl evaluate {run} --pending"
