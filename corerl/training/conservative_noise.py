"""What an update of Cal-QL, and of WSRL in pre-training, draws from."""

from typing import Any

from torch import Tensor

from corerl.nn.conservative import CQLNoise
from corerl.training.run import Run


class ConservativeNoise:
    """Normal noise, uniform proposals, and uniform numbers that choose critics, for each update.

    Args:
        cfg: the algorithm's, with `batch_size`, `samples`, `max_backup` and `critics`.

    Attributes:
        streams: by their names in a checkpoint.
    """

    def __init__(self, cfg: Any, run: Run, action_dim: int):
        per_action = (cfg.batch_size, action_dim)
        self._counts = counts(cfg)
        self.streams = {
            "noise": run.normal("noise", sum(self._counts), *per_action, block=32),
            "uniforms": run.uniform("uniform", cfg.samples, *per_action, block=32),
            "asked": run.uniform("asked", 2, cfg.critics),
        }

    def next(self) -> tuple[CQLNoise, Tensor, Tensor]:
        """Returns noise, proposals `(S, samples, B, A)` and numbers for two subsets `(S, 2, critics)`."""
        noise, uniforms, subsets = (stream.next() for stream in self.streams.values())
        return CQLNoise(*noise.split(self._counts, 1)), uniforms, subsets


def counts(cfg: Any) -> list[int]:
    """Returns K of each field of `Noise`."""
    return [1, cfg.samples if cfg.max_backup else 1, cfg.samples, cfg.samples]
