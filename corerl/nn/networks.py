"""Layers and networks with a leading seed axis.

`lead` is the shape of independent copies in front of every weight: `(S,)` for one network per seed,
`(S, 2)` for twin critics, `(S, N)` for an ensemble. Inputs are `(*lead, B, features)`, or have size 1
where a copy axis is shared, as in `critic(x[:, None])`. One layer of all copies is one batched
matrix product.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.nn import fused_linear

Init = Callable[[Tensor, Tensor, torch.Generator], None]
"""Fills one copy's weight `(in, out)` and bias `(out,)` in place."""


def torch_init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """Initialises as `torch.nn.Linear` does: both uniform on ±1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(weight.shape[0])
    weight.uniform_(-bound, bound, generator=rng)
    bias.uniform_(-bound, bound, generator=rng)


def orthogonal(gain: float = math.sqrt(2)) -> Init:
    """Initialises: orthogonal weights times `gain`, zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        nn.init.orthogonal_(weight, gain, generator=rng)
        bias.zero_()

    return init


def uniform(bound: float | None = None, bias: float | None = None, fan: str = "in") -> Init:
    """Initialises: weights on ±`bound` or 1/sqrt of inputs (`fan="in"`) or outputs. Bias `bias`, or alike."""

    def init(weight: Tensor, bias_: Tensor, rng: torch.Generator) -> None:
        limit = 1 / math.sqrt(weight.shape[fan == "out"]) if bound is None else bound
        weight.uniform_(-limit, limit, generator=rng)
        if bias is None:
            bias_.uniform_(-limit, limit, generator=rng)
        else:
            bias_.fill_(bias)

    return init


def xavier(gain: float = 1.0) -> Init:
    """Initialises: Glorot's uniform weights times `gain`, zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        nn.init.xavier_uniform_(weight, gain, generator=rng)
        bias.zero_()

    return init


def normal(std: float) -> Init:
    """Initialises: weights of N(0, std^2), zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        weight.normal_(0, std, generator=rng)
        bias.zero_()

    return init


def lecun(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """Initialises as Flax's `lecun_normal`: cut at two deviations, of variance 1/fan_in after the cut."""
    std = weight.shape[0] ** -0.5 / 0.87962566103423978
    nn.init.trunc_normal_(weight, 0, std, -2 * std, 2 * std, generator=rng)
    bias.zero_()


def variance_scaling(scale: float) -> Init:
    """Initialises: uniform weights of variance `scale / fan_in`, zero bias (Dopamine: scale 1/sqrt(3))."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        uniform(math.sqrt(3 * scale / weight.shape[0]), bias=0.0)(weight, bias, rng)

    return init


class Linear(nn.Module):
    """`x @ weight + bias` for every copy at once: weight `(*lead, in, out)`, bias `(*lead, 1, out)`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        init: Init = torch_init,
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*lead, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(*lead, 1, out_features))
        with torch.no_grad():
            for seed, rng in enumerate(rngs):
                weights = self.weight[seed].reshape(-1, in_features, out_features)
                biases = self.bias[seed].reshape(-1, out_features)
                for weight, bias in zip(weights, biases, strict=True):
                    init(weight, bias, rng)

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Maps `(*lead, B, in)` to `(*lead, B, out)`. With `relu` negative numbers become 0."""
        lead, (inputs, outputs) = self.weight.shape[:-2], self.weight.shape[-2:]
        batch = x.shape[-2]
        out = fused_linear.linear(
            x.expand(*lead, batch, inputs).reshape(-1, batch, inputs),
            self.weight.view(-1, inputs, outputs),
            self.bias.view(-1, 1, outputs),
            relu,
        )
        return out.view(*lead, batch, outputs)


class SharedLinear(Linear):
    """One layer that all copies share: `(S, N, B, in)` to `(S, N, B, out)`, weight `(S, 1, in, out)`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rngs: Sequence[torch.Generator],
        init: Init = torch_init,
    ):
        super().__init__(in_features, out_features, (len(rngs), 1), rngs, init)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, 2)[:, None]
        return super().forward(rows).squeeze(1).unflatten(1, x.shape[1:3])


class LayerNorm(nn.Module):
    """Layer normalisation over features, with scale and shift per copy."""

    def __init__(self, features: int, lead: tuple[int, ...], eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*lead, 1, features))
        self.bias = nn.Parameter(torch.zeros(*lead, 1, features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight + self.bias


class PlainLayerNorm(nn.Module):
    """Layer normalisation over features, without scale and shift."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)


class NormedLinear(nn.Module):
    """A linear layer and the layer normalisation of its output."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        init: Init = torch_init,
    ):
        super().__init__()
        self.linear = Linear(inputs, outputs, lead, rngs, init)
        self.norm = LayerNorm(outputs, lead)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


class WithoutLast(nn.Module):
    """Drops the last feature of an observation, for networks that are not to see it."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations[..., :-1]


class MLP(nn.Module):
    """A multi-layer perceptron per copy: `(*lead, B, sizes[0])` to `(*lead, B, sizes[-1])`.

    Args:
        sizes: features of the input, of each hidden layer, and of the output.
        lead: the copies; `lead[0]` is the seed axis.
        rngs: one CPU generator per seed for the initial weights.
        init, output_init: initialisation of the hidden layers and of the last one.
        layer_norm: epsilon of a LayerNorm after each hidden activation; None for none.
        norm_first: that LayerNorm stands before the activation instead.
        plain_norm: it has neither scale nor shift.
        activation: applied to every hidden layer.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        *,
        init: Init = torch_init,
        output_init: Init | None = None,
        layer_norm: float | None = None,
        norm_first: bool = False,
        plain_norm: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
    ):
        super().__init__()
        inits = [init] * (len(sizes) - 2) + [output_init or init]
        self.layers = nn.ModuleList(
            Linear(a, b, lead, rngs, layer_init)
            for a, b, layer_init in zip(sizes[:-1], sizes[1:], inits, strict=True)
        )
        if layer_norm is None:
            norms = [nn.Identity() for _ in sizes[1:-1]]
        elif plain_norm:
            norms = [PlainLayerNorm(layer_norm) for _ in sizes[1:-1]]
        else:
            norms = [LayerNorm(n, lead, layer_norm) for n in sizes[1:-1]]
        self.norms = nn.ModuleList(norms)
        self.activation = activation
        self.norm_first = norm_first

    def forward(self, x: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Maps `x`. `keep` holds a multiplier per hidden layer (a dropout mask), `(*lead, B, features)`."""
        for i in range(len(self.norms)):
            x = self._hidden(x, i)
            if keep is not None:
                x = x * keep[i]
        return self.layers[-1](x)

    def _hidden(self, x: Tensor, i: int) -> Tensor:
        """Returns the output of hidden layer `i`, after activation and normalisation."""
        layer, norm = self.layers[i], self.norms[i]
        relu_first = isinstance(norm, nn.Identity) or not self.norm_first
        if self.activation is F.relu and relu_first and type(layer) is Linear:
            return norm(layer(x, relu=True))
        return self._finish(layer(x), i)

    def _finish(self, x: Tensor, i: int) -> Tensor:
        norm = self.norms[i]
        return self.activation(norm(x)) if self.norm_first else norm(self.activation(x))


def dropout_masks(uniforms: Tensor, rate: float) -> Tensor:
    """Returns multipliers for `MLP.forward(keep=...)` from uniform draws: 0 or 1/(1 - rate)."""
    return (uniforms >= rate).to(uniforms.dtype) / (1 - rate)


def layer_masks(uniforms: Tensor | None, rate: float) -> tuple[Tensor, ...] | None:
    """Returns a mask for each hidden layer from draws `(S, layers, B, width)`. None is without dropout."""
    return None if uniforms is None else dropout_masks(uniforms, rate).unbind(1)


class Buffers(nn.Module):
    """Holds tensors that a learner's state has and no optimiser moves, as attributes."""

    def __init__(self, **tensors: Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


class Normalizer(nn.Module):
    """`(x - mean) / std` with the dataset's statistics, a part of the agent's state.

    A reloaded policy therefore acts as the saved one did. Both buffers have the observation's shape.
    """

    def __init__(self, mean: Tensor, std: Tensor):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def of(cls, mean: np.ndarray, std: np.ndarray) -> "Normalizer":
        """Builds a normalizer from numpy statistics of any float type."""
        return cls(
            torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(std, dtype=torch.float32)
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def of_array(self, x: np.ndarray) -> np.ndarray:
        """Normalises float32 observations `(..., *shape)` on the host."""
        mean, std = (statistic.cpu().numpy() for statistic in (self.mean, self.std))
        return (x - mean) / std


class Scalar(nn.Module):
    """One learned number per seed, `(S,)`, such as a log-temperature or a Lagrange multiplier."""

    def __init__(self, value: float, seeds: int):
        super().__init__()
        self.value = nn.Parameter(torch.full((seeds,), value))

    def forward(self) -> Tensor:
        return self.value


class SoftplusScalar(Scalar):
    """A learned positive number per seed, `(S,)`: a softplus that starts at 1."""

    def __init__(self, seeds: int):
        super().__init__(math.log(math.e - 1), seeds)

    def forward(self) -> Tensor:
        return F.softplus(self.value)
