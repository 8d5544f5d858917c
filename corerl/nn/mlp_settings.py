"""Settings of an algorithm's ordinary multilayer perceptrons: activation and LayerNorm."""

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
    "mish": F.mish,
}


def activation(default: str) -> Any:
    """Declares the activation of an algorithm whose default is another than MLPSettings'."""
    return one_of(default, *(name for name in ACTIVATIONS if name != default))


@dataclass
class MLPSettings(Settings):
    """Base of the `Config` of an algorithm whose networks are ordinary multilayer perceptrons."""

    activation: str = added(one_of(*ACTIVATIONS))  # activation of the hidden layers
    layer_norm: bool = added(False)  # LayerNorm after every hidden activation

    @property
    def mlp_options(self) -> dict[str, Any]:
        """Returns the options of `MLP`, and of networks that are made of one."""
        return {
            "activation": ACTIVATIONS[self.activation],
            "layer_norm": 1e-5 if self.layer_norm else None,
        }
