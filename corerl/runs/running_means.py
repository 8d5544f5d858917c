"""Running means of metrics per seed, kept on the device until they are read."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.config import require
from corerl.runs.trackers import LINE

EPISODIC, KNOWN = "episode_return", "episode_return known"
"""The metric that is NaN where no episode has ended yet, and the count of updates at which it is not."""


class Means:
    """The means of metrics `(seeds,)` over the updates that gave them.

    They are float32, of float64 metrics float64; `EPISODIC`'s is over the updates at which it is known.

    Attributes:
        sums, counts: what the means are made of, by name.
    """

    def __init__(self, seeds: int):
        self._seeds = seeds
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    @torch.no_grad()  # metrics with a graph would keep every update's until the means are taken
    def add(self, metrics: dict[str, Tensor]) -> None:
        """Adds those of an update, which may leave names out.

        Raises:
            CorerlError: a new metric has another shape, or the name of a line's own field.
        """
        if not metrics:
            return
        metrics = _with_known(metrics)
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = self._zeros(name, value)
            self.counts[name] = self.counts.get(name, 0) + 1
        self._move(value.device)
        torch._foreach_add_([self.sums[name] for name in metrics], list(metrics.values()))

    def _zeros(self, name: str, value: Tensor) -> Tensor:
        """Returns the sum of a metric, still zero."""
        require(
            name not in LINE,
            f"Give the metric {name!r} another name, because every line of metrics.jsonl already has "
            f"the key {name}",
        )
        shape = getattr(value, "shape", None)
        found = type(value).__name__ if shape is None else f"{type(value).__name__} {tuple(shape)}"
        require(
            isinstance(value, Tensor) and shape == (self._seeds,),
            f"The metric {name!r} is a {found}, but must be a Tensor of shape ({self._seeds},), with one "
            "number per seed",
        )
        return torch.zeros_like(value, dtype=torch.promote_types(value.dtype, torch.float32))

    def _move(self, device: torch.device) -> None:
        """Moves all sums to where metrics are made: a checkpoint's are on the CPU."""
        if any(total.device != device for total in self.sums.values()):
            self.sums = {name: total.to(device) for name, total in self.sums.items()}

    def on_host(self) -> tuple[list[str], np.ndarray]:
        """Returns the names and their sums `(names, seeds)`: what is NaN or infinite stays that in a sum."""
        sums = list(self.sums.values())
        empty = np.zeros((0, self._seeds))
        return list(self.sums), torch.stack(sums).cpu().numpy() if sums else empty

    def take(self) -> dict[str, list[float | None]]:
        """Returns the means and starts over. None is an `EPISODIC` that was never known."""
        counts = self.counts | {EPISODIC: self.sums.get(KNOWN)}
        means = {
            name: (total / counts[name]).tolist()
            for name, total in self.sums.items()
            if name != KNOWN
        }
        if EPISODIC in means:
            means[EPISODIC] = [None if math.isnan(x) else x for x in means[EPISODIC]]
        self.sums, self.counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        count = state.get("count", 0)  # older checkpoints have one of all metrics
        self.counts = state.get("counts", dict.fromkeys(state["sums"], count) if count else {})
        self.sums = {name: state["sums"][name] for name in self.counts}


def _with_known(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns metrics whose `EPISODIC` is 0 where it is not known, with `KNOWN` 1 where it is."""
    value = metrics.get(EPISODIC)
    if not isinstance(value, Tensor):
        return metrics
    missing = value.isnan()
    return metrics | {EPISODIC: value.masked_fill(missing, 0.0), KNOWN: (~missing).float()}


def not_finite(names: list[str], values: np.ndarray) -> str:
    """Says which metrics of a seed are NaN or infinite: `loss is NaN, q is infinite`."""
    bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
    reported = [f"{names[i]} is {'NaN' if math.isnan(values[i]) else 'infinite'}" for i in bad]
    return ", ".join(
        [*reported[:3], *([f"and {len(reported) - 3} more"] if len(reported) > 3 else [])]
    )
