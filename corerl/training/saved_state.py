"""The parts of a run that a checkpoint holds: agent, buffer, streams of random numbers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl import seeding
from corerl.config import require
from corerl.errors import CorerlError, first_line
from corerl.runs import checkpoint

Parts = dict[str, Any]
"""By name, each with `state_dict` and `load_state_dict`."""


def tensors(parts: Parts) -> list[Tensor]:
    """Returns the tensors of the whole state, which a first checkpoint after hours must not refuse.

    Raises:
        CorerlError: a part has no state.
    """
    for name, part in parts.items():
        require(
            hasattr(part, "state_dict") and hasattr(part, "load_state_dict"),
            f"run.steps cannot save {name}, a {type(part).__name__} without state_dict and "
            "load_state_dict. Make it an attribute of the agent, whose class derives from Stateful",
        )
    state = {name: part.state_dict() for name, part in parts.items()}
    return list(checkpoint.tensors_of(state).values())


def streams_beside(parts: Parts, streams: dict[str, seeding.Stream]) -> Parts:
    """Returns, as parts, the streams of random numbers that no part keeps."""
    kept, found = tensors(parts), {}
    for purpose, stream in streams.items():
        mine = stream.state_dict()["generators"]
        alike = [x for x in kept if (x.shape, x.device) == (mine.shape, mine.device)]
        if not any(torch.equal(mine, x) for x in alike):
            found[f"stream {purpose}"] = stream
    return found


def restore(parts: Parts, saved: dict[str, Any]) -> None:
    """Gives every part the state that was saved under its name."""
    for name, part in parts.items():
        part.load_state_dict(saved[name])


@contextmanager
def readable(path: Path, device: torch.device) -> Iterator[None]:
    """Raises CorerlError where the checkpoint at `path` does not fit this code or this `device`."""
    try:
        yield
    except seeding.OtherDevice as error:
        other = "cpu" if device.type == "cuda" else "cuda"
        raise CorerlError(
            f"{path} was started on another kind of device, with other random numbers. "
            f"Resume with device={other}, or delete {path.parent} to start over."
        ) from error
    except (KeyError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise CorerlError(
            f"{path} was saved by different code ({reason}). Finish the run with the code that "
            f"saved it, or delete {path.parent} to start over."
        ) from error


def end_cut_episodes(parts: Iterable[Any]) -> None:
    """Tells what remembers running episodes which of them cannot continue (`environments.Cut`)."""
    parts = list(parts)
    for cut in [part.cut for part in parts if getattr(part, "cut", None) is not None]:
        for part in parts:
            if hasattr(part, "end_episodes"):
                part.end_episodes(*cut)
