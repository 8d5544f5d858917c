"""Features of images and of vectors for value networks, with a leading seed axis.

All seeds' convolutions are one grouped convolution: inputs `(B, S * channels, H, W)` with S groups.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.nn import networks

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, side of the kernel and stride of each layer (Mnih et al. 2015)."""


def smallest(padding: str) -> int:
    """Returns the height and width that an image must have for these convolutions."""
    size = 1
    for _, side, stride in NATURE[::-1] if padding == "valid" else ():
        size = (size - 1) * stride + side
    return size


class Convolution(nn.Module):
    """A convolution per seed: `(B, S * in, H, W)` to `(B, S * out, H', W')`.

    Args:
        inputs, outputs: channels of one seed. side, stride: of the kernel.
        rngs: one CPU generator per seed for the initial weights; the fan-in is `inputs * side**2`.
        padding: `same`, TensorFlow's: H' = ceil(H / stride), the odd row of zeros at the bottom and
            right; or `valid`, none.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        side: int,
        stride: int,
        rngs: Sequence[torch.Generator],
        *,
        init: networks.Init = networks.torch_init,
        padding: str = "valid",
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(len(rngs), outputs, inputs, side, side))
        self.bias = nn.Parameter(torch.empty(len(rngs), outputs))
        self._stride, self._same = stride, padding == "same"
        with torch.no_grad():
            for weight, bias, rng in zip(self.weight, self.bias, rngs, strict=True):
                flat = torch.empty(inputs * side**2, outputs)
                init(flat, bias, rng)
                weight.copy_(flat.T.view_as(weight))

    def forward(self, x: Tensor) -> Tensor:
        if self._same:
            rows, columns = (self._missing(size) for size in x.shape[-2:])
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return F.conv2d(x, weight, bias, self._stride, groups=len(self.weight))

    def _missing(self, size: int) -> int:
        """Zeros to add to `size` pixels for an output of ceil(size / stride)."""
        return max(0, (-(-size // self._stride) - 1) * self._stride + self.weight.shape[-1] - size)


class Encoder(nn.Module):
    """`(S, B, *shape)` to `(S, B, features)`, none negative unless `activation` makes them so.

    Images `(channels, height, width)` pass through the Nature convolutions first, bytes scaled to [0, 1]
    and floats as they are; vectors go straight to the dense layers.

    Args:
        shape: of an observation. layers, width: dense layers; images can do without (0).
        rngs, init: as for `networks.MLP`, for every layer. padding: of the convolutions.
        activation, layer_norm: of every dense layer, the last included.
    """

    def __init__(
        self,
        shape: Sequence[int],
        layers: int,
        width: int,
        rngs: Sequence[torch.Generator],
        *,
        init: networks.Init = networks.torch_init,
        padding: str = "valid",
        activation: Callable[[Tensor], Tensor] = F.relu,
        layer_norm: float | None = None,
    ):
        super().__init__()
        self.convolutions = nn.ModuleList()
        inputs = shape[0]
        for outputs, side, stride in NATURE if len(shape) == 3 else ():
            layer = Convolution(inputs, outputs, side, stride, rngs, init=init, padding=padding)
            self.convolutions.append(layer)
            inputs = outputs
        if self.convolutions:
            with torch.no_grad():
                inputs = self._convolve(torch.zeros(len(rngs), 1, *shape)).shape[-1]
        self.dense = None
        if layers:
            options = {"init": init, "activation": activation, "layer_norm": layer_norm}
            self.dense = networks.MLP([inputs, *[width] * layers], (len(rngs),), rngs, **options)
        normed = layers and layer_norm is not None
        self.norm = networks.LayerNorm(width, (len(rngs),), layer_norm) if normed else nn.Identity()
        self.activation = activation
        self.features = width if layers else inputs

    def forward(self, observations: Tensor) -> Tensor:
        x = self._convolve(observations) if self.convolutions else observations
        return x if self.dense is None else self.norm(self.activation(self.dense(x)))

    def _convolve(self, images: Tensor) -> Tensor:
        seeds, batch = images.shape[:2]
        x = images.transpose(0, 1).flatten(1, 2).to(self.convolutions[0].weight.dtype)
        x = x if images.is_floating_point() else x / 255
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return x.reshape(batch, seeds, -1).transpose(0, 1)
