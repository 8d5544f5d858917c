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

Init = Callable[[Tensor, Tensor, torch.Generator], None]
"""Fills one copy's weight `(in, out)` and bias `(out,)` in place."""


def torch_init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """`torch.nn.Linear`'s own: both uniform on ±1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(weight.shape[0])
    weight.uniform_(-bound, bound, generator=rng)
    bias.uniform_(-bound, bound, generator=rng)


def orthogonal(gain: float = math.sqrt(2)) -> Init:
    """Orthogonal weights times `gain`, zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        nn.init.orthogonal_(weight, gain, generator=rng)
        bias.zero_()

    return init


def uniform(bound: float | None = None, bias: float | None = None) -> Init:
    """Weights on ±`bound` (default 1/sqrt(fan_in)); bias the constant `bias`, or on ±`bound`."""

    def init(weight: Tensor, bias_: Tensor, rng: torch.Generator) -> None:
        limit = 1 / math.sqrt(weight.shape[0]) if bound is None else bound
        weight.uniform_(-limit, limit, generator=rng)
        if bias is None:
            bias_.uniform_(-limit, limit, generator=rng)
        else:
            bias_.fill_(bias)

    return init


def xavier(gain: float = 1.0) -> Init:
    """Glorot's uniform weights times `gain`, zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        nn.init.xavier_uniform_(weight, gain, generator=rng)
        bias.zero_()

    return init


def normal(std: float) -> Init:
    """Weights of N(0, std^2), zero bias."""

    def init(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
        weight.normal_(0, std, generator=rng)
        bias.zero_()

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

    def forward(self, x: Tensor) -> Tensor:
        lead, (inputs, outputs) = self.weight.shape[:-2], self.weight.shape[-2:]
        batch = x.shape[-2]
        # Not baddbmm: it first copies the bias to the whole output, which a compiler cannot fuse away.
        product = torch.bmm(
            x.expand(*lead, batch, inputs).reshape(-1, batch, inputs),
            self.weight.view(-1, inputs, outputs),
        )
        return product.view(*lead, batch, outputs) + self.bias


class LayerNorm(nn.Module):
    """Layer normalisation over features, with scale and shift per copy."""

    def __init__(self, features: int, lead: tuple[int, ...], eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*lead, 1, features))
        self.bias = nn.Parameter(torch.zeros(*lead, 1, features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight + self.bias


class MLP(nn.Module):
    """A multi-layer perceptron per copy: `(*lead, B, sizes[0])` to `(*lead, B, sizes[-1])`.

    Args:
        sizes: features of the input, of each hidden layer, and of the output.
        lead: the copies; `lead[0]` is the seed axis.
        rngs: one CPU generator per seed for the initial weights.
        init, output_init: initialisation of the hidden layers and of the last one.
        layer_norm: epsilon of a LayerNorm after each hidden activation; None for none.
        norm_first: that LayerNorm stands before the activation instead.
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
        activation: Callable[[Tensor], Tensor] = F.relu,
    ):
        super().__init__()
        inits = [init] * (len(sizes) - 2) + [output_init or init]
        self.layers = nn.ModuleList(
            Linear(a, b, lead, rngs, layer_init)
            for a, b, layer_init in zip(sizes[:-1], sizes[1:], inits, strict=True)
        )
        hidden = sizes[1:-1]
        self.norms = nn.ModuleList(
            nn.Identity() if layer_norm is None else LayerNorm(n, lead, layer_norm) for n in hidden
        )
        self.activation = activation
        self.norm_first = norm_first

    def forward(self, x: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """`keep` holds one multiplier per hidden layer (a dropout mask), `(*lead, B, features)`."""
        for i, (layer, norm) in enumerate(zip(self.layers[:-1], self.norms, strict=True)):
            x = layer(x)
            x = self.activation(norm(x)) if self.norm_first else norm(self.activation(x))
            if keep is not None:
                x = x * keep[i]
        return self.layers[-1](x)


def dropout_masks(uniforms: Tensor, rate: float) -> Tensor:
    """Multipliers for `MLP.forward(keep=...)` from uniform draws: 0 or 1/(1 - rate)."""
    return (uniforms >= rate).to(uniforms.dtype) / (1 - rate)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, summed over the last axis."""
    scaled = (value - mean) * torch.exp(-log_std)
    return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


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
        """From numpy statistics of any float type."""
        return cls(
            torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(std, dtype=torch.float32)
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class TanhGaussian(nn.Module):
    """A squashed Gaussian policy, a = tanh(u): u is normal with mean and log-std from the state.

    Haarnoja et al. 2018 (arXiv:1801.01290), appendix C. The last layer yields mean and log-std.

    Args:
        sizes: features of the observation, of each hidden layer, and of the action.
        lead, rngs, init, output_init: as for `MLP`.
        log_std_min, log_std_max: the log-std is clamped to this range.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        *,
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        init: Init = torch_init,
        output_init: Init | None = None,
    ):
        super().__init__()
        sizes = [*sizes[:-1], 2 * sizes[-1]]
        self.body = MLP(sizes, lead, rngs, init=init, output_init=output_init)
        self.limits = (log_std_min, log_std_max)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std of u, each `(*lead, B, A)`."""
        mean, log_std = self.body(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*self.limits)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `(*lead, B, A)` and their log-densities `(*lead, B)`; `noise` is standard normal."""
        return squash(*self(observations), noise)

    def mode(self, observations: Tensor) -> Tensor:
        """tanh of the mean, `(*lead, B, A)`: the action to evaluate."""
        return torch.tanh(self(observations)[0])

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-density `(*lead, B)` of given actions; those at ±1 count as the nearest inside."""
        limit = 1 - 2**-20  # a power of two, which float32 holds exactly
        u = torch.atanh(actions.clamp(-limit, limit))
        return gaussian_log_prob(*self(observations), u) - log_tanh_slope(u).sum(-1)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise) `(..., A)` and its log-density `(...)`, for any broadcast of shapes."""
    u = mean + torch.exp(log_std) * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.tanh(u), (gaussian - log_tanh_slope(u)).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), exact also where tanh(u) rounds to 1."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


class Scalar(nn.Module):
    """One learned number per seed, `(S,)`, such as a log-temperature or a Lagrange multiplier."""

    def __init__(self, value: float, seeds: int):
        super().__init__()
        self.value = nn.Parameter(torch.full((seeds,), value))

    def forward(self) -> Tensor:
        return self.value


class Table(nn.Module):
    """An embedding per seed: numbers `(S, ...)` below `size` to `(S, ..., features)`."""

    def __init__(
        self,
        size: int,
        features: int,
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        std: float = 1.0,
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*lead, size, features))
        with torch.no_grad():
            for weight, rng in zip(self.weight, rngs, strict=True):
                weight.normal_(0, std, generator=rng)

    def forward(self, numbers: Tensor) -> Tensor:
        seeds, size, _ = self.weight.shape
        first = torch.arange(0, seeds * size, size, device=numbers.device)
        rows = numbers + first.view(-1, *[1] * (numbers.ndim - 1))
        return F.embedding(rows, self.weight.flatten(0, 1))
