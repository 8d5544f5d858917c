"""What stands between the layers of an algorithm's own perceptrons, as settings."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from corerl.config import Settings, added, one_of

ACTIVATIONS = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # JAX's default
    "elu": F.elu,
    "silu": F.silu,
}


@dataclass
class Hidden(Settings):
    """A base of the `Config` of an algorithm whose networks are rectified perceptrons."""

    activation: str = added(one_of(*ACTIVATIONS))
    layer_norm: bool = added(False)  # after every hidden activation

    @property
    def between(self) -> dict[str, Any]:
        """Options of `MLP`, and of what is made of one."""
        return {
            "activation": ACTIVATIONS[self.activation],
            "layer_norm": 1e-5 if self.layer_norm else None,
        }
